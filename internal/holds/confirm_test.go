package holds_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
)

// TestConfirm_OtherPaymentUndecided_IsBusy pays for a hold that another payment has claimed and not
// settled.
func TestConfirm_OtherPaymentUndecided_IsBusy(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	hold := w.onlyHold(t, "room", 60).HoldID

	w.claim(t, hold, "p1")
	w.pass(t, time.Hour) // a claim does not expire
	if got := w.sweep(t); len(got) != 0 {
		t.Fatalf("a claimed hold expired: %+v", got)
	}
	view, _, err := w.service.GetHold(ctx, hold)
	if err != nil || view.State != holds.Confirming {
		t.Fatalf("the hold is %+v %v, want confirming", view, err)
	}
	release := holds.ReleaseRequest{EventID: uuid.NewString(), Hold: hold, Resource: "room"}
	for _, results := range [][]holds.Result{
		w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p2"}}),
		w.service.Release(ctx, []holds.ReleaseRequest{release}),
	} {
		if !errors.Is(results[0].Err, holds.ErrBusy) {
			t.Errorf("want ErrBusy, got %+v", results[0])
		}
	}
	confirmed := w.pay(t, hold, "p1").Data.(holds.HoldConfirmed)
	if want := w.now.Add(-time.Hour); !confirmed.ConfirmedAt.Equal(want) {
		t.Errorf("confirmed at %v, want the moment of the claim, %v", confirmed.ConfirmedAt, want)
	}
	wantBrief(t, w.pay(t, hold, "p2"), "hold.confirm_rejected already_confirmed")
	w.assertNothingHeld(t, "room")
}

// TestConfirm_SettledByAnotherWorker_LeavesNewClaim pauses a worker between the rejection of a
// payment by Postgres and its settlement. Meanwhile another worker settles the payment, and another
// payment claims the hold. The paused worker must not settle the new claim.
func TestConfirm_SettledByAnotherWorker_LeavesNewClaim(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	hold := w.onlyHold(t, "room", 600).HoldID
	w.setInventory(t, "room", holds.SlotSelection{}, 0)
	paused := w.newService(w.client, w.locker(t), &hookedInventory{Inventory: w.store, onDecided: func() {
		wantBrief(t, w.pay(t, hold, "p1"), "hold.confirm_rejected sold_out")
		w.setInventory(t, "room", holds.SlotSelection{}, 1)
		w.claim(t, hold, "p2")
	}})
	for _, r := range paused.Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p1"}}) {
		if got := brief(r.Outcome); r.Err != nil || got != "hold.confirm_rejected sold_out" {
			t.Errorf("the paused worker: %s %v", got, r.Err)
		}
	}
	if view, _, err := w.service.GetHold(ctx, hold); err != nil || view.State != holds.Confirming {
		t.Errorf("the hold that p2 has claimed has the state %s: %v", view.State, err)
	}
	wantBrief(t, w.pay(t, hold, "p2"), holds.EventHoldConfirmed)
	w.assertNothingHeld(t, "room")
}

// TestConfirm_BatchExceedsCapacity_ConfirmsWhatFits pays for many holds in one batch: some payments
// are repeated, and some holds no longer fit.
func TestConfirm_BatchExceedsCapacity_ConfirmsWhatFits(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "hall", holds.SlotSelection{}, 10)
	var requests []holds.ConfirmRequest
	for i := range 10 {
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "hall", User: fmt.Sprintf("u%d", i)})[0])
		requests = append(requests, holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: fmt.Sprintf("p%d", i)})
	}
	unknown := holds.NewHoldID("hall")
	requests = append(requests, holds.ConfirmRequest{Hold: unknown, PaymentID: "p"}, requests[0], requests[9])
	w.setInventory(t, "hall", holds.SlotSelection{}, 7)
	outcomes := collect(t, len(requests), slices.All(w.service.Confirm(t.Context(), requests)))
	kinds := make(map[string]int)
	for _, o := range outcomes[:11] {
		kinds[brief(o)]++
	}
	want := map[string]int{holds.EventHoldConfirmed: 7, "hold.confirm_rejected sold_out": 3, "hold.confirm_rejected unknown_hold": 1}
	for kind, n := range want {
		if kinds[kind] != n {
			t.Errorf("%d outcomes %s, want %d", kinds[kind], kind, n)
		}
	}
	if !slices.Equal(briefs(outcomes[11:]), briefs([]holds.Outcome{outcomes[0], outcomes[9]})) {
		t.Errorf("the same payments in one batch have the answers %v and %v", briefs(outcomes[11:]), briefs([]holds.Outcome{outcomes[0], outcomes[9]}))
	}
	if slot := w.available(t, "hall", holds.SlotSelection{})[0]; slot.Reserved != 7 || slot.Held != 3 {
		t.Errorf("after the payments: %+v", slot)
	}
}

// unreachableTerm is a Term whose last check of the servers has failed, unless err is nil.
type unreachableTerm struct {
	clockTerm
	err error
}

func (u *unreachableTerm) Unreachable() error { return u.err }

// TestConfirm_PostgresUnreachable_HoldsClaimed lets payments come while Postgres does not answer. Only the first one waits
// for it, but all claim their holds, which do not expire then, and are confirmed when Postgres answers again.
func TestConfirm_PostgresUnreachable_HoldsClaimed(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "hall", holds.SlotSelection{}, 3)
	tries := 0
	inventory := &hookedInventory{Inventory: w.store, onDecide: func() error { tries++; return errDown }}
	away := &holds.UnreachableError{Postgres: true, Err: errors.New("no answer")}
	term := &unreachableTerm{clockTerm{w.term, w}, away}
	service := holds.NewService(w.namespace, w.client, w.locker(t), inventory, term, w.policy)
	var payments []holds.ConfirmRequest
	for i, want := range []error{errDown, away, away} {
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "hall", User: fmt.Sprint("u", i)})[0])
		payments = append(payments, holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: fmt.Sprint("p", i)})
		if r := service.Confirm(t.Context(), payments[i:])[0]; !errors.Is(r.Err, want) {
			t.Errorf("payment %d: %+v, want the error %v", i, r, want)
		}
	}
	if tries != 1 {
		t.Errorf("postgres was tried %d times", tries)
	}
	w.pass(t, time.Hour)
	if expired := w.sweep(t); len(expired) > 0 {
		t.Errorf("expired although they are claimed: %v", briefs(expired))
	}
	term.err, inventory.onDecide = nil, nil
	for _, o := range collect(t, len(payments), slices.All(service.Confirm(t.Context(), payments))) {
		wantBrief(t, o, holds.EventHoldConfirmed)
	}
}

// TestConfirm_OnlyChecksFail_Confirmed confirms payments although the check of a server fails: the connections that decide
// work.
func TestConfirm_OnlyChecksFail_Confirmed(t *testing.T) {
	t.Parallel()
	for _, postgres := range []bool{true, false} {
		w := newHarness(t)
		w.setInventory(t, "hall", holds.SlotSelection{}, 2)
		term := &unreachableTerm{clockTerm{w.term, w}, &holds.UnreachableError{Postgres: postgres, Err: errors.New("no answer")}}
		w.service = holds.NewService(w.namespace, w.client, w.locker(t), w.store, term, w.policy)
		for i := range 2 {
			hold := created(t, w.place(t, holds.PlaceRequest{Resource: "hall", User: fmt.Sprint("u", i)})[0])
			wantBrief(t, w.pay(t, hold.HoldID, fmt.Sprint("p", i)), holds.EventHoldConfirmed)
		}
	}
}
