package store_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
	"holdfast/internal/record"
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
	s := newMigrated(t)
	epochs, err := s.Epochs(t.Context())
	if err == nil {
		err = s.CompleteEpoch(t.Context(), record.AllPartitions, epochs[0].Name, "server", "")
	}
	stacktest.Must(t, err)
	s.epoch = epochs[0].Name
	return s
}

// newMigrated returns a harness whose first epoch is not complete.
func newMigrated(t *testing.T) harness {
	t.Helper()
	s := harness{namespace: stacktest.Namespace(t), seq: new(atomic.Uint64)}
	var err error
	if s.Store, err = store.Open(t.Context(), stacktest.Shared().PostgresURL, s.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	stacktest.Must(t, s.Migrate(t.Context(), s.namespace))
	s.conn = stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL+"&search_path="+s.namespace)
	return s
}

// Decide decides payments under the first epoch.
func (s harness) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	payments = slices.Clone(payments)
	for i := range payments {
		payments[i].Epoch = s.epoch
	}
	return s.Store.Decide(ctx, payments)
}

// mustDecide decides payments whose answers the test does not need.
func (s harness) mustDecide(t *testing.T, payments ...holds.Payment) {
	t.Helper()
	_, err := s.Decide(t.Context(), payments)
	stacktest.Must(t, err)
}

// SetCapacity makes one change.
func (s harness) SetCapacity(ctx context.Context, change holds.CapacityChange) (holds.CapacityDecision, error) {
	answer := s.SetCapacities(ctx, []holds.CapacityChange{change})[0]
	return answer, answer.Err
}

func (s harness) set(t *testing.T, resource string, capacity int64, names ...string) holds.CapacityDecision {
	t.Helper()
	return s.setBy(t, holds.StreamPosition{At: time.Now(), Seq: s.seq.Add(1)}, resource, capacity, names...)
}

// setBy sets capacities by an event with a position in a stream.
func (s harness) setBy(
	t *testing.T, stored holds.StreamPosition, resource string, capacity int64, names ...string,
) holds.CapacityDecision {
	t.Helper()
	answer, err := s.SetCapacity(t.Context(), holds.CapacityChange{
		EventID: uuid.NewString(), Position: stored, Resource: resource, Names: names, Capacity: capacity,
		Held: make([]int64, len(names)),
	})
	stacktest.Must(t, err)
	return answer
}

func (s harness) reserved(t *testing.T, resource, slot string) int64 {
	t.Helper()
	rows, err := s.InventoryRows(t.Context(), []string{resource}, [][]string{{slot}})
	stacktest.Must(t, err)
	return rows[0][0].Reserved
}

func (s harness) wantReserved(t *testing.T, resource, slot string, want int64) {
	t.Helper()
	if got := s.reserved(t, resource, slot); got != want {
		t.Errorf("reserved of %s of %s are %d, want %d", slot, resource, got, want)
	}
}

func (s harness) execute(t *testing.T, sql string) {
	t.Helper()
	stacktest.Exec(t, s.conn, sql)
}

// asUpstream runs a statement as a role that may use the schema and has some privileges on inventory.
func (s harness) asUpstream(t *testing.T, privileges, statement string) {
	t.Helper()
	role := pgx.Identifier{"upstream_" + s.namespace}.Sanitize()
	s.execute(t, `CREATE ROLE `+role+`; GRANT USAGE ON SCHEMA `+s.namespace+` TO `+role+`; GRANT `+privileges+
		` ON inventory TO `+role+`; SET ROLE `+role)
	s.execute(t, statement)
	s.execute(t, `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role)
}

// pauseWrites makes transactions wait that insert into some tables, until proceed. awaitPaused waits until so many do.
func (s harness) pauseWrites(t *testing.T, tables ...string) (awaitPaused func(transactions int), proceed func()) {
	t.Helper()
	s.execute(t, `CREATE OR REPLACE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared(hashtext(TG_TABLE_SCHEMA));
			RETURN NULL;
		END $$;
		SELECT pg_advisory_lock(hashtext(current_schema))`)
	for _, table := range tables {
		s.execute(t, `CREATE OR REPLACE TRIGGER waits BEFORE INSERT ON `+table+` EXECUTE FUNCTION waits()`)
	}
	return func(transactions int) {
		t.Helper()
		stacktest.Eventually(t, "the transactions to be about to write", func() bool {
			waiting := s.column(t, `SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND objid::bigint = hashtext(current_schema)::bigint & 4294967295`)
			return len(waiting) == transactions
		})
	}, func() { s.execute(t, `SELECT pg_advisory_unlock(hashtext(current_schema))`) }
}

// at returns a clock that stands still at a time in ms.
func at(ms int64) func(context.Context) (holds.Time, error) {
	return func(context.Context) (holds.Time, error) { return holds.TimeFromMillis(ms), nil }
}

// endWritesOf makes each session read-only that reads a row of a table.
func (s harness) endWritesOf(t *testing.T, table string) {
	t.Helper()
	s.execute(t, `ALTER TABLE `+table+` RENAME TO stored_rows; CREATE VIEW `+table+` AS SELECT * FROM stored_rows
		WHERE set_config('default_transaction_read_only', 'on', false) = 'on'`)
}

// column reads one column of text.
func (s harness) column(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), sql)
	stacktest.Must(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	stacktest.Must(t, err)
	return values
}

// pay sets a capacity of 5 for slot A of the room, and decides a payment for 2 of it.
func (s harness) pay(t *testing.T) holds.Payment {
	t.Helper()
	s.set(t, "room", 5, "A")
	paid := payment(t, "room", "p", 2, "A")
	s.mustDecide(t, paid)
	return paid
}

// payment returns a claimed payment of a new hold.
func payment(t *testing.T, resource, id string, quantity int64, names ...string) holds.Payment {
	t.Helper()
	hold := holds.NewHoldID(resource)
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
