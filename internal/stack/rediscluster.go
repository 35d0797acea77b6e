package stack

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// hashSlots is the number of hash slots of a Redis Cluster.
const hashSlots = 16384

// clusterNodeTimeout is how long a server of a cluster may be silent before the others call it failed,
// in milliseconds.
const clusterNodeTimeout = 2000

// RedisCluster is a Redis Cluster whose servers are child processes. Each primary has an equal share of
// the hash slots. The other slots stay in use while a primary is down.
type RedisCluster struct {
	Nodes []*Server // the primaries in the order of their slots, then the first replica of each, and so on
}

// StartRedisCluster starts a Redis Cluster for fault tests with its data in dir, and returns when every
// server knows all slots and every replica has the data of its primary.
func StartRedisCluster(ctx context.Context, dir string, primaries, replicas int) (*RedisCluster, error) {
	bins, err := Options{Redis: true}.programs(ctx)
	if err != nil {
		return nil, err
	}
	return startRedisCluster(ctx, &home{path: dir}, bins.redis, primaries, replicas)
}

func startRedisCluster(ctx context.Context, h *home, program string, primaries, replicas int) (*RedisCluster, error) {
	c := &RedisCluster{Nodes: make([]*Server, primaries*(1+replicas))}
	starts, startCtx := errgroup.WithContext(ctx)
	for i := range c.Nodes {
		starts.Go(func() (err error) {
			c.Nodes[i], err = startClusterNode(startCtx, h, program, i+1)
			return err
		})
	}
	err := starts.Wait()
	if err == nil {
		err = c.Form(ctx, primaries)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redis cluster: %w", err), c.Close())
	}
	return c, nil
}

// startClusterNode starts a server that knows no other one yet.
func startClusterNode(ctx context.Context, h *home, program string, number int) (*Server, error) {
	s, err := startRedis(ctx, h, fmt.Sprintf("redis-%d", number), program, func() []string {
		bus, err := freePort()
		if err != nil {
			bus = 0 // Redis refuses to start
		}
		return RedisClusterArgs(bus)
	})
	if err != nil {
		return nil, fmt.Errorf("server %d: %w", number, err)
	}
	return s, nil
}

// RedisClusterArgs returns the arguments of a redis-server that make it a server of a cluster. bus is its
// port for the other servers.
func RedisClusterArgs(bus int) []string {
	return []string{
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", strconv.Itoa(clusterNodeTimeout), "--cluster-require-full-coverage", "no",
	}
}

// Form makes one cluster of servers that know no other one. The first ones become primaries.
func (c *RedisCluster) Form(ctx context.Context, primaries int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("no cluster within %v", readyWithin))
	defer cancel()
	clients, ids := make([]*redis.Client, len(c.Nodes)), make([]string, len(c.Nodes))
	for i := range c.Nodes {
		client := c.Client(i)
		defer func() { _ = client.Close() }() // its commands have ended
		clients[i] = client
		if err := client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		var err error
		if ids[i], err = client.Do(ctx, "cluster", "myid").Text(); err != nil {
			return err
		}
		if i < primaries {
			first, last := hashSlots*i/primaries, hashSlots*(i+1)/primaries-1
			if err := client.ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
				return err
			}
		}
		bus, err := client.ConfigGet(ctx, "cluster-port").Result()
		if err != nil {
			return err
		}
		port := strconv.Itoa(c.Nodes[i].Port)
		if err := clients[0].Do(ctx, "cluster", "meet", "127.0.0.1", port, bus["cluster-port"]).Err(); err != nil {
			return err
		}
	}
	known := fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.Nodes))
	if err := await(ctx, clients, func(client *redis.Client) bool {
		info := client.ClusterInfo(ctx).Val()
		return strings.Contains(info, known)
	}); err != nil {
		return err
	}
	for i := primaries; i < len(c.Nodes); i++ {
		if err := clients[i].ClusterReplicate(ctx, ids[i%primaries]).Err(); err != nil {
			return err
		}
	}
	return c.awaitReady(ctx, clients, primaries)
}

// awaitReady waits until every server has the same view of the cluster, with all slots.
func (c *RedisCluster) awaitReady(ctx context.Context, clients []*redis.Client, primaries int) error {
	return await(ctx, clients, func(client *redis.Client) bool {
		info := client.ClusterInfo(ctx).Val()
		slots, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // simpler than CLUSTER SHARDS, and the clients use it
		nodes := 0
		for _, its := range slots {
			nodes += len(its.Nodes)
		}
		replication := client.Info(ctx, "replication").Val()
		linked := strings.Contains(replication, "role:master") || strings.Contains(replication, "master_link_status:up")
		return err == nil && nodes == len(c.Nodes) && len(slots) == primaries && linked &&
			strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(hashSlots))
	})
}

// await waits until ready holds for every client.
func await(ctx context.Context, clients []*redis.Client, ready func(*redis.Client) bool) error {
	for _, client := range clients {
		if err := Poll(ctx, readyPoll, func() (bool, error) { return ready(client), nil }); err != nil {
			return err
		}
	}
	return nil
}

// Client returns a client of one server. It never repeats a command.
func (c *RedisCluster) Client(node int) *redis.Client { return redisClient(c.Nodes[node].Port) }

// Addr returns the address of one server.
func (c *RedisCluster) Addr(node int) string { return Loopback(c.Nodes[node].Port) }

// URL returns the URL of the cluster.
func (c *RedisCluster) URL() string {
	addrs := make([]string, len(c.Nodes))
	for i := range c.Nodes {
		addrs[i] = c.Addr(i)
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// Close kills the servers.
func (c *RedisCluster) Close() error {
	var errs []error
	for _, node := range c.Nodes {
		if node != nil {
			errs = append(errs, node.Kill())
		}
	}
	return errors.Join(errs...)
}
