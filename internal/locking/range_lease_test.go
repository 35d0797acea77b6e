package locking_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// field returns the field of a name in the hash of locks, "" when it does not exist.
func (k harness) field(t testing.TB, name string) string {
	t.Helper()
	return k.client.HGet(t.Context(), k.prefix+"locks", name).Val()
}

// fieldEnd returns the time in ms at which the field of a name in the hash of locks ends, by the server's clock.
func fieldEnd(t testing.TB, name, field string) int64 {
	t.Helper()
	_, until, _ := strings.Cut(field, " ")
	ms, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		t.Fatalf("%s is locked by %q", name, field)
	}
	return ms
}

// awaitLeaseEnd waits until the lease of a lock has expired by the server's clock.
func (k harness) awaitLeaseEnd(t testing.TB, lock *locking.Lock) {
	t.Helper()
	name := lock.KeySet.Names[0]
	ms := fieldEnd(t, name, k.field(t, name))
	stacktest.Eventually(t, "the lease to expire", func() bool {
		return k.client.Time(t.Context()).Val().UnixMilli() >= ms
	})
}

// TestRange_LeaseExpiredFieldRemains_IsFree lets leases expire while their fields still exist,
// because another lock of the scope lasts longer. The keys are free, and the next lock replaces the
// fields.
func TestRange_LeaseExpiredFieldRemains_IsFree(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		brief, lasting := k.locker(t, s, 100*time.Millisecond), k.locker(t, s, long)
		keeps := mustLock(t, lasting, k.keySet("keeps"))
		expire := func(owner, name string) *locking.Lock {
			t.Helper()
			lock := try(t, brief, owner, k.keySet(name))
			k.awaitLeaseEnd(t, lock)
			if k.field(t, name) == "" {
				t.Fatalf("the field of %s does not exist, so nothing is tested", name)
			}
			return lock
		}

		old := expire("", "a")
		if err := lasting.Renew(ctx, old); !errors.Is(err, locking.ErrLost) {
			t.Errorf("renewed after the lease: %v", err)
		}
		next := try(t, lasting, "", k.keySet("a"))
		if !next.Held || !strings.HasPrefix(k.field(t, "a"), next.Token+" ") {
			t.Errorf("the lock after an expired lease: held %v, the field is %q, its token %s", next.Held, k.field(t, "a"),
				next.Token)
		}
		for _, err := range []error{lasting.Renew(ctx, old), lasting.Unlock(ctx, old)} {
			if !errors.Is(err, locking.ErrLost) {
				t.Errorf("the late owner gets the error %v", err)
			}
		}
		if !strings.HasPrefix(k.field(t, "a"), next.Token+" ") {
			t.Errorf("the late owner has changed the next lock: %q", k.field(t, "a"))
		}

		expire("job-1", "b")
		again := try(t, lasting, "job-1", k.keySet("b"))
		if !again.Held || !strings.HasPrefix(k.field(t, "b"), again.Token+" ") {
			t.Errorf("an owner locks a lost key again: %q is not only %s", k.field(t, "b"), again.Token)
		}

		unlocked := expire("", "c")
		if err := lasting.Unlock(ctx, unlocked); !errors.Is(err, locking.ErrLost) || k.field(t, "c") != "" {
			t.Errorf("unlocked after the lease: %v, the field is %q", err, k.field(t, "c"))
		}
		mustUnlock(t, lasting, keeps, next, again)
		if left := k.allKeys(t); len(left) != 1 {
			t.Errorf("remaining keys: %q, want only the fence", left)
		}
	})
}

// TestRange_RandomLeases_HashOutlastsLocks locks, renews and unlocks at random with very different
// leases. No lock becomes shorter, and the hash of locks expires, but not before any lock in it.
func TestRange_RandomLeases_HashOutlastsLocks(t *testing.T) {
	t.Parallel()
	const rounds = 200
	k := newHarness(t, ranges)
	ctx := t.Context()
	var lockers []*locking.Locker
	for _, lease := range []time.Duration{long / 10, long, long / 2} {
		lockers = append(lockers, k.locker(t, ranges, lease))
	}
	var held []*locking.Lock
	renewed, shortened := 0, 0
	untils := make(map[string]time.Duration) // of the previous round
	for range rounds {
		l := lockers[rand.IntN(len(lockers))]
		before := k.client.PExpireTime(ctx, k.prefix+"locks").Val()
		unlocks := false
		switch {
		case len(held) > 0 && rand.IntN(3) == 0:
			i := rand.IntN(len(held))
			mustUnlock(t, l, held[i])
			unlocks = true
			held = slices.Delete(held, i, i+1)
		case len(held) > 0 && rand.IntN(2) == 0:
			stacktest.Must(t, l.Renew(ctx, held[rand.IntN(len(held))]))
			renewed++
		default: // an owner may hold it several times
			if lock := try(t, l, fmt.Sprintf("job-%d", rand.IntN(2)), k.keySet(string(rune('a'+rand.IntN(4))))); lock.Held {
				held = append(held, lock)
			}
		}
		fields := k.client.HGetAll(ctx, k.prefix+"locks").Val()
		ends := k.client.PExpireTime(ctx, k.prefix+"locks").Val()
		last := time.Duration(0)
		for key, field := range fields {
			until := time.Duration(fieldEnd(t, key, field)) * time.Millisecond
			if until < untils[key] && !unlocks {
				t.Fatalf("%s is locked until %v, in the previous round until %v", key, until, untils[key])
			}
			untils[key] = until
			last = max(last, until)
		}
		maps.DeleteFunc(untils, func(key string, _ time.Duration) bool { return fields[key] == "" })
		if len(fields) > 0 && (ends < last || ends < before) {
			t.Fatalf("the hash expires at %v (before: %v), but its last lock ends at %v", ends, before, last)
		}
		if ends > last {
			shortened++ // a longer lease has ended
		}
	}
	if renewed == 0 || shortened == 0 {
		t.Errorf("%d renewals, and the longest lease ended %d times: too few attempts", renewed, shortened)
	}
}

// TestRange_ClockSetBack_BlocksForOneLease lets locks end an hour from now, as when Redis' clock goes back by an
// hour under them. They end after the longest lease at the latest, so a dead owner blocks for no longer, and
// until then a live owner has them.
func TestRange_ClockSetBack_BlocksForOneLease(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		l := k.locker(t, s, locking.LeaseMax/2)
		lock := mustLock(t, l, k.keySet("a", "b"))
		back := k.client.Time(ctx).Val().Add(time.Hour).UnixMilli()
		ends := func() (ends []int64) {
			for _, name := range lock.KeySet.Names {
				ends = append(ends, fieldEnd(t, name, k.field(t, name)))
			}
			return ends
		}
		setBack := func() {
			for _, name := range lock.KeySet.Names {
				k.client.HSet(ctx, k.prefix+"locks", name, fmt.Sprint(lock.Token, " ", back))
			}
		}
		for verb, do := range map[string]func(){
			"an attempt of another owner": func() {
				if other := try(t, l, "", k.keySet("a", "b")); other.Held {
					t.Error("another owner gets the keys of a live one")
				}
			},
			"a renewal": func() {
				stacktest.Must(t, l.Renew(ctx, lock))
			},
		} {
			setBack()
			do()
			latest := k.client.Time(ctx).Val().Add(locking.LeaseMax).UnixMilli()
			if got := ends(); slices.Max(got) > latest {
				t.Errorf("after %s the locks end at %d, want at most %d", verb, got, latest)
			}
		}
		mustUnlock(t, l, lock)
	})
}

// TestRenew_ShorterLease_NeverShortens renews a lock with a longer lease and then with a shorter
// one. The end of the lock and of the hash moves only to later times.
func TestRenew_ShorterLease_NeverShortens(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	brief, lasting := k.locker(t, ranges, long/2), k.locker(t, ranges, long)
	lock := mustLock(t, brief, k.keySet("a", "b"))
	now := k.client.Time(t.Context()).Val()
	for _, l := range []*locking.Locker{lasting, brief} {
		stacktest.Must(t, l.Renew(t.Context(), lock))
		ends := []time.Duration{k.client.PExpireTime(t.Context(), k.prefix+"locks").Val()}
		for _, name := range lock.KeySet.Names {
			ends = append(ends, time.Duration(fieldEnd(t, name, k.field(t, name)))*time.Millisecond)
		}
		for _, end := range ends {
			if end < time.Duration(now.Add(long).UnixMilli())*time.Millisecond {
				t.Errorf("%v after a renewal for a minute: the hash and its locks end at %v", now, ends)
			}
		}
	}
	mustUnlock(t, brief, lock)
}

// TestRange_WorkerCrashed_LeavesOnlyFence lets a worker die while it holds locks, waits for others
// and is in their queues. All its keys expire, except the fence.
func TestRange_WorkerCrashed_LeavesOnlyFence(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		const lease = 3 * time.Second
		l := k.locker(t, s, lease)
		lock := mustLock(t, l, k.keySet("a", "b"))
		_ = try(t, l, "job-1", k.keySet("c"))
		for _, names := range [][]string{{"b", "c"}, {"a"}, {"c", "d"}} {
			attempt(t, begin(t, l, "", lease), k.keySet(names...)) // it is closed when all has expired
		}
		if err := l.Renew(ctx, lock); err != nil && !errors.Is(err, locking.ErrLost) {
			t.Fatal(err)
		}
		found := k.client.Keys(ctx, k.prefix+"*").Val()
		for _, key := range found {
			// -2 means that the key has just expired.
			if ttl := k.client.PTTL(ctx, key).Val(); key != k.keySet().Fence && (ttl == -1 || ttl > 2*lease) {
				t.Errorf("%s has a TTL of %v", key, ttl)
			}
		}
		stacktest.Eventually(t, "all keys except the fence to expire", func() bool {
			left := k.client.Keys(ctx, k.prefix+"*").Val()
			return slices.Equal(left, []string{k.keySet().Fence})
		})
		if len(found) < 2 {
			t.Errorf("only %q existed", found)
		}
	})
}

// TestRange_LongerWait_ExtendsWaitedFor waits for a lock with a long lease when waited_for is about
// to expire or has the TTL of a shorter wait. Then waited_for lasts as long as this wait, so the
// release is published. Otherwise the waiter would not be notified for an hour.
func TestRange_LongerWait_ExtendsWaitedFor(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		ctx := t.Context()
		note := k.prefix + "waited_for"
		l := k.locker(t, s, time.Hour)
		lock := mustLock(t, l, k.keySet("a"))
		brief := try(t, k.locker(t, s, 10*time.Second), "", k.keySet("b"))
		stacktest.Must(t, k.client.Set(ctx, note, "1", 5*time.Second).Err())
		got := make(chan lockResult, 1)
		k.startWaiter(t, l, "who waits for a", got, k.keySet("a"))
		if left := k.client.PTTL(ctx, note).Val(); left < long/2 {
			t.Errorf("waited_for expires in %v, before the wait ends", left)
		}
		before := k.client.PExpireTime(ctx, note).Val()

		if attempt(t, begin(t, k.locker(t, s, time.Hour), "", time.Second), k.keySet("b")).Held {
			t.Fatal("b is locked twice")
		}
		if after := k.client.PExpireTime(ctx, note).Val(); after < before {
			t.Errorf("a shorter wait has changed the expiry of waited_for to %v, before %v", after, before)
		}
		mustUnlock(t, l, lock)
		mustUnlock(t, l, served(t, got).lock, brief)
	})
}

// TestUnlock_NoWaiter_PublishesNothing unlocks without a waiter, which publishes nothing, and then
// with one, which publishes the release.
func TestUnlock_NoWaiter_PublishesNothing(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	ctx := t.Context()
	subscription := k.client.SSubscribe(ctx, k.prefix+"released")
	defer func() { _ = subscription.Close() }()
	if _, err := subscription.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	l := k.locker(t, ranges, long)
	mustUnlock(t, l, mustLock(t, l, k.keySet("a")))
	lock := mustLock(t, l, k.keySet("b", "c"))
	if waits := try(t, l, "", k.keySet("c")); waits.Held {
		t.Fatal("c is locked twice")
	}
	mustUnlock(t, l, lock)
	message, err := subscription.ReceiveMessage(ctx)
	if err != nil || message.Payload != strings.Join(lock.KeySet.Names, " ") {
		t.Errorf("the first message is %v %v, want %q", message, err, lock.KeySet.Names)
	}
}
