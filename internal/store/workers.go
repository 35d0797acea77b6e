package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RegisterWorker implements recovery.EpochStore.
func (s *Store) RegisterWorker(ctx context.Context, id string) error {
	if _, err := s.pool.Exec(ctx, query("worker_register"), id); err != nil {
		return fmt.Errorf("register worker: %w", wrapError(err))
	}
	return nil
}

// StoreDrained implements recovery.EpochStore.
func (s *Store) StoreDrained(ctx context.Context, id string, epochs []string) error {
	return s.changeWorkers(ctx, query("worker_drained"), id, epochs)
}

// Undrained implements recovery.EpochStore.
func (s *Store) Undrained(ctx context.Context, epochs []string, forgotten time.Duration) (ids []string, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		// CollectRows returns the error of Query.
		rows, _ := conn.Query(ctx, query("workers_undrained"), epochs, forgotten.Milliseconds())
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read workers: %w", err)
	}
	return ids, nil
}

// forgottenFor is how long a forgotten worker is stored, far longer than a recovery waits for it.
const forgottenFor = time.Hour

// ForgetWorkers implements recovery.EpochStore.
func (s *Store) ForgetWorkers(ctx context.Context, ids, epochs []string) error {
	return s.changeWorkers(ctx, query("workers_forget"), ids, epochs, forgottenFor.Milliseconds())
}

// RemoveWorker implements recovery.EpochStore.
func (s *Store) RemoveWorker(ctx context.Context, id string) error {
	return s.changeWorkers(ctx, query("worker_remove"), id)
}

func (s *Store) changeWorkers(ctx context.Context, query string, args ...any) error {
	if _, err := s.pool.Exec(ctx, query, args...); err != nil {
		return fmt.Errorf("change workers: %w", err)
	}
	return nil
}
