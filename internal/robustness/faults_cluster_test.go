package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterFaults strike a Redis Cluster, and some also a Redis that Sentinels monitor. Replication is asynchronous: each failover may lose the last
// writes.
var clusterFaults = []Fault{
	{
		Kind: "primary killed", What: "kill -9 of a primary; its replica takes over, and it comes back as the replica",
		Layouts: []string{cluster, sentinel}, CausesRebuild: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			one, err := s.randomShard(ctx, random)
			if err != nil {
				return noUndo, err
			}
			return func(ctx context.Context) error {
				return errors.Join(one.replica.awaitPrimary(ctx), s.redisUp(ctx))
			}, one.primary.kill()
		},
	},
	{
		Kind: "two primaries killed", What: "kill -9 of two primaries at once; without a majority no replica takes over",
		Layouts: []string{cluster}, CausesRebuild: true, Claims: []string{redisProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			shards, err := s.awaitShards(ctx)
			if err != nil {
				return noUndo, err
			}
			spared := random.IntN(len(shards))
			var errs []error
			for i, one := range shards {
				if i != spared {
					errs = append(errs, one.primary.kill())
				}
			}
			return s.redisUp, errors.Join(errs...)
		},
	},
	{
		Kind: "primary paused", What: "SIGSTOP of a primary until its replica has taken over; then it goes on",
		Layouts: []string{cluster, sentinel}, CausesRebuild: true, Claims: []string{redisProcess}, Lasts: span{3 * time.Second, 15 * time.Second},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			one, err := s.randomShard(ctx, random)
			if err != nil {
				return noUndo, err
			}
			return func(ctx context.Context) error {
				return errors.Join(one.replica.awaitPrimary(ctx), one.primary.resume(), s.redisUp(ctx))
			}, one.primary.pause()
		},
	},
	{
		Kind: "primary rewound", What: "a replica that was cut off takes over: the last writes are lost",
		Layouts: []string{cluster, sentinel}, CausesRebuild: true, Claims: []string{redisProcess}, Lasts: span{time.Second, 3 * time.Second},
		Strike: takeOverBehind,
	},
	{
		Kind: "slots moved", What: "the hash slots of some resources move to other primaries, key by key",
		Layouts: []string{cluster}, CausesRebuild: true, Claims: []string{redisProcess},
		Strike: moveSlots,
	},
}

// awaitPrimary waits until the server is a primary.
func (r *redisServer) awaitPrimary(ctx context.Context) error {
	return r.with(ctx, func(ctx context.Context, c *redis.Client) error {
		for ; ; wait(ctx, pollInterval) {
			role, err := c.Do(ctx, "ROLE").Slice()
			if err != nil {
				return fmt.Errorf("wait for the failover: %w", err)
			}
			if role[0] == "master" {
				return nil
			}
		}
	})
}

// takeOverBehind stops a replica, so that it misses the next writes. Its undoFunc makes the replica take
// over. In half of all cases the primary is killed before, with Sentinels in all; in the others it takes
// writes until it learns that it was replaced.
func takeOverBehind(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	one, err := s.randomShard(ctx, random)
	if err != nil {
		return noUndo, err
	}
	// Without its connection it has nothing to read when it goes on.
	cut := func(ctx context.Context, c *redis.Client) error {
		return c.ClientKillByFilter(ctx, "TYPE", "replica").Err()
	}
	err = errors.Join(one.replica.pause(), one.primary.with(ctx, cut))
	killed := random.IntN(2) == 0 || s.layout == sentinel
	s.Log("%s behind %s, which is killed: %t", one.replica.name, one.primary.name, killed)
	return func(ctx context.Context) error {
		if killed {
			if err := one.primary.kill(); err != nil {
				return err
			}
		}
		if err := one.replica.resume(); err != nil {
			return err
		}
		takeOver := func(ctx context.Context, c *redis.Client) error {
			if s.layout == sentinel {
				return nil // a Sentinel orders it
			}
			return c.Do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER").Err()
		}
		return errors.Join(one.replica.with(ctx, takeOver), one.replica.awaitPrimary(ctx), s.redisUp(ctx))
	}, err
}

// moveSlots moves the slots of some resources of the load to other shards.
func moveSlots(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
	for range 3 {
		shards, err := s.awaitShards(ctx)
		if err != nil {
			return noUndo, err
		}
		key := resourceKey(s.Namespace, fmt.Sprintf("hotel-%d", random.IntN(4)), "counts")
		from, err := s.serverOf(ctx, key)
		if err != nil {
			return noUndo, err
		}
		to := shards[random.IntN(len(shards))].primary
		if to == from {
			continue
		}
		s.Log("slot of %s moves from %s to %s", key, from.name, to.name)
		if err := moveSlot(ctx, shards, key, from, to, random); err != nil {
			return noUndo, fmt.Errorf("move the slot of %s: %w", key, err)
		}
	}
	return s.redisUp, nil
}

// moveSlot moves the slot of a key with all its keys.
func moveSlot(ctx context.Context, shards []shard, key string, from, to *redisServer, random *rand.Rand) error {
	const keysMax, timeoutMS = 20, 5000 // of one step
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	source, target := from.client(), to.client()
	defer func() { _, _ = source.Close(), target.Close() }() // all commands have ended
	slot, err := source.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return err
	}
	sourceID, sourceErr := source.Do(ctx, "CLUSTER", "MYID").Text()
	targetID, targetErr := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err := errors.Join(sourceErr, targetErr,
		target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID).Err(),
		source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID).Err()); err != nil {
		return err
	}
	for {
		keys, err := source.ClusterGetKeysInSlot(ctx, int(slot), keysMax).Result()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		migrate := []any{"MIGRATE", "127.0.0.1", to.port, "", 0, timeoutMS, "KEYS"}
		for _, one := range keys {
			migrate = append(migrate, one)
		}
		if err := source.Do(ctx, migrate...).Err(); err != nil {
			return err
		}
		wait(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
	end := func(ctx context.Context, c *redis.Client) error {
		return c.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", targetID).Err()
	}
	errs := []error{to.with(ctx, end), from.with(ctx, end)}
	for _, one := range shards {
		if one.primary != to && one.primary != from {
			errs = append(errs, one.primary.with(ctx, end))
		}
	}
	return errors.Join(errs...)
}
