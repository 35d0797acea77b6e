package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
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

// TestStore_ConnectionEndsBeforeTheAnswer_ErrorIsOfPostgres cuts the connection before the rows of a read, and of a
// transaction. What Redis has lost is no error of Postgres.
func TestStore_ConnectionEndsBeforeTheAnswer_ErrorIsOfPostgres(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	address, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
	remote, err := store.Open(t.Context(), address, s.namespace)
	stacktest.Must(t, err)
	t.Cleanup(remote.Close)
	paid := payment(t, "cut", "p1", 1, "n1")
	paid.Epoch = s.epoch
	for what, call := range map[string]func(ctx context.Context) error{
		"cut-inventory": func(ctx context.Context) error {
			_, err := remote.InventoryRows(ctx, []string{"cut-inventory"}, [][]string{{"n1"}})
			return err
		},
		paid.Hold.String(): func(ctx context.Context) error {
			_, err := remote.Decide(ctx, []holds.Payment{paid})
			return err
		},
		"lock_fence_bases": func(ctx context.Context) error {
			_, err := remote.FenceBase(ctx)
			return err
		},
	} {
		proxy.Drop(stacktest.DropRule{Words: []string{what}})
		err := call(t.Context())
		if _, is := errors.AsType[*postgres.Error](err); !is {
			t.Errorf("%s: %v is no error of Postgres", what, err)
		}
	}
	if proxy.Dropped() != 3 {
		t.Errorf("%d answers were dropped", proxy.Dropped())
	}
	paid.Epoch = "another"
	answers, err := remote.Decide(t.Context(), []holds.Payment{paid})
	stacktest.Must(t, err)
	if _, is := errors.AsType[*postgres.Error](answers[0].Err); is || !errors.Is(answers[0].Err, holds.ErrDataLost) {
		t.Errorf("with another epoch: %v", answers[0].Err)
	}
}

// TestRead_SessionEndsToWrite_IsRefused makes sessions read-only while they read what decides whether an event is poison,
// and by which policy it is decided. Another server may have newer rows.
func TestRead_SessionEndsToWrite_IsRefused(t *testing.T) {
	t.Parallel()
	for table, read := range map[string]func(ctx context.Context, s *store.Store) error{
		"event_answers": func(ctx context.Context, s *store.Store) error {
			_, err := s.Poisoned(ctx, []string{"id"})
			return err
		},
		"policies": func(ctx context.Context, s *store.Store) error {
			_, err := s.State(ctx, "")
			return err
		},
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			s, ctx := newHarness(t), t.Context()
			if _, err := s.StorePolicy(ctx, somePolicy); err != nil {
				t.Fatal(err)
			}
			stacktest.Must(t, s.RecordPoison(ctx, "id", "room", "a test"))
			s.endWritesOf(t, table)
			if err := read(ctx, s.Store); !errors.Is(err, postgres.ErrReadOnly) {
				t.Errorf("read: %v, want %v", err, postgres.ErrReadOnly)
			}
		})
	}
}

// TestRead_SessionBecomesReadOnly_IsRefusedAndClosed makes a session read-only while it reads.
func TestRead_SessionBecomesReadOnly_IsRefusedAndClosed(t *testing.T) {
	t.Parallel()
	namespace := stacktest.Namespace(t)
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL+"&pool_max_conns=1", namespace)
	stacktest.Must(t, err)
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
	stacktest.Must(t, err)
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
	s.execute(t, `
		CREATE SEQUENCE tries;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			CASE nextval('tries') WHEN 1 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40P01';
				WHEN 2 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; ELSE RETURN NULL; END CASE; END $$;
		CREATE TRIGGER refuses AFTER INSERT ON reservations FOR EACH ROW EXECUTE FUNCTION refuse()`)
	answers, err := s.Decide(t.Context(), []holds.Payment{payment(t, "room", "p1", 1, "n1")})
	if err != nil || !answers[0].Confirmed {
		t.Errorf("%+v %v, want it retried until it succeeds", answers, err)
	}
}

// TestStore_ManyResourcesLocked_FreeOnesInTime locks the rows of many resources, as one transaction of upstream may. A
// batch of payments, cancellations, or published outcomes that has work on all of them does what belongs to the free one
// within a time of the order that a consumer has for a batch.
func TestStore_ManyResourcesLocked_FreeOnesInTime(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	const locked = 250 // almost a whole batch
	var first, second []holds.Payment
	var cancellations []holds.CancelRequest
	var outcomes []holds.StoredOutcome
	var changes []holds.CapacityChange
	for i := range locked + 1 {
		resource := fmt.Sprintf("locked-%d", i)
		if i == locked {
			resource = "free"
		}
		s.set(t, resource, 5, "A")
		paid := payment(t, resource, "p", 1, "A")
		first, second = append(first, paid), append(second, payment(t, resource, "q", 1, "A"))
		cancellations = append(cancellations, holds.CancelRequest{EventID: uuid.NewString(), Hold: paid.Hold})
		outcomes = append(outcomes, confirmedOutcome(payment(t, resource, "r", 1, "A")))
		changes = append(changes, holds.CapacityChange{
			EventID: uuid.NewString(), Position: holds.StreamPosition{At: time.Now(), Seq: s.seq.Add(1)},
			Resource: resource, Names: []string{"A"}, Capacity: 7, Held: []int64{0},
		})
	}
	s.mustDecide(t, first...)
	s.execute(t, `BEGIN; UPDATE inventory SET capacity = 6 WHERE resource_id LIKE 'locked-%'`)
	batch := func(what string, work func(ctx context.Context) (errs []error, err error)) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // three times decideLimit of package events
		defer cancel()
		errs, err := work(ctx)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for i, err := range errs {
			if (i == locked) != (err == nil) || err != nil && !errors.Is(err, holds.ErrBusy) {
				t.Errorf("%s %d: %v", what, i, err)
			}
		}
	}
	batch("payment", func(ctx context.Context) (errs []error, err error) {
		answers, err := s.Decide(ctx, second)
		for _, a := range answers {
			errs = append(errs, a.Err)
		}
		return errs, err
	})
	batch("cancellation", func(ctx context.Context) (errs []error, err error) {
		answers, err := s.Cancel(ctx, cancellations, at(1000))
		for _, a := range answers {
			errs = append(errs, a.Err)
		}
		return errs, err
	})
	batch("change", func(ctx context.Context) (errs []error, err error) {
		for _, a := range s.SetCapacities(ctx, changes) {
			errs = append(errs, a.Err)
		}
		return errs, nil
	})
	batch("outcome", func(ctx context.Context) (errs []error, err error) {
		restored, err := s.PutBack(ctx, outcomes)
		if err == nil && restored != 1 {
			err = fmt.Errorf("%d put back, want 1", restored)
		}
		return nil, err
	})
}

// TestStore_PostgresSilent_ReturnsError loses all bytes of the connections before a transaction, as one of a comparison of
// commits, which may take long and has no deadline. It then uses another connection.
func TestStore_PostgresSilent_ReturnsError(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), stacktest.WaitContext(t)
	address, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
	db, err := store.Open(ctx, address, s.namespace, postgres.EndSilent(5*time.Second), func(config *pgxpool.Config) {
		// A ping would have another connection used.
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	if err == nil {
		t.Cleanup(db.Close)
		_, err = db.PutBackLost(ctx)
	}
	stacktest.Must(t, err)
	proxy.HalfOpen()
	if _, err := db.PutBackLost(ctx); !errors.Is(err, postgres.ErrSilent) {
		t.Errorf("a transaction without an answer: %v", err)
	}
	if _, err := db.PutBackLost(ctx); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}
