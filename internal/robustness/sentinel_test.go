package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

const (
	numberOfSentinels = 3
	sentinelName      = "holdfast" // by which the Sentinels know the primary
)

// addRedisPair adds a Redis with a replica, and the Sentinels that fail over to it. Each server has a
// configuration file, because a Sentinel makes it store there which server it follows.
func (s *Servers) addRedisPair() error {
	ports, err := stack.QuietPorts(2 + numberOfSentinels)
	if err != nil {
		return err
	}
	for i, lines := range []string{"", fmt.Sprintf("replicaof 127.0.0.1 %d\n", ports[0])} {
		r := s.newRedis(fmt.Sprintf("redis-%d", i+1), ports[i], "--maxmemory", "0")
		r.config = filepath.Join(s.dir, r.name+".conf")
		if err := os.WriteFile(r.config, []byte(lines), 0o600); err != nil {
			return err
		}
		s.redis = append(s.redis, r)
	}
	for i, port := range ports[2:] {
		config := filepath.Join(s.dir, fmt.Sprintf("sentinel-%d.conf", i+1))
		lines := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %d 2\n"+
			"sentinel down-after-milliseconds %[2]s 1500\nsentinel failover-timeout %[2]s 5000\n", port, sentinelName, ports[0])
		if err := os.WriteFile(config, []byte(lines), 0o600); err != nil {
			return err
		}
		s.sentinels = append(s.sentinels, newSentinel(fmt.Sprintf("sentinel-%d", i+1), config, port))
	}
	return nil
}

// newSentinel returns a Sentinel that does not run yet.
func newSentinel(name, config string, port int) *serverProcess {
	return &serverProcess{name: name, start: func(ctx context.Context) (*stack.Server, error) {
		program, err := stack.RedisProgram(ctx)
		if err != nil {
			return nil, err
		}
		ready := func(ctx context.Context) error {
			client := redis.NewSentinelClient(&redis.Options{Addr: stack.Loopback(port), MaxRetries: -1})
			return errors.Join(client.Ping(ctx).Err(), client.Close())
		}
		process, err := stack.StartProgram(ctx, stack.Program{Path: program, Args: []string{config, "--sentinel"}, Ready: ready})
		if err != nil {
			return nil, err
		}
		process.Port = port
		return process, nil
	}}
}

func (s *Servers) sentinelAddrs() (addrs []string) {
	for _, sentinel := range s.sentinels {
		addrs = append(addrs, sentinel.addr())
	}
	return addrs
}

// monitored matches what a Sentinel says of a primary to whose replica it can fail over.
var monitored = regexp.MustCompile(`status=ok,address=([0-9.:]+),slaves=1,sentinels=` + strconv.Itoa(numberOfSentinels))

// pair returns the servers of Redis, or an error unless all Sentinels agree which is the primary, and the
// other one follows it.
func (s *Servers) pair(ctx context.Context) (pair shard, err error) {
	for i, addr := range s.sentinelAddrs() {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true})
		info, err := client.Info(ctx, "sentinel").Result()
		if err = errors.Join(err, client.Close()); err != nil {
			return shard{}, err
		}
		found := monitored.FindStringSubmatch(info)
		if found == nil {
			return shard{}, fmt.Errorf("%s: %s", s.sentinels[i].name, info)
		}
		primary := s.redisAt(found[1])
		if i > 0 && primary != pair.primary {
			return shard{}, errors.New("the Sentinels have different views")
		}
		pair.primary = primary
	}
	pair.replica = s.redis[0]
	if pair.primary == pair.replica {
		pair.replica = s.redis[1]
	}
	return pair, errors.Join(pair.primary.hasInfo(ctx, "role:master", "connected_slaves:1"),
		pair.replica.hasInfo(ctx, "role:slave", "master_link_status:up"))
}

// hasInfo returns an error unless the server says all this of its replication.
func (r *redisServer) hasInfo(ctx context.Context, lines ...string) error {
	return r.with(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "replication").Result()
		for _, line := range lines {
			if err == nil && !strings.Contains(info, line) {
				err = fmt.Errorf("want %s: %s", line, info)
			}
		}
		return err
	})
}

// rewriteSentinels makes the proxies of a worker before the Sentinels name those before the servers.
func (s *Servers) rewriteSentinels(w *Worker) {
	address := func(port string) string { return fmt.Sprintf("$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n", len(port), port) }
	for _, p := range w.sentinels {
		for i, r := range s.redis {
			p.Rewrite(stacktest.Downstream, address(strconv.Itoa(r.port)), address(w.redis[i].Port()))
		}
	}
}

// sentinelFaults strike a Redis that Sentinels monitor.
var sentinelFaults = []Fault{
	{
		Kind: "failover ordered", What: "SENTINEL FAILOVER, as for maintenance: the replica takes over",
		Layouts: []string{sentinel}, CausesRebuild: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			if _, err := s.awaitShards(ctx); err != nil {
				return noUndo, err
			}
			client := redis.NewSentinelClient(&redis.Options{Addr: s.sentinels[random.IntN(numberOfSentinels)].addr()})
			return s.redisUp, errors.Join(client.Failover(ctx, sentinelName).Err(), client.Close())
		},
	},
	{
		Kind: "sentinels killed", What: "kill -9 of all Sentinels: a worker that has to connect to Redis waits for one",
		Layouts: []string{sentinel}, Claims: []string{redisProcess},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			var errs []error
			for _, sentinel := range s.sentinels {
				errs = append(errs, sentinel.kill())
			}
			return s.redisUp, errors.Join(errs...)
		},
	},
}
