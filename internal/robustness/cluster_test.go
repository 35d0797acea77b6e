package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

const shardsOfCluster = 3

// addRedisCluster adds the servers of a Redis Cluster: the primaries, then a replica of each.
func (s *Servers) addRedisCluster() error {
	const number = 2 * shardsOfCluster
	ports, err := stack.QuietPorts(2 * number)
	if err != nil {
		return err
	}
	for i := range number {
		args := append(stack.RedisClusterArgs(ports[number+i]), "--cluster-allow-replica-migration", "no")
		s.redis = append(s.redis, s.newRedis(fmt.Sprintf("redis-%d", i+1), ports[i], args...))
	}
	return nil
}

func (s *Servers) formRedisCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var formed stack.RedisCluster
	for _, r := range s.redis {
		formed.Nodes = append(formed.Nodes, r.now())
	}
	return formed.Form(ctx, shardsOfCluster)
}

// shard has the servers of one shard. A lone Redis is a shard without a replica.
type shard struct{ primary, replica *redisServer }

// randomShard returns one shard when all are whole.
func (s *Servers) randomShard(ctx context.Context, random *rand.Rand) (shard, error) {
	shards, err := s.awaitShards(ctx)
	if err != nil {
		return shard{}, err
	}
	return shards[random.IntN(len(shards))], nil
}

// awaitShards waits until all servers agree that every slot has a primary with a replica, and returns the
// shards. Their order does not depend on which of their servers is the primary.
func (s *Servers) awaitShards(ctx context.Context) ([]shard, error) {
	if s.layout == single {
		return []shard{{primary: s.redis[0]}}, nil
	}
	seen := s.shards
	if s.layout == sentinel {
		seen = func(ctx context.Context) ([]shard, error) {
			pair, err := s.pair(ctx)
			return []shard{pair}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		shards, err := seen(ctx)
		if err == nil {
			return shards, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("redis is not whole: %w", err)
		}
		wait(ctx, pollInterval)
	}
}

// shards returns the shards, or an error unless all servers agree on them and every replica is linked.
func (s *Servers) shards(ctx context.Context) (shards []shard, err error) {
	for i, r := range s.redis {
		var seen []shard
		if err := r.with(ctx, func(ctx context.Context, c *redis.Client) (err error) {
			seen, err = s.shardsSeen(ctx, c)
			return err
		}); err != nil {
			return nil, err
		}
		if i > 0 && !slices.Equal(seen, shards) {
			return nil, fmt.Errorf("%s and %s have different views", s.redis[0].name, r.name)
		}
		shards = seen
	}
	return shards, nil
}

// shardsSeen returns the shards as one server sees them.
func (s *Servers) shardsSeen(ctx context.Context, c *redis.Client) ([]shard, error) {
	info, err := c.ClusterInfo(ctx).Result()
	if err != nil {
		return nil, err
	}
	replication, err := c.Info(ctx, "replication").Result()
	if err != nil {
		return nil, err
	}
	if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") {
		return nil, errors.New("cluster state: " + info)
	}
	if !strings.Contains(replication, "connected_slaves:1") && !strings.Contains(replication, "master_link_status:up") {
		return nil, errors.New("no link between primary and replica: " + replication)
	}
	slots, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // as in package stack
	if err != nil {
		return nil, err
	}
	var seen []shard
	for _, its := range slots {
		if len(its.Nodes) != 2 {
			return nil, fmt.Errorf("slots from %d have %d servers", its.Start, len(its.Nodes))
		}
		seen = append(seen, shard{s.redisAt(its.Nodes[0].Addr), s.redisAt(its.Nodes[1].Addr)})
	}
	order := func(one shard) int {
		return min(slices.Index(s.redis, one.primary), slices.Index(s.redis, one.replica))
	}
	slices.SortFunc(seen, func(a, b shard) int { return order(a) - order(b) })
	if seen = slices.Compact(seen); len(seen) != shardsOfCluster {
		return nil, fmt.Errorf("%d shards", len(seen))
	}
	return seen, nil
}

// redisAt returns the server at an address, which must exist.
func (s *Servers) redisAt(addr string) *redisServer {
	return s.redis[slices.IndexFunc(s.redis, func(r *redisServer) bool { return stack.Loopback(r.port) == addr })]
}

// rewriteAddresses makes the proxies of a worker send it the addresses of the proxies where a server of
// the cluster sends those of the servers.
func (s *Servers) rewriteAddresses(w *Worker) {
	address := func(port string) string { return "$9\r\n127.0.0.1\r\n:" + port + "\r\n" }
	for _, p := range w.redis {
		for i, r := range s.redis {
			p.Rewrite(stacktest.Downstream, address(strconv.Itoa(r.port)), address(w.redis[i].Port()))
		}
	}
}
