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
func (k keys) field(t testing.TB, key string) string {
	t.Helper()
	return k.client.HGet(t.Context(), k.prefix+"locks", strings.TrimPrefix(key, k.prefix+"lock:")).Val()
}

// awaitOver waits until the lease of a lock is over, by the server's clock.
func (k keys) awaitOver(t testing.TB, lock *locking.Lock) {
	t.Helper()
	_, until, _ := strings.Cut(k.field(t, lock.Set.Keys[0]), " ")
	ms, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the lease to be over", func() bool { return k.client.Time(t.Context()).Val().UnixMilli() >= ms })
}

// TestLeaseOver has locks whose lease is over and whose fields are still there, because another lock
// of the scope lasts: they count for nothing, and the next lock takes their place.
func TestLeaseOver(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			ctx := t.Context()
			brief, lasting := k.locker(t, s, 100*time.Millisecond), k.locker(t, s, long)
			keeps := mustLock(t, lasting, k.set("keeps"))
			lapse := func(owner, name string) (lock *locking.Lock, key string) {
				t.Helper()
				lock, key = try(t, brief, owner, k.set(name)), k.set(name).Keys[0]
				k.awaitOver(t, lock)
				if k.field(t, key) == "" {
					t.Fatalf("the field of %s has ended by itself, nothing is tested", name)
				}
				return lock, key
			}

			old, a := lapse("", "a")
			if err := lasting.Renew(ctx, old); !errors.Is(err, locking.ErrLost) {
				t.Errorf("renewed after its lease: %v", err)
			}
			next := try(t, lasting, "", k.set("a"))
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

			_, b := lapse("job-1", "b")
			again := try(t, lasting, "job-1", k.set("b"))
			if !again.Held || !strings.HasPrefix(k.field(t, b), again.Token+" ") {
				t.Errorf("an owner locks again what it has lost: %q is not just %s", k.field(t, b), again.Token)
			}

			unlocked, c := lapse("", "c")
			if err := lasting.Unlock(ctx, unlocked); !errors.Is(err, locking.ErrLost) || k.field(t, c) != "" {
				t.Errorf("unlocked after its lease: %v, the field is %q", err, k.field(t, c))
			}
			mustUnlock(t, lasting, keeps, next, again)
			if left := k.everything(t); len(left) != 1 {
				t.Errorf("left: %q, want the fence only", left)
			}
		})
	}
}

// TestLocksOutlast locks, renews and unlocks at random, with leases of very different length: no lock
// is shortened, and the hash of the locks ends by itself, no earlier than any lock in it.
func TestLocksOutlast(t *testing.T) {
	t.Parallel()
	const rounds = 200
	k := newKeys(t, ranges)
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
			if lock := try(t, l, fmt.Sprintf("job-%d", rand.IntN(2)), k.set(string(rune('a'+rand.IntN(4))))); lock.Held {
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

// TestRenewalOutlasts renews a lock with a longer lease than it had, and then with a shorter one: its
// end and that of the hash are put off, and never brought forward.
func TestRenewalOutlasts(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	brief, lasting := k.locker(t, ranges, long), k.locker(t, ranges, time.Hour)
	lock := mustLock(t, brief, k.set("a", "b"))
	now := k.client.Time(t.Context()).Val()
	for _, l := range []*locking.Locker{lasting, brief} {
		if err := l.Renew(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
		ends := []time.Duration{k.client.PExpireTime(t.Context(), k.prefix+"locks").Val()}
		for _, key := range lock.Set.Keys {
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

// TestCrash has a worker die that holds locks, waits for others and stands in their queues: nothing
// of it stays, but for the count of the fencing tokens.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			ctx := t.Context()
			const lease = 3 * time.Second
			l := k.locker(t, s, lease)
			lock := mustLock(t, l, k.set("a", "b"))
			_ = try(t, l, "job-1", k.set("c"))
			for _, names := range [][]string{{"b", "c"}, {"a"}, {"c", "d"}} {
				waits, err := l.Begin("", lease) // it never ends
				if err != nil {
					t.Fatal(err)
				}
				if _, err := waits.TryLock(ctx, []locking.Set{k.set(names...)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Renew(ctx, lock); err != nil && !errors.Is(err, locking.ErrLost) {
				t.Fatal(err)
			}
			found := k.client.Keys(ctx, k.prefix+"*").Val()
			for _, key := range found {
				// -2 = it has just ended
				if ttl := k.client.PTTL(ctx, key).Val(); key != k.set().Fence && (ttl == -1 || ttl > 2*lease) {
					t.Errorf("%s stays for %v", key, ttl)
				}
			}
			stacktest.Eventually(t, "all but the fence to be gone", func() bool {
				left := k.client.Keys(ctx, k.prefix+"*").Val()
				return slices.Equal(left, []string{k.set().Fence})
			})
			if len(found) < 2 {
				t.Errorf("only %q was there", found)
			}
		})
	}
}

// TestNoteIsProlonged has somebody wait for a lock that lasts, when the note that somebody waits is
// about to end, or is there for a shorter wait: the note lasts as long as this wait, so the release is
// told. Nobody would hear of it for an hour otherwise.
func TestNoteIsProlonged(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			ctx := t.Context()
			note := k.prefix + "waited_for"
			l := k.locker(t, s, time.Hour)
			lock := mustLock(t, l, k.set("a"))
			brief := try(t, k.locker(t, s, 10*time.Second), "", k.set("b"))
			if err := k.client.Set(ctx, note, "1", 5*time.Second).Err(); err != nil {
				t.Fatal(err)
			}
			got := make(chan locked, 1)
			k.await(t, l, "who waits for a", got, k.set("a"))
			if left := k.client.PTTL(ctx, note).Val(); left < long/2 {
				t.Errorf("the note ends in %v, the wait does not", left)
			}
			before := k.client.PExpireTime(ctx, note).Val()

			other, err := k.locker(t, s, time.Hour).Begin("", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer other.End(context.Background())
			if locks, err := other.TryLock(ctx, []locking.Set{k.set("b")}); err != nil || locks[0].Held {
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

// TestNobodyIsTold unlocks when nobody waits: nothing is told. When somebody does, it is.
func TestNobodyIsTold(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	ctx := t.Context()
	hears := k.client.SSubscribe(ctx, k.prefix+"released")
	defer func() { _ = hears.Close() }()
	if _, err := hears.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	l := k.locker(t, ranges, long)
	mustUnlock(t, l, mustLock(t, l, k.set("a")))
	lock := mustLock(t, l, k.set("b", "c"))
	if waits := try(t, l, "", k.set("c")); waits.Held {
		t.Fatal("c is locked twice")
	}
	mustUnlock(t, l, lock)
	message, err := hears.ReceiveMessage(ctx)
	if err != nil || message.Payload != strings.Join(lock.Set.Names(), " ") {
		t.Errorf("told first: %v %v, want %q", message, err, lock.Set.Names())
	}
}
