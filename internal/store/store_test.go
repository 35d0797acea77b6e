package store_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

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
	if pid, err := session("SET default_transaction_read_only = on"); pid != first ||
		!errors.Is(err, postgres.ErrReadOnly) {
		t.Errorf("session %d, %v, want %d and %v", pid, err, first, postgres.ErrReadOnly)
	}
	if pid, err := session("SELECT 1"); pid == first || err != nil {
		t.Errorf("session %d, %v, want another than %d", pid, err, first)
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
