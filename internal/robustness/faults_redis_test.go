package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack"
)

const (
	forgedExpiries = 10_000
	redisProcess   = "redis process"
	redisSettings  = "redis settings"
	clockMoved     = "clock moved"
)

var redisFaults = []Fault{
	{
		Kind: "redis killed", What: "kill -9 of Redis, of all its servers; they sync their append-only files on each write", CausesRebuild: true,
		Claims: []string{redisProcess},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			var errs []error
			for _, r := range s.redis {
				errs = append(errs, r.kill())
			}
			return s.redisUp, errors.Join(errs...)
		},
	},
	{
		Kind: "redis loading", What: "kill -9 of Redis; it loads its data so slowly that it answers LOADING for a while",
		CausesRebuild: true, Claims: []string{redisProcess},
		Strike: loadSlowly,
	},
	{
		Kind: "redis paused", What: "SIGSTOP of Redis, for up to 30 s in the long form", Layouts: []string{single},
		Claims: []string{redisProcess}, Lasts: span{5 * time.Second, 30 * time.Second},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			return undoWith(s.redis[0].resume), s.redis[0].pause()
		},
	},
	{
		Kind: "scripts flushed", What: "SCRIPT FLUSH", Claims: []string{redisProcess},
		Strike: onRedis(func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }),
	},
	{
		Kind: "redis full", What: "maxmemory below the memory in use, with noeviction: Redis refuses writes (OOM)",
		Claims: []string{redisProcess, redisSettings},
		Strike: configured("maxmemory", "1mb", "0"),
	},
	{
		Kind: "redis read-only", What: "Redis becomes a replica of an unreachable primary: READONLY", CausesRebuild: true,
		Claims: []string{redisProcess}, Layouts: []string{single},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			replicaOf := func(ctx context.Context, host, port string) error {
				return s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
					return c.ReplicaOf(ctx, host, port).Err()
				})
			}
			return func(ctx context.Context) error { return replicaOf(ctx, "NO", "ONE") }, replicaOf(ctx, "127.0.0.1", "1")
		},
	},
	{
		Kind:   "counter overwritten",
		What:   "a counter is set by hand: to a number, a negative number, a text or a key of another type",
		Claims: []string{"counter", redisProcess},
		Strike: overwriteCounter,
	},
	{
		Kind: "notifications off", What: `CONFIG SET notify-keyspace-events ""`,
		Claims: []string{redisProcess, redisSettings},
		Strike: configured("notify-keyspace-events", "", "Exg"),
	},
	{
		Kind: "subscribers killed", What: "CLIENT KILL TYPE pubsub, several times", Claims: []string{redisProcess},
		Strike: killClients(5, "TYPE", "pubsub"),
	},
	{
		Kind: "expiries forged", What: "10,000 keyspace notifications of expiries that did not happen",
		Claims: []string{redisProcess},
		Strike: forgeExpiries,
	},
	{
		Kind: "redis clients killed", What: "CLIENT KILL of all connections, several times", Claims: []string{redisProcess},
		Strike: killClients(4, "TYPE", "normal", "SKIPME", "yes"),
	},
	{
		Kind:          clockMoved,
		What:          "Redis restarts with its clock an hour ahead or back (an LD_PRELOAD shim); once in a round",
		CausesRebuild: true, Claims: []string{redisProcess}, Unavailable: needsShim, Layouts: []string{single},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			s.clock = []time.Duration{-time.Hour, time.Hour}[random.IntN(2)]
			s.Log("clock of redis moved by %v", s.clock)
			return noUndo, errors.Join(s.redis[0].kill(), s.redis[0].up(ctx))
		},
	},
}

func needsShim(s *Cluster) string {
	switch {
	case s.shim == "":
		return "no C compiler"
	case s.clock != 0:
		return "the clock has already moved in this round"
	default:
		return ""
	}
}

// onRedis returns a fault that needs no repair.
func onRedis(do func(ctx context.Context, c *redis.Client) error) strikeFunc {
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
		return noUndo, s.withRedis(ctx, do)
	}
}

// killClients runs CLIENT KILL several times, with up to 300 ms between two.
func killClients(times int, filter ...any) strikeFunc {
	kill := append([]any{"CLIENT", "KILL"}, filter...)
	return func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
		for range times {
			if err := s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
				return c.Do(ctx, kill...).Err()
			}); err != nil {
				return noUndo, err
			}
			wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
		}
		return noUndo, nil
	}
}

// configured changes a setting of Redis. Its undoFunc sets the usual value.
func configured(name, value, usual string) strikeFunc {
	set := func(ctx context.Context, s *Cluster, value string) error {
		return s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
			return c.ConfigSet(ctx, name, value).Err()
		})
	}
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
		return func(ctx context.Context) error { return set(ctx, s, usual) }, set(ctx, s, value)
	}
}

func resourceKey(namespace, resource, name string) string {
	return fmt.Sprintf("%s:{%d}:%s:%s", namespace, record.Partition(resource), resource, name)
}

// overwriteCounter corrupts the counter of a slot. In half of all cases `worker audit --repair`
// repairs it after the burst; in the other half the workers heal it.
func overwriteCounter(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	resource := fmt.Sprintf("hotel-%d", random.IntN(4))
	key := resourceKey(s.Namespace, resource, "counts")
	variant := random.IntN(4)
	s.counterOverwritten = true
	s.Log("counter of %s overwritten, variant %d", resource, variant)
	server, err := s.serverOf(ctx, key)
	if err != nil {
		return noUndo, err
	}
	err = server.with(ctx, func(ctx context.Context, c *redis.Client) error {
		slots, err := c.HKeys(ctx, key).Result()
		if err != nil || len(slots) == 0 {
			return err // without slots nothing can be overwritten
		}
		slot := slots[random.IntN(len(slots))]
		switch variant {
		case 0:
			return c.HSet(ctx, key, slot, 1000+random.IntN(1000)).Err()
		case 1:
			return c.HSet(ctx, key, slot, -1-random.IntN(5)).Err()
		case 2:
			return c.HSet(ctx, key, slot, "many").Err()
		default: // in one step: a decision without any counter would sell what is held
			return c.Set(ctx, key, "many", 0).Err()
		}
	})
	if random.IntN(2) == 0 {
		s.AfterRepair = append(s.AfterRepair, func(ctx context.Context) error { return s.repair(ctx, resource) })
	}
	return noUndo, err
}

// forgeExpiries publishes the notifications of keys that expire: nine of ten in the form of hold
// keys, one of ten malformed.
func forgeExpiries(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	shards, err := s.awaitShards(ctx)
	if err != nil {
		return noUndo, err
	}
	return noUndo, shards[0].primary.with(ctx, func(ctx context.Context, c *redis.Client) error {
		pipe := c.Pipeline()
		for i := range forgedExpiries {
			resource := fmt.Sprintf("hotel-%d", random.IntN(4))
			id := holds.NewHoldID(resource)
			key := resourceKey(s.Namespace, resource, "hold:"+id.UUID)
			if i%10 == 0 {
				key = []string{
					"", ":", s.Namespace + ":{99}:x", s.Namespace + ":{1}:" + resource + ":hold:", key + ":x",
					"other:{1}:hotel-0:hold:" + id.UUID,
				}[random.IntN(6)]
			}
			pipe.Publish(ctx, "__keyevent@0__:expired", key)
			if pipe.Len() == 500 || i == forgedExpiries-1 {
				if _, err := pipe.Exec(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// loadSlowly kills Redis and restarts it so that it loads its data for some seconds. It does not wait
// for the restart; its undoFunc does.
func loadSlowly(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	const (
		loading       = 3 * time.Second
		bytesPerWrite = 120
		shortestSleep = 100 * time.Microsecond // Redis cannot sleep for less
	)
	one, err := s.randomShard(ctx, random)
	if err != nil {
		return noUndo, err
	}
	server := one.primary
	var size int64
	if err := filepath.WalkDir(server.dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	}); err != nil {
		return noUndo, err
	}
	writes := max(1, size/bytesPerWrite)
	delay := loading.Microseconds() / writes // after each write
	if sleeps := int64(loading / shortestSleep); writes > sleeps {
		delay = -writes / sleeps // a negative delay means: sleep only once in so many writes
	}
	server.more = []string{
		"--key-load-delay", strconv.FormatInt(delay, 10), "--loading-process-events-interval-bytes", "1024",
	}
	if err := server.kill(); err != nil {
		return noUndo, err
	}
	done := make(chan error, 1)
	go func() { done <- server.up(ctx) }()
	return func(ctx context.Context) error { return errors.Join(<-done, s.redisUp(ctx)) }, nil
}

// redisUp starts all servers of Redis and Sentinels that do not run, and waits until each replica follows its
// primary.
func (s *Cluster) redisUp(ctx context.Context) error {
	var starts errgroup.Group
	for _, r := range s.redis {
		starts.Go(func() error { return r.up(ctx) })
	}
	for _, sentinel := range s.sentinels {
		starts.Go(func() error { return sentinel.up(ctx) })
	}
	if err := starts.Wait(); err != nil {
		return err
	}
	_, err := s.awaitShards(ctx)
	return err
}

// serverOf returns the Redis that has a key.
func (s *Cluster) serverOf(ctx context.Context, key string) (server *redisServer, err error) {
	if s.layout != cluster {
		shards, err := s.awaitShards(ctx)
		if err != nil {
			return nil, err
		}
		return shards[0].primary, nil
	}
	client := s.redisClient().(*redis.ClusterClient)
	at, err := client.MasterForKey(ctx, key)
	if err == nil {
		server = s.redisAt(at.Options().Addr)
	}
	return server, errors.Join(err, client.Close())
}

// flush removes all data of a shard.
func (s shard) flush(ctx context.Context) error {
	return s.primary.with(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
}

// empty kills all servers of a shard and removes their data. They keep their places in the cluster.
func (s shard) empty() error {
	var errs []error
	for _, r := range []*redisServer{s.primary, s.replica} {
		if r != nil {
			errs = append(errs, r.kill(), os.RemoveAll(filepath.Join(r.dir, "appendonlydir")))
		}
	}
	return errors.Join(errs...)
}

// dataLossFaults lose writes that Redis has acknowledged.
var dataLossFaults = []Fault{
	{
		Kind: "redis flushed", What: "FLUSHALL, of one shard", CausesRebuild: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			one, err := s.randomShard(ctx, random)
			if err != nil {
				return noUndo, err
			}
			return noUndo, one.flush(ctx)
		},
	},
	{
		Kind: "redis emptied", What: "kill -9 of Redis, of all servers of one shard; it starts again without data",
		CausesRebuild: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			one, err := s.randomShard(ctx, random)
			if err != nil {
				return noUndo, err
			}
			return s.redisUp, one.empty()
		},
	},
	{
		Kind: "redis rewound", What: "an older replica of Redis is promoted: the last writes are lost", CausesRebuild: true,
		Claims: []string{redisProcess}, Lasts: span{time.Second, 3 * time.Second}, Layouts: []string{single},
		Strike: promoteReplica,
	},
}

// promoteReplica stops the replication to a replica. Its undoFunc replaces Redis by the replica.
func promoteReplica(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
	ports, err := stack.QuietPorts(1)
	if err != nil {
		return noUndo, err
	}
	at := s.newRedis(fmt.Sprintf("redis-%d", ports[0]), ports[0])
	replica, err := s.startRedis(ctx, at, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.redis[0].port))
	if err != nil {
		return noUndo, err
	}
	client := at.client()
	for {
		info, err := client.Info(ctx, "replication").Result()
		if err != nil {
			return noUndo, errors.Join(err, client.Close(), replica.Kill())
		}
		if strings.Contains(info, "master_link_status:up") {
			break
		}
		wait(ctx, 20*time.Millisecond)
	}
	if err := errors.Join(client.Do(ctx, "REPLICAOF", "NO", "ONE").Err(), client.Close()); err != nil {
		return noUndo, errors.Join(err, replica.Kill())
	}
	return func(context.Context) error {
		err := s.redis[0].replace(replica)
		s.redis[0].port, s.redis[0].dir = at.port, at.dir
		return err
	}, nil
}
