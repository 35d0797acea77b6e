package holds_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// TestPlace_SlotLockedByAnother_WaitsForIt lets another owner hold the lock of one slot of a
// request whose rows are cached.
func TestPlace_SlotLockedByAnother_WaitsForIt(t *testing.T) {
	t.Parallel()
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy != "" && strategy != "range" {
		t.Skipf("%s has no locks in the Redis of the holds", strategy)
	}
	w, _ := newCachingHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LockWait = 10 * time.Millisecond })
	ctx, request := t.Context(), newRequest("room")
	request.Selection = slots("a", "b", "c")
	w.setInventory(t, "room", request.Selection, 5)
	w.syncInventory(t, w.service)
	created(t, w.place(t, request)[0])
	counts := w.client.HGetAll(ctx, holds.Key(w.namespace, "room", "counts")).Val()

	locks := holds.Key(w.namespace, "room", "locks")
	until := time.Now().Add(time.Hour).UnixMilli()
	w.client.HSet(ctx, locks, "b", fmt.Sprintf("-:1.another %d", until))
	other := newRequest("room")
	other.Selection = request.Selection
	if r := w.tryPlace(other); !errors.Is(r.Err, holds.ErrBusy) {
		t.Errorf("another owner holds a slot: %+v", r)
	}
	if now := w.client.HGetAll(ctx, holds.Key(w.namespace, "room", "counts")).Val(); fmt.Sprint(now) != fmt.Sprint(counts) {
		t.Errorf("counts are %v, were %v", now, counts)
	}
	w.client.HSet(ctx, locks, "b", "-:1.another 1") // its lease has expired
	w.syncInventory(t, w.service)
	created(t, w.place(t, other)[0])
}

// TestPlace_LockLostAfterRead_ReadsAgain takes one lock of three away, or lets its lease expire,
// after Postgres was read under them. Nothing is decided on that read: the group is locked and read
// again. The first read, without locks, is in vain, because rev changes.
func TestPlace_LockLostAfterRead_ReadsAgain(t *testing.T) {
	t.Parallel()
	for at, slot := range []string{"a", "b", "c"} {
		for name, lose := range map[string]func(field string) string{ // "" = taken away
			"gone":       func(string) string { return "" },
			"over":       func(field string) string { return strings.Fields(field)[0] + " 1" },
			"another's":  func(field string) string { return "-:1.thief 1" },
			"not a lock": func(string) string { return "x" },
		} {
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				t.Parallel()
				w := newRealTimeHarness(t)
				ctx := t.Context()
				w.setInventory(t, "room", slots("a", "b", "c"), 1)
				locks := holds.Key(w.namespace, "room", "locks")
				m := &hookedInventory{Inventory: w.store}
				m.onRows = func(read int) {
					field := w.client.HGet(ctx, locks, slot).Val()
					switch other := lose(cmp.Or(field, "-")); {
					case read == 1:
						if err := w.service.BumpRevisions(ctx, "room"); err != nil || field != "" {
							t.Error(err, field)
						}
					case read > 2 || field == "":
					case other == "":
						w.client.HDel(ctx, locks, slot)
					default:
						w.client.HSet(ctx, locks, slot, other)
					}
				}
				w.service = w.newService(w.client, newLocker(t, w.rangeLocks(w.client, lockLease)), m)
				created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots("a", "b", "c")})[0])
				if m.reads != 3 {
					t.Errorf("decided after %d reads, want 3", m.reads)
				}
				w.client.HDel(ctx, locks, slot) // a field without an owner stays until the hash expires
				if n := w.client.Exists(ctx, locks).Val(); n != 0 {
					t.Errorf("locks remain: %v", w.client.HGetAll(ctx, locks).Val())
				}
			})
		}
	}
}

// TestPlace_LockAwaited_PublishesRelease places holds without a waiter for their locks, and then
// with one: only the second release is published.
func TestPlace_LockAwaited_PublishesRelease(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "room", slots("a", "b", "c"), 1)
	m := &hookedInventory{Inventory: w.store, onRows: func(read int) {
		if read%2 == 0 {
			return
		}
		if err := w.service.BumpRevisions(ctx, "room"); err != nil { // a read without locks is in vain
			t.Error(err)
		}
	}}
	w.service = w.newService(w.client, newLocker(t, w.rangeLocks(w.client, lockLease)), m)
	subscription := w.client.SSubscribe(ctx, holds.Key(w.namespace, "room", "released"))
	defer func() { _ = subscription.Close() }()
	if _, err := subscription.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots("a")})[0])
	w.client.Set(ctx, holds.Key(w.namespace, "room", "waited_for"), "1", time.Hour)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots("b", "c")})[0])
	want := "b c"
	bound, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if message, err := subscription.ReceiveMessage(bound); err != nil || message.Payload != want {
		t.Errorf("the first message is %v %v, want %s", message, err, want)
	}
}

// lockByOther makes another owner hold a lock for some time.
func lockByOther(ctx context.Context, w *harness, resource, key string, lease time.Duration) error {
	until := w.client.Time(ctx).Val().Add(lease).UnixMilli()
	return w.client.HSet(ctx, holds.Key(w.namespace, resource, "locks"), key, fmt.Sprintf("another:1.x %d", until)).Err()
}

// TestPlace_LockLostDuringRead_RetriesUntilHeld loses one of the locks of a group during the read
// of Postgres. Nothing may be written under it, and the request must succeed when it has the lock
// again.
func TestPlace_LockLostDuringRead_RetriesUntilHeld(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", nights(1, 3), 1)
	const steals = 3
	inventory := &hookedInventory{Inventory: w.store, onRows: func(read int) {
		locks := w.client.HKeys(t.Context(), holds.Key(w.namespace, "room", "locks")).Val()
		var err error
		switch {
		case read == 1: // without locks, in vain
			err = w.service.BumpRevisions(t.Context(), "room")
		case read > 2+steals: // for the assertions below
			return
		case len(locks) != 3:
			err = fmt.Errorf("locks %q", locks)
		case read <= 1+steals:
			err = lockByOther(t.Context(), w, "room", locks[0], 50*time.Millisecond)
		}
		if held := w.client.HGetAll(t.Context(), holds.Key(w.namespace, "room", "counts")).Val(); len(held) > 0 {
			err = fmt.Errorf("%v are held under a lost lock", held)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	w.service = w.newService(w.client, newLocker(t, w.rangeLocks(w.client, lockLease)), inventory)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: nights(1, 3)})[0])
	if inventory.reads != 2+steals {
		t.Errorf("decided after %d reads, want %d", inventory.reads, 2+steals)
	}
	for _, slot := range w.available(t, "room", nights(1, 3)) {
		if slot.Held != 1 {
			t.Errorf("after lost locks: %+v", slot)
		}
	}
}

// TestPlace_LockHeldByOther_IsBusyAfterLockWait lets another worker hold the lock for longer than
// LockWait.
func TestPlace_LockHeldByOther_IsBusyAfterLockWait(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.policy.LockWait = 50 * time.Millisecond
	service := w.newService(w.client, newLocker(t, w.rangeLocks(w.client, time.Minute)), w.store)
	for _, name := range []string{"free", "taken"} {
		w.setInventory(t, name, holds.SlotSelection{}, 1)
	}
	stacktest.Must(t, lockByOther(t.Context(), w, "taken", "stock", time.Hour))
	requests := []holds.PlaceRequest{newRequest("taken"), newRequest("free")}
	results := make(map[string]holds.Result)
	for i, r := range service.Place(t.Context(), requests) {
		results[requests[i].Resource] = r
	}
	if err := results["taken"].Err; !errors.Is(err, holds.ErrBusy) {
		t.Errorf("a resource that is locked: %v, want ErrBusy", err)
	}
	if results["free"].Err != nil {
		t.Errorf("a resource that is free, in the same batch: %v", results["free"].Err)
	}
}

// TestPlace_LockKeysHaveWrongType_AreDeleted writes a list to a key of the locks of a resource, as another client may. It
// locks nothing, so requests for this resource and for one that is locked with it are decided.
func TestPlace_LockKeysHaveWrongType_AreDeleted(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{false, true} {
		for _, key := range []string{"locks", "waiting", "queue:" + holds.StockSlot} {
			w := newRealTimeHarness(t)
			options := locking.RangeOptions{Lease: locking.FixedLease(lockLease), FenceBase: w.store.FenceBase, Fair: fair}
			w.service = w.newService(w.client, newLocker(t, locking.NewRange(w.client, options)), w.store)
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			w.setInventory(t, "hall", holds.SlotSelection{}, 5)
			stacktest.Must(t, w.client.RPush(t.Context(), holds.Key(w.namespace, "room", key), "other").Err())
			for range 2 {
				for _, o := range w.place(t, newRequest("room"), newRequest("hall")) {
					wantBrief(t, o, holds.EventHoldCreated)
				}
			}
		}
	}
}
