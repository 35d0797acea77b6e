package store_test

import (
	"context"
	"sync"
	"testing"

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
	s.execute(t, `DELETE FROM goose_db_version WHERE version_id = 16`)
	open, err := s.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), `UPDATE inventory SET capacity = 2`); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- s.Migrate(t.Context(), s.namespace) }()
	other := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL)
	stacktest.Eventually(t, "the migration to wait for a lock", func() bool {
		var waiting bool
		err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)`,
			s.namespace+".inventory").Scan(&waiting)
		return err == nil && waiting
	})
	_, err = other.Exec(stacktest.WaitContext(t),
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
