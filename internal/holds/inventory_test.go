package holds_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// TestRev_NoChangeForAnHour_Ends checks that both scripts that bump rev set its TTL at each change.
func TestRev_NoChangeForAnHour_Ends(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	for what, change := range map[string]func(){
		"an event sets the capacity": func() { w.setInventory(t, "room", holds.SlotSelection{}, 9) },
		"plain SQL does": func() {
			stacktest.Must(t, w.service.BumpRevisions(ctx, "room"))
		},
		"a payment is settled": func() {
			hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
			w.pay(t, hold.HoldID, uuid.NewString())
		},
	} {
		if what == "a payment is settled" {
			w.setInventory(t, "room", holds.SlotSelection{}, 9)
		}
		w.client.Set(ctx, rev, "7", 0)
		change()
		if value := w.client.Get(ctx, rev).Val(); value != "8" {
			t.Errorf("%s: rev is %s, want 8", what, value)
		}
		if left := w.client.PTTL(ctx, rev).Val(); left <= 0 || left > time.Hour {
			t.Errorf("%s: rev ends in %s, want within an hour", what, left)
		}
		w.client.Del(ctx, rev)
		change()
		if left := w.client.PTTL(ctx, rev).Val(); left <= 0 || left > time.Hour {
			t.Errorf("%s: a new rev ends in %s, want within an hour", what, left)
		}
	}
}

// TestRev_EndedSinceItWasRead_RefusesTheReader lets rev expire between a read and the decision and
// then bumps it once, so that the number of counted changes is the same as at the read.
func TestRev_EndedSinceItWasRead_RefusesTheReader(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), afterFirstRead(w.store, func() {
		w.client.Del(ctx, rev)
		w.execute(t, `UPDATE inventory SET capacity = 0`)
		if err := w.service.BumpRevisions(ctx, "room"); err != nil {
			t.Error(err)
		}
	}))
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
}

// TestSetInventory_ClockContradictsStream_StreamWins delivers two events of a stream in the wrong
// order, where the later event has the earlier time.
func TestSetInventory_ClockContradictsStream_StreamWins(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	now := time.Now()
	set := func(seq uint64, at time.Time, capacity int64) {
		t.Helper()
		r := w.service.SetInventory(t.Context(), []holds.InventoryRequest{{
			EventID: uuid.NewString(), Resource: "room", Capacity: capacity,
			Position: holds.StreamPosition{At: at, StreamCreatedAt: now.Add(-time.Hour), Seq: seq},
		}})[0]
		updated, is := r.Outcome.Data.(holds.InventoryUpdated)
		if r.Err != nil || !is || updated.Slots[0].Capacity != 2 {
			t.Errorf("event %d: %+v %v, want capacity 2", seq, r.Outcome.Data, r.Err)
		}
	}
	set(2, now.Add(-time.Second), 2)
	set(1, now, 1)
}
