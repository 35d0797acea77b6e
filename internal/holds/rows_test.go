package holds_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// tripCounter counts the round trips of a client.
type tripCounter struct {
	stacktest.PassHook
	atomic.Int64
}

func (n *tripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error { n.Add(1); return next(ctx, c) }
}

func (n *tripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cs []redis.Cmder) error { n.Add(1); return next(ctx, cs) }
}

// newCachingHarness returns a harness whose locks allow decisions in one step, and which counts the
// reads of inventory rows.
func newCachingHarness(t *testing.T) (w *harness, rows *hookedInventory) {
	t.Helper()
	switch strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy {
	case "redlock", "optimistic":
		t.Skipf("%s decides in two steps", strategy)
	}
	w = newRealTimeHarness(t)
	rows = &hookedInventory{Inventory: w.store}
	w.service = w.newService(w.client, w.locker(t), rows)
	return w, rows
}

func TestPlace_RowsCached_TakesOneTripToRedisAndNoneToPostgres(t *testing.T) {
	t.Parallel()
	w, rows := newCachingHarness(t)
	resources := samePartition(2)
	resources = append(resources, "another-partition")
	var requests []holds.PlaceRequest
	for _, resource := range resources {
		w.setInventory(t, resource, slots("a", "b", "c"), 5)
		for _, selection := range []holds.SlotSelection{slots("a", "b"), slots("b", "c")} {
			request := newRequest(resource)
			request.Selection = selection
			requests = append(requests, request)
		}
	}
	place := func() {
		t.Helper()
		for i := range requests {
			requests[i].EventID, requests[i].RequestKey, requests[i].User = uuid.NewString(), uuid.NewString(), uuid.NewString()
		}
		for i, r := range w.service.Place(t.Context(), requests) {
			if r.Err != nil || r.Outcome.Event != holds.EventHoldCreated {
				t.Errorf("%s: %+v", requests[i].Resource, r)
			}
		}
	}
	w.syncInventory(t, w.service)
	place() // reads the rows and loads the script
	place()
	counter := new(tripCounter)
	w.client.AddHook(counter)
	rows.reads = 0
	w.syncInventory(t, w.service)
	counter.Store(0)
	requests = slices.DeleteFunc(requests, func(r holds.PlaceRequest) bool { return slices.Equal(r.Selection.Slots, []string{"b", "c"}) })
	place()
	if n := counter.Load(); n != 1 || rows.reads != 0 {
		t.Errorf("%d round trips to Redis and %d reads of Postgres, want 1 and 0", n, rows.reads)
	}
	for _, resource := range resources {
		if n := w.client.Exists(t.Context(), holds.Key(w.namespace, resource, "locks")).Val(); n != 0 {
			t.Errorf("%s: locks remain", resource)
		}
	}
}

// TestPlace_CancellationFailsAfterCommit_SeesIt cancels a reservation, and Postgres fails after the commit that frees its
// slot. A worker that has the rows of before in memory sells the slot, although the cancellation is not answered.
func TestPlace_CancellationFailsAfterCommit_SeesIt(t *testing.T) {
	t.Parallel()
	w, rows := newCachingHarness(t)
	hold := w.onlyHold(t, "tent", 60).HoldID
	wantBrief(t, w.pay(t, hold, "p"), holds.EventHoldConfirmed)
	for range 2 {
		w.syncInventory(t, w.service)
		rows.reads = 0
		rejected(t, w.place(t, newRequest("tent"))[0], holds.ReasonSoldOut)
	}
	if rows.reads != 0 {
		t.Fatalf("%d reads of rows that should be in memory", rows.reads)
	}
	w.execute(t, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'failed'; END $$;
		CREATE TRIGGER fail BEFORE UPDATE OF cancelled_at ON reservations EXECUTE FUNCTION fail()`)
	canceller := w.newService(w.client, w.locker(t), w.store)
	for _, r := range canceller.Cancel(t.Context(), []holds.CancelRequest{{EventID: uuid.NewString(), Hold: hold}}) {
		if r.Err == nil {
			t.Fatalf("cancelled at an unknown time: %+v", r.Outcome)
		}
	}
	w.syncInventory(t, w.service)
	created(t, w.place(t, newRequest("tent"))[0])
}

func TestPlace_RowsMayHaveChanged_ReadsPostgres(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, w *harness){
		"rev was bumped": func(t *testing.T, w *harness) {
			stacktest.Must(t, w.client.Incr(t.Context(), holds.Key(w.namespace, "room", "rev")).Err())
		},
		"a change was received": func(t *testing.T, w *harness) {
			stacktest.Must(t, w.service.BumpRevisions(t.Context(), "room"))
			w.syncInventory(t, w.service)
		},
		"any row may have changed": func(t *testing.T, w *harness) {
			stacktest.Must(t, w.service.BumpRevisions(t.Context(), ""))
			w.syncInventory(t, w.service)
		},
		"changes may have been missed": func(t *testing.T, w *harness) {
			w.service.InventorySyncLost()
			w.syncInventory(t, w.service)
		},
		"the worker does not listen": func(_ *testing.T, w *harness) { w.service.InventorySyncLost() },
		// The contract says after which time a change by SQL counts, notified or not.
		"the last proof is older than 2 s": func(t *testing.T, w *harness) {
			now, err := w.service.Now(t.Context())
			stacktest.Must(t, err)
			w.service.InventorySynced(holds.Time{Time: now.Add(-2*time.Second - time.Millisecond)})
		},
		"other slots are cached": func(_ *testing.T, _ *harness) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, rows := newCachingHarness(t)
			w.setInventory(t, "room", slots("a", "b"), 2)
			w.syncInventory(t, w.service)
			request := newRequest("room")
			request.Selection = slots("a")
			created(t, w.tryPlace(request).Outcome)
			// This change by SQL is not notified yet.
			w.execute(t, `UPDATE inventory SET capacity = 1`)
			change(t, w)
			rows.reads = 0
			request = newRequest("room")
			request.Selection = slots("a")
			if name == "other slots are cached" {
				request.Selection = slots("a", "b")
			}
			if r := w.tryPlace(request); r.Err != nil || r.Outcome.Event != holds.EventHoldRejected {
				t.Errorf("the only unit is held: %+v", r)
			}
			if rows.reads != 1 {
				t.Errorf("%d reads of Postgres, want 1", rows.reads)
			}
		})
	}
}

// TestPlace_RevHasEndedSinceTheRead_ReadsPostgres caches rows while there is no rev. Another worker turns the hold
// into a reservation, and then Redis' clock moves on until rev has ended, in a moment for the worker: its machine
// slept.
func TestPlace_RevHasEndedSinceTheRead_ReadsPostgres(t *testing.T) {
	sellWhileRevEnds(t, func(w *harness) { w.service.MoveRedisClock(time.Hour) })
}

// sellWhileRevEnds lets another worker sell the only unit, of which rows are cached that were read while there was no
// rev. When there is none again, the clock is moved. The next request must not be decided on the cached rows.
func sellWhileRevEnds(t *testing.T, moveClock func(w *harness)) {
	t.Helper()
	t.Parallel()
	w, rows := newCachingHarness(t)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.client.Del(ctx, rev) // as an hour after that
	hold := created(t, w.place(t, newRequest("room"))[0])
	other := w.newService(w.client, w.locker(t), w.store)
	collect(t, 1, slices.All(other.Confirm(ctx, []holds.ConfirmRequest{{Hold: hold.HoldID, PaymentID: "p"}})))
	if w.client.Del(ctx, rev).Val() != 1 {
		t.Fatal("the payment has not changed rev")
	}
	moveClock(w)
	rows.reads = 0
	if o := w.place(t, newRequest("room"))[0]; o.Event != holds.EventHoldRejected || rows.reads != 1 {
		t.Errorf("the only unit is reserved: %+v after %d reads of Postgres", o, rows.reads)
	}
}

// TestPlace_RevHasEndedWhileClockWasAhead_ReadsPostgres is the same for a clock that is set forward, so that rev
// ends, and then back to where it was, while nothing is requested.
func TestPlace_RevHasEndedWhileClockWasAhead_ReadsPostgres(t *testing.T) {
	sellWhileRevEnds(t, func(w *harness) {
		now, err := w.service.Now(t.Context())
		stacktest.Must(t, err)
		w.service.InventorySynced(holds.Time{Time: now.Add(time.Hour)})
		w.syncInventory(t, w.service)
	})
}

// TestPlace_ReadBeforeListening_IsNotCached reads rows while the worker begins to listen: a change
// between the read and that moment was not received.
func TestPlace_ReadBeforeListening_IsNotCached(t *testing.T) {
	t.Parallel()
	w, rows := newCachingHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	w.syncInventory(t, w.service)
	rows.onRows = func(read int) {
		if read == 1 {
			w.execute(t, `UPDATE inventory SET capacity = 1`)
			w.service.InventorySyncLost()
			w.syncInventory(t, w.service)
		}
	}
	for range 2 {
		if r := w.tryPlace(newRequest("room")); r.Err != nil {
			t.Error(r.Err)
		}
	}
	if rows.reads != 2 {
		t.Errorf("%d reads of Postgres, want 2", rows.reads)
	}
	if held := w.heldCount(t, "room"); held != "1" {
		t.Errorf("%s are held, want 1", held)
	}
}

// TestPlace_CapacityChangedBySQL_UsesNewCapacity changes the capacity by SQL while a worker listens
// and has cached the rows.
func TestPlace_CapacityChangedBySQL_UsesNewCapacity(t *testing.T) {
	t.Parallel()
	w, rows := newCachingHarness(t)
	w.watchInventory(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1_000_000)
	place := func() holds.Outcome {
		t.Helper()
		r := w.tryPlace(newRequest("room"))
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r.Outcome
	}
	stacktest.Eventually(t, "a decision on cached rows", func() bool {
		before := rows.reads
		place()
		return rows.reads == before
	})
	rev := func() string { return w.client.Get(t.Context(), holds.Key(w.namespace, "room", "rev")).Val() }
	before := rev()
	w.execute(t, `UPDATE inventory SET capacity = 1`)
	stacktest.Eventually(t, "a change of rev", func() bool { return rev() != before })
	if o := place(); o.Event != holds.EventHoldRejected || !strings.Contains(fmt.Sprintf("%+v", o.Data), holds.ReasonSoldOut) {
		t.Errorf("the capacity is 1: %+v", o)
	}
}

// TestPlace_OnePartitionLost_RefusesOnlyItsOwn makes the calls of two partitions share a run and
// deletes the epoch of one of them.
func TestPlace_OnePartitionLost_RefusesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	w, _ := newCachingHarness(t)
	resources := []string{"one", elsewhere("one")}
	for _, resource := range resources {
		w.setInventory(t, resource, holds.SlotSelection{}, 5)
	}
	for _, lost := range resources {
		epoch := holds.EpochKey(w.namespace, lost)
		value := w.client.Get(t.Context(), epoch).Val()
		if w.client.Del(t.Context(), epoch).Val() != 1 {
			t.Fatalf("key %s does not exist", epoch)
		}
		w.syncInventory(t, w.service)
		for i, r := range w.service.Place(t.Context(), []holds.PlaceRequest{newRequest(resources[0]), newRequest(resources[1])}) {
			if is := errors.Is(r.Err, holds.ErrDataLost); is != (resources[i] == lost) {
				t.Errorf("%s is lost; place on %s: %+v", lost, resources[i], r)
			}
		}
		w.client.Set(t.Context(), epoch, value, 0)
	}
}
