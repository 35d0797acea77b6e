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

	"holdfast/internal/holds"
	"holdfast/internal/stack"
)

const (
	forgedExpiries = 10_000
	redisProcess   = "redis process"
	redisSettings  = "redis settings"
	clockMoved     = "clock moved"
)

// needsRebuild says why workers cannot survive the loss of data, "" when they can.
func needsRebuild(s *Cluster) string {
	if s.CanRebuild {
		return ""
	}
	return "this worker cannot fill Redis again yet"
}

var redisFaults = []Fault{
	{
		Kind: "redis killed", What: "kill -9 of Redis, which keeps an append-only file, synced at each write", Forgets: true, Claims: []string{redisProcess},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			return s.redis.up, s.redis.kill()
		},
	},
	{
		Kind: "redis loading", What: "Redis is killed and has so much to load that it answers LOADING for a time", Forgets: true, Claims: []string{redisProcess},
		Strike: loadSlowly,
	},
	{
		Kind: "redis paused", What: "SIGSTOP of Redis, up to 30 s in the long form", Claims: []string{redisProcess}, Lasts: span{5 * time.Second, 30 * time.Second},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			return undoWith(s.redis.resume), s.redis.pause()
		},
	},
	{
		Kind: "scripts flushed", What: "SCRIPT FLUSH", Claims: []string{redisProcess},
		Strike: onRedis(func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }),
	},
	{
		Kind: "redis full", What: "maxmemory below what is used, under noeviction: writes are refused (OOM)", Claims: []string{redisProcess, redisSettings},
		Strike: configured("maxmemory", "1mb", "0"),
	},
	{
		Kind: "redis read-only", What: "Redis follows a primary that cannot be reached: READONLY", Forgets: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			back := func(ctx context.Context) error {
				return s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error { return c.Do(ctx, "REPLICAOF", "NO", "ONE").Err() })
			}
			return back, s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
				return c.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Err()
			})
		},
	},
	{
		Kind: "counter overwritten", What: "a counter is set by hand: to a number, a negative one, a text, a key of another type", Claims: []string{"counter", redisProcess},
		Strike: overwriteCounter,
	},
	{
		Kind: "notifications off", What: "CONFIG SET notify-keyspace-events \"\"", Claims: []string{redisProcess, redisSettings},
		Strike: configured("notify-keyspace-events", "", "Exg"),
	},
	{
		Kind: "subscribers killed", What: "CLIENT KILL TYPE pubsub, again and again", Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			for range 5 {
				if err := s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
					return c.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err()
				}); err != nil {
					return noUndo, err
				}
				wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
			}
			return noUndo, nil
		},
	},
	{
		Kind: "expiries forged", What: "10,000 messages that tell of expiries which there were not", Claims: []string{redisProcess},
		Strike: forgeExpiries,
	},
	{
		Kind: "redis clients killed", What: "CLIENT KILL of all connections, several times", Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			for range 4 {
				if err := s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
					return c.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err()
				}); err != nil {
					return noUndo, err
				}
				wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
			}
			return noUndo, nil
		},
	},
	{
		Kind: clockMoved, What: "Redis is started again with its clock an hour ahead or back (an LD_PRELOAD shim); once in a round", Forgets: true, Claims: []string{redisProcess}, Missing: needsShim,
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
			s.clock = []time.Duration{-time.Hour, time.Hour}[random.IntN(2)]
			s.Log("the clock of redis is moved by %v", s.clock)
			return noUndo, errors.Join(s.redis.kill(), s.redis.up(ctx))
		},
	},
}

func needsShim(s *Cluster) string {
	switch {
	case s.shim == "":
		return "there is no C compiler"
	case s.clock != 0:
		return "it was moved in this round"
	default:
		return ""
	}
}

// onRedis is a fault that is over when it was done.
func onRedis(do func(ctx context.Context, c *redis.Client) error) func(context.Context, *Cluster, *rand.Rand) (func(context.Context) error, error) {
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		return noUndo, s.withRedis(ctx, do)
	}
}

// configured sets something to a value, and back.
func configured(name, to, back string) func(context.Context, *Cluster, *rand.Rand) (func(context.Context) error, error) {
	set := func(ctx context.Context, s *Cluster, value string) error {
		return s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, name, value).Err() })
	}
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
		return func(ctx context.Context) error { return set(ctx, s, back) }, set(ctx, s, to)
	}
}

func resourceKey(namespace, resource, name string) string {
	return fmt.Sprintf("%s:{%d}:%s:%s", namespace, holds.Partition(resource), resource, name)
}

// overwriteCounter damages the counter of a slot. The workers heal it by themselves, or, as often,
// `worker audit --repair` does.
func overwriteCounter(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
	resource := fmt.Sprintf("hotel-%d", random.IntN(4))
	key := resourceKey(s.Namespace, resource, "counts")
	how := random.IntN(4)
	s.Log("counter of %s overwritten, way %d", resource, how)
	err := s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
		slots, err := c.HKeys(ctx, key).Result()
		if err != nil || len(slots) == 0 {
			return err // a key of another type stays one
		}
		slot := slots[random.IntN(len(slots))]
		switch how {
		case 0:
			return c.HSet(ctx, key, slot, 1000+random.IntN(1000)).Err()
		case 1:
			return c.HSet(ctx, key, slot, -1-random.IntN(5)).Err()
		case 2:
			return c.HSet(ctx, key, slot, "many").Err()
		default:
			return errors.Join(c.Del(ctx, key).Err(), c.Set(ctx, key, "many", 0).Err())
		}
	})
	if random.IntN(2) == 0 {
		s.Later = append(s.Later, func(ctx context.Context) error { return s.repair(ctx, resource) })
	}
	return noUndo, err
}

// forgeExpiries publishes what Redis would publish of keys that expire.
func forgeExpiries(ctx context.Context, s *Cluster, random *rand.Rand) (func(context.Context) error, error) {
	return noUndo, s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error {
		pipe := c.Pipeline()
		for i := range forgedExpiries {
			resource := fmt.Sprintf("hotel-%d", random.IntN(4))
			id, err := holds.NewHoldID(resource)
			if err != nil {
				return err
			}
			key := resourceKey(s.Namespace, resource, "hold:"+id.UUID)
			if i%10 == 0 {
				key = []string{"", ":", s.Namespace + ":{99}:x", s.Namespace + ":{1}:" + resource + ":hold:", key + ":x", "other:{1}:hotel-0:hold:" + id.UUID}[random.IntN(6)]
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

// loadSlowly kills Redis and starts it so that it takes some seconds to load what it has, and does
// not wait for it.
func loadSlowly(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
	const (
		loading       = 3 * time.Second
		bytesPerWrite = 120
		shortestSleep = 100 * time.Microsecond // however little is asked for
	)
	var size int64
	if err := filepath.WalkDir(s.redisAt.dir, func(_ string, entry os.DirEntry, err error) error {
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
		delay = -writes / sleeps // after one of so many
	}
	s.redisMore = []string{"--key-load-delay", strconv.FormatInt(delay, 10), "--loading-process-events-interval-bytes", "1024"}
	if err := s.redis.kill(); err != nil {
		return noUndo, err
	}
	done := make(chan error, 1)
	go func() { done <- s.redis.up(ctx) }()
	return func(context.Context) error { return <-done }, nil
}

// dataLossFaults are those that lose what Redis has acknowledged.
var dataLossFaults = []Fault{
	{
		Kind: "redis flushed", What: "FLUSHALL", Forgets: true, Claims: []string{redisProcess}, Missing: needsRebuild,
		Strike: onRedis(func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() }),
	},
	{
		Kind: "redis emptied", What: "kill -9 of Redis, which comes back with nothing", Forgets: true, Claims: []string{redisProcess}, Missing: needsRebuild,
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
			return s.redis.up, errors.Join(s.redis.kill(), os.RemoveAll(s.redisAt.dir))
		},
	},
	{
		Kind: "redis rewound", What: "an older replica of Redis is promoted: the last writes are lost", Forgets: true, Claims: []string{redisProcess}, Missing: needsRebuild, Lasts: span{time.Second, 3 * time.Second},
		Strike: promoteReplica,
	},
}

// promoteReplica cuts a replica off from Redis, and has it take over some time later.
func promoteReplica(ctx context.Context, s *Cluster, _ *rand.Rand) (func(context.Context) error, error) {
	ports, err := stack.QuietPorts(1)
	if err != nil {
		return noUndo, err
	}
	at := redisServer{ports[0], filepath.Join(s.dir, fmt.Sprintf("redis-%d", ports[0]))}
	replica, err := s.startRedis(ctx, at, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.redisAt.port))
	if err != nil {
		return noUndo, err
	}
	client := redis.NewClient(&redis.Options{Addr: local(at.port)})
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
		err := s.redis.replace(replica)
		s.redisAt = at
		return err
	}, nil
}
