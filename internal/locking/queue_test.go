package locking_test

import (
	"context"
	"testing"
	"time"

	"holdfast/internal/locking"
)

// TestQueue has waiters come one after the other, in two processes: they are served in that
// order, and one that comes when the lock is free does not pass them. One of them dies in the queue:
// it holds up the others no longer than it would have waited.
func TestQueue(t *testing.T) {
	t.Parallel()
	k := newKeys(t, fair)
	ctx := t.Context()
	here, there := k.locker(t, fair, long), k.locker(t, fair, long)
	lock := mustLock(t, here, k.set("a", "b"))
	got := make(chan locked, 4)
	k.await(t, here, "1", got, k.set("a"))
	k.await(t, there, "2", got, k.set("b", "a"))
	dead, err := there.Begin("", 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if locks, err := dead.TryLock(ctx, []locking.Set{k.set("b")}); err != nil || locks[0].Held {
		t.Fatalf("%+v %v", locks, err)
	}
	k.await(t, here, "3", got, k.set("b"))
	k.await(t, there, "4", got, k.set("a", "b"))
	for _, want := range []string{"1", "2", "3", "4"} {
		mustUnlock(t, here, lock)
		if late := try(t, here, "", k.set("a", "b")); late.Held {
			t.Error("who came last was served before those who wait")
		}
		r := <-got
		if r.name != want || r.err != nil {
			t.Fatalf("%s was served when it was the turn of %s: %v", r.name, want, r.err)
		}
		lock = r.lock
	}
	mustUnlock(t, there, lock)
	dead.End(ctx)
	if left := k.everything(t); len(left) != 1 {
		t.Errorf("left: %q, want the fence only", left)
	}
}

// TestQueueIsLeft takes acquisitions through the queue whose owner has some of the keys already,
// or who want other keys than before: nobody is left in a queue who does not wait, and whoever
// came first comes first for every key.
func TestQueueIsLeft(t *testing.T) {
	t.Parallel()
	k := newKeys(t, fair)
	l := k.locker(t, fair, long)
	begin := func(owner string) func(names ...string) *locking.Lock {
		a, err := l.Begin(owner, long)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.End(context.Background()) })
		return func(names ...string) *locking.Lock {
			locks, err := a.TryLock(t.Context(), []locking.Set{k.set(names...)})
			if err != nil {
				t.Fatal(err)
			}
			return locks[0]
		}
	}
	outer, other := try(t, l, "job-1", k.set("a")), try(t, l, "job-2", k.set("b"))
	job := begin("job-1")
	if job("a", "b").Held {
		t.Fatal("b is locked twice")
	}
	mustUnlock(t, l, other)
	inner := job("a", "b")
	if !inner.Held {
		t.Fatal("the owner of a waits for itself")
	}
	mustUnlock(t, l, inner, outer)
	lock := try(t, l, "", k.set("a", "b"))
	if !lock.Held {
		t.Fatal("who has its lock still stands in the queue")
	}

	first, second := begin(""), begin("")
	first("a", "b")
	second("a", "b")
	mustUnlock(t, l, lock)
	lock = first("a") // it wants less: its place on b is left behind
	d := try(t, l, "", k.set("d"))
	mustUnlock(t, l, lock)
	first("a", "b", "d") // queues again, behind the second
	mustUnlock(t, l, d)
	if !second("a", "b").Held {
		t.Error("all keys are free, and each waits for the other")
	}
}
