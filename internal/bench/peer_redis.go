package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	peerLease = 8 * time.Second // of a lock
	peerRetry = 2 * time.Millisecond
	peerTries = 10_000
	peerTTL   = time.Hour // of a hold
)

// redisPlacer is what the peers on Redis have in common.
type redisPlacer struct {
	b        *runner
	redis    *redis.AutoPipeliner
	prefix   string // of keys
	capacity int64
}

// openRedis opens a client that sends the commands of all callers together: the quickest way that
// go-redis has for many callers.
func (b *runner) openRedis(name string, capacity int64) (redisPlacer, error) {
	with, err := b.redis.AutoPipelineWithOptions(redis.DefaultBlockingAutoPipelineOptions())
	return redisPlacer{b, with, b.name + "_" + name + ":", capacity}, err
}

func (p redisPlacer) close(ctx context.Context) error {
	return errors.Join(p.redis.Close(), p.b.removeKeys(ctx, strings.TrimSuffix(p.prefix, ":")))
}

// unlock releases a lock.
type unlock func(context.Context) error

// lockPlacer places a hold under a lock for each night: it reads the counts, checks them, and writes them.
type lockPlacer struct {
	redisPlacer
	lock func(ctx context.Context, key string) (unlock, error)
}

func openRedsync(_ context.Context, p *peers, capacity int64) (placer, error) {
	with, err := p.openRedis("redsync", capacity)
	if err != nil {
		return nil, err
	}
	locks := redsync.New(goredis.NewPool(with.redis))
	lock := func(ctx context.Context, key string) (unlock, error) {
		m := locks.NewMutex(key,
			redsync.WithExpiry(peerLease), redsync.WithTries(peerTries), redsync.WithRetryDelay(peerRetry))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			ok, err := m.UnlockContext(ctx)
			if err == nil && !ok {
				err = errors.New("the lock was lost")
			}
			return err
		}, nil
	}
	return &lockPlacer{with, lock}, nil
}

func openRedislock(_ context.Context, p *peers, capacity int64) (placer, error) {
	with, err := p.openRedis("redislock", capacity)
	if err != nil {
		return nil, err
	}
	locks := redislock.New(with.redis)
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(peerRetry)}
	lock := func(ctx context.Context, key string) (unlock, error) {
		l, err := locks.Obtain(ctx, key, peerLease, options)
		if err != nil {
			return nil, err
		}
		return l.Release, nil
	}
	return &lockPlacer{with, lock}, nil
}

func (p *lockPlacer) place(ctx context.Context, r peerRequest) (placed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	resource := p.prefix + r.resource + ":"
	for _, night := range r.nights { // in the same order everywhere, so that callers never wait in a circle
		release, err := p.lock(ctx, resource+"lock:"+night)
		if err != nil {
			return false, fmt.Errorf("lock %s: %w", night, err)
		}
		defer func() { err = errors.Join(err, release(context.WithoutCancel(ctx))) }()
	}
	hold := resource + "hold:" + r.key
	held, err := p.redis.HMGet(ctx, resource+"counts", r.nights...).Result()
	if err != nil {
		return false, err
	}
	changes := make([]any, 0, 2*len(held))
	for i, text := range held {
		count := int64(0)
		if text != nil {
			if count, err = strconv.ParseInt(text.(string), 10, 64); err != nil {
				return false, err
			}
		}
		if count >= p.capacity {
			return p.redis.Exists(ctx, hold).Val() == 1, nil // asked again
		}
		changes = append(changes, r.nights[i], count+1)
	}
	if fresh, err := p.redis.SetNX(ctx, hold, strings.Join(r.nights, " "), peerTTL).Result(); err != nil || !fresh {
		return !fresh, err
	}
	return true, p.redis.HSet(ctx, resource+"counts", changes...).Err()
}

// scriptPlacer places a hold by the least script.
type scriptPlacer struct {
	redisPlacer
	script *redis.Script
}

func openScript(ctx context.Context, p *peers, capacity int64) (placer, error) {
	script := redis.NewScript(ceilingSource)
	if err := script.Load(ctx, p.redis).Err(); err != nil {
		return nil, fmt.Errorf("load script: %w", err)
	}
	with, err := p.openRedis("script", capacity)
	if err != nil {
		return nil, err
	}
	return &scriptPlacer{with, script}, nil
}

func (p *scriptPlacer) place(ctx context.Context, r peerRequest) (bool, error) {
	call := newCeilingCall(p.prefix+r.resource+":", r.key, p.capacity, time.Now().Add(peerTTL).UnixMilli())
	for _, night := range r.nights {
		call.args = append(call.args, night)
	}
	placed, err := p.script.EvalSha(ctx, p.redis, call.keys, call.args...).Int()
	return placed == 1, err
}
