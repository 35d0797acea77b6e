package locking_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// These tests check the contract of every strategy on real servers. A strategy that excludes others
// (exclusive) must pass all of them. One that only refuses late work (refusesLateWork) must pass
// those about work. None must fail where a test says so, which proves that the tests can detect a
// failure.

// TestStrategy_ManyContenders_LoseNoUpdate increments a counter from 200 contenders with
// overlapping ranges in any order. Only the locks protect the counter. No increment is lost, and no
// contenders wait for each other.
func TestStrategy_ManyContenders_LoseNoUpdate(t *testing.T) {
	const contenders = 200
	eachRefusingLateWork(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		var insiders atomic.Int32
		var all sync.WaitGroup
		for range contenders {
			all.Go(func() {
				_, err := k.contend(t.Context(), l, k.keySet(nights(1+rand.IntN(10))...), func() func() {
					if n := insiders.Add(1); n != 1 && s.exclusive {
						t.Errorf("%d contenders hold the lock", n)
					}
					return func() { insiders.Add(-1) }
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n, err := k.client.Get(t.Context(), k.counter()).Int(); n != contenders {
			t.Errorf("the counter is %d after %d increments: %v", n, contenders, err)
		}
		stacktest.Eventually(t, "all locks to be released", func() bool { return len(k.lockedKeys(t)) == 0 })
	})
}

// TestNone_TwoWriters_LoseAnUpdate shows that the counter of this suite can be wrong: two
// contenders read it before either writes.
func TestNone_TwoWriters_LoseAnUpdate(t *testing.T) {
	t.Parallel()
	s := subjects[len(subjects)-1]
	k := newHarness(t, s)
	l := k.locker(t, s, long)
	first, second := try(t, l, "", k.keySet("a")), try(t, l, "", k.keySet("a"))
	if !first.Held || !second.Held {
		t.Fatal("None has blocked a contender")
	}
	_, _, err := k.increment(t.Context(), l, first, func() {
		if _, _, err := k.increment(t.Context(), l, second, func() {}); err != nil {
			t.Error(err)
		}
	})
	if n, e := k.client.Get(t.Context(), k.counter()).Int(); n != 1 {
		t.Errorf("the counter is %d after 2 increments without a lock: %v %v", n, err, e)
	}
}

// eachExclusive runs a test for every strategy that excludes others.
func eachExclusive(t *testing.T, test func(t *testing.T, s subject, k harness)) {
	t.Helper()
	eachStrategy(t, func(s subject) bool { return s.exclusive }, test)
}

// eachRefusingLateWork runs a test for every strategy that refuses late work.
func eachRefusingLateWork(t *testing.T, test func(t *testing.T, s subject, k harness)) {
	t.Helper()
	eachStrategy(t, func(s subject) bool { return s.refusesLateWork }, test)
}

func eachStrategy(t *testing.T, which func(subject) bool, test func(t *testing.T, s subject, k harness)) {
	t.Helper()
	t.Parallel()
	for _, s := range subjects {
		if which(s) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				test(t, s, newHarness(t, s))
			})
		}
	}
}

// TestStrategy_KeySetsOverlap_LocksAllOrNone locks overlapping sets: one alone, and several in one
// call.
func TestStrategy_KeySetsOverlap_LocksAllOrNone(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		first := mustLock(t, l, k.keySet("b", "c"))
		if blocked := try(t, l, "", k.keySet("a", "b")); blocked.Held {
			t.Error("b is locked twice")
		}
		if left := k.lockedKeys(t); len(left) != 2*max(s.servers, 1) {
			t.Errorf("a blocked set has left keys: %q", left)
		}
		locks, err := begin(t, l, "", 0).TryLock(t.Context(), []locking.KeySet{k.keySet("a"), k.keySet("c", "d"), k.keySet("e", "f")})
		if err != nil || !locks[0].Held || locks[1].Held || !locks[2].Held {
			t.Fatalf("three sets in one call: %+v %v, want the second blocked", locks, err)
		}
		mustUnlock(t, l, first, locks[0], locks[2])
		mustUnlock(t, l, mustLock(t, l, k.keySet("a", "b", "c", "d", "e", "f")))
	})
}

// TestStrategy_RepeatedKeys_LockedOnce passes keys twice: they are locked and unlocked once.
func TestStrategy_RepeatedKeys_LockedOnce(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("b", "a", "b", "a"))
		if n := len(lock.KeySet.Names); n != 2 {
			t.Errorf("%d keys are locked, want 2", n)
		}
		mustUnlock(t, l, lock)
		k.wantNoLocks(t)
	})
}

// TestStrategy_LeaseExpired_RefusesLateOwner lets a lease expire. Then the keys are free. If the
// late owner renews, works or unlocks, it is refused, and the next owner is not affected.
func TestStrategy_LeaseExpired_RefusesLateOwner(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		const lease = 3 * time.Second
		late := k.locker(t, s, lease)
		old := mustLock(t, late, k.keySet("a", "b"))
		work, stop := late.WithContext(ctx, old)
		defer stop()

		next := mustLock(t, k.locker(t, s, long), k.keySet("b")) // waits until the lease expires
		if old.Validity() > 0 {
			t.Errorf("the next owner has the lock, but the old lock is still valid for %v", old.Validity())
		}
		<-work.Done()
		if cause := context.Cause(work); !errors.Is(cause, locking.ErrLost) {
			t.Errorf("the context of the late owner ended with %v", cause)
		}
		if err := late.Renew(ctx, old); !errors.Is(err, locking.ErrLost) {
			t.Errorf("renew a lost lock: %v", err)
		}
		if _, status, err := k.increment(ctx, late, old, func() {}); status != locking.StatusLockLost {
			t.Errorf("work under a lost lock: %q %v", status, err)
		}
		if err := late.Unlock(ctx, old); !errors.Is(err, locking.ErrLost) {
			t.Errorf("unlock a lost lock: %v", err)
		}
		if _, status, err := k.increment(ctx, late, next, func() {}); status != "ok" {
			t.Errorf("the next owner's work: %q %v", status, err)
		}
	})
}

// TestStrategy_OneKeyLost_ReleasesOthers takes away one of three keys. The others are renewed and
// released, and the error names the lost key.
func TestStrategy_OneKeyLost_ReleasesOthers(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("x", "y", "z"))
		stolen := k.keySet().Key("y")
		k.stealKey(t, "y")
		for _, err := range []error{l.Renew(ctx, lock), l.Unlock(ctx, lock)} {
			lost, ok := errors.AsType[*locking.LostError](err)
			if !ok || len(lost.Keys) != 1 || lost.Keys[0] != stolen {
				t.Errorf("%v, want %s to be lost", err, stolen)
			}
		}
		for _, key := range k.lockedKeys(t) {
			if key != stolen {
				t.Errorf("%s is still locked", key)
			}
		}
		if len(k.lockedKeys(t)) != len(k.lockServers()) {
			t.Error("the lock of the other owner was released")
		}
	})
}

// TestStrategy_WaiterCancelled_LeavesNothing cancels a waiter: it returns the cause and leaves no
// keys.
func TestStrategy_WaiterCancelled_LeavesNothing(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("a"))
		before := k.allKeys(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() {
			_, err := l.Lock(ctx, "", long, k.keySet("a", "b"))
			ended <- err
		}()
		if s.servers == 0 {
			stacktest.Eventually(t, "the waiter to wait", func() bool { return len(locking.Waiting(l, k.prefix)) == 1 })
		}
		gone := errors.New("the customer has gone")
		cancel(gone)
		if err := <-ended; !errors.Is(err, gone) {
			t.Errorf("a cancelled waiter ended with %v", err)
		}
		if after := k.allKeys(t); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("keys after the cancellation: %q, before the wait: %q", after, before)
		}
		if s.servers == 0 {
			stacktest.Eventually(t, "the subscriptions to end", func() bool { return k.subscriberCount(t) == 0 })
		}
		mustUnlock(t, l, lock)
	})
}

// TestStrategy_ReplyLost_RetryFindsOwnLock loses the reply of a successful attempt: the same call
// recognizes the lock as its own.
func TestStrategy_ReplyLost_RetryFindsOwnLock(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		server := k.client
		if s.servers > 0 {
			server = k.servers[0].(*redis.Client)
		}
		mustUnlock(t, l, mustLock(t, l, k.keySet("a"))) // now the server knows the scripts and has a fence
		stacktest.DropReply(server, 1, "evalsha", "eval", "set", "setnx")
		lock := try(t, l, "", k.keySet("a", "b"))
		if !lock.Held {
			t.Fatal("the attempt was blocked by its own lock")
		}
		mustUnlock(t, l, lock)
		stacktest.Eventually(t, "all locks to be released", func() bool { return len(k.lockedKeys(t)) == 0 })
	})
}

// TestStrategy_ScriptsFlushed_ReloadsThem flushes the scripts of the server before each step.
func TestStrategy_ScriptsFlushed_ReloadsThem(t *testing.T) {
	t.Parallel()
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newHarness(t, s)
			l := k.locker(t, s, long)
			flush := func() {
				for _, server := range append([]redis.UniversalClient{k.client}, k.servers...) {
					stacktest.Must(t, server.ScriptFlush(t.Context()).Err())
				}
			}
			flush()
			lock := mustLock(t, l, k.keySet("a"))
			flush()
			stacktest.Must(t, l.Renew(t.Context(), lock))
			flush()
			mustUnlock(t, l, lock)
			var once sync.Once // otherwise every transaction would conflict
			_, err := k.contend(t.Context(), l, k.keySet("a"), func() func() { return func() { once.Do(flush) } })
			if err != nil {
				t.Error(err)
			}
			if n := k.client.Get(t.Context(), k.counter()).Val(); n != strconv.Itoa(1) {
				t.Errorf("the counter is %s", n)
			}
		})
	}
}

// TestStrategy_LockNotReleased_TimesOut waits for a lock that is never released.
func TestStrategy_LockNotReleased_TimesOut(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("a"))
		if _, err := l.Lock(t.Context(), "", 50*time.Millisecond, k.keySet("a")); !errors.Is(err, locking.ErrTimeout) {
			t.Errorf("waited for a lock that is not released: %v", err)
		}
		mustUnlock(t, l, lock)
	})
}

// TestStrategy_NotExclusive_ValidityIsUnlimited checks that locks of strategies that exclude no one
// stay valid.
func TestStrategy_NotExclusive_ValidityIsUnlimited(t *testing.T) {
	t.Parallel()
	for _, s := range subjects {
		if s.exclusive {
			continue
		}
		k := newHarness(t, s)
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("a"))
		if lock.Validity() != math.MaxInt64 {
			t.Errorf("a lock of %s is valid for %v", s.name, lock.Validity())
		}
		mustUnlock(t, l, lock)
	}
}

// TestOptimistic_SecondExec_Conflicts works twice under one optimistic lock. The second time is a
// conflict, because the versions are no longer watched.
func TestOptimistic_SecondExec_Conflicts(t *testing.T) {
	t.Parallel()
	s := subjects[3]
	k := newHarness(t, s)
	l := k.locker(t, s, long)
	var lock *locking.Lock
	for status := ""; status != "ok"; { // also a conflict when other tests have flushed the scripts
		lock = mustLock(t, l, k.keySet("a"))
		var err error
		if _, status, err = k.increment(t.Context(), l, lock, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	if _, status, err := k.increment(t.Context(), l, lock, func() {}); status != locking.StatusConflict {
		t.Errorf("answered %q (%v), want %q", status, err, locking.StatusConflict)
	}
}
