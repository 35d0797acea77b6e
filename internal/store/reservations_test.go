package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
)

// TestCancelWhileOthersLock keeps a reservation locked while it is to be cancelled, and between the
// commit and the time that is written after it: it is busy, and has one answer in the end.
func TestCancelWhileOthersLock(t *testing.T) {
	t.Parallel()
	s := newSchema(t)
	s.set(t, "room", 5, "A")
	paid := payment(t, "room", "p", 2, "A")
	other := payment(t, "room", "q", 1, "A")
	if _, err := s.Decide(t.Context(), []holds.Payment{paid, other}); err != nil {
		t.Fatal(err)
	}
	lock := func() pgx.Tx {
		tx, err := s.conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `SELECT FROM reservations WHERE hold_id = $1 FOR UPDATE`, paid.Hold.String())
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	unlock := func(tx pgx.Tx) {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	requests := []holds.CancelRequest{{Cause: uuid.NewString(), Hold: paid.Hold}, {Cause: uuid.NewString(), Hold: other.Hold}}
	now := func(context.Context) (holds.Time, error) { return holds.TimeFromMillis(1000), nil }

	locked := lock()
	answers, err := s.Cancel(t.Context(), requests, now)
	if err != nil || !errors.Is(answers[0].Err, holds.ErrBusy) || answers[1].Err != nil || answers[1].CancelledAt.UnixMilli() != 1000 {
		t.Errorf("one of two is locked: %+v %v", answers, err)
	}
	unlock(locked)
	_, err = s.Cancel(t.Context(), requests, func(ctx context.Context) (holds.Time, error) {
		locked = lock()
		return now(ctx)
	})
	if !errors.Is(err, holds.ErrBusy) {
		t.Errorf("locked after the commit: %v", err)
	}
	unlock(locked)
	later := func(context.Context) (holds.Time, error) { return holds.TimeFromMillis(2000), nil }
	for range 2 {
		answers, err = s.Cancel(t.Context(), requests, later)
		if err != nil || answers[0].CancelledAt.UnixMilli() != 2000 || answers[1].CancelledAt.UnixMilli() != 1000 {
			t.Errorf("cancelled: %+v %v", answers, err)
		}
		later = now
	}
	if got := s.reserved(t, "room", "A"); got != 0 {
		t.Errorf("%d reserved", got)
	}
}
