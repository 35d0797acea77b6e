package store_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestCancel_RowLocked_Busy locks a reservation before its cancellation, and again between the
// commit and the update of cancelled_at. It is busy both times, and gets one answer in the end.
func TestCancel_RowLocked_Busy(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "A")
	paid := payment(t, "room", "p", 2, "A")
	other := payment(t, "room", "q", 1, "A")
	s.mustDecide(t, paid, other)
	lock := func() pgx.Tx {
		tx, err := s.conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `SELECT FROM reservations WHERE hold_id = $1 FOR UPDATE`, paid.Hold.String())
		}
		stacktest.Must(t, err)
		return tx
	}
	unlock := func(tx pgx.Tx) {
		stacktest.Must(t, tx.Rollback(context.Background()))
	}
	requests := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold},
		{EventID: uuid.NewString(), Hold: other.Hold}}

	locked := lock()
	answers, err := s.Cancel(t.Context(), requests, at(1000))
	if err != nil || !errors.Is(answers[0].Err, holds.ErrBusy) || answers[1].Err != nil ||
		answers[1].CancelledAt.UnixMilli() != 1000 {
		t.Errorf("one of two is locked: %+v %v", answers, err)
	}
	unlock(locked)
	_, err = s.Cancel(t.Context(), requests, func(ctx context.Context) (holds.Time, error) {
		locked = lock()
		return at(1000)(ctx)
	})
	if !errors.Is(err, holds.ErrBusy) {
		t.Errorf("locked after the commit: %v", err)
	}
	unlock(locked)
	for _, later := range []int64{2000, 1000} {
		answers, err = s.Cancel(t.Context(), requests, at(later))
		if err != nil || answers[0].CancelledAt.UnixMilli() != 2000 || answers[1].CancelledAt.UnixMilli() != 1000 {
			t.Errorf("cancelled: %+v %v", answers, err)
		}
	}
	s.wantReserved(t, "room", "A", 0)
}

// TestCancel_AnswerAloneMissing_Cancelled loses the answer to a payment, and not its reservation. A cancellation gives its
// slots back, and has of the hold what the reservation has.
func TestCancel_AnswerAloneMissing_Cancelled(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	paid := s.pay(t)
	s.execute(t, `DELETE FROM payments`)
	want := paid.Data
	want.Metadata = nil // a reservation has none
	requests := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold}, {EventID: uuid.NewString(), Hold: paid.Hold}}
	answers, err := s.Cancel(t.Context(), requests, at(1000))
	stacktest.Must(t, err)
	for i, reason := range []string{"", holds.ReasonAlreadyCancelled} {
		if a := answers[i]; a.Err != nil || a.Reason != reason || !reflect.DeepEqual(a.Data, want) {
			t.Errorf("answer %d: %+v, want reason %q and %+v", i, a, reason, want)
		}
	}
	s.wantReserved(t, "room", "A", 0)
}

// TestCancel_InventoryChangedByOthers_RestCancelled cancels reservations after their inventory was
// deleted, or its reserved number lowered. A cancellation that fails does not prevent the other.
func TestCancel_InventoryChangedByOthers_RestCancelled(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "A", "B")
	s.set(t, "loft", 5, "A")
	deleted, lowered := payment(t, "room", "p", 2, "A", "B"), payment(t, "loft", "q", 1, "A")
	s.mustDecide(t, deleted, lowered)
	s.execute(t, `ALTER TABLE inventory DISABLE TRIGGER a_slot_with_reservations_stays;
		DELETE FROM inventory WHERE slot = 'B'; UPDATE inventory SET reserved = 0 WHERE resource_id = 'loft'`)
	one := func(p holds.Payment) ([]holds.CancelDecision, error) {
		return s.Cancel(t.Context(), []holds.CancelRequest{{EventID: uuid.NewString(), Hold: p.Hold, Reason: "a\x00b"}}, at(1000))
	}
	if answers, err := one(deleted); err != nil || answers[0].CancelledAt.UnixMilli() != 1000 ||
		s.reserved(t, "room", "A") != 0 {
		t.Errorf("inventory deleted: %+v %v", answers, err)
	}
	var refused *pgconn.PgError
	if answers, err := one(lowered); !errors.As(err, &refused) || refused.Code != "23514" {
		t.Errorf("reserved lowered: %+v %v", answers, err)
	}
}

// TestCancel_TwoEventsAtOnce_CancelledOnce cancels one reservation by two events in one call, one
// of them twice.
func TestCancel_TwoEventsAtOnce_CancelledOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	paid := s.pay(t)
	first, second := holds.CancelRequest{EventID: uuid.NewString(), Hold: paid.Hold},
		holds.CancelRequest{EventID: uuid.NewString(), Hold: paid.Hold}
	if answers, err := s.Dry().Cancel(t.Context(), []holds.CancelRequest{first}, at(500)); err != nil ||
		answers[0].CancelledAt.UnixMilli() != 500 {
		t.Errorf("dry: %+v %v", answers, err)
	}
	for n := range int64(2) { // the second time every answer is stored
		answers, err := s.Cancel(t.Context(), []holds.CancelRequest{first, second, first}, at(1000*(n+1)))
		stacktest.Must(t, err)
		for i, want := range []string{"", holds.ReasonAlreadyCancelled, ""} {
			if a := answers[i]; a.Reason != want || a.Err != nil || a.CancelledAt.IsZero() == (want == "") ||
				a.Data.UserID != "ana" {
				t.Errorf("answer %d: %+v", i, a)
			}
		}
		if first := answers[0].CancelledAt; first.UnixMilli() != 1000 || answers[2].CancelledAt != first {
			t.Errorf("cancelled at %v and at %v", first, answers[2].CancelledAt)
		}
		s.wantReserved(t, "room", "A", 0)
	}
}
