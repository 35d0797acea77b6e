package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"holdfast/internal/holds"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// answersKept is how long the answers of events are remembered that have no row of their own.
const answersKept = "30 days"

// Migrate creates the namespace's schema, brings its tables up to date, and drops what need not
// be remembered any more. Any number of processes may do so at once: one does it, the others
// wait.
func (s *Store) Migrate(ctx context.Context, namespace string) error {
	if err := s.migrate(ctx, namespace); err != nil {
		return fmt.Errorf("migrate schema %s: %w", namespace, err)
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, namespace string) (err error) {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	config := s.pool.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "0" // here, waiting for another is right
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	// goose keeps its own table in the schema, so the schema must be there before. Two
	// processes that create one at the same time fail in spite of IF NOT EXISTS.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext($1))`, "holdfast schema "+namespace); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{namespace}.Sanitize())
		return err
	})
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(int64(crc32.ChecksumIEEE([]byte(namespace)))), lock.WithLockTimeout(1, 60))
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	if _, err = provider.Up(ctx); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `DELETE FROM event_answers WHERE decided_at < now() - interval '`+answersKept+`'`)
	return err
}

// Epoch returns the epoch of the Redis that belongs to this database, making one at the first
// call. written is false until EpochWritten was called: Redis may not have it yet. It returns
// an error when the data was written with another number of partitions.
func (s *Store) Epoch(ctx context.Context) (epoch string, written bool, err error) {
	_, err = s.pool.Exec(ctx, `INSERT INTO redis_epoch (epoch, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING`,
		uuid.NewString(), holds.Partitions)
	if err != nil {
		return "", false, fmt.Errorf("write epoch: %w", err)
	}
	var partitions int
	err = s.pool.QueryRow(ctx, `SELECT epoch, partitions, written FROM redis_epoch`).Scan(&epoch, &partitions, &written)
	if err != nil {
		return "", false, fmt.Errorf("read epoch: %w", err)
	}
	if partitions != holds.Partitions {
		return "", false, fmt.Errorf("the data is divided into %d partitions, this program knows %d", partitions, holds.Partitions)
	}
	return epoch, written, nil
}

// EpochWritten notes that Redis has the epoch. From now on its absence means lost data.
func (s *Store) EpochWritten(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, `UPDATE redis_epoch SET written = true WHERE NOT written`); err != nil {
		return fmt.Errorf("write epoch: %w", err)
	}
	return nil
}
