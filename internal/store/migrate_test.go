package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

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

// TestMigrate_InventoryInUse_OthersPass migrates while a transaction of upstream is open that has written inventory. Other
// statements do not wait behind the migration, which goes on when the transaction has ended.
func TestMigrate_InventoryInUse_OthersPass(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 1, "A")
	open := s.useInventory(t)
	migrated := make(chan error, 1)
	go func() { migrated <- s.Migrate(t.Context(), s.namespace) }()
	other := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	s.awaitMigration(t, other)
	_, err := other.Exec(stacktest.WaitContext(t),
		`INSERT INTO `+s.namespace+`.inventory (resource_id, slot, capacity) VALUES ('room', 'B', 1)`)
	if err != nil {
		t.Errorf("a statement behind the migration: %v", err)
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("the migration: %v", err)
	}
}

// useInventory undoes a migration of inventory and begins a transaction that has written the table.
func (s harness) useInventory(t *testing.T) pgx.Tx {
	t.Helper()
	s.execute(t, `DELETE FROM goose_db_version WHERE version_id = 16`)
	open, err := s.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), `UPDATE inventory SET capacity = 2`); err != nil {
		t.Fatal(err)
	}
	return open
}

// awaitMigration waits until a migration waits for a lock of inventory.
func (s harness) awaitMigration(t *testing.T, other *pgx.Conn) {
	t.Helper()
	stacktest.Eventually(t, "the migration to wait for a lock", func() bool {
		var waiting bool
		err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)`,
			s.namespace+".inventory").Scan(&waiting)
		return err == nil && waiting
	})
}

// TestMigrate_AnswerLost_ReturnsError migrates while Postgres stops to answer: at all, or on the connections that it had.
func TestMigrate_AnswerLost_ReturnsError(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*stacktest.Proxy){
		"all connections":     func(p *stacktest.Proxy) { p.Set(stacktest.Upstream, stacktest.Toxics{Stall: true}) },
		"present connections": (*stacktest.Proxy).HalfOpen,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(t)
			s.set(t, "room", 1, "A")
			address, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
			behind, err := store.Open(t.Context(), address, s.namespace)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(behind.Close)
			open := s.useInventory(t)
			migrated := make(chan error, 1)
			go func() { migrated <- behind.Migrate(t.Context(), s.namespace) }()
			s.awaitMigration(t, stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL))
			fail(proxy)
			select {
			case err := <-migrated:
				if !errors.Is(err, store.ErrMigrationSilent) {
					t.Errorf("the migration: %v", err)
				}
			case <-stacktest.WaitContext(t).Done():
				t.Fatal("the migration has not ended")
			}
			if err := open.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMigrate_StatementRuns_IsWork asks whether sessions work: one that waits in its statement does, however long it takes,
// and one without a statement does not.
func TestMigrate_StatementRuns_IsWork(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	busy := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	s.execute(t, `SELECT pg_advisory_lock(hashtext(current_schema))`)
	waited := make(chan error, 1)
	go func() {
		_, err := busy.Exec(t.Context(), `SELECT pg_advisory_lock(hashtext($1))`, s.namespace)
		waited <- err
	}()
	if s.MigrationWorks(t.Context(), s.conn.PgConn().PID()) {
		t.Error("a session without a statement counts as work")
	}
	stacktest.Eventually(t, "the statement to count as work", func() bool {
		return s.MigrationWorks(t.Context(), s.conn.PgConn().PID(), busy.PgConn().PID())
	})
	s.execute(t, `SELECT pg_advisory_unlock(hashtext(current_schema))`)
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
