package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func init() { watchSilence, migrationCheckEvery = 2*time.Second, time.Second }

// Read exports read.
func (s *Store) Read(ctx context.Context, work func(conn *pgxpool.Conn) error) error {
	return s.read(ctx, work)
}

// ResourcesRead exports resourcesRead.
const ResourcesRead = resourcesRead

// ErrMigrationSilent exports errMigrationSilent.
var ErrMigrationSilent = errMigrationSilent

// MigrationWorks reports whether one of some sessions runs a statement.
func (s *Store) MigrationWorks(ctx context.Context, pids ...uint32) bool {
	sessions := new(migrationSessions)
	for _, pid := range pids {
		sessions.pids = append(sessions.pids, int32(pid))
	}
	works, _ := s.migrationWorks(ctx, sessions, 0)
	return works
}
