package locking_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// queued returns an acquisition that waits for a set that is locked.
func queued(t testing.TB, l *locking.Locker, wait time.Duration, set locking.KeySet) *locking.Acquisition {
	t.Helper()
	a := begin(t, l, "", wait)
	if lock := attempt(t, a, set); lock.Held {
		t.Fatalf("%+v", lock)
	}
	return a
}

// TestFair_SeveralWaiters_ServedInOrder starts waiters one after the other in two processes. They
// are served in this order, and an attempt that comes when the lock is free does not overtake them.
// One waiter dies in the queue: it blocks the others only for as long as it would have waited.
func TestFair_SeveralWaiters_ServedInOrder(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	ctx := t.Context()
	here, there := k.locker(t, fair, long), k.locker(t, fair, long)
	lock := mustLock(t, here, k.keySet("a", "b"))
	got := make(chan lockResult, 4)
	k.startWaiter(t, here, "1", got, k.keySet("a"))
	k.startWaiter(t, there, "2", got, k.keySet("b", "a"))
	dead := queued(t, there, 500*time.Millisecond, k.keySet("b"))
	k.startWaiter(t, here, "3", got, k.keySet("b"))
	k.startWaiter(t, there, "4", got, k.keySet("a", "b"))
	for _, want := range []string{"1", "2", "3", "4"} {
		mustUnlock(t, here, lock)
		if late := try(t, here, "", k.keySet("a", "b")); late.Held {
			t.Error("the last attempt was served before the waiters")
		}
		r := served(t, got)
		if r.name != want {
			t.Fatalf("%s was served before %s", r.name, want)
		}
		lock = r.lock
	}
	mustUnlock(t, there, lock)
	dead.Close(ctx)
	if left := k.allKeys(t); len(left) != 1 {
		t.Errorf("remaining keys: %q, want only the fence", left)
	}
}

// TestFair_ClockSetBack_OvertakesDeadWaiter lets a waiter die whose time ends in an hour, as when Redis' clock
// goes back by an hour.
func TestFair_ClockSetBack_OvertakesDeadWaiter(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	ctx := t.Context()
	l := k.locker(t, fair, long)
	lock := mustLock(t, l, k.keySet("a"))
	dead := queued(t, l, long, k.keySet("a"))
	mustUnlock(t, l, lock)
	if other := try(t, l, "", k.keySet("a")); other.Held {
		t.Fatal("an attempt overtakes a waiter")
	}
	waiting := k.prefix + "waiting"
	for id, entry := range k.client.HGetAll(ctx, waiting).Val() {
		if ticket, _, waits := strings.Cut(entry, " "); waits {
			later := k.client.Time(ctx).Val().Add(time.Hour).UnixMilli()
			k.client.HSet(ctx, waiting, id, fmt.Sprint(ticket, " ", later))
		}
	}
	other := try(t, l, "", k.keySet("a"))
	if !other.Held {
		t.Fatal("a waiter blocks for longer than it waits")
	}
	mustUnlock(t, l, other)
	if !attempt(t, dead, k.keySet("a")).Held {
		t.Error("a waiter that lost its place does not get a free key")
	}
}

// TestFair_OtherKeysWanted_LeavesOldQueues queues acquisitions whose owner already holds some of
// the keys, or that later request other keys. No acquisition stays in a queue in which it does not
// wait, and the first one is first for every key.
func TestFair_OtherKeysWanted_LeavesOldQueues(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	l := k.locker(t, fair, long)
	begin := func(owner string) func(names ...string) *locking.Lock {
		a := begin(t, l, owner, long)
		return func(names ...string) *locking.Lock { return attempt(t, a, k.keySet(names...)) }
	}
	outer, other := try(t, l, "job-1", k.keySet("a")), try(t, l, "job-2", k.keySet("b"))
	job := begin("job-1")
	if job("a", "b").Held {
		t.Fatal("b is locked twice")
	}
	mustUnlock(t, l, other)
	inner := job("a", "b")
	if !inner.Held {
		t.Fatal("the owner of a is blocked by itself")
	}
	mustUnlock(t, l, inner, outer)
	lock := try(t, l, "", k.keySet("a", "b"))
	if !lock.Held {
		t.Fatal("an acquisition that holds its lock is still in the queue")
	}

	first, second := begin(""), begin("")
	first("a", "b")
	second("a", "b")
	mustUnlock(t, l, lock)
	lock = first("a") // it requests fewer keys and leaves the queue of b
	d := try(t, l, "", k.keySet("d"))
	mustUnlock(t, l, lock)
	first("a", "b", "d") // queues again, behind the second
	mustUnlock(t, l, d)
	if !second("a", "b").Held {
		t.Error("all keys are free, but the acquisitions wait for each other")
	}
}

// TestFair_OwnerLocksAgain_PassesQueue lets an owner lock a key again while others queue for it. It
// must not wait for those that wait for it. For a key that it does not hold it must queue.
func TestFair_OwnerLocksAgain_PassesQueue(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	l := k.locker(t, fair, long)
	outer := try(t, l, "job-1", k.keySet("a"))
	got := make(chan lockResult, 1)
	k.startWaiter(t, l, "who queues", got, k.keySet("a", "b"))
	inner := try(t, l, "job-1", k.keySet("a"))
	if !inner.Held {
		t.Fatal("the owner waits for acquisitions that wait for it")
	}
	waiting, queue := k.prefix+"waiting", k.prefix+"queue:b"
	before := k.client.HLen(t.Context(), waiting).Val() + k.client.ZCard(t.Context(), queue).Val()
	late := begin(t, l, "", 0)
	if attempt(t, late, k.keySet("b")).Held {
		t.Error("an acquisition has overtaken the queue of b")
	}
	if after := k.client.HLen(t.Context(), waiting).Val() + k.client.ZCard(t.Context(), queue).Val(); after != before {
		t.Errorf("an acquisition that does not wait is in the queue: %d entries, before %d", after, before)
	}
	late.Close(t.Context())
	mustUnlock(t, l, inner, outer)
	mustUnlock(t, l, served(t, got).lock)
}

// TestFair_ShortWaiterDies_QueueOutlastsIt queues one acquisition for a long time and then others
// for a short time, which die. The queues and the hash of the waiters last for the long wait. No
// dead waiter stays in the hash, whether it is found at the front of a queue or its queue has
// expired.
func TestFair_ShortWaiterDies_QueueOutlastsIt(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	ctx := t.Context()
	l := k.locker(t, fair, time.Hour)
	lock := mustLock(t, l, k.keySet("a", "b", "c"))
	waiting := k.prefix + "waiting"
	queueOf := func(name string) string { return k.prefix + "queue:" + name }
	queue := func(wait time.Duration, name string) *locking.Acquisition {
		t.Helper()
		return queued(t, l, wait, k.keySet(name))
	}
	ends := func(key string) time.Duration { return k.client.PExpireTime(ctx, key).Val() }
	listed := func() int64 { return k.client.HLen(ctx, waiting).Val() }

	const moment = 200 * time.Millisecond
	queue(moment, "b") // dies before the next one
	defer queue(long, "b").Close(ctx)
	defer queue(long, "a").Close(ctx)
	before := map[string]time.Duration{waiting: ends(waiting), queueOf("a"): ends(queueOf("a")),
		queueOf("b"): ends(queueOf("b"))}
	queue(moment, "a") // dies behind a live waiter
	queue(moment, "c") // dies as the only waiter
	for key, end := range before {
		if after := ends(key); after < end || end <= 0 {
			t.Errorf("%s expires at %v, before a shorter wait at %v", key, after, end)
		}
	}
	stacktest.Eventually(t, "the queue with only a dead waiter to expire", func() bool {
		return k.client.Exists(ctx, queueOf("c")).Val() == 0
	})
	mustUnlock(t, l, lock)
	for _, name := range []string{"b", "c"} {
		if late := try(t, l, "", k.keySet(name)); late.Held == (name == "b") {
			t.Errorf("a later attempt gets %s: %v", name, late.Held)
		} else if late.Held {
			defer mustUnlock(t, l, late)
		}
	}
	if n := k.client.ZCard(ctx, queueOf("b")).Val(); n != 1 {
		t.Errorf("%d entries are in the queue of b, although one waiter is dead", n)
	}
	const alive = 3 // two waiters and the last ticket
	if n := listed(); n > alive+2 {
		t.Errorf("the hash has %d fields after the dead waiter at the front was passed", n)
	}
	stacktest.Eventually(t, "the dead waiters to be removed", func() bool {
		queue(long, "b").Close(ctx)
		return listed() == alive
	})
}

// TestFair_OneSetUnlocked_KeepsPlaceForOther lets an acquisition that holds one set and queues for
// another unlock the first: it keeps its place in the queue.
func TestFair_OneSetUnlocked_KeepsPlaceForOther(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	ctx := t.Context()
	l := k.locker(t, fair, long)
	lock := mustLock(t, l, k.keySet("b"))
	a := begin(t, l, "", long)
	locks, err := a.TryLock(ctx, []locking.KeySet{k.keySet("a"), k.keySet("b")})
	if err != nil || !locks[0].Held || locks[1].Held {
		t.Fatalf("%+v %v", locks, err)
	}
	mustUnlock(t, l, locks[0], lock)
	if late := try(t, l, "", k.keySet("b")); late.Held {
		t.Error("the unlock of one set has lost the place in the queue of another")
	}
	rest := attempt(t, a, k.keySet("b"))
	if !rest.Held {
		t.Fatal("b is free, but was not locked")
	}
	mustUnlock(t, l, rest)
}

// TestFair_FirstWaiterLeaves_NotifiesNext lets the first waiter in the queue of a free key leave:
// the next one is notified and does not wait until the wait of the first one would have ended.
func TestFair_FirstWaiterLeaves_NotifiesNext(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	l := k.locker(t, fair, time.Hour)
	lock := mustLock(t, l, k.keySet("a"))
	first := queued(t, l, time.Hour, k.keySet("a", "b"))
	got := make(chan lockResult, 1)
	bound, cancel := context.WithTimeout(t.Context(), long) // longer than the test, so that no wait ends in it
	defer cancel()
	go func() {
		lock, err := l.Lock(bound, "", time.Hour, k.keySet("b"))
		got <- lockResult{lock: lock, err: err}
	}()
	stacktest.Eventually(t, "the waiter to wait", func() bool { return len(locking.Waiting(l, k.prefix)) == 1 })
	first.Close(t.Context())
	mustUnlock(t, l, served(t, got).lock, lock)
}

// withholdingHook withholds the next pipeline from the server. The sender gets an error, as if it
// had given up.
type withholdingHook struct {
	stacktest.PassHook
	giveUp   func()        // called instead of sending the next pipeline; nil to send it
	withheld []redis.Cmder // commands that were not sent
}

func (h *withholdingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		giveUp := h.giveUp
		if giveUp == nil {
			return next(ctx, commands)
		}
		h.giveUp = nil
		for _, c := range commands {
			h.withheld = append(h.withheld, redis.NewCmd(context.WithoutCancel(ctx), c.Args()...))
			c.SetErr(context.Canceled)
		}
		giveUp()
		return context.Canceled
	}
}

// TestFair_AttemptAfterLeaving_IsRefused delivers an attempt to Redis after its caller has given up
// and left the queues. It must not queue.
func TestFair_AttemptAfterLeaving_IsRefused(t *testing.T) {
	t.Parallel()
	k := newHarness(t, fair)
	l := k.locker(t, fair, long)
	lock := mustLock(t, l, k.keySet("a"))

	ctx, cancel := context.WithCancel(t.Context())
	hook := &withholdingHook{giveUp: cancel}
	k.client = newClient(t, stacktest.Shared().RedisURL)
	k.client.AddHook(hook)
	gone := begin(t, k.locker(t, fair, long), "", long)
	if _, err := gone.TryLock(ctx, []locking.KeySet{k.keySet("a")}); !errors.Is(err, context.Canceled) {
		t.Fatalf("the abandoned attempt: %v", err)
	}
	gone.Close(t.Context())
	if len(hook.withheld) != 1 {
		t.Fatalf("%d commands were not sent", len(hook.withheld))
	}
	late := hook.withheld[0].(*redis.Cmd)
	_ = k.client.Process(t.Context(), late) // the command keeps its error
	if reply, err := late.Result(); err != nil || !strings.Contains(fmt.Sprint(reply), "left") {
		t.Errorf("the reply to the late attempt is %v %v", reply, err)
	}
	mustUnlock(t, l, lock)
	mustUnlock(t, l, try(t, l, "", k.keySet("a")))
	for _, key := range k.allKeys(t) {
		if key != k.prefix+"fence" && k.client.PTTL(t.Context(), key).Val() <= 0 {
			t.Errorf("%s never expires", key)
		}
	}
}
