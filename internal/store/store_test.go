package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// harness is a migrated namespace with a plain connection to it.
type harness struct {
	*store.Store
	namespace string
	conn      *pgx.Conn
	epoch     string
	seq       *atomic.Uint64 // sequence of the last inventory.set
}

func newHarness(t *testing.T) harness {
	t.Helper()
	s := harness{namespace: stacktest.Namespace(t), seq: new(atomic.Uint64)}
	var err error
	if s.Store, err = store.Open(t.Context(), stacktest.Shared().PostgresURL, s.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Migrate(t.Context(), s.namespace); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(stacktest.Shared().PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = s.namespace
	if s.conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	epoch, err := s.Epoch(t.Context())
	if err == nil {
		err = s.CompleteEpoch(t.Context(), epoch.Name, "server", "")
	}
	if err != nil {
		t.Fatal(err)
	}
	s.epoch = epoch.Name
	return s
}

// Decide decides payments under the first epoch.
func (s harness) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	return s.Store.Decide(ctx, s.epoch, payments)
}

func (s harness) set(t *testing.T, resource string, capacity int64, names ...string) holds.CapacityDecision {
	t.Helper()
	answer, err := s.SetCapacity(t.Context(), holds.CapacityChange{
		EventID: uuid.NewString(), Position: holds.StreamPosition{At: time.Now(), Seq: s.seq.Add(1)},
		Resource: resource, Names: names, Capacity: capacity, Held: make([]int64, len(names)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func (s harness) reserved(t *testing.T, resource, slot string) int64 {
	t.Helper()
	rows, err := s.InventoryRows(t.Context(), []string{resource}, [][]string{{slot}})
	if err != nil {
		t.Fatal(err)
	}
	return rows[0][0].Reserved
}

// payment returns a claimed payment of a new hold.
func payment(t *testing.T, resource, id string, quantity int64, names ...string) holds.Payment {
	t.Helper()
	hold, err := holds.NewHoldID(resource)
	if err != nil {
		t.Fatal(err)
	}
	return holds.Payment{
		ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: id, Amount: "1.50", Currency: "EUR"},
		Claimed:        true,
		At:             holds.Time{Time: time.Now().UTC().Truncate(time.Millisecond)},
		Data: holds.HoldData{
			ResourceID: resource, HoldID: hold, RequestKey: "k", UserID: "ana", Quantity: &quantity,
			SlotSelection: holds.SlotSelection{Slots: names}, Metadata: []byte(`{"a":1}`),
		},
		Names: names,
	}
}

// TestConstraints_PlainSQL_NothingOversells tries to violate promise 1 by plain SQL.
func TestConstraints_PlainSQL_NothingOversells(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 2, "n1")
	for _, sql := range []string{
		`UPDATE inventory SET reserved = 3`,
		`UPDATE inventory SET reserved = -1`,
		`UPDATE inventory SET reserved = 2, capacity = 1`,
		`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'n2', -1)`,
	} {
		_, err := s.conn.Exec(t.Context(), sql)
		var violated *pgconn.PgError
		if !errors.As(err, &violated) || violated.ConstraintName != "reserved_is_between_zero_and_capacity" {
			t.Errorf("%s: %v, want it refused", sql, err)
		}
	}
}

// TestRead_SessionBecomesReadOnly_IsRefusedAndClosed makes a session read-only while it reads.
func TestRead_SessionBecomesReadOnly_IsRefusedAndClosed(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL+"&pool_max_conns=1", namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	session := func(statement string) (pid uint32, err error) {
		err = db.Read(t.Context(), func(conn *pgxpool.Conn) error {
			pid = conn.Conn().PgConn().PID()
			_, err := conn.Exec(t.Context(), statement)
			return err
		})
		return pid, err
	}
	first, err := session("SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := session("SET default_transaction_read_only = on"); pid != first || !errors.Is(err, postgres.ErrReadOnly) {
		t.Errorf("session %d, %v, want %d and %v", pid, err, first, postgres.ErrReadOnly)
	}
	if pid, err := session("SELECT 1"); pid == first || err != nil {
		t.Errorf("session %d, %v, want another than %d", pid, err, first)
	}
}

// TestMigrate_SeveralAtOnce_MigratedOnce migrates by several processes at once, each twice.
func TestMigrate_SeveralAtOnce_MigratedOnce(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			s, err := store.Open(context.Background(), stacktest.Shared().PostgresURL, namespace)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for range 2 {
				if err := s.Migrate(context.Background(), namespace); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

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
			fmt.Fprintf(&text, "%v %s %s %s %s %s\n", a.Confirmed, a.Reason, a.DecidedAt, a.Data.HoldID, a.Data.Metadata, a.Data.Slots)
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
	if got := s.reserved(t, "room", "n1"); got != 16 {
		t.Errorf("%d reserved, want 16", got)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, false, true, false} {
		if answers[i].Confirmed != want || !want && answers[i].Reason != holds.ReasonSoldOut {
			t.Errorf("payment %s: %+v, want confirmed %v", payments[i].PaymentID, answers[i], want)
		}
	}
	if n1, n2 := s.reserved(t, "room", "n1"), s.reserved(t, "room", "n2"); n1 != 3 || n2 != 2 {
		t.Errorf("reserved %d and %d, want 3 and 2", n1, n2)
	}
	var reservations, confirmed int
	err = s.conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM reservations), (SELECT count(*) FROM payments WHERE outcome = 'confirmed')`).Scan(&reservations, &confirmed)
	if err != nil || reservations != 2 || confirmed != 2 {
		t.Errorf("%d reservations and %d confirmed payments, want 2 and 2: %v", reservations, confirmed, err)
	}
}

// TestDecide_ReservedByAnotherPayment_Refused pays a hold that has a reservation and that Redis no
// longer remembers.
func TestDecide_ReservedByAnotherPayment_Refused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "n1")
	first := payment(t, "room", "p1", 1, "n1")
	if _, err := s.Decide(t.Context(), []holds.Payment{first}); err != nil {
		t.Fatal(err)
	}
	second := first
	second.PaymentID, second.Claimed, second.Reason = "p2", false, holds.ReasonUnknownHold
	answers, err := s.Decide(t.Context(), []holds.Payment{second})
	if err != nil || answers[0].Confirmed || answers[0].Reason != holds.ReasonAlreadyConfirmed {
		t.Errorf("%+v %v, want already_confirmed", answers, err)
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
	_, err := s.conn.Exec(ctx, `
		CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`)
	if err != nil {
		t.Fatal(err)
	}
	p := payment(t, "room", "p1", 1, "n1")
	if _, err := s.Decide(ctx, []holds.Payment{p}); err == nil {
		t.Fatal("no error after the connection was cut at the commit")
	}
	if _, err := s.conn.Exec(ctx, `DROP TRIGGER dies ON payments`); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call is like one after a commit whose reply was lost
		answers, err := s.Decide(ctx, []holds.Payment{p})
		if err != nil || !answers[0].Confirmed {
			t.Fatalf("delivered again: %+v %v", answers, err)
		}
	}
	if got := s.reserved(t, "room", "n1"); got != 1 {
		t.Errorf("%d reserved, want 1", got)
	}
}

// TestTransact_DeadlockOrSerialization_Retries makes Postgres refuse the first tries with 40P01 and
// 40001.
func TestTransact_DeadlockOrSerialization_Retries(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 3, "n1")
	_, err := s.conn.Exec(t.Context(), `
		CREATE SEQUENCE tries;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			CASE nextval('tries') WHEN 1 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40P01';
				WHEN 2 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; ELSE RETURN NULL; END CASE; END $$;
		CREATE TRIGGER refuses AFTER INSERT ON reservations FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := s.Decide(t.Context(), []holds.Payment{payment(t, "room", "p1", 1, "n1")})
	if err != nil || !answers[0].Confirmed {
		t.Errorf("%+v %v, want it retried until it succeeds", answers, err)
	}
}

// TestSetCapacity_EventRepeated_AnsweredOnce delivers an old inventory.set again after a later one.
func TestSetCapacity_EventRepeated_AnsweredOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	old := holds.CapacityChange{EventID: "old", Position: holds.StreamPosition{At: time.Now()}, Resource: "room", Names: []string{"n1", "n2"}, Capacity: 10, Held: []int64{1, 0}}
	first, err := s.SetCapacity(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	s.set(t, "room", 5, "n1", "n2")
	if _, err := s.Decide(t.Context(), []holds.Payment{payment(t, "room", "p1", 4, "n1")}); err != nil {
		t.Fatal(err)
	}
	again, err := s.SetCapacity(t.Context(), old)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("delivered again: %+v %v, first %+v", again, err, first)
	}
	if refused := s.set(t, "room", 3, "n1", "n2"); !refused.BelowReserved {
		t.Errorf("capacity below the reservations: %+v", refused)
	}
	rows, err := s.InventoryRows(t.Context(), []string{"room", "other"}, [][]string{{"n1", "n2"}, {"n1"}})
	want := [][]holds.InventoryRow{{{Known: true, Capacity: 5, Reserved: 4}, {Known: true, Capacity: 5}}, {{}}}
	if err != nil || fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("inventory %v %v, want %v", rows, err, want)
	}
}

// change sets the capacity of slots of the resource room by an event with a position in a stream.
func (s harness) change(t *testing.T, stored holds.StreamPosition, capacity int64, names ...string) holds.CapacityDecision {
	t.Helper()
	answer, err := s.SetCapacity(t.Context(), holds.CapacityChange{
		EventID: uuid.NewString(), Position: stored, Resource: "room", Names: names, Capacity: capacity, Held: make([]int64, len(names)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// capacities reads the capacities of slots of the resource room.
func (s harness) capacities(t *testing.T, names ...string) string {
	t.Helper()
	rows, err := s.InventoryRows(t.Context(), []string{"room"}, [][]string{names})
	if err != nil {
		t.Fatal(err)
	}
	var capacities []int64
	for _, row := range rows[0] {
		capacities = append(capacities, row.Capacity)
	}
	return fmt.Sprint(capacities)
}

// TestSetCapacity_OutOfOrder_LaterStoredWins delivers inventory.set events in the wrong order and
// with clocks that contradict it: the event stored later wins.
func TestSetCapacity_OutOfOrder_LaterStoredWins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	created := time.Now().Add(-time.Hour)
	at := func(seconds int, seq uint64) holds.StreamPosition {
		return holds.StreamPosition{At: created.Add(time.Duration(seconds) * time.Second), StreamCreatedAt: created, Seq: seq}
	}
	for _, step := range []struct {
		what     string
		stored   holds.StreamPosition
		capacity int64
		names    []string
		want     string
	}{
		{"the first", at(10, 1), 1, []string{"n1", "n2"}, "[1 1]"},
		{"the third, before the second", at(30, 3), 3, []string{"n1"}, "[3 1]"},
		{"the second, too late for n1", at(20, 2), 2, []string{"n1", "n2"}, "[3 2]"},
		{"the fourth, of a leader whose clock is behind", at(5, 4), 4, []string{"n1"}, "[4 2]"},
		{"the third again, as another event, with a later time", at(30, 3), 5, []string{"n1"}, "[4 2]"},
		{
			"the first of a recreated stream, by a clock that is behind",
			holds.StreamPosition{At: created, StreamCreatedAt: created.Add(time.Minute), Seq: 1},
			6, []string{"n1"},
			"[6 2]",
		},
		{"one of the previous stream", at(40, 9), 7, []string{"n1", "n2"}, "[6 7]"},
	} {
		answer := s.change(t, step.stored, step.capacity, step.names...)
		if got := s.capacities(t, "n1", "n2"); got != step.want {
			t.Errorf("%s: capacities are %s, want %s", step.what, got, step.want)
		}
		if answered := fmt.Sprint(answer.Slots[0].Capacity); !strings.HasPrefix(step.want, "["+answered+" ") {
			t.Errorf("%s: the answer says %s of n1, want as in %s", step.what, answered, step.want)
		}
	}
}

// setByVersionBefore is the query of the previous version, which orders by time.
const setByVersionBefore = `
INSERT INTO inventory AS i (resource_id, slot, capacity, set_by_event_at)
SELECT $1, slot, $3, $4
FROM unnest($2::text[]) AS s (slot)
ORDER BY slot
ON CONFLICT ON CONSTRAINT inventory_has_one_row_per_resource_and_slot
DO UPDATE SET
    capacity = CASE WHEN i.set_by_event_at > excluded.set_by_event_at THEN i.capacity ELSE excluded.capacity END,
    set_by_event_at = greatest(i.set_by_event_at, excluded.set_by_event_at),
    updated_at = now()`

// TestSetCapacity_BesidePreviousVersion_OrderedByTime sets capacities of the same slot by workers
// of this version and of the previous one in turn. A change by the previous version is ordered by
// time, one by this version by sequence.
func TestSetCapacity_BesidePreviousVersion_OrderedByTime(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	created := time.Now().Add(-time.Hour)
	at := func(seconds int) time.Time { return created.Add(time.Duration(seconds) * time.Second) }
	now := func(seconds int, seq uint64) holds.StreamPosition {
		return holds.StreamPosition{At: at(seconds), StreamCreatedAt: created, Seq: seq}
	}
	want := func(what, capacity string) {
		t.Helper()
		if got := s.capacities(t, "n1"); got != "["+capacity+"]" {
			t.Errorf("%s: capacity is %s, want %s", what, got, capacity)
		}
	}
	before := func(seconds int, capacity int64) {
		t.Helper()
		if _, err := s.conn.Exec(t.Context(), setByVersionBefore, "room", []string{"n1"}, capacity, at(seconds)); err != nil {
			t.Fatal(err)
		}
	}
	before(20, 20)
	s.change(t, now(10, 1), 10, "n1")
	want("the first is delivered after the second, which the version before has done", "20")
	s.change(t, now(30, 3), 30, "n1")
	want("the third", "30")
	before(40, 40)
	s.change(t, now(35, 4), 35, "n1")
	want("the fourth is delivered after the fifth, which the version before has done", "40")
	s.change(t, now(50, 6), 50, "n1")
	want("the sixth", "50")
	before(45, 45)
	want("one of before, delivered again to the version before", "50")
	s.change(t, now(1, 7), 1, "n1")
	want("the seventh, of a leader whose clock is behind", "1")
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `UPDATE inventory SET capacity = 2 WHERE resource_id = 'locked'`); err != nil {
		t.Fatal(err)
	}
	payments := []holds.Payment{payment(t, "locked", "p1", 1, "n1"), payment(t, "free", "p2", 1, "n1"), payment(t, "full", "p3", 2, "n1")}
	answers, err := s.Decide(ctx, payments)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(answers[0].Err, holds.ErrBusy) || answers[1].Err != nil || !answers[1].Confirmed || answers[2].Err != nil || answers[2].Reason != holds.ReasonSoldOut {
		t.Errorf("answers %+v, want busy, confirmed, sold_out", answers)
	}
	_, err = s.SetCapacity(ctx, holds.CapacityChange{EventID: "c", Position: holds.StreamPosition{At: time.Now()}, Resource: "locked", Names: []string{"n1"}, Capacity: 3, Held: []int64{0}})
	if !errors.Is(err, holds.ErrBusy) {
		t.Errorf("change of a locked row: %v, want ErrBusy", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	answers, err = s.Decide(ctx, payments)
	if err != nil || answers[0].Err != nil || !answers[0].Confirmed {
		t.Errorf("after the lock: %+v %v", answers, err)
	}
}

// TestFenceBase_DrawnAtOnce_EachIsHigher draws bases at once: each is returned once, and later ones
// are higher.
func TestFenceBase_DrawnAtOnce_EachIsHigher(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	const drawers, draws = 8, 10
	var mu sync.Mutex
	seen := make(map[int64]bool)
	var all sync.WaitGroup
	for range drawers {
		all.Go(func() {
			last := int64(0)
			for range draws {
				base, err := s.FenceBase(t.Context())
				if err != nil || base <= last {
					t.Errorf("base %d after %d: %v", base, last, err)
				}
				last = base
				mu.Lock()
				if seen[base] {
					t.Errorf("base %d was drawn twice", base)
				}
				seen[base] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
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
	other, err := pgx.ConnectConfig(ctx, s.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT FROM inventory WHERE slot = 'n3' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
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
				WHERE wait_event_type = 'Lock' AND application_name = $1`, "holdfast "+s.namespace).Scan(&query) // "" when it does not wait
			return query
		}
		before := waits()
		rows, err := s.conn.Query(ctx, `SELECT slot FROM inventory WHERE slot <> 'n3' ORDER BY slot FOR UPDATE SKIP LOCKED`)
		if err != nil {
			t.Fatal(err)
		}
		if free, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return before != "" && before == waits()
	})
	if !slices.Equal(free, []string{"n4", "n5"}) {
		t.Errorf("while it waits for n3, %v are free, want n4 and n5", free)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
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
	// The transaction that inserts the first row waits until the test releases the lock.
	s.execute(t, `
		CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared(hashtext(TG_TABLE_SCHEMA));
			RETURN NULL;
		END $$;
		CREATE TRIGGER waits BEFORE INSERT ON reservations EXECUTE FUNCTION waits();
		CREATE TRIGGER waits BEFORE INSERT ON payments EXECUTE FUNCTION waits()`)
	claimed, unknown := payment(t, "room", "p1", 1, "n1"), payment(t, "room", "p2", 1)
	unknown.Claimed, unknown.Reason, unknown.Names = false, holds.ReasonUnknownHold, nil
	for _, paid := range []holds.Payment{claimed, unknown} {
		s.execute(t, `SELECT pg_advisory_lock(hashtext(current_schema))`)
		var deciding sync.WaitGroup
		for range 2 {
			deciding.Go(func() {
				answers, err := s.Decide(ctx, []holds.Payment{paid})
				if err != nil || answers[0].Err != nil || answers[0].Confirmed != paid.Claimed || answers[0].Reason != paid.Reason {
					t.Errorf("payment %s: %+v %v", paid.PaymentID, answers, err)
				}
			})
		}
		stacktest.Eventually(t, "both to be about to write", func() bool {
			var waiting int
			err := s.conn.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND objid::bigint = hashtext(current_schema)::bigint & 4294967295`).Scan(&waiting)
			if err != nil {
				t.Fatal(err)
			}
			return waiting == 2
		})
		s.execute(t, `SELECT pg_advisory_unlock(hashtext(current_schema))`)
		deciding.Wait()
	}
	if got := s.reserved(t, "room", "n1"); got != 1 {
		t.Errorf("%d reserved, want 1", got)
	}
}
