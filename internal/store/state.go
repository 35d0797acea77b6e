package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/postgres"
	"holdfast/internal/recovery"
)

// State implements recovery.EpochStore. It adds the commit marker when there is none.
func (s *Store) State(ctx context.Context, worker string) (recovery.PostgresState, error) {
	state, err := s.readState(ctx, worker)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err = s.pool.Exec(ctx, query("history_insert")); err == nil {
			state, err = s.readState(ctx, worker)
		}
	}
	if err == nil {
		return state, nil
	}
	// A newer schema may lack what was read.
	if _, newer := s.Epochs(ctx); errors.Is(newer, recovery.ErrUnknownSchema) {
		err = newer
	}
	return recovery.PostgresState{}, fmt.Errorf("read history, epochs and policies: %w", postgres.HintMigrate(err))
}

// readState returns pgx.ErrNoRows when there is no commit marker.
func (s *Store) readState(ctx context.Context, worker string) (state recovery.PostgresState, err error) {
	var epochs epochRows
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		var batch pgx.Batch
		batch.Queue(query("history_read")).Query(func(rows pgx.Rows) (err error) {
			state.History, err = scanHistory(rows)
			return err
		})
		batch.Queue(query("epoch_read")).Query(func(rows pgx.Rows) (err error) {
			epochs, err = scanEpochs(rows)
			return err
		})
		batch.Queue(query("worker_registered"), worker).QueryRow(func(row pgx.Row) error {
			return row.Scan(&state.Registered)
		})
		batch.Queue(query("policies_read")).Query(func(rows pgx.Rows) (err error) {
			state.Policies, err = scanPolicies(rows)
			return err
		})
		return conn.SendBatch(ctx, &batch).Close()
	})
	if err == nil {
		state.Epochs, err = epochs.known()
	}
	return state, err
}
