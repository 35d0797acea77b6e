package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// snapshot returns all rows that PutBack writes, without times of its own.
func (s harness) snapshot(t *testing.T) []string {
	t.Helper()
	return s.column(t, `
		SELECT (to_jsonb(p))::text FROM payments AS p
		UNION ALL SELECT (to_jsonb(r) - 'cancel_reason')::text FROM reservations AS r
		UNION ALL SELECT (to_jsonb(a) - 'decided_at')::text FROM event_answers AS a
		UNION ALL SELECT (to_jsonb(i) - 'updated_at')::text FROM inventory AS i
		ORDER BY 1`)
}

// confirmedOutcome is the outcome of a payment that has become a reservation.
func confirmedOutcome(p holds.Payment) holds.StoredOutcome {
	o := holds.StoredOutcome{ID: uuid.NewString()}
	o.Event, o.At = holds.EventHoldConfirmed, p.At
	o.Data = holds.HoldConfirmed{HoldData: p.Data, PaymentID: p.PaymentID, ConfirmedAt: p.At, Late: p.Late}
	o.RebuildMetadata.Amount, o.RebuildMetadata.Currency = p.Amount, p.Currency
	return o
}

// TestPutBack_RowsForgotten_AreRestored decides one event of each kind, removes all rows, and puts
// them back from the outcomes: they are the same as before.
func TestPutBack_RowsForgotten_AreRestored(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	position := holds.StreamPosition{At: time.Now().UTC(), StreamCreatedAt: time.Now().UTC(), Seq: 7}
	change := holds.CapacityChange{EventID: uuid.NewString(), Position: position, Resource: "room",
		Names: []string{"A", "B"}, Capacity: 5, Held: []int64{0, 0}}
	capacity, err := s.SetCapacity(ctx, change)
	if err != nil {
		t.Fatal(err)
	}
	paid, cancelled := payment(t, "room", "p", 2, "A", "B"), payment(t, "room", "q", 1, "B")
	late, refused := payment(t, "room", "l", 1, "A"), payment(t, "room", "r", 1, "A")
	late.Late, refused.Claimed, refused.Reason = true, false, holds.ReasonExpired
	all := []holds.Payment{paid, cancelled, late, refused}
	if _, err := s.Decide(ctx, all); err != nil {
		t.Fatal(err)
	}
	requests := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: cancelled.Hold},
		{EventID: uuid.NewString(), Hold: refused.Hold}}
	at := holds.TimeFromMillis(time.Now().UnixMilli())
	answers, err := s.Cancel(ctx, requests, func(context.Context) (holds.Time, error) { return at, nil })
	if err != nil {
		t.Fatal(err)
	}
	below := holds.CapacityChange{EventID: uuid.NewString(), Position: position, Resource: "room", Names: []string{"A"},
		Held: []int64{0}}
	if _, err := s.SetCapacity(ctx, below); err != nil {
		t.Fatal(err)
	}
	outcome := func(id, event string, data holds.OutcomeData) (o holds.StoredOutcome) {
		o.ID, o.Event, o.Data = id, event, data
		return o
	}
	outcomes := []holds.StoredOutcome{
		outcome(change.EventID, holds.EventInventoryUpdated,
			holds.InventoryUpdated{ResourceID: "room", Slots: capacity.Slots}),
		confirmedOutcome(paid), confirmedOutcome(cancelled), confirmedOutcome(late), confirmedOutcome(paid),
		outcome(uuid.NewString(), holds.EventConfirmRejected, holds.ConfirmRejected{HoldData: refused.Data,
			PaymentID: refused.PaymentID, Reason: refused.Reason}),
		outcome(requests[0].EventID, holds.EventReservationCancelled, holds.ReservationCancelled{HoldData: answers[0].Data,
			CancelledAt: answers[0].CancelledAt}),
		outcome(requests[1].EventID, holds.EventCancelRejected, holds.CancelRejected{HoldData: answers[1].Data,
			Reason: answers[1].Reason}),
		outcome(below.EventID, holds.EventInventoryRejected, holds.InventoryRejected{ResourceID: "room",
			Reason: holds.ReasonBelowReserved}),
	}
	outcomes[0].RebuildMetadata.Position = position
	outcomes[5].At = refused.At
	outcomes[5].RebuildMetadata.Amount, outcomes[5].RebuildMetadata.Currency = refused.Amount, refused.Currency

	before := s.snapshot(t)
	s.execute(t, `DELETE FROM reservations; UPDATE inventory SET reserved = 0; DELETE FROM inventory;
		DELETE FROM payments; DELETE FROM event_answers`)
	if restored, err := s.PutBack(ctx, slices.Clone(outcomes)); restored != len(outcomes) || err != nil {
		t.Errorf("put back %d (%v), want %d", restored, err, len(outcomes))
	}
	after := s.snapshot(t)
	if !slices.Equal(before, after) {
		t.Errorf("put back\n%q\nbefore\n%q", after, before)
	}
	s.execute(t, `UPDATE inventory SET capacity = 9`) // by upstream, after the event
	if restored, err := s.PutBack(ctx, outcomes); restored != 0 || err != nil {
		t.Errorf("put back %d again (%v)", restored, err)
	}
	s.execute(t, `DELETE FROM event_answers`) // they are removed when they are old
	if _, err := s.PutBack(ctx, outcomes); err != nil {
		t.Error(err)
	}
	got := s.column(t, `SELECT resource_id || slot || capacity || reserved FROM inventory ORDER BY slot`)
	if !slices.Equal(got, []string{"roomA93", "roomB92"}) {
		t.Errorf("capacity and reserved are %q", got)
	}
	if lost := s.column(t, `SELECT event FROM lost_commits`); len(lost) > 0 {
		t.Errorf("lost: %q", lost)
	}
}

// TestPutBack_CapacityTooLow_BecomesLostCommit puts back a reservation for which there is no
// capacity any more, and one that contradicts a later answer. Nothing is left of their resources
// until the capacity is raised.
func TestPutBack_CapacityTooLow_BecomesLostCommit(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "small", 1, "A", "B")
	s.set(t, "other", 5, "A")
	s.set(t, "third", 5, "A")
	large, fits := payment(t, "small", "p", 2, "A"), payment(t, "third", "q", 1, "A")
	contradicts := payment(t, "other", "r", 1, "A")
	refused := contradicts
	refused.Claimed, refused.Reason = false, holds.ReasonExpired
	if _, err := s.Decide(ctx, []holds.Payment{refused}); err != nil {
		t.Fatal(err)
	}
	outcomes := []holds.StoredOutcome{confirmedOutcome(large), confirmedOutcome(fits), confirmedOutcome(contradicts)}
	if restored, err := s.PutBack(ctx, outcomes); restored != 1 || err != nil {
		t.Errorf("put back %d (%v), want 1", restored, err)
	}
	available := func(resource string, slots ...string) (all []int64) {
		rows, err := s.InventoryRows(ctx, []string{resource}, [][]string{slots})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows[0] {
			all = append(all, row.Capacity-row.Reserved)
		}
		return all
	}
	blocked := func(want ...int64) {
		t.Helper()
		got := append(append(available("small", "A", "B"), available("other", "A")...), available("third", "A")...)
		if !slices.Equal(got, want) {
			t.Errorf("available are %d, want %d", got, want)
		}
	}
	blocked(0, 0, 0, 4)
	if restored, err := s.PutBackLost(ctx); restored != 0 || err != nil {
		t.Errorf("put back %d (%v) without a change", restored, err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 4 WHERE resource_id = 'small'`)
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("put back %d (%v), want 1", restored, err)
	}
	blocked(2, 4, 0, 4)
	s.execute(t, `DELETE FROM lost_commits`) // by an operator
	blocked(2, 4, 5, 4)
}

// TestPutBackLost_CallEnds_NextOneContinues ends a call after its first transaction, whose lost commits cannot be put
// back. The next call begins with those that were not tried.
func TestPutBackLost_CallEnds_NextOneContinues(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "full", 1, "A")
	s.set(t, "room", 0, "A")
	var full []holds.StoredOutcome
	for i := range 50 {
		full = append(full, confirmedOutcome(payment(t, "full", fmt.Sprint("p", i), 2, "A")))
	}
	for _, some := range [][]holds.StoredOutcome{full, {confirmedOutcome(payment(t, "room", "q", 1, "A"))}} {
		if _, err := s.PutBack(ctx, some); err != nil {
			t.Fatal(err)
		}
	}
	s.execute(t, `UPDATE inventory SET capacity = 1 WHERE resource_id = 'room'`)
	waiting := func() bool {
		return len(s.column(t, `SELECT pid::text FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))`)) > 0
	}
	call := func(locked string) (stop func() error) {
		s.execute(t, `BEGIN; SELECT * FROM inventory WHERE resource_id = '`+locked+`' FOR UPDATE`)
		limited, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { _, err := s.PutBackLost(limited); ended <- err }()
		stacktest.Eventually(t, "the call to wait for "+locked, waiting)
		return func() error { cancel(); err := <-ended; s.execute(t, `ROLLBACK`); return err }
	}
	if err := call("room")(); err == nil {
		t.Fatal("the first call has not ended early")
	}
	stop := call("full")
	reserved := s.column(t, `SELECT reserved::text FROM inventory WHERE resource_id = 'room'`)
	if err := stop(); err == nil || !slices.Equal(reserved, []string{"1"}) {
		t.Errorf("while the first ones wait %v are reserved in room, want 1 (%v)", reserved, err)
	}
}
