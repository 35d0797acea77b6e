package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/recovery"
)

var _ recovery.HistoryStore = (*Store)(nil)

// Mark implements recovery.HistoryStore.
func (s *Store) Mark(ctx context.Context, h recovery.History, marker holds.LogPosition) error {
	_, err := s.pool.Exec(ctx, query("history_mark"), h.ID, h.Server, marker.Created, int64(marker.Seq), h.Marker.Created,
		int64(h.Marker.Seq), storedAt(marker), h.Started)
	if err != nil {
		return fmt.Errorf("write commit marker: %w", err)
	}
	return nil
}

// storedAt returns when the outcome of a position was stored, nil when that is not known.
func storedAt(p holds.LogPosition) *time.Time {
	if p.StoredAt.IsZero() {
		return nil
	}
	return &p.StoredAt
}

// SetCompared implements recovery.HistoryStore.
func (s *Store) SetCompared(
	ctx context.Context, h recovery.History, marker holds.LogPosition,
) (recovery.History, error) {
	err := s.pool.QueryRow(ctx, query("history_compared"), h.ID, h.Compared, h.Server, marker.Created, int64(marker.Seq),
		storedAt(marker), h.Started).Scan(&h.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		err = recovery.ErrHistoryChanged
	}
	if err != nil {
		return h, fmt.Errorf("begin history of postgres: %w", err)
	}
	h.Compared, h.Marker, h.MarkerAge = h.Server, marker, 0
	return h, nil
}

// EndRebuilds implements recovery.HistoryStore.
func (s *Store) EndRebuilds(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, query("epoch_end_rebuilds")); err != nil {
		return fmt.Errorf("end rebuilds: %w", err)
	}
	return nil
}

// historyKey is the key of a connection's custom data with its guardedHistory.
const historyKey = "holdfast_history"

// guardedHistory is the history that a connection had when it opened.
type guardedHistory struct {
	guard *recovery.HistoryGuard
	id    string
}

// Guard returns an option of Open and of a pool on the same schema: the guard checks each
// connection when it opens and each time that it is used.
func Guard(guard *recovery.HistoryGuard) postgres.Option {
	return func(config *pgxpool.Config) {
		begin, prepare := config.ConnConfig.ValidateConnect, config.PrepareConn
		config.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if err := begin(ctx, conn); err != nil {
				return err
			}
			h, err := historyOf(ctx, conn)
			if errors.Is(err, pgx.ErrNoRows) {
				err = &recovery.HistoryError{Why: "no commit marker"}
			}
			if err != nil {
				return err
			}
			conn.CustomData()[historyKey] = guardedHistory{guard, h.ID}
			return guard.Check(h)
		}
		config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			if _, err := guard.Current(); err != nil {
				return false, err
			}
			if checkHistory(conn) != nil {
				return false, nil //nolint:nilerr // it is closed, and the next one is checked
			}
			return prepare(ctx, conn)
		}
	}
}

// checkHistory returns an error when a guarded connection must not be used any more. It sends
// nothing.
func checkHistory(conn *pgx.Conn) error {
	own, guarded := conn.PgConn().CustomData()[historyKey].(guardedHistory)
	if !guarded {
		return nil
	}
	id, err := own.guard.Current()
	if err == nil && id != own.id {
		err = &recovery.HistoryError{Why: "the connection is older than the last comparison"}
	}
	return err
}

// historyOf reads the history on a connection, also on one that is being opened. It returns pgx.ErrNoRows when there is
// no commit marker.
func historyOf(ctx context.Context, conn *pgconn.PgConn) (recovery.History, error) {
	return scanHistory(pgx.RowsFromResultReader(pgtype.NewMap(), conn.ExecParams(ctx, query("history_read"), nil, nil, nil, nil)))
}

func scanHistory(rows pgx.Rows) (recovery.History, error) {
	return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (h recovery.History, err error) {
		var created *int64
		var seq, marked, age, started int64
		err = row.Scan(&h.Server, &started, &h.ID, &h.Compared, &created, &seq, &marked, &age, &h.Lost)
		if created != nil {
			h.Marker = holds.LogPosition{Created: time.UnixMicro(*created), Seq: uint64(seq), StoredAt: time.UnixMicro(marked)}
		}
		h.Started, h.MarkerAge = time.UnixMicro(started), time.Duration(age)*time.Millisecond
		return h, err
	})
}
