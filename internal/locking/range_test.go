package locking_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// ranges contains both kinds of Range, fair only the fair one.
var ranges, fair = subjects[0], subjects[1]

// eachRange runs a test for a Range without and with Fair.
func eachRange(t *testing.T, test func(t *testing.T, s subject, k harness)) {
	t.Helper()
	eachStrategy(t, func(s subject) bool { return s.name == ranges.name || s.name == fair.name }, test)
}

// TestRange_OwnerLocksAgain_CountsLocks lets an owner lock its keys again, and more keys. Each key
// is free after as many releases as locks, and another owner is blocked until then. An owner that
// has lost a key does not confuse its next lock on the key with the lost one.
func TestRange_OwnerLocksAgain_CountsLocks(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	l := k.locker(t, ranges, long)
	outer := try(t, l, "job-7", k.keySet("a", "b"))
	inner := try(t, l, "job-7", k.keySet("b", "c"))
	if !outer.Held || !inner.Held || inner.Fence <= outer.Fence {
		t.Fatalf("an owner was blocked by itself: %+v %+v", outer, inner)
	}
	if other := try(t, l, "job-8", k.keySet("c")); other.Held {
		t.Error("another owner was not blocked")
	}
	mustUnlock(t, l, outer)
	if err := l.Unlock(ctx, outer); !errors.Is(err, locking.ErrLost) {
		t.Errorf("released twice: %v", err)
	}
	if free, b := try(t, l, "", k.keySet("a")), try(t, l, "", k.keySet("b")); !free.Held || b.Held {
		t.Error("after the release of the outer lock a must be free, and b not yet")
	}
	mustUnlock(t, l, inner)
	if b := try(t, l, "", k.keySet("b", "c")); !b.Held {
		t.Error("b and c must be free after as many releases as locks")
	}

	first := try(t, l, "job-9", k.keySet("x"))
	k.deleteLocks(t, "x")
	again := try(t, l, "job-9", k.keySet("x"))
	if err := l.Renew(ctx, first); !errors.Is(err, locking.ErrLost) {
		t.Errorf("an owner confuses its second lock with its lost first one: %v", err)
	}
	mustUnlock(t, l, again)
	if _, err := begin(t, l, "has:colon", 0).TryLock(ctx, nil); err == nil || !strings.Contains(err.Error(), locking.OwnerPattern) {
		t.Errorf("an invalid name of an owner: %v", err)
	}
}

// TestFence_CounterLost_StaysHigher deletes the counter of fencing tokens. Later tokens are higher
// than earlier ones. A base that was drawn before a second loss is not used after it.
func TestFence_CounterLost_StaysHigher(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	lose := func() {
		stacktest.Must(t, k.client.Del(ctx, k.keySet().Fence).Err())
	}
	next := func(l *locking.Locker, after int64) int64 {
		t.Helper()
		lock := mustLock(t, l, k.keySet("a"))
		mustUnlock(t, l, lock)
		if lock.Fence <= after {
			t.Errorf("fencing token %d after %d", lock.Fence, after)
		}
		return lock.Fence
	}
	l := k.locker(t, ranges, long)
	fence := next(l, next(l, 0))
	lose()
	fence = next(l, fence)
	stacktest.Must(t, k.client.Set(ctx, k.keySet().Fence, "overwritten", 0).Err())
	fence = next(l, fence)
	lose()
	stacktest.Must(t, k.client.RPush(ctx, k.keySet().Fence, "overwritten").Err())
	fence = next(l, fence)

	lose()
	drawn := make(chan struct{})
	slow := newLocker(t, locking.NewRange(k.client, locking.RangeOptions{
		Lease: locking.FixedLease(long),
		FenceBase: func(ctx context.Context) (int64, error) {
			base, err := fenceBase(ctx)
			select {
			case <-drawn: // not at the first draw
			default:
				fence = next(l, fence) // another acquisition was faster,
				lose()                 // then the counter was lost again,
				fence = next(l, fence) // and continued from a higher base
				lose()
				close(drawn)
			}
			return base, err
		},
	}), locking.Options{})
	lock := mustLock(t, slow, k.keySet("a"))
	mustUnlock(t, slow, lock)
	if lock.Fence <= fence {
		t.Errorf("fencing token %d after %d: it uses a base that was drawn before the loss", lock.Fence, fence)
	}
}

// TestFence_LostAgainWhileDrawing_DrawsNewBase delays the draw of a base. Meanwhile the fence is
// restored, counted and lost again, both times found by the same acquisition. Then the delayed base
// is too old.
func TestFence_LostAgainWhileDrawing_DrawsNewBase(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	newLocker := func(base locking.FenceBase) *locking.Locker {
		return newLocker(t, locking.NewRange(k.client, locking.RangeOptions{Lease: locking.FixedLease(long),
			FenceBase: base}), locking.Options{})
	}
	drawn, goOn, got := make(chan struct{}, 2), make(chan struct{}), make(chan lockResult, 1)
	slow := newLocker(func(ctx context.Context) (int64, error) {
		base, err := fenceBase(ctx)
		drawn <- struct{}{}
		<-goOn
		return base, err
	})
	losses := 0
	quick := newLocker(func(ctx context.Context) (int64, error) {
		if losses++; losses == 1 {
			go func() {
				lock, err := slow.Lock(ctx, "", long, k.keySet("slow"))
				got <- lockResult{lock: lock, err: err}
			}()
			<-drawn
		} else {
			close(goOn)
			<-drawn // a second base, because the first one is too old
		}
		return fenceBase(ctx)
	})
	a := begin(t, quick, "", long)
	var last *locking.Lock
	for range 2 {
		lock := attempt(t, a, k.keySet("quick"))
		if !lock.Held {
			t.Fatalf("%+v", lock)
		}
		if last == nil {
			last = lock
		}
		mustUnlock(t, quick, lock)
		stacktest.Must(t, k.client.Del(ctx, k.keySet().Fence).Err())
	}
	if r := <-got; r.err != nil || r.lock.Fence <= last.Fence {
		t.Errorf("%+v %v after the fencing token %d", r.lock, r.err, last.Fence)
	}
}

// TestFence_LastBase_CountsExactly counts from the last possible base, where Lua would round the
// printed number. The next base is refused.
func TestFence_LastBase_CountsExactly(t *testing.T) {
	t.Parallel()
	const last = 1<<17 - 1
	k := newHarness(t, ranges)
	base := int64(last)
	l := newLocker(t, locking.NewRange(k.client, locking.RangeOptions{
		Lease: locking.FixedLease(long), FenceBase: func(context.Context) (int64, error) { return base, nil },
	}), locking.Options{})
	for n := int64(1); n <= 3; n++ {
		lock := mustLock(t, l, k.keySet("a"))
		if lock.Fence != last<<36+n {
			t.Errorf("fencing token %d, want %d", lock.Fence, last<<36+n)
		}
		if field := k.field(t, "a"); !strings.HasPrefix(field, lock.Token+" ") {
			t.Errorf("the token is %s, and the key has %s", lock.Token, field)
		}
		mustUnlock(t, l, lock)
	}
	base++
	stacktest.Must(t, k.client.Del(t.Context(), k.keySet().Fence).Err())
	if _, err := l.Lock(t.Context(), "", long, k.keySet("a")); err == nil {
		t.Error("a base was accepted from which Lua cannot count exactly")
	}
}

// TestWithContext_RenewMax_KeepsLockUntilLost renews a lock for several leases and then loses it.
// The context of the work ends with the loss as its cause. Without renewal it ends with the lease.
func TestWithContext_RenewMax_KeepsLockUntilLost(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		const lease = 3 * time.Second // the timeout of Redlock's servers is an eighth of it
		renewing := newLocker(t, s.make(k, lease), locking.Options{RenewMax: long})
		// A busy machine may miss a renewal: then the test retries.
		stacktest.Eventually(t, "a lock to be renewed for two leases and then reported as lost", func() bool {
			lock := mustLock(t, renewing, k.keySet("a", "b"))
			work, stop := renewing.WithContext(ctx, lock)
			defer stop()
			defer func() { _ = renewing.Unlock(ctx, lock) }() // the keys that it still holds
			end := lock.Validity()
			began := time.Now()
			stacktest.Eventually(t, "two leases to be over", func() bool {
				return time.Since(began) > 2*end || work.Err() != nil
			})
			if work.Err() != nil || lock.Validity() <= 0 {
				t.Logf("the lock was not renewed: %v", context.Cause(work))
				return false
			}
			k.deleteLocks(t, "b")
			<-work.Done()
			lost, known := errors.AsType[*locking.LostError](context.Cause(work))
			switch {
			case !known:
				t.Logf("the loss was not noticed before the end of the lease: %v", context.Cause(work))
			case len(lost.Keys) != 1 || lost.Keys[0] != k.keySet().Key("b"):
				t.Errorf("the work ended with %v, want the lost key", lost)
			}
			return known
		})

		bounded := newLocker(t, s.make(k, lease), locking.Options{RenewMax: lease / 2})
		lock := mustLock(t, bounded, k.keySet("c"))
		work, stop := bounded.WithContext(ctx, lock)
		defer stop()
		<-work.Done() // would block for ever if the lock were renewed for ever
		if cause := context.Cause(work); !errors.Is(cause, locking.ErrLost) {
			t.Errorf("the work ended with %v", cause)
		}
	})
}

// TestWithContext_OneLockReleased_RenewsOther releases one of two locks under a context. The other
// is still renewed, and the release does not count as a loss.
func TestWithContext_OneLockReleased_RenewsOther(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	const lease = 3 * time.Second // long enough for a busy machine to renew it
	l := newLocker(t, ranges.make(k, lease), locking.Options{RenewMax: long})
	one, two := mustLock(t, l, k.keySet("a")), mustLock(t, l, k.keySet("b"))
	work, stop := l.WithContext(t.Context(), one, two)
	defer stop()
	mustUnlock(t, l, one)
	end := time.Now().Add(2 * lease)
	stacktest.Eventually(t, "two leases to end", func() bool { return time.Now().After(end) || work.Err() != nil })
	if work.Err() != nil || two.Validity() <= 0 {
		t.Errorf("the context of the work under b ended: %v", context.Cause(work))
	}
	stop()
	mustUnlock(t, l, two)
}
