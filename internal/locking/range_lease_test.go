package locking_test

import (
	"context"
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

// field returns what the hash of locks has of a key, "" = nothing.
func (k harness) field(t testing.TB, key string) string {
	t.Helper()
	return k.client.HGet(t.Context(), k.prefix+"locks", strings.TrimPrefix(key, k.prefix+"lock:")).Val()
}

// awaitLeaseEnd waits until the lease of a lock is over, by the server's clock.
func (k harness) awaitLeaseEnd(t testing.TB, lock *locking.Lock) {
	t.Helper()
	_, until, _ := strings.Cut(k.field(t, lock.KeySet.Keys[0]), " ")
	ms, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the lease to be over", func() bool { return k.client.Time(t.Context()).Val().UnixMilli() >= ms })
}

// TestRange_LeaseExpiredFieldRemains_IsFree has locks whose lease is over and whose fields are still there, because another lock
// of the scope lasts: they count for nothing, and the next lock takes their place.
func TestRange_LeaseExpiredFieldRemains_IsFree(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newHarness(t, s)
			ctx := t.Context()
			brief, lasting := k.locker(t, s, 100*time.Millisecond), k.locker(t, s, long)
			keeps := mustLock(t, lasting, k.keySet("keeps"))
			expire := func(owner, name string) (lock *locking.Lock, key string) {
				t.Helper()
				lock, key = try(t, brief, owner, k.keySet(name)), k.keySet(name).Keys[0]
				k.awaitLeaseEnd(t, lock)
				if k.field(t, key) == "" {
					t.Fatalf("the field of %s has ended by itself, nothing is tested", name)
				}
				return lock, key
			}

			old, a := expire("", "a")
			if err := lasting.Renew(ctx, old); !errors.Is(err, locking.ErrLost) {
				t.Errorf("renewed after its lease: %v", err)
			}
			next := try(t, lasting, "", k.keySet("a"))
			if !next.Held || !strings.HasPrefix(k.field(t, a), next.Token+" ") {
				t.Errorf("the lock after one whose lease is over: held %v, the field is %q, its token %s", next.Held, k.field(t, a), next.Token)
			}
			for _, err := range []error{lasting.Renew(ctx, old), lasting.Unlock(ctx, old)} {
				if !errors.Is(err, locking.ErrLost) {
					t.Errorf("the late owner is told %v", err)
				}
			}
			if !strings.HasPrefix(k.field(t, a), next.Token+" ") {
				t.Errorf("the late owner has touched the lock of the next: %q", k.field(t, a))
			}

			_, b := expire("job-1", "b")
			again := try(t, lasting, "job-1", k.keySet("b"))
			if !again.Held || !strings.HasPrefix(k.field(t, b), again.Token+" ") {
				t.Errorf("an owner locks again what it has lost: %q is not just %s", k.field(t, b), again.Token)
			}

			unlocked, c := expire("", "c")
			if err := lasting.Unlock(ctx, unlocked); !errors.Is(err, locking.ErrLost) || k.field(t, c) != "" {
				t.Errorf("unlocked after its lease: %v, the field is %q", err, k.field(t, c))
			}
			mustUnlock(t, lasting, keeps, next, again)
			if left := k.allKeys(t); len(left) != 1 {
				t.Errorf("left: %q, want the fence only", left)
			}
		})
	}
}

// TestRange_RandomLeases_HashOutlastsLocks locks, renews and unlocks at random, with leases of very different length: no lock
// is shortened, and the hash of the locks ends by itself, no earlier than any lock in it.
func TestRange_RandomLeases_HashOutlastsLocks(t *testing.T) {
	t.Parallel()
	const rounds = 200
	k := newHarness(t, ranges)
	ctx := t.Context()
	var lockers []*locking.Locker
	for _, lease := range []time.Duration{long, time.Hour, 10 * long} {
		lockers = append(lockers, k.locker(t, ranges, lease))
	}
	var held []*locking.Lock
	renewed, shortened := 0, 0
	untils := make(map[string]time.Duration) // of the round before
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
			if err := l.Renew(ctx, held[rand.IntN(len(held))]); err != nil {
				t.Fatal(err)
			}
			renewed++
		default: // an owner may have it several times
			if lock := try(t, l, fmt.Sprintf("job-%d", rand.IntN(2)), k.keySet(string(rune('a'+rand.IntN(4))))); lock.Held {
				held = append(held, lock)
			}
		}
		fields := k.client.HGetAll(ctx, k.prefix+"locks").Val()
		ends := k.client.PExpireTime(ctx, k.prefix+"locks").Val()
		last := time.Duration(0)
		for key, field := range fields {
			_, word, _ := strings.Cut(field, " ")
			ms, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				t.Fatalf("%s has %q", key, field)
			}
			until := time.Duration(ms) * time.Millisecond
			if until < untils[key] && !unlocks {
				t.Fatalf("%s is locked until %v, before until %v", key, until, untils[key])
			}
			untils[key] = until
			last = max(last, until)
		}
		maps.DeleteFunc(untils, func(key string, _ time.Duration) bool { return fields[key] == "" })
		if len(fields) > 0 && (ends < last || ends < before) {
			t.Fatalf("the locks end at %v (before: %v), the last of them is locked until %v", ends, before, last)
		}
		if ends > last {
			shortened++ // a longer one is gone
		}
	}
	if renewed == 0 || shortened == 0 {
		t.Errorf("%d renewals, %d times the longest was gone: too little was tried", renewed, shortened)
	}
}

// TestRenew_ShorterLease_NeverShortens renews a lock with a longer lease than it had, and then with a shorter one: its
// end and that of the hash are put off, and never brought forward.
func TestRenew_ShorterLease_NeverShortens(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	brief, lasting := k.locker(t, ranges, long), k.locker(t, ranges, time.Hour)
	lock := mustLock(t, brief, k.keySet("a", "b"))
	now := k.client.Time(t.Context()).Val()
	for _, l := range []*locking.Locker{lasting, brief} {
		if err := l.Renew(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
		ends := []time.Duration{k.client.PExpireTime(t.Context(), k.prefix+"locks").Val()}
		for _, key := range lock.KeySet.Keys {
			_, until, _ := strings.Cut(k.field(t, key), " ")
			ms, _ := strconv.ParseInt(until, 10, 64)
			ends = append(ends, time.Duration(ms)*time.Millisecond)
		}
		for _, end := range ends {
			if end < time.Duration(now.Add(time.Hour).UnixMilli())*time.Millisecond {
				t.Errorf("%v after renewal for an hour: the hash and its locks end at %v", now, ends)
			}
		}
	}
	mustUnlock(t, brief, lock)
}

// TestRange_WorkerCrashed_LeavesOnlyFence has a worker die that holds locks, waits for others and stands in their queues: nothing
// of it stays, but for the count of the fencing tokens.
func TestRange_WorkerCrashed_LeavesOnlyFence(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newHarness(t, s)
			ctx := t.Context()
			const lease = 3 * time.Second
			l := k.locker(t, s, lease)
			lock := mustLock(t, l, k.keySet("a", "b"))
			_ = try(t, l, "job-1", k.keySet("c"))
			for _, names := range [][]string{{"b", "c"}, {"a"}, {"c", "d"}} {
				waits, err := l.NewAcquisition("", lease) // it never ends
				if err != nil {
					t.Fatal(err)
				}
				if _, err := waits.TryLock(ctx, []locking.KeySet{k.keySet(names...)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Renew(ctx, lock); err != nil && !errors.Is(err, locking.ErrLost) {
				t.Fatal(err)
			}
			found := k.client.Keys(ctx, k.prefix+"*").Val()
			for _, key := range found {
				// -2 = it has just ended
				if ttl := k.client.PTTL(ctx, key).Val(); key != k.keySet().Fence && (ttl == -1 || ttl > 2*lease) {
					t.Errorf("%s stays for %v", key, ttl)
				}
			}
			stacktest.Eventually(t, "all but the fence to be gone", func() bool {
				left := k.client.Keys(ctx, k.prefix+"*").Val()
				return slices.Equal(left, []string{k.keySet().Fence})
			})
			if len(found) < 2 {
				t.Errorf("only %q was there", found)
			}
		})
	}
}

// TestRange_LongerWait_ExtendsWaitedFor has somebody wait for a lock that lasts, when the note that somebody waits is
// about to end, or is there for a shorter wait: the note lasts as long as this wait, so the release is
// told. Nobody would hear of it for an hour otherwise.
func TestRange_LongerWait_ExtendsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newHarness(t, s)
			ctx := t.Context()
			note := k.prefix + "waited_for"
			l := k.locker(t, s, time.Hour)
			lock := mustLock(t, l, k.keySet("a"))
			brief := try(t, k.locker(t, s, 10*time.Second), "", k.keySet("b"))
			if err := k.client.Set(ctx, note, "1", 5*time.Second).Err(); err != nil {
				t.Fatal(err)
			}
			got := make(chan lockResult, 1)
			k.startWaiter(t, l, "who waits for a", got, k.keySet("a"))
			if left := k.client.PTTL(ctx, note).Val(); left < long/2 {
				t.Errorf("the note ends in %v, the wait does not", left)
			}
			before := k.client.PExpireTime(ctx, note).Val()

			other, err := k.locker(t, s, time.Hour).NewAcquisition("", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close(context.Background())
			if locks, err := other.TryLock(ctx, []locking.KeySet{k.keySet("b")}); err != nil || locks[0].Held {
				t.Fatalf("%+v %v", locks, err)
			}
			if after := k.client.PExpireTime(ctx, note).Val(); after < before {
				t.Errorf("a shorter wait has the note end at %v, before at %v", after, before)
			}
			mustUnlock(t, l, lock)
			if r := <-got; r.err != nil {
				t.Errorf("who waited was not told: %v", r.err)
			} else {
				mustUnlock(t, l, r.lock, brief)
			}
		})
	}
}

// TestUnlock_NoWaiter_PublishesNothing unlocks when nobody waits: nothing is told. When somebody does, it is.
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
	if err != nil || message.Payload != strings.Join(lock.KeySet.Names(), " ") {
		t.Errorf("told first: %v %v, want %q", message, err, lock.KeySet.Names())
	}
}
