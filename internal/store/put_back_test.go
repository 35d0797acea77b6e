package store_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"holdfast/internal/holds"
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
	o.Event, o.Resource, o.At = holds.EventHoldConfirmed, p.Hold.Resource, p.At
	o.Data = holds.HoldConfirmed{HoldData: p.Data, PaymentID: p.PaymentID, ConfirmedAt: p.At, Late: p.Late}
	o.RebuildMetadata.Amount, o.RebuildMetadata.Currency = p.Amount, p.Currency
	return o
}

// unitsSold sets the capacity of resources, and returns outcomes of which Postgres has lost the commits: a unit of each is paid.
func (s harness) unitsSold(t *testing.T, capacity int64, resources ...string) (outcomes []holds.StoredOutcome) {
	t.Helper()
	for _, resource := range resources {
		s.set(t, resource, capacity, "A")
		outcomes = append(outcomes, confirmedOutcome(payment(t, resource, "p", 1, "A")))
	}
	return outcomes
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
	answers, err := s.Cancel(ctx, requests, at(time.Now().UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	later := holds.StreamPosition{At: position.At, StreamCreatedAt: position.StreamCreatedAt, Seq: 8}
	below := holds.CapacityChange{EventID: uuid.NewString(), Position: later, Resource: "room", Names: []string{"A"},
		Held: []int64{0}}
	if _, err := s.SetCapacity(ctx, below); err != nil {
		t.Fatal(err)
	}
	outcome := func(id, event string, data holds.OutcomeData) (o holds.StoredOutcome) {
		o.ID, o.Event, o.Resource, o.Data = id, event, "room", data
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

// TestPutBackLost_CancelledReservation_NeedsNoCapacity loses reservations with their cancellations. The capacity is lower
// now, and a slot has no inventory row any more. A reservation that was not cancelled stays lost, and so does the
// cancellation of another one.
func TestPutBackLost_CancelledReservation_NeedsNoCapacity(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "room", 5, "A", "B")
	s.execute(t, `DELETE FROM event_answers`)
	cancelled := func(id string, data holds.HoldData) (o holds.StoredOutcome) {
		o.ID, o.Event, o.Resource = id, holds.EventReservationCancelled, "room"
		o.Data = holds.ReservationCancelled{HoldData: data, CancelledAt: holds.TimeFromMillis(1000)}
		return o
	}
	other := payment(t, "room", "o", 1, "A").Data
	other.Metadata = jsontext.Value(`{"note":"a \u0000 in it"}`) // no text of Postgres may have it
	outcomes := []holds.StoredOutcome{confirmedOutcome(payment(t, "room", "r", 2, "A", "B")), cancelled("o", other)}
	for _, id := range []string{"p", "q"} {
		paid := payment(t, "room", id, 2, "A", "B")
		if _, err := s.Decide(ctx, []holds.Payment{paid}); err != nil {
			t.Fatal(err)
		}
		request := holds.CancelRequest{EventID: uuid.NewString(), Hold: paid.Hold}
		if _, err := s.Cancel(ctx, []holds.CancelRequest{request}, at(1000)); err != nil {
			t.Fatal(err)
		}
		outcomes = append(outcomes, confirmedOutcome(paid), cancelled(request.EventID, paid.Data))
	}
	s.execute(t, `UPDATE inventory SET capacity = 1; DELETE FROM inventory WHERE slot = 'B'`)
	before := s.snapshot(t)
	s.execute(t, `DELETE FROM reservations; DELETE FROM payments; DELETE FROM event_answers`)
	if _, err := s.PutBack(ctx, outcomes); err != nil {
		t.Fatal(err)
	}
	if restored, err := s.PutBackLost(ctx); restored != 4 || err != nil {
		t.Errorf("put back %d (%v), want 4", restored, err)
	}
	if after := s.snapshot(t); !slices.Equal(before, after) {
		t.Errorf("put back\n%q\nbefore\n%q", after, before)
	}
	lost := s.column(t, `SELECT outcome_id FROM lost_commits ORDER BY event`)
	if !slices.Equal(lost, []string{outcomes[0].ID, outcomes[1].ID}) {
		t.Errorf("lost: %q", lost)
	}
}

// TestPutBackLost_AnswerOfCancellationKept_IsPutBackCancelled loses only the row of a cancelled reservation, as when single
// tables are restored. Its cancellation is read before it, and has its answer.
func TestPutBackLost_AnswerOfCancellationKept_IsPutBackCancelled(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	paid := s.pay(t)
	request := holds.CancelRequest{EventID: "00000000-0000-4000-8000-000000000000", Hold: paid.Hold}
	if _, err := s.Cancel(ctx, []holds.CancelRequest{request}, at(1000)); err != nil {
		t.Fatal(err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 1`)
	before := s.snapshot(t)
	s.execute(t, `DELETE FROM reservations`)
	cancelled := holds.StoredOutcome{ID: request.EventID}
	cancelled.Event, cancelled.Resource = holds.EventReservationCancelled, "room"
	cancelled.Data = holds.ReservationCancelled{HoldData: paid.Data, CancelledAt: holds.TimeFromMillis(1000)}
	if _, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(paid), cancelled}); err != nil {
		t.Fatal(err)
	}
	if restored, err := s.PutBackLost(ctx); restored != 2 || err != nil {
		t.Errorf("put back %d (%v), want 2", restored, err)
	}
	if after := s.snapshot(t); !slices.Equal(before, after) {
		t.Errorf("put back\n%q\nbefore\n%q", after, before)
	}
}

// TestPutBackLost_ManyStay_LaterOnesPutBack has more lost commits that stay than fit in one transaction, and one after
// them for which there is capacity again.
func TestPutBackLost_ManyStay_LaterOnesPutBack(t *testing.T) {
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
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("put back %d (%v), want 1", restored, err)
	}
	if got := s.reserved(t, "room", "A"); got != 1 {
		t.Errorf("%d reserved in room, want 1", got)
	}
}

// TestPutBackLost_CannotBeDecoded_OthersPutBack has lost commits that another version has stored, before and after one for
// which there is capacity again. They stay, and say why.
func TestPutBackLost_CannotBeDecoded_OthersPutBack(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "room", 0, "A")
	insert := `INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
		VALUES ('o1', 'hall', 'hold.confirmed', 'a test', '{"event": "hold.confirmed", "data": {"quantity": "all"}}'),
			('o2', 'hall', 'hold.moved', 'a test', '{"event": "hold.moved", "data": {}}'),
			('o3', 'hall', 'hold.moved', 'a test', '[]'),
			('o4', 'hall', 'hold.confirmed', 'a test', '{"event": "hold.confirmed", "data": {"payment_id": "a\u0000b"}}')`
	s.execute(t, insert)
	if _, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(payment(t, "room", "p", 1, "A"))}); err != nil {
		t.Fatal(err)
	}
	s.execute(t, strings.ReplaceAll(insert, "'o", "'p")+`; UPDATE inventory SET capacity = 1`)
	for _, want := range []int{1, 0} {
		if restored, err := s.PutBackLost(ctx); restored != want || err != nil {
			t.Errorf("put back %d (%v), want %d", restored, err, want)
		}
	}
	ids := s.column(t, `SELECT outcome_id FROM lost_commits WHERE reason LIKE '%cannot decode%' ORDER BY 1`)
	if !slices.Equal(ids, []string{"o1", "o2", "o3", "o4", "p1", "p2", "p3", "p4"}) {
		t.Errorf("the ones that cannot be decoded are %q", ids)
	}
}

// TestPutBackLost_PostgresRefuses_OthersPutBack has lost commits with values that Postgres refuses, and one for which there
// is capacity again. They stay, and say why.
func TestPutBackLost_PostgresRefuses_OthersPutBack(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "hall", 0, "A")
	paid := s.pay(t)
	s.execute(t, `UPDATE inventory SET reserved = 1 WHERE resource_id = 'room'`)
	cancelled, repeated := holds.StoredOutcome{ID: "c"}, holds.StoredOutcome{ID: "i"}
	cancelled.Event, cancelled.Resource = holds.EventReservationCancelled, "room"
	cancelled.Data = holds.ReservationCancelled{HoldData: paid.Data}
	repeated.Event, repeated.Resource = holds.EventInventoryUpdated, "room"
	repeated.Data = holds.InventoryUpdated{Slots: []holds.SlotCounts{{Slot: "B"}, {Slot: "B"}}}
	repeated.RebuildMetadata.Position = holds.StreamPosition{At: time.Now(), StreamCreatedAt: time.Now(), Seq: 9}
	none, many := payment(t, "room", "n", 0, "A"), payment(t, "room", "m", math.MaxInt64, "A")
	user := payment(t, "room", "u", 1, "A")
	user.Data.UserID = "a\x00b"
	outcomes := []holds.StoredOutcome{confirmedOutcome(none), confirmedOutcome(many), confirmedOutcome(user), cancelled,
		repeated, confirmedOutcome(payment(t, "hall", "p", 1, "A"))}
	if restored, err := s.PutBack(ctx, outcomes); restored != 0 || err != nil {
		t.Fatalf("put back %d (%v), want 0", restored, err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 1 WHERE resource_id = 'hall'`)
	for _, want := range []int{1, 0} {
		if restored, err := s.PutBackLost(ctx); restored != want || err != nil {
			t.Errorf("put back %d (%v), want %d", restored, err, want)
		}
	}
	got := s.column(t, `SELECT coalesce(substring(reason FROM '^Postgres refuses it: .*SQLSTATE (.*)\)$'), reason)
		FROM lost_commits ORDER BY 1`)
	if want := []string{"21000", "22003", "22021", "23514", "23514"}; !slices.Equal(got, want) {
		t.Errorf("the lost commits are refused with %q, want %q", got, want)
	}
}

// TestPutBack_Reservations_ResourcesAreNotified puts reservations back, for workers that have the rows of before in memory.
func TestPutBack_Reservations_ResourcesAreNotified(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	outcomes := s.unitsSold(t, 5, "room", "hall", "room")
	s.execute(t, `LISTEN `+s.namespace+`_inventory`)
	if restored, err := s.PutBack(ctx, outcomes); restored != 3 || err != nil {
		t.Errorf("put back %d (%v), want 3", restored, err)
	}
	s.execute(t, `SELECT pg_notify(current_schema() || '_inventory', 'end')`)
	var heard []string
	for !slices.Contains(heard, "end") {
		n, err := s.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		heard = append(heard, n.Payload)
	}
	if want := []string{"room", "hall", "end"}; !slices.Equal(heard, want) {
		t.Errorf("the notifications are %q, want %q", heard, want)
	}
}

// TestPutBack_RowsLocked_OthersPutBack puts back reservations while another session keeps the rows of one resource
// locked, as a long transaction of upstream does. Only that resource waits for the session.
func TestPutBack_RowsLocked_OthersPutBack(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	for _, resource := range []string{"room", "hall"} {
		s.set(t, resource, 5, "A")
	}
	outcomes := []holds.StoredOutcome{
		confirmedOutcome(payment(t, "room", "p", 2, "A")), confirmedOutcome(payment(t, "room", "q", 1, "A")),
		confirmedOutcome(payment(t, "hall", "r", 1, "A")),
	}
	s.execute(t, `BEGIN; UPDATE inventory SET capacity = 6 WHERE resource_id = 'room'`)
	if restored, err := s.PutBack(ctx, outcomes); restored != 1 || err != nil {
		t.Errorf("put back %d (%v), want 1", restored, err)
	}
	s.execute(t, `COMMIT`)
	available := func() (all []int64) {
		rows, err := s.InventoryRows(ctx, []string{"room", "hall"}, [][]string{{"A"}, {"A"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, its := range rows {
			all = append(all, its[0].Capacity-its[0].Reserved)
		}
		return all
	}
	if got := available(); !slices.Equal(got, []int64{0, 4}) {
		t.Errorf("available are %d, want nothing of room and 4 of hall", got)
	}
	if restored, err := s.PutBackLost(ctx); restored != 2 || err != nil {
		t.Errorf("later put back %d (%v), want 2", restored, err)
	}
	if got := available(); !slices.Equal(got, []int64{3, 4}) {
		t.Errorf("later available are %d, want 3 and 4", got)
	}
}

// TestPutBackLost_OwnRowsLocked_OthersPutBack removes lost commits in a transaction that stays open, as an operator may do.
// There is capacity again for them and for another one. A comparison that finds them again does not wait. When they are not
// removed after all, they are put back.
func TestPutBackLost_OwnRowsLocked_OthersPutBack(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	outcomes := s.unitsSold(t, 0, "room", "hall", "tent")
	if _, err := s.PutBack(ctx, outcomes); err != nil {
		t.Fatal(err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 1`)
	s.execute(t, `BEGIN; DELETE FROM lost_commits WHERE resource_id <> 'hall'`)
	for _, want := range []int{1, 0} {
		if restored, err := s.PutBackLost(ctx); restored != want || !errors.Is(err, holds.ErrBusy) {
			t.Errorf("put back %d (%v), want %d and %v", restored, err, want, holds.ErrBusy)
		}
	}
	s.execute(t, `ROLLBACK; UPDATE inventory SET capacity = 0 WHERE reserved = 0`)
	s.execute(t, `BEGIN; DELETE FROM lost_commits`)
	if restored, err := s.PutBack(ctx, outcomes); restored != 0 || err != nil {
		t.Errorf("compared again: put back %d (%v)", restored, err)
	}
	s.execute(t, `ROLLBACK; UPDATE inventory SET capacity = 1`)
	if restored, err := s.PutBackLost(ctx); restored != 2 || err != nil {
		t.Errorf("later put back %d (%v), want 2", restored, err)
	}
}

// TestPutBackLost_ReasonChanges_IsStored has a lost commit that waited for a lock, and for which the capacity is too low
// when the lock has ended. The next lock does not hide that.
func TestPutBackLost_ReasonChanges_IsStored(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "room", 5, "A")
	s.execute(t, `BEGIN; UPDATE inventory SET capacity = 1`)
	if _, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(payment(t, "room", "p", 2, "A"))}); err != nil {
		t.Fatal(err)
	}
	stored := s.column(t, `SELECT outcome::text FROM lost_commits`)
	for _, step := range []struct{ first, reason, last string }{
		{"SELECT", "another session has locked its rows", "COMMIT"},
		{"SELECT", "the capacity is lower than what is reserved with it", "SELECT"},
		{"BEGIN; UPDATE inventory SET capacity = 2", "the capacity is lower than what is reserved with it", "COMMIT"},
	} {
		s.execute(t, step.first)
		if restored, err := s.PutBackLost(ctx); restored != 0 || err != nil {
			t.Errorf("put back %d (%v)", restored, err)
		}
		if got := s.column(t, `SELECT reason FROM lost_commits`); !slices.Equal(got, []string{step.reason}) {
			t.Errorf("the reasons are %q, want %s", got, step.reason)
		}
		s.execute(t, step.last)
	}
	if now := s.column(t, `SELECT outcome::text FROM lost_commits`); !slices.Equal(now, stored) {
		t.Errorf("the outcome is %s, it was %s", now, stored)
	}
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("put back %d (%v), want 1", restored, err)
	}
}

// TestPutBackLost_RemovedMeanwhile_StaysRemoved removes a lost commit, as an operator does who has refunded the payment,
// while a worker finds another reason why it cannot be put back, or puts it back.
func TestPutBackLost_RemovedMeanwhile_StaysRemoved(t *testing.T) {
	t.Parallel()
	for _, now := range []string{`UPDATE lost_commits SET reason = 'another one'`, `UPDATE inventory SET capacity = 2`} {
		s, ctx := newHarness(t), t.Context()
		s.set(t, "room", 1, "A")
		if _, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(payment(t, "room", "p", 2, "A"))}); err != nil {
			t.Fatal(err)
		}
		s.execute(t, now)
		awaitPaused, proceed := s.pauseWrites(t, "reservations")
		ended := make(chan error, 1)
		go func() {
			_, err := s.PutBackLost(ctx)
			ended <- err
		}()
		awaitPaused(1)
		s.execute(t, `DELETE FROM lost_commits`)
		proceed()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if left := s.column(t, `SELECT reason FROM lost_commits UNION ALL SELECT hold_id FROM reservations`); len(left) > 0 {
			t.Errorf("%s: it is stored again: %q", now, left)
		}
	}
}

// TestDecide_CommitOfHoldLost_Waits loses the commit of a published payment, which cannot be put back because the
// capacity is lower. The same payment, delivered again, and a cancellation wait: any other answer would contradict the
// published one. When the capacity is raised, the commit is put back, and they get the answers that follow from it.
func TestDecide_CommitOfHoldLost_Waits(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.set(t, "room", 1, "A")
	paid, other := payment(t, "room", "p", 2, "A"), payment(t, "room", "q", 1, "A")
	paid.Data.Metadata = jsontext.Value(`{"note":"a \u0000 in it"}`) // no text of Postgres may have it
	if restored, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(paid)}); restored != 0 || err != nil {
		t.Fatalf("%d put back, %v", restored, err)
	}
	answers, err := s.Decide(ctx, []holds.Payment{paid, other})
	if err != nil || !errors.Is(answers[0].Err, holds.ErrBusy) || answers[1].Err != nil || !answers[1].Confirmed {
		t.Errorf("the payments are answered %+v, %v", answers, err)
	}
	request := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold}, {EventID: uuid.NewString(), Hold: other.Hold}}
	cancelled, err := s.Cancel(ctx, request, at(1000))
	if err != nil || !errors.Is(cancelled[0].Err, holds.ErrBusy) || cancelled[1].Err != nil || cancelled[1].Reason != "" {
		t.Errorf("the cancellations are answered %+v, %v", cancelled, err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 9`)
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("%d put back, %v", restored, err)
	}
	if answers, err = s.Decide(ctx, []holds.Payment{paid}); err != nil || !answers[0].Confirmed {
		t.Errorf("the payment is answered %+v, %v", answers, err)
	}
	if cancelled, err = s.Cancel(ctx, request[:1], at(1000)); err != nil || cancelled[0].Err != nil || cancelled[0].Reason != "" {
		t.Errorf("the cancellation is answered %+v, %v", cancelled, err)
	}
}

// TestCancel_CancellationOfHoldLost_Waits loses the commit of a published cancellation, which cannot be put back while
// another session has locked the slot. Neither the same event, delivered again, nor another one cancels the reservation
// a second time at another time.
func TestCancel_CancellationOfHoldLost_Waits(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	paid := s.pay(t)
	events := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold}, {EventID: uuid.NewString(), Hold: paid.Hold}}
	o := holds.StoredOutcome{ID: events[0].EventID}
	o.Event, o.Resource = holds.EventReservationCancelled, "room"
	o.Data = holds.ReservationCancelled{HoldData: paid.Data, CancelledAt: holds.TimeFromMillis(1000)}
	s.execute(t, `BEGIN; UPDATE inventory SET capacity = 6`)
	if restored, err := s.PutBack(ctx, []holds.StoredOutcome{o}); restored != 0 || err != nil {
		t.Fatalf("%d put back, %v", restored, err)
	}
	s.execute(t, `COMMIT`)
	answers, err := s.Cancel(ctx, events, at(2000))
	if err != nil || !errors.Is(answers[0].Err, holds.ErrBusy) || !errors.Is(answers[1].Err, holds.ErrBusy) {
		t.Errorf("the cancellations are answered %+v, %v", answers, err)
	}
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("%d put back, %v", restored, err)
	}
	answers, err = s.Cancel(ctx, events, at(2000))
	if err != nil || answers[0].CancelledAt.UnixMilli() != 1000 || answers[1].Reason != holds.ReasonAlreadyCancelled {
		t.Errorf("the cancellations are answered %+v, %v", answers, err)
	}
}

// TestSetCapacity_OwnCommitLost_Waits loses the commit of a published inventory.set, which cannot be put back because more
// is reserved by now. The same event, delivered again, must not be refused; another one is answered. When the reservation
// is cancelled, the commit is put back, and the event has its answer.
func TestSetCapacity_OwnCommitLost_Waits(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	paid := s.pay(t)
	position := holds.StreamPosition{At: time.Now().UTC(), StreamCreatedAt: time.Now().UTC(), Seq: 7}
	change := holds.CapacityChange{EventID: uuid.NewString(), Position: position, Resource: "room",
		Names: []string{"A"}, Capacity: 1, Held: []int64{0}}
	o := holds.StoredOutcome{ID: change.EventID}
	o.Event, o.Resource, o.RebuildMetadata.Position = holds.EventInventoryUpdated, "room", position
	o.Data = holds.InventoryUpdated{ResourceID: "room", Slots: []holds.SlotCounts{{Slot: "A", Capacity: 1}}}
	if restored, err := s.PutBack(ctx, []holds.StoredOutcome{o}); restored != 0 || err != nil {
		t.Fatalf("%d put back, %v", restored, err)
	}
	if answer, err := s.SetCapacity(ctx, change); !errors.Is(err, holds.ErrBusy) {
		t.Errorf("the event is answered %+v, %v", answer, err)
	}
	other := change
	other.EventID = uuid.NewString()
	if answer, err := s.SetCapacity(ctx, other); !answer.BelowReserved || err != nil {
		t.Errorf("another event is answered %+v, %v", answer, err)
	}
	if _, err := s.Cancel(ctx, []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold}}, at(1000)); err != nil {
		t.Fatal(err)
	}
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("%d put back, %v", restored, err)
	}
	if answer, err := s.SetCapacity(ctx, change); err != nil || answer.BelowReserved || answer.Slots[0].Capacity != 1 {
		t.Errorf("the event is answered %+v, %v", answer, err)
	}
}

// TestPutBackLost_NewerInventorySet_PutBackWithoutEffect loses the commit of an inventory.set to less than is reserved. Its
// reason says what to do: a higher capacity by SQL changes nothing, and it is put back after a newer inventory.set, whose
// capacity stays.
func TestPutBackLost_NewerInventorySet_PutBackWithoutEffect(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	s.pay(t)
	position := holds.StreamPosition{At: time.Now().UTC(), StreamCreatedAt: time.Now().UTC(), Seq: 7}
	o := holds.StoredOutcome{ID: uuid.NewString()}
	o.Event, o.Resource, o.RebuildMetadata.Position = holds.EventInventoryUpdated, "room", position
	o.Data = holds.InventoryUpdated{ResourceID: "room", Slots: []holds.SlotCounts{{Slot: "A", Capacity: 1}}}
	if restored, err := s.PutBack(ctx, []holds.StoredOutcome{o}); restored != 0 || err != nil {
		t.Fatalf("%d put back, %v", restored, err)
	}
	s.execute(t, `UPDATE inventory SET capacity = 20`)
	if restored, err := s.PutBackLost(ctx); restored != 0 || err != nil {
		t.Errorf("%d put back after a change by SQL, %v", restored, err)
	}
	want := "more is reserved than it sets: publish a newer inventory.set, or remove this row"
	if reasons := s.column(t, `SELECT reason FROM lost_commits`); !slices.Equal(reasons, []string{want}) {
		t.Errorf("the reasons are %q, want %s", reasons, want)
	}
	position.Seq++
	s.setBy(t, position, "room", 9, "A")
	if restored, err := s.PutBackLost(ctx); restored != 1 || err != nil {
		t.Errorf("%d put back after a newer inventory.set, %v", restored, err)
	}
	if got := s.column(t, `SELECT concat_ws(' ', capacity, reserved) FROM inventory`); !slices.Equal(got, []string{"9 2"}) {
		t.Errorf("capacity and reserved are %q", got)
	}
}

// TestPutBack_OnlyReservationOrTimeMissing_IsPutBack loses a reservation whose payment is there, as when single tables are
// restored, and the second of the two commits of a cancellation.
func TestPutBack_OnlyReservationOrTimeMissing_IsPutBack(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	paid := s.pay(t)
	putBack := func(o holds.StoredOutcome) {
		t.Helper()
		for _, want := range []int{1, 0} {
			if restored, err := s.PutBack(ctx, []holds.StoredOutcome{o}); restored != want || err != nil {
				t.Errorf("%d put back, want %d: %v", restored, want, err)
			}
		}
	}
	s.execute(t, `DELETE FROM reservations; UPDATE inventory SET reserved = 0`)
	putBack(confirmedOutcome(paid))
	if n := s.reserved(t, "room", "A"); n != 2 {
		t.Errorf("%d reserved", n)
	}
	request := []holds.CancelRequest{{EventID: uuid.NewString(), Hold: paid.Hold}}
	cancelled, err := s.Cancel(ctx, request, at(1000))
	if err != nil {
		t.Fatal(err)
	}
	s.execute(t, `UPDATE reservations SET cancelled_at = NULL`)
	o := holds.StoredOutcome{ID: request[0].EventID}
	o.Event, o.Resource = holds.EventReservationCancelled, "room"
	o.Data = holds.ReservationCancelled{HoldData: cancelled[0].Data, CancelledAt: cancelled[0].CancelledAt}
	putBack(o)
	s.execute(t, `UPDATE reservations SET cancelled_at = NULL`)
	second := o
	second.At = paid.At
	second.Event, second.Data = holds.EventConfirmRejected, holds.ConfirmRejected{
		HoldData: paid.Data, PaymentID: "q", Reason: holds.ReasonAlreadyConfirmed}
	for _, want := range []int{2, 0} { // a refusal of the same hold was lost with the time
		if restored, err := s.PutBack(ctx, []holds.StoredOutcome{second, o}); restored != want || err != nil {
			t.Errorf("%d put back of a refusal and the time, want %d: %v", restored, want, err)
		}
	}
	s.execute(t, `DELETE FROM reservations`)
	for _, want := range []int{2, 0} {
		if restored, err := s.PutBack(ctx, []holds.StoredOutcome{confirmedOutcome(paid), o}); restored != want || err != nil {
			t.Errorf("%d put back of a cancelled reservation, want %d: %v", restored, want, err)
		}
	}
	if n := s.reserved(t, "room", "A"); n != 0 {
		t.Errorf("%d reserved after the cancellation", n)
	}
	if at := s.column(t, `SELECT extract(epoch FROM cancelled_at)::text FROM reservations`); len(at) != 1 || !strings.HasPrefix(at[0], "1.0") {
		t.Errorf("cancelled at %v", at)
	}
}
