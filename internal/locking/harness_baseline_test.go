package locking_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// The methods that teams often write themselves. Most are correct until a failure occurs:
// locking_oversell_test.go describes and forces these failures.

// saleLease is longer than any sale that is not stopped.
const saleLease = 10 * time.Second

// baselineUnlocked reads, changes and writes. If two sales read before either writes, one is lost.
type baselineUnlocked struct{ sale }

func (b baselineUnlocked) sell(ctx context.Context) (bool, error) { return b.readAndWrite(ctx) }

// baselinePlainDelete has no owner: its unlock deletes the lock even if another sale holds it.
type baselinePlainDelete struct{ sale }

func (b baselinePlainDelete) sell(ctx context.Context) (bool, error) {
	return b.oneAfterTheOther(ctx, b.readAndWrite,
		func(key string) (bool, error) { return b.setNew(ctx, key, "locked") },
		func(key string) error { return b.client.Del(ctx, key).Err() })
}

// baselineLateExpire sets the lock and then its expiry. After a crash in between the lock never
// ends.
type baselineLateExpire struct{ sale }

func (b baselineLateExpire) sell(ctx context.Context) (bool, error) {
	return b.oneAfterTheOther(ctx, b.readAndWrite,
		func(key string) (bool, error) {
			taken, err := b.client.SetNX(ctx, key, "locked", 0).Result()
			if err != nil || !taken {
				return false, err
			}
			b.at(stepSet)
			return true, b.client.PExpire(ctx, key, saleLease).Err()
		},
		func(key string) error { return b.client.Del(ctx, key).Err() })
}

// baselineGetThenDelete checks that the lock is its own and then deletes it. In between, another
// sale may have taken the lock.
type baselineGetThenDelete struct{ sale }

func (b baselineGetThenDelete) sell(ctx context.Context) (bool, error) {
	owner := uuid.NewString()
	return b.oneAfterTheOther(ctx, b.readAndWrite,
		func(key string) (bool, error) { return b.setNew(ctx, key, owner) },
		func(key string) error {
			value, err := b.client.Get(ctx, key).Result()
			if errors.Is(err, redis.Nil) || err == nil && value != owner {
				return nil
			}
			if err != nil {
				return err
			}
			b.at(stepOwned)
			return b.client.Del(ctx, key).Err()
		})
}

// baselineCareful locks each slot with an owner and a lease. A script deletes the lock only if the
// owner still holds it. But a write after the end of the lease is not refused.
type baselineCareful struct{ sale }

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

func (b baselineCareful) sell(ctx context.Context) (bool, error) {
	owner := uuid.NewString()
	return b.oneAfterTheOther(ctx, b.slotBySlot,
		func(key string) (bool, error) { return b.setNew(ctx, key, owner) },
		func(key string) error { return compareAndDelete.Run(ctx, b.client, []string{key}, owner).Err() })
}

// baselineRedsync uses redsync as its README shows, on one server, with a mutex for each slot.
type baselineRedsync struct {
	sale
	sync *redsync.Redsync
}

func newBaselineRedsync(s sale) baselineRedsync {
	return baselineRedsync{s, redsync.New(goredis.NewPool(s.client))}
}

func (b baselineRedsync) sell(ctx context.Context) (bool, error) {
	mutexes := make(map[string]*redsync.Mutex)
	return b.oneAfterTheOther(ctx, b.slotBySlot,
		func(key string) (bool, error) {
			mutexes[key] = b.sync.NewMutex(key, redsync.WithExpiry(saleLease)) // tries 32 times, 50 to 250 ms apart
			err := mutexes[key].LockContext(ctx)
			if _, taken := errors.AsType[*redsync.ErrTaken](err); taken || errors.Is(err, redsync.ErrFailed) {
				return false, nil
			}
			return err == nil, err
		},
		func(key string) error {
			_, err := mutexes[key].UnlockContext(ctx)
			return err
		})
}

// setNew takes the lock of one slot if it is free.
func (s sale) setNew(ctx context.Context, key, value string) (bool, error) {
	err := s.client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", TTL: saleLease}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// slotBySlot sells with a read and a write for each slot.
func (s sale) slotBySlot(ctx context.Context) (sold bool, err error) {
	counts := make([]int64, len(s.slots))
	for i, slot := range s.slots {
		if counts[i], err = s.client.HGet(ctx, s.counts(), slot).Int64(); err != nil && !errors.Is(err, redis.Nil) {
			return false, err
		}
	}
	if !s.room(counts) {
		return false, nil
	}
	s.at(stepRead)
	for i, slot := range s.slots {
		if err := s.client.HSet(ctx, s.counts(), slot, counts[i]+1).Err(); err != nil {
			return false, err
		}
	}
	s.at(stepWritten)
	return true, nil
}

// oneAfterTheOther runs work under a lock for each slot. It takes the locks in ascending order, so
// that two sales cannot deadlock. It releases the first slot last; otherwise the next sale would
// take it and then meet this one at the second slot. After an error it releases nothing, as after a
// crash.
func (s sale) oneAfterTheOther(
	ctx context.Context, work func(context.Context) (bool, error), take func(key string) (bool, error),
	give func(key string) error,
) (sold bool, err error) {
	for _, key := range s.locks() {
		for {
			taken, err := take(key)
			if err != nil {
				return false, err
			}
			if taken {
				break
			}
			s.at(stepBlocked)
			if err := spinWait(ctx); err != nil {
				return false, err
			}
		}
	}
	if sold, err = work(ctx); err != nil {
		return false, err
	}
	for _, key := range slices.Backward(s.locks()) {
		if err := give(key); err != nil {
			return false, err
		}
	}
	return sold, nil
}

// spinWait sleeps for a random time from 40 to 80 ms.
func spinWait(ctx context.Context) error {
	const least = 40 * time.Millisecond
	timer := time.NewTimer(least + rand.N(least))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
