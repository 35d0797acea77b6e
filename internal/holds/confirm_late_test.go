package holds_test

import (
	"errors"
	"testing"
	"time"

	"holdfast/internal/holds"
)

// TestConfirm_LateHoldForgotten_KeepsClaim makes Postgres fail between the claim of a late payment
// and its decision, until the expired hold is forgotten: the payment keeps the slots that it has
// taken.
func TestConfirm_LateHoldForgotten_KeepsClaim(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	hold := w.expiredHold(t, "room")
	w.pass(t, time.Second)
	claimed := w.now
	w.claim(t, hold, "p")
	w.pass(t, w.policy.RequestKeyTTL)
	w.sweep(t)
	if _, found, err := w.service.GetHold(t.Context(), hold); found || err != nil {
		t.Fatalf("the hold is still remembered: %v", err)
	}
	if o := w.pay(t, hold, "p"); brief(o) != "hold.confirmed late" || !o.At.Equal(claimed) {
		t.Errorf("claimed late at %v and decided after the hold was forgotten: %+v", claimed, o)
	}
	w.assertNothingHeld(t, "room")
}

// expiredHold returns a hold on the only unit of a resource, which has just expired.
func (w *harness) expiredHold(t *testing.T, resource string) holds.HoldID {
	t.Helper()
	hold := w.onlyHold(t, resource, 60).HoldID
	w.pass(t, time.Minute)
	w.sweep(t)
	return hold
}

// TestConfirm_LateAlreadyDecided_TakesNothing repeats a payment that was rejected before late
// payments were accepted. It must not take slots even for a moment, because its answer stays
// rejected.
func TestConfirm_LateAlreadyDecided_TakesNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.expiredHold(t, "room")
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirm_rejected expired")
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	decisions := 0
	w.service = w.newService(w.client, w.locker(t), &hookedInventory{Inventory: w.store, onDecide: func() error {
		decisions++
		if slot := w.available(t, "room", holds.SlotSelection{})[0]; slot.Available != 1 {
			t.Errorf("a rejected payment takes %+v", slot)
		}
		return nil
	}})
	if got := brief(w.pay(t, hold, "p")); got != "hold.confirm_rejected expired" || decisions != 1 {
		t.Errorf("repeated payment: %s, decided %d times", got, decisions)
	}
}

// TestConfirm_LateRefused_FreesSlots makes Postgres reject a late payment after it has taken its
// slots again. Then another payment of the hold can take them.
func TestConfirm_LateRefused_FreesSlots(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.expiredHold(t, "room")
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	whole := w.service
	w.service = w.newService(w.client, w.locker(t), &hookedInventory{Inventory: w.store, onDecide: func() error {
		w.setInventory(t, "room", holds.SlotSelection{}, 0)
		return nil
	}})
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirm_rejected sold_out")
	w.service = whole
	w.assertNothingHeld(t, "room")
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	wantBrief(t, w.pay(t, hold, "p2"), "hold.confirmed late")
	w.pass(t, w.policy.RequestKeyTTL)
	w.sweep(t)
	if left := w.client.HGetAll(t.Context(), holds.Key(w.namespace, "room", "records")).Val(); len(left) > 0 {
		t.Errorf("records without an end: %v", left)
	}
}

// TestConfirm_TwoLatePaymentsAtOnce_ReserveOnce pays an expired hold twice in one batch, with room
// for both. They make one reservation, with the time of the payment, not of the expiry.
func TestConfirm_TwoLatePaymentsAtOnce_ReserveOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.expiredHold(t, "room")
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	w.pass(t, time.Minute)
	paid := []holds.ConfirmRequest{{Hold: hold, PaymentID: "p1"}, {Hold: hold, PaymentID: "p2"}}
	busy, first := 0, holds.HoldConfirmed{}
	for _, r := range w.service.Confirm(t.Context(), paid) {
		switch data, confirmed := r.Outcome.Data.(holds.HoldConfirmed); {
		case errors.Is(r.Err, holds.ErrBusy):
			busy++
		case confirmed:
			first = data
		}
	}
	if busy != 1 || !first.Late || !first.ConfirmedAt.Equal(w.now) {
		t.Errorf("%d busy, confirmed at %v: %+v", busy, w.now, first)
	}
	for _, p := range paid {
		want := "hold.confirm_rejected already_confirmed"
		if p.PaymentID == first.PaymentID {
			want = "hold.confirmed late"
		}
		if got := brief(w.pay(t, hold, p.PaymentID)); got != want {
			t.Errorf("paid again with %s: %s, want %s", p.PaymentID, got, want)
		}
	}
	if slot := w.available(t, "room", holds.SlotSelection{})[0]; slot.Reserved != 1 || slot.Held != 0 {
		t.Errorf("after two late payments: %+v", slot)
	}
	w.assertNothingHeld(t, "room")
}

// TestConfirm_Late_KeepsUsersHoldCount checks that a late payment does not change the number of the
// user's live holds.
func TestConfirm_Late_KeepsUsersHoldCount(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment, p.HoldsPerUser = holds.LateAcceptedIfFree, 1 })
	w.setInventory(t, "room", slots("A", "B", "C"), 1)
	book := func(slot string) holds.Outcome {
		return w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Selection: slots(slot), TTLSeconds: seconds(60)})[0]
	}
	hold := created(t, book("A")).HoldID
	w.pass(t, time.Minute)
	created(t, book("B"))
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirmed late")
	rejected(t, book("C"), holds.ReasonHoldLimit)
}

// TestConfirm_LateWhileResourceHasLostCommit_Waits pays late while a commit of the resource is lost, which lets nothing be
// granted on it: from before the payment on, only until its decision, or only from its search for an answer on. The payment
// waits, and gets its slots when the commit was put back.
func TestConfirm_LateWhileResourceHasLostCommit_Waits(t *testing.T) {
	t.Parallel()
	const found = `DELETE FROM lost_commits`
	const lost = `INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
		VALUES ('o', 'room', 'inventory.updated', 'another session has locked its rows', '{"data":{}}')`
	for name, at := range map[string]struct{ first, searched, decided string }{
		"before and after":   {first: lost},
		"until the decision": {first: lost, decided: found},
		"from the search on": {searched: lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			hold := w.expiredHold(t, "room")
			w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
			whole := w.service
			w.service = w.newService(w.client, w.locker(t), &hookedInventory{Inventory: w.store,
				onFound:  func() { w.execute(t, at.searched) },
				onDecide: func() error { w.execute(t, at.decided); return nil },
			})
			w.execute(t, at.first)
			r := w.service.Confirm(t.Context(), []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}})[0]
			if !errors.Is(r.Err, holds.ErrBusy) {
				t.Errorf("while a commit is lost: %s, %v, want it to wait", brief(r.Outcome), r.Err)
			}
			w.service = whole
			w.execute(t, found)
			wantBrief(t, w.pay(t, hold, "p"), "hold.confirmed late")
		})
	}
}

// TestConfirm_LateInventoryDeleted_RejectsSoldOut pays late for a slot whose inventory row was
// deleted.
func TestConfirm_LateInventoryDeleted_RejectsSoldOut(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.expiredHold(t, "room")
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	w.execute(t, `DELETE FROM inventory`)
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirm_rejected sold_out")
	w.assertNothingHeld(t, "room")
}

// TestConfirm_LateAnswerAloneMissing_IsLateAgain loses the answer to a late payment in Postgres, not its reservation, and
// in Redis the record of the payment, not that of the hold, which has expired.
func TestConfirm_LateAnswerAloneMissing_IsLateAgain(t *testing.T) {
	t.Parallel()
	for _, capacity := range []int64{1, 2} { // with 2 the slot is free once more
		for _, policy := range []holds.LatePayment{holds.LateRejected, holds.LateAcceptedIfFree} {
			w := newHarness(t)
			hold := w.expiredHold(t, "room")
			w.setInventory(t, "room", holds.SlotSelection{}, capacity)
			w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
			paid := w.pay(t, hold, "p")
			w.execute(t, `DELETE FROM payments`)
			w.client.HDel(t.Context(), holds.Key(w.namespace, "room", "records"), "late:"+hold.UUID)
			w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = policy })
			if got := w.pay(t, hold, "p"); brief(got) != "hold.confirmed late" || !got.At.Equal(paid.At.Time) {
				t.Errorf("%s: paid again, %s at %v, want late at %v", policy, brief(got), got.At, paid.At)
			}
			w.assertNothingHeld(t, "room")
		}
	}
}

// TestConfirm_LateHoldForgottenBeforeRetake_RejectsUnknownHold forgets the hold between claim.lua
// and place.lua.
func TestConfirm_LateHoldForgottenBeforeRetake_RejectsUnknownHold(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hold := w.expiredHold(t, "room")
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	w.service = w.newService(w.client, w.locker(t), &hookedInventory{Inventory: w.store, onFound: func() {
		w.pass(t, w.policy.RequestKeyTTL)
		w.sweep(t)
	}})
	wantBrief(t, w.pay(t, hold, "p"), "hold.confirm_rejected unknown_hold")
	w.assertNothingHeld(t, "room")
}
