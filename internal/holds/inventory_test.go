package holds_test

import (
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
)

// TestRev_NoChangeForAnHour_Ends checks that both scripts that bump rev set its TTL at each change.
func TestRev_NoChangeForAnHour_Ends(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	for what, change := range map[string]func(){
		"an event sets the capacity": func() { w.setInventory(t, "room", holds.SlotSelection{}, 9) },
		"plain SQL does": func() {
			if err := w.service.BumpRevisions(ctx, "room"); err != nil {
				t.Fatal(err)
			}
		},
		"a payment is settled": func() {
			hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
			w.pay(t, hold.HoldID, "p")
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
	}
}

// TestRev_EndedSinceItWasRead_RefusesTheReader lets rev expire between a read and the decision and
// then bumps it once, so that the number of counted changes is the same as at the read.
func TestRev_EndedSinceItWasRead_RefusesTheReader(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx, rev := t.Context(), holds.Key(w.namespace, "room", "rev")
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), &changingInventory{w.store, func() {
		w.client.Del(ctx, rev)
		w.execute(t, `UPDATE inventory SET capacity = 0`)
		if err := w.service.BumpRevisions(ctx, "room"); err != nil {
			t.Error(err)
		}
	}})
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
}
