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

// ranges and fair are the two kinds of Range.
var ranges, fair = subjects[0], subjects[1]

// TestRange_OwnerLocksAgain_CountsLocks has an owner lock again what it has, and more: each key is free when it was
// released as often as it was locked. Another owner is kept out until then, and an owner that has
// lost a key does not take its next lock on it for the first.
func TestRange_OwnerLocksAgain_CountsLocks(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	l := k.locker(t, ranges, long)
	outer := try(t, l, "job-7", k.keySet("a", "b"))
	inner := try(t, l, "job-7", k.keySet("b", "c"))
	if !outer.Held || !inner.Held || inner.Fence <= outer.Fence {
		t.Fatalf("an owner was kept out by itself: %+v %+v", outer, inner)
	}
	if other := try(t, l, "job-8", k.keySet("c")); other.Held {
		t.Error("another owner has got in")
	}
	mustUnlock(t, l, outer)
	if err := l.Unlock(ctx, outer); !errors.Is(err, locking.ErrLost) {
		t.Errorf("released twice: %v", err)
	}
	if free, b := try(t, l, "", k.keySet("a")), try(t, l, "", k.keySet("b")); !free.Held || b.Held {
		t.Error("the outer lock is released: a must be free, b not yet")
	}
	mustUnlock(t, l, inner)
	if b := try(t, l, "", k.keySet("b", "c")); !b.Held {
		t.Error("b and c were released as often as they were locked")
	}

	first := try(t, l, "job-9", k.keySet("x"))
	k.deleteLocks(t, first.KeySet.Keys...)
	again := try(t, l, "job-9", k.keySet("x"))
	if err := l.Renew(ctx, first); !errors.Is(err, locking.ErrLost) {
		t.Errorf("an owner takes its second lock for its first, which was lost: %v", err)
	}
	mustUnlock(t, l, again)
	if _, err := l.NewAcquisition("has:colon", 0); err == nil || !strings.Contains(err.Error(), locking.OwnerPattern) {
		t.Errorf("a name that cannot be an owner's: %v", err)
	}
}

// TestFence_CounterLost_StaysHigher loses the count of fencing tokens: those after are higher than those
// before. A base that was drawn before a second loss is not used after it.
func TestFence_CounterLost_StaysHigher(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	lose := func() {
		if err := k.client.Del(ctx, k.keySet().Fence).Err(); err != nil {
			t.Fatal(err)
		}
	}
	next := func(l *locking.Locker, after int64) int64 {
		t.Helper()
		lock := mustLock(t, l, k.keySet("a"))
		mustUnlock(t, l, lock)
		if lock.Fence <= after {
			t.Errorf("the fencing token %d after %d", lock.Fence, after)
		}
		return lock.Fence
	}
	l := k.locker(t, ranges, long)
	fence := next(l, next(l, 0))
	lose()
	fence = next(l, fence)
	if err := k.client.Set(ctx, k.keySet().Fence, "overwritten", 0).Err(); err != nil {
		t.Fatal(err)
	}
	fence = next(l, fence)
	lose()
	if err := k.client.RPush(ctx, k.keySet().Fence, "overwritten").Err(); err != nil {
		t.Fatal(err)
	}
	fence = next(l, fence)

	lose()
	drawn := make(chan struct{})
	slow := newLocker(t, locking.NewRange(k.client, locking.RangeOptions{
		Lease: locking.FixedLease(long),
		FenceBase: func(ctx context.Context) (int64, error) {
			base, err := fenceBase(ctx)
			select {
			case <-drawn: // not the first time
			default:
				fence = next(l, fence) // somebody else was quicker,
				lose()                 // and then it was lost again,
				fence = next(l, fence) // and counted from a higher base
				lose()
				close(drawn)
			}
			return base, err
		},
	}), locking.Options{})
	lock := mustLock(t, slow, k.keySet("a"))
	mustUnlock(t, slow, lock)
	if lock.Fence <= fence {
		t.Errorf("the fencing token %d after %d: a base was used that was drawn before the loss", lock.Fence, fence)
	}
}

// TestFence_LostAgainWhileDrawing_DrawsNewBase has somebody draw a base and then be so slow that the fence is found,
// counted on, and lost once more, to the same acquisition both times. The base is too old then.
func TestFence_LostAgainWhileDrawing_DrawsNewBase(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	newLocker := func(base locking.FenceBase) *locking.Locker {
		l := newLocker(t, locking.NewRange(k.client, locking.RangeOptions{Lease: locking.FixedLease(long), FenceBase: base}), locking.Options{})
		return l
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
			<-drawn // another one, because the first is too old
		}
		return fenceBase(ctx)
	})
	a, err := quick.NewAcquisition("", long)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(ctx)
	var last *locking.Lock
	for range 2 {
		locks, err := a.TryLock(ctx, []locking.KeySet{k.keySet("quick")})
		if err != nil || !locks[0].Held {
			t.Fatalf("%+v %v", locks, err)
		}
		if last == nil {
			last = locks[0]
		}
		mustUnlock(t, quick, locks[0])
		if err := k.client.Del(ctx, k.keySet().Fence).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if r := <-got; r.err != nil || r.lock.Fence <= last.Fence {
		t.Errorf("%+v %v after the fencing token %d", r.lock, r.err, last.Fence)
	}
}

// TestFence_LastBase_CountsExactly counts from the last base that there can be, where Lua would round what it
// prints; the next one is refused.
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
			t.Errorf("the fencing token is %d, want %d", lock.Fence, last<<36+n)
		}
		if field := k.client.HGet(t.Context(), k.prefix+"locks", lock.KeySet.Names()[0]).Val(); !strings.HasPrefix(field, lock.Token+" ") {
			t.Errorf("the token is %s, and the key has %s", lock.Token, field)
		}
		mustUnlock(t, l, lock)
	}
	base++
	if err := k.client.Del(t.Context(), k.keySet().Fence).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(t.Context(), "", long, k.keySet("a")); err == nil {
		t.Error("a base was taken from which tokens could not be counted exactly")
	}
}

// TestWithContext_RenewMax_KeepsLockUntilLost keeps a lock for several leases, and then loses it: the context of the work ends
// with the loss as its cause. Without renewal it ends with the lease.
func TestWithContext_RenewMax_KeepsLockUntilLost(t *testing.T) {
	eachExclusive(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		const lease = 3 * time.Second // Redlock's servers have an eighth of it to answer
		renewing := newLocker(t, s.make(k, lease), locking.Options{RenewMax: long})
		// A busy machine may miss a lease: then it is tried again.
		stacktest.Eventually(t, "a lock to be kept for two leases, and then to be known as lost", func() bool {
			lock := mustLock(t, renewing, k.keySet("a", "b"))
			work, stop := renewing.WithContext(ctx, lock)
			defer stop()
			defer func() { _ = renewing.Unlock(ctx, lock) }() // what is left of it
			end := lock.Validity()
			began := time.Now()
			stacktest.Eventually(t, "two leases to be over", func() bool { return time.Since(began) > 2*end || work.Err() != nil })
			if work.Err() != nil || lock.Validity() <= 0 {
				t.Logf("the lock was not renewed: %v", context.Cause(work))
				return false
			}
			k.deleteLocks(t, lock.KeySet.Keys[1])
			<-work.Done()
			lost, known := errors.AsType[*locking.LostError](context.Cause(work))
			switch {
			case !known:
				t.Logf("the loss was not seen before the lease was over: %v", context.Cause(work))
			case len(lost.Keys) != 1 || lost.Keys[0] != lock.KeySet.Keys[1]:
				t.Errorf("the work ended by %v, want the key that was lost", lost)
			}
			return known
		})

		bounded := newLocker(t, s.make(k, lease), locking.Options{RenewMax: lease / 2})
		lock := mustLock(t, bounded, k.keySet("c"))
		work, stop := bounded.WithContext(ctx, lock)
		defer stop()
		<-work.Done() // for ever, if it were renewed for ever
		if cause := context.Cause(work); !errors.Is(cause, locking.ErrLost) {
			t.Errorf("the work ended by %v", cause)
		}
	})
}

// TestWithContext_OneLockReleased_RenewsOther releases one of two locks that are kept: the other is renewed still, and
// the release is not taken for a loss.
func TestWithContext_OneLockReleased_RenewsOther(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	const lease = 3 * time.Second // a busy machine must find the time to renew it
	l := newLocker(t, ranges.make(k, lease), locking.Options{RenewMax: long})
	one, two := mustLock(t, l, k.keySet("a")), mustLock(t, l, k.keySet("b"))
	work, stop := l.WithContext(t.Context(), one, two)
	defer stop()
	mustUnlock(t, l, one)
	end := time.Now().Add(2 * lease)
	stacktest.Eventually(t, "the first lease to be long over", func() bool { return time.Now().After(end) || work.Err() != nil })
	if work.Err() != nil || two.Validity() <= 0 {
		t.Errorf("the work under b was ended: %v", context.Cause(work))
	}
	stop()
	mustUnlock(t, l, two)
}
