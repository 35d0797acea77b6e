package store_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestDecide_PaymentRepeated_AnsweredOnce decides the same payments several times at once: each has
// one reservation and one answer, equal in every detail.
func TestDecide_PaymentRepeated_AnsweredOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 100, "n1", "n2")
	var payments []holds.Payment
	for i := range 8 {
		payments = append(payments, payment(t, "room", fmt.Sprintf("p%d", i), 2, "n1", "n2"))
	}
	unknown := payment(t, "room", "p", 1)
	unknown.Claimed, unknown.Reason, unknown.Names = false, holds.ReasonUnknownHold, nil
	unknown.Data = holds.HoldData{ResourceID: "room", HoldID: unknown.Hold}
	payments = append(payments, unknown)

	answers := make(chan []holds.PaymentDecision, 6)
	for range cap(answers) {
		go func() {
			got, err := s.Decide(context.Background(), payments)
			if err != nil {
				t.Error(err)
			}
			answers <- got
		}()
	}
	var first string
	for range cap(answers) {
		var text strings.Builder
		for _, a := range <-answers {
			fmt.Fprintf(&text, "%v %s %s %s %s %s\n", a.Confirmed, a.Reason, a.DecidedAt, a.Data.HoldID,
				a.Data.Metadata, a.Data.Slots)
		}
		if first == "" {
			first = text.String()
		}
		if text.String() != first {
			t.Errorf("the same payments were answered\n%sand\n%s", first, text.String())
		}
	}
	if strings.Count(first, "true ") != 8 || strings.Count(first, "false unknown_hold") != 1 {
		t.Errorf("answered\n%s", first)
	}
	s.wantReserved(t, "room", "n1", 16)
}

// TestDecide_ClaimDoesNotFit_OnlyItIsRefused decides a batch with payments that do not fit: only
// those are refused.
func TestDecide_ClaimDoesNotFit_OnlyItIsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "n1", "n2")
	s.set(t, "cut", 1, "n1")
	payments := []holds.Payment{
		payment(t, "room", "p1", 2, "n1", "n2"),
		payment(t, "cut", "p2", 2, "n1"),
		payment(t, "room", "p3", 2, "n2"),
		payment(t, "room", "p4", 1, "n1"),
		payment(t, "room", "p5", 1, "gone", "n2"), // gone has no inventory row
	}
	answers, err := s.Decide(t.Context(), payments)
	stacktest.Must(t, err)
	for i, want := range []bool{true, false, false, true, false} {
		if answers[i].Confirmed != want || !want && answers[i].Reason != holds.ReasonSoldOut {
			t.Errorf("payment %s: %+v, want confirmed %v", payments[i].PaymentID, answers[i], want)
		}
	}
	s.wantReserved(t, "room", "n1", 3)
	s.wantReserved(t, "room", "n2", 2)
	var reservations, confirmed int
	err = s.conn.QueryRow(t.Context(),
		`SELECT (SELECT count(*) FROM reservations), (SELECT count(*) FROM payments WHERE outcome = 'confirmed')`).Scan(&reservations,
		&confirmed)
	if err != nil || reservations != 2 || confirmed != 2 {
		t.Errorf("%d reservations and %d confirmed payments, want 2 and 2: %v", reservations, confirmed, err)
	}
}

// TestDecide_ReservedByAnotherPayment_Refused pays a hold that has a reservation and that Redis no
// longer remembers. The refusal has what the first payment had of the hold, also when it is read again.
func TestDecide_ReservedByAnotherPayment_Refused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "n1")
	first := payment(t, "room", "p1", 1, "n1")
	s.mustDecide(t, first)
	second := first
	second.PaymentID, second.Claimed, second.Reason = "p2", false, holds.ReasonUnknownHold
	second.Data = holds.HoldData{ResourceID: "room", HoldID: first.Hold}
	for range 2 {
		answers, err := s.Decide(t.Context(), []holds.Payment{second})
		if err != nil || answers[0].Confirmed || answers[0].Reason != holds.ReasonAlreadyConfirmed {
			t.Fatalf("%+v %v, want already_confirmed", answers, err)
		}
		if !reflect.DeepEqual(answers[0].Data, first.Data) {
			t.Errorf("it has %+v, want %+v", answers[0].Data, first.Data)
		}
	}
}

// TestDecide_AnswerAloneMissing_ConfirmedAgain loses the answers to payments, and not their reservations. A payment that is
// delivered again after Redis has forgotten its hold is confirmed as before. No other payment is, and not for another hold.
func TestDecide_AnswerAloneMissing_ConfirmedAgain(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "2026-12-31", "2027-01-01", "A", "C", holds.StockSlot)
	nights, stock := payment(t, "room", "p", 1, "2026-12-31", "2027-01-01"), payment(t, "room", "q", 3, holds.StockSlot)
	nights.Data.SlotSelection = holds.SlotSelection{CheckIn: "2026-12-31", CheckOut: "2027-01-02"}
	stock.Data.SlotSelection = holds.SlotSelection{}
	named := payment(t, "room", "r", 2, "A", "C")
	paid := []holds.Payment{nights, stock, named}
	s.mustDecide(t, paid...)
	s.execute(t, `DELETE FROM payments`)
	decide := func(p holds.Payment) holds.PaymentDecision {
		t.Helper()
		p.Claimed, p.Reason, p.At = false, holds.ReasonUnknownHold, holds.TimeFromMillis(1000)
		p.Data, p.Names = holds.HoldData{ResourceID: "room", HoldID: p.Hold}, nil
		answers, err := s.Decide(t.Context(), []holds.Payment{p})
		if err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		return answers[0]
	}
	second, elsewhere := nights, named
	second.PaymentID, elsewhere.Hold = "p2", holds.NewHoldID("room")
	if got := decide(second); got.Confirmed || got.Reason != holds.ReasonAlreadyConfirmed {
		t.Errorf("another payment is answered %+v", got)
	}
	if got := decide(elsewhere); got.Confirmed || got.Reason != holds.ReasonUnknownHold {
		t.Errorf("a payment of the same name for another hold is answered %+v", got)
	}
	for _, p := range paid {
		want := holds.PaymentDecision{Confirmed: true, DecidedAt: p.At, Data: p.Data}
		want.Data.Metadata = nil // a reservation has none
		for range 2 {
			if got := decide(p); !reflect.DeepEqual(got, want) {
				t.Errorf("answered %+v, want %+v", got, want)
			}
		}
	}
	if restored, err := s.PutBack(t.Context(), []holds.StoredOutcome{confirmedOutcome(nights)}); restored != 0 || err != nil {
		t.Errorf("put back %d (%v)", restored, err)
	}
	s.wantReserved(t, "room", "A", 2)
	s.execute(t, `DELETE FROM payments`)
	answers, err := s.Decide(t.Context(), paid) // Redis remembers them
	if err != nil || !answers[0].Confirmed || !reflect.DeepEqual(answers[2].Data, named.Data) {
		t.Errorf("answered %+v %v", answers, err)
	}
}

// TestDecide_LostCommit_DecidedOnce cuts the connection of a transaction at its commit, before and
// after Postgres has committed. Either way the payment is decided once when it is delivered again.
func TestDecide_LostCommit_DecidedOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "n1")
	ctx := t.Context()
	// A deferred trigger runs inside COMMIT. It ends its own backend before the commit is done.
	s.execute(t, `
		CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	p := payment(t, "room", "p1", 1, "n1")
	if _, err := s.Decide(ctx, []holds.Payment{p}); err == nil {
		t.Fatal("no error after the connection was cut at the commit")
	}
	s.execute(t, `DROP TRIGGER dies ON payments`)
	for range 2 { // the second call is like one after a commit whose reply was lost
		answers, err := s.Decide(ctx, []holds.Payment{p})
		if err != nil || !answers[0].Confirmed {
			t.Fatalf("delivered again: %+v %v", answers, err)
		}
	}
	s.wantReserved(t, "room", "n1", 1)
}

// TestDecide_RowLocked_OnlyItsResourceIsBusy locks a row of one resource: its payments and changes
// are busy, those of other resources are decided.
func TestDecide_RowLocked_OnlyItsResourceIsBusy(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	for _, resource := range []string{"locked", "free", "full"} {
		s.set(t, resource, 1, "n1")
	}
	tx, err := s.conn.Begin(ctx)
	stacktest.Must(t, err)
	stacktest.Exec(t, tx, `UPDATE inventory SET capacity = 2 WHERE resource_id = 'locked'`)
	payments := []holds.Payment{payment(t, "locked", "p1", 1, "n1"), payment(t, "free", "p2", 1, "n1"),
		payment(t, "full", "p3", 2, "n1")}
	answers, err := s.Decide(ctx, payments)
	stacktest.Must(t, err)
	if !errors.Is(answers[0].Err, holds.ErrBusy) || answers[1].Err != nil || !answers[1].Confirmed ||
		answers[2].Err != nil || answers[2].Reason != holds.ReasonSoldOut {
		t.Errorf("answers %+v, want busy, confirmed, sold_out", answers)
	}
	_, err = s.SetCapacity(ctx,
		holds.CapacityChange{EventID: "c", Position: holds.StreamPosition{At: time.Now()}, Resource: "locked",
			Names: []string{"n1"}, Capacity: 3, Held: []int64{0}})
	if !errors.Is(err, holds.ErrBusy) {
		t.Errorf("change of a locked row: %v, want ErrBusy", err)
	}
	stacktest.Must(t, tx.Commit(ctx))
	answers, err = s.Decide(ctx, payments)
	if err != nil || answers[0].Err != nil || !answers[0].Confirmed {
		t.Errorf("after the lock: %+v %v", answers, err)
	}
}

// TestDecide_RowLocked_LocksInNameOrder makes a payment wait for a locked row of the inventory. It
// has locked the rows before it, by their names, and none of the rows after it. So two payments
// never wait for each other.
func TestDecide_RowLocked_LocksInNameOrder(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	for _, name := range []string{"n3", "n1", "n2", "n5", "n4"} { // the order in the table
		s.set(t, "room", 5, name)
	}
	tx, err := stacktest.ConnectPostgres(t, s.conn.Config().ConnString()).Begin(ctx)
	stacktest.Must(t, err)
	stacktest.Exec(t, tx, `SELECT FROM inventory WHERE slot = 'n3' FOR UPDATE`)
	paid := []holds.Payment{payment(t, "room", "p", 1, "n1", "n2", "n3", "n4", "n5")}
	done := make(chan error, 1)
	go func() {
		for { // each wait for a lock is limited
			answers, err := s.Decide(ctx, paid)
			if err != nil || answers[0].Err == nil {
				done <- err
				return
			}
		}
	}()
	var free []string
	stacktest.Eventually(t, "the payment to wait for the row", func() bool {
		waits := func() (query string) {
			_ = s.conn.QueryRow(ctx, `SELECT query_start::text FROM pg_stat_activity
				WHERE wait_event_type = 'Lock' AND application_name = $1`, "holdfast worker "+s.namespace).Scan(&query) // "" when it does not wait
			return query
		}
		before := waits()
		rows, err := s.conn.Query(ctx,
			`SELECT slot FROM inventory WHERE slot <> 'n3' ORDER BY slot FOR UPDATE SKIP LOCKED`)
		stacktest.Must(t, err)
		if free, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return before != "" && before == waits()
	})
	if !slices.Equal(free, []string{"n4", "n5"}) {
		t.Errorf("while it waits for n3, %v are free, want n4 and n5", free)
	}
	stacktest.Must(t, tx.Commit(ctx))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDecide_TwoWorkersAtOnce_SameAnswer decides the same payment by two workers at once, of a
// claimed hold and of an unknown one. Both have read that it has no answer when the first stores
// one. Both return the same answer, and neither fails.
func TestDecide_TwoWorkersAtOnce_SameAnswer(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	s.set(t, "room", 3, "n1")
	claimed, unknown := payment(t, "room", "p1", 1, "n1"), payment(t, "room", "p2", 1)
	unknown.Claimed, unknown.Reason, unknown.Names = false, holds.ReasonUnknownHold, nil
	for _, paid := range []holds.Payment{claimed, unknown} {
		awaitPaused, proceed := s.pauseWrites(t, "reservations", "payments")
		var deciding sync.WaitGroup
		for range 2 {
			deciding.Go(func() {
				answers, err := s.Decide(ctx, []holds.Payment{paid})
				if err != nil || answers[0].Err != nil || answers[0].Confirmed != paid.Claimed ||
					answers[0].Reason != paid.Reason {
					t.Errorf("payment %s: %+v %v", paid.PaymentID, answers, err)
				}
			})
		}
		awaitPaused(2)
		proceed()
		deciding.Wait()
	}
	s.wantReserved(t, "room", "n1", 1)
}

// TestDecide_EpochInvalidated_DecidesNothing invalidates an epoch while a payment is being decided
// under it. That fails until the payment is decided, and its reservation is found afterwards. No
// payment is decided under the epoch after that.
func TestDecide_EpochInvalidated_DecidesNothing(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	s.set(t, "room", 3, "n1")
	awaitPaused, proceed := s.pauseWrites(t, "payments")
	paid := payment(t, "room", "p1", 1, "n1")
	var deciding sync.WaitGroup
	deciding.Go(func() {
		if answers, err := s.Decide(ctx, []holds.Payment{paid}); err != nil || !answers[0].Confirmed {
			t.Errorf("the earlier payment: %+v %v", answers, err)
		}
	})
	awaitPaused(1)
	if _, err := s.invalidate(t, record.AllPartitions, "flushed"); err == nil || errors.Is(err, recovery.ErrEpochChanged) {
		t.Fatalf("the epoch was invalidated while a payment was being decided: %v", err)
	}
	proceed()
	deciding.Wait()
	s.lose(t, record.AllPartitions)
	var found []recovery.Reservation
	stacktest.Must(t, s.Reservations(ctx, []holds.HoldID{paid.Hold},
		func(r recovery.Reservation) { found = append(found, r) }))
	if len(found) != 1 || found[0] != (recovery.Reservation{Hold: paid.Hold, PaymentID: "p1", ConfirmedAt: paid.At}) {
		t.Errorf("after the epoch was invalidated: %+v", found)
	}
	answers, err := s.Decide(ctx, []holds.Payment{payment(t, "room", "p2", 1, "n1")})
	if err != nil || !errors.Is(answers[0].Err, holds.ErrDataLost) {
		t.Errorf("a payment under the invalidated epoch: %+v %v", answers, err)
	}
}

// TestDecide_PartitionInvalidated_DecidesOthers decides payments of several partitions in one batch,
// after the epoch of one was invalidated, and in another batch payments that were claimed before and
// after that partition was rebuilt.
func TestDecide_PartitionInvalidated_DecidesOthers(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for _, resource := range []string{"room", "hall", "attic"} {
		s.set(t, resource, 5, "n1")
	}
	lost := record.PartitionSetOf(record.Partition("room"))
	if lost.Has(record.Partition("hall")) || lost.Has(record.Partition("attic")) {
		t.Fatal("the resources are in one partition")
	}
	s.lose(t, lost)
	for quantity, reason := range map[int64]string{1: "", 9: holds.ReasonSoldOut} {
		answers, err := s.Decide(t.Context(), []holds.Payment{
			payment(t, "hall", "p1", 1, "n1"), payment(t, "room", "p2", 1, "n1"), payment(t, "attic", "p3", quantity, "n1"),
		})
		stacktest.Must(t, err)
		if answers[0].Err != nil || !answers[0].Confirmed || answers[2].Err != nil || answers[2].Reason != reason {
			t.Errorf("payments in other partitions: %+v", answers)
		}
		if !errors.Is(answers[1].Err, holds.ErrDataLost) || s.reserved(t, "room", "n1") != 0 {
			t.Errorf("a payment in the invalidated partition: %+v", answers[1])
		}
	}

	its, epoch, err := s.BeginEpoch(t.Context(), lost, "w1", time.Minute)
	if err == nil {
		err = s.CompleteEpoch(t.Context(), its, epoch, "server", "w1")
	}
	stacktest.Must(t, err)
	before, after := payment(t, "room", "p4", 1, "n1"), payment(t, "room", "p5", 1, "n1")
	before.Epoch, after.Epoch = s.epoch, epoch
	for _, both := range [][]holds.Payment{{before, after}, {after, before}} {
		answers, err := s.Store.Decide(t.Context(), both)
		if err != nil || !errors.Is(answers[0].Err, holds.ErrDataLost) || !errors.Is(answers[1].Err, holds.ErrDataLost) {
			t.Errorf("payments of two epochs: %+v %v", answers, err)
		}
	}
	if answers, err := s.Store.Decide(t.Context(), []holds.Payment{after}); err != nil || !answers[0].Confirmed {
		t.Errorf("a payment under the new epoch: %+v %v", answers, err)
	}
}
