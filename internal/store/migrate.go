package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"holdfast/internal/postgres"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrateAgain is the time until the next attempt of a migration that did not get a lock.
const migrateAgain = 2 * time.Second

// Migrate creates the namespace's schema and brings its tables up to date. If several processes
// call it at once, one migrates and the others wait. It waits for transactions that use the tables, and lets others pass
// meanwhile. It ends with an error when Postgres does not answer, or its answers are lost, and when the schema IsTooOld.
// The logger of ctx gets a warning every 30 s while Postgres makes it wait for other sessions, or for a standby.
//
// Migrations only add, so programs of the previous version keep working beside those that migrated,
// and may restart. A migration that such programs would misread, or write against, sets
// schema_compatibility.works_from to its number.
func (s *Store) Migrate(ctx context.Context, namespace string) error {
	err := s.watched(ctx, func(ctx context.Context, sessions *migrationSessions) error {
		return s.migrate(ctx, namespace, sessions)
	})
	if err != nil {
		return fmt.Errorf("migrate schema %s: %w", namespace, err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, namespace string, sessions *migrationSessions) (err error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	config := s.pool.Config()
	sessions.attach(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer postgres.Close(pool)
	// goose keeps its table in the schema, so the schema must exist first. Two processes that
	// create it at once would fail.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 0"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext($1))`,
			"holdfast schema "+namespace); err != nil {
			return err
		}
		// A role that may not create schemas may not use IF NOT EXISTS on an existing one either.
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, namespace).Scan(&exists); err != nil ||
			exists {
			return err
		}
		_, err := tx.Exec(ctx, `CREATE SCHEMA `+pgx.Identifier{namespace}.Sanitize())
		return err
	})
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(crc32.ChecksumIEEE([]byte(namespace)))),
		lock.WithLockTimeout(1, 60))
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	for {
		if err := runMissing(ctx, provider); !waitedForLock(err) {
			return err
		}
		select { // what was done is not done again
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(migrateAgain):
		}
	}
}

// runMissing runs the migrations that a schema lacks, unless it IsTooOld.
func runMissing(ctx context.Context, provider *goose.Provider) error {
	version, err := provider.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if (Schema{Version: version}).IsTooOld() {
		return fmt.Errorf("it has version %d: %s", version, FixTooOld)
	}
	_, err = provider.Up(ctx)
	return err
}

// Drop removes the namespace's schema and everything in it.
func (s *Store) Drop(ctx context.Context, namespace string) error {
	if _, err := s.pool.Exec(ctx,
		`DROP SCHEMA IF EXISTS `+pgx.Identifier{namespace}.Sanitize()+` CASCADE`); err != nil {
		return fmt.Errorf("drop schema %s: %w", namespace, err)
	}
	return nil
}
