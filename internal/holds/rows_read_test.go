package holds_test

import (
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// TestPlace_NextNights_AreReadWithThoseBefore places a hold of some nights and then of nights near
// them.
func TestPlace_NextNights_AreReadWithThoseBefore(t *testing.T) {
	t.Parallel()
	w, rows := newCachingHarness(t)
	night := func(n int) string { return time.Now().UTC().AddDate(0, 0, 100+n).Format(holds.DateFormat) }
	w.setInventory(t, "room", holds.SlotSelection{CheckIn: night(0), CheckOut: night(40)}, 1)
	w.syncInventory(t, w.service)
	for i, c := range []struct {
		from, to, reads int
		event           string
	}{
		{10, 13, 1, holds.EventHoldCreated},
		{12, 15, 1, holds.EventHoldRejected}, // one night is held
		{13, 16, 1, holds.EventHoldCreated},
		{26, 27, 1, holds.EventHoldCreated},
		{38, 41, 2, holds.EventHoldRejected}, // the last night has no inventory row
		{39, 41, 2, holds.EventHoldRejected},
	} {
		request := newRequest("room")
		request.Selection = holds.SlotSelection{CheckIn: night(c.from), CheckOut: night(c.to)}
		if r := w.tryPlace(request); r.Err != nil || r.Outcome.Event != c.event || rows.reads != c.reads {
			t.Errorf("request %d: %+v after %d reads, want %s after %d", i, r, rows.reads, c.event, c.reads)
		}
	}
}

// TestPlace_SaleAfterRead_RejectsSoldOut sells the last room after the read of Postgres and before
// the script decides. The read is out of date, and rev shows it.
func TestPlace_SaleAfterRead_RejectsSoldOut(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ana := w.onlyHold(t, "room", 600)
	sale := func() { w.pay(t, ana.HoldID, "p") }
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), afterFirstRead(w.store, sale))
	rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0], holds.ReasonSoldOut)
}

// TestPlace_CancellationAfterRead_Grants cancels the reservation of the last room after the read of
// Postgres: the request gets the room.
func TestPlace_CancellationAfterRead_Grants(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ana := w.onlyHold(t, "room", 600)
	w.pay(t, ana.HoldID, "p")
	w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), afterFirstRead(w.store, func() {
		w.cancelReservation(t, holds.CancelRequest{Hold: ana.HoldID})
	}))
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
}

// TestPlace_CapacityCutAfterRead_RejectsSoldOut cuts the capacity by an event, and by plain SQL
// while the worker is paused for longer than readAge.
func TestPlace_CapacityCutAfterRead_RejectsSoldOut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *harness){
		"by an event": func(w *harness) { w.setInventory(t, "room", holds.SlotSelection{}, 0) },
		"by SQL, and a pause": func(w *harness) {
			began := w.client.Time(t.Context()).Val()
			w.execute(t, `UPDATE inventory SET capacity = 0`)
			stacktest.Eventually(t, "the pause", func() bool {
				return w.client.Time(t.Context()).Val().Sub(began) > holds.ReadAge+time.Millisecond // scripts count whole ms
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 1)
			rows := afterFirstRead(w.store, func() { cut(w) })
			w.service = w.newService(w.client, newLocker(t, locking.NewNone(w.client)), rows)
			rejected(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0], holds.ReasonSoldOut)
		})
	}
}
