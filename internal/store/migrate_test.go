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
