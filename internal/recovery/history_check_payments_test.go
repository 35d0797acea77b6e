package recovery_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
)

// TestHistoryChecker_UnpublishedPaymentLost_HoldIsLiveAgain loses a payment that Redis has settled
// and that was not published. Its slot must not be granted before the payment is delivered again.
func TestHistoryChecker_UnpublishedPaymentLost_HoldIsLiveAgain(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := w.paidUnpublished(t)
	w.forget(t)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	if e := w.check(t); e.Complete {
		t.Error("the epoch is still complete: redis has the payment and postgres has not")
	}
	w.rebuildAsSupervisor(t)
	w.checkHeldUntilPaid(t, id)
}

// TestHistoryChecker_RebuildMeanwhile_StartsAgain loses the payment while another worker rebuilds Redis, which has read it
// and written its hold as confirmed. The slot must not be granted before the payment is delivered again.
func TestHistoryChecker_RebuildMeanwhile_StartsAgain(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := w.paidUnpublished(t)
	rebuilder := w.newSupervisorWith(&completingStore{w.store, sync.OnceFunc(func() {
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
	})}, w.log, "w2", recovery.NewEpochTerm())
	rebuilder.Drain = 0
	if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	w.adoptEpoch(t)
	w.checkHeldUntilPaid(t, id)
}

// pausingInventory is the Inventory of a worker that is suspended when Postgres has committed its decisions.
type pausingInventory struct {
	holds.Inventory
	meanwhile func()
}

func (p *pausingInventory) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	answers, err := p.Inventory.Decide(ctx, payments)
	p.meanwhile()
	return answers, err
}

// TestHistoryChecker_PaymentNotSettledLost_SlotIsKept suspends a worker between the commit of a payment and its settlement.
// Meanwhile Postgres loses the commit, and is compared. The worker must not give back the slot of the hold.
func TestHistoryChecker_PaymentNotSettledLost_SlotIsKept(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	payment := holds.ConfirmRequest{Hold: id, PaymentID: "p"}
	w.log.payments = []holds.Payment{{ConfirmRequest: payment, At: holds.Time{Time: w.now}}}
	suspended := w.newService(t, w.client, &pausingInventory{w.store, func() {
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
	}})
	if got := suspended.Confirm(t.Context(), []holds.ConfirmRequest{payment})[0]; !errors.Is(got.Err, holds.ErrBusy) {
		t.Errorf("the worker that was suspended: %s %v, want %v", brief(got.Outcome), got.Err, holds.ErrBusy)
	}
	w.checkHeldUntilPaid(t, id)
}

// TestHistoryChecker_RejectionNotSettledLost_PaymentIsSettled suspends a worker between the rejection of a payment and its
// settlement. Postgres loses the rejection, and another worker confirms the payment and is about to settle it.
func TestHistoryChecker_RejectionNotSettledLost_PaymentIsSettled(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	payments := []holds.ConfirmRequest{{Hold: id, PaymentID: "p"}}
	w.log.payments = []holds.Payment{{ConfirmRequest: payments[0], At: holds.Time{Time: w.now}}}
	w.execute(t, `UPDATE inventory SET capacity = 0`)
	committed, settle, confirmed := make(chan struct{}), make(chan struct{}), make(chan []holds.Result, 1)
	other := w.newService(t, w.client, &pausingInventory{w.store, func() { close(committed); <-settle }})
	suspended := w.newService(t, w.client, &pausingInventory{w.store, func() {
		w.execute(t, `DELETE FROM payments; UPDATE inventory SET capacity = 1`)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
		go func() { confirmed <- other.Confirm(t.Context(), payments) }()
		select {
		case <-committed:
		case results := <-confirmed:
			t.Errorf("the other worker has decided nothing: %v", results[0].Err)
			confirmed <- results
		}
	}})
	if got := suspended.Confirm(t.Context(), payments)[0]; !errors.Is(got.Err, holds.ErrBusy) {
		t.Errorf("the worker that was suspended: %s %v, want %v", brief(got.Outcome), got.Err, holds.ErrBusy)
	}
	close(settle)
	if got := (<-confirmed)[0]; got.Err != nil || got.Outcome.Event != holds.EventHoldConfirmed {
		t.Errorf("the other worker: %s %v", brief(got.Outcome), got.Err)
	}
	if view, _, err := w.service.GetHold(t.Context(), id); err != nil || view.State != holds.Confirmed {
		t.Errorf("the hold is %v %v, want %v", view.State, err, holds.Confirmed)
	}
}

// TestHistoryChecker_SettledPaymentReservedAgain_RowsAreRead delivers a payment again that Redis has settled and Postgres
// has lost. Rows that a worker has read before have another reserved.
func TestHistoryChecker_SettledPaymentReservedAgain_RowsAreRead(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	id := w.paid(t)
	w.forget(t)
	rely := func() { // on the rows in memory
		now, err := w.service.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.service.InventorySynced(now)
	}
	rely()
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
	if got := brief(w.pay(t, id, "p")); got != holds.EventHoldConfirmed {
		t.Fatalf("the payment is delivered again: %s", got)
	}
	rely()
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "cid"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("with a capacity of 2, one reserved and one held: %s", got)
	}
}

// checkHeldUntilPaid checks that the only slot belongs to a hold, which is confirmed when its payment is delivered again.
func (w *guardedWorker) checkHeldUntilPaid(t *testing.T, id holds.HoldID) {
	t.Helper()
	if n := w.held(t, "room"); n != 1 {
		t.Errorf("%d are held, want 1", n)
	}
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "eve"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("another request: %s", got)
	}
	if got := brief(w.pay(t, id, "p")); got != holds.EventHoldConfirmed {
		t.Errorf("the payment is delivered again: %s", got)
	}
}
