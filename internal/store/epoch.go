package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

var _ recovery.EpochStore = (*Store)(nil)

// Epoch implements recovery.EpochStore. The first call creates the first epoch.
func (s *Store) Epoch(ctx context.Context) (e recovery.Epoch, err error) {
	if e, err = s.readEpoch(ctx); errors.Is(err, pgx.ErrNoRows) {
		if _, err = s.pool.Exec(ctx, queryEpochInsert, uuid.NewString(), record.Partitions); err == nil {
			e, err = s.readEpoch(ctx)
		}
	}
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &refused) && refused.Code == codeUndefinedTable:
		return recovery.Epoch{}, fmt.Errorf("read epoch: %w (was `worker migrate` run?)", err)
	case err != nil:
		return recovery.Epoch{}, fmt.Errorf("read epoch: %w", err)
	}
	return e, nil
}

func (s *Store) readEpoch(ctx context.Context) (e recovery.Epoch, err error) {
	var partitions int
	var worksFrom int64
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, queryEpochRead).
			Scan(&e.Name, &partitions, &e.Complete, &e.Server, &e.Lost, &e.Why, &e.Rebuilder, &e.Progress, &worksFrom)
	})
	if err == nil && partitions != record.Partitions {
		err = fmt.Errorf("data has %d partitions, this program expects %d", partitions, record.Partitions)
	}
	if err == nil && worksFrom > SchemaVersion {
		err = fmt.Errorf("%w: it knows version %d, the schema requires %d", recovery.ErrUnknownSchema, SchemaVersion,
			worksFrom)
	}
	return e, err
}

// CompleteEpoch implements recovery.EpochStore.
func (s *Store) CompleteEpoch(ctx context.Context, epoch, server, rebuilder string) error {
	return s.changeEpoch(ctx, "complete", queryEpochComplete, epoch, server, rebuilder)
}

// SetEpochServer implements recovery.EpochStore.
func (s *Store) SetEpochServer(ctx context.Context, epoch, server, before string) error {
	return s.changeEpoch(ctx, "set the server of", queryEpochServer, epoch, server, before)
}

// InvalidateEpoch implements recovery.EpochStore.
func (s *Store) InvalidateEpoch(ctx context.Context, epoch, why string) error {
	return s.changeEpoch(ctx, "invalidate", queryEpochInvalidate, epoch, why)
}

// RenewEpochLease implements recovery.EpochStore.
func (s *Store) RenewEpochLease(
	ctx context.Context, epoch, rebuilder string, lease time.Duration, progress string,
) error {
	return s.changeEpoch(ctx, "renew the lease of", queryEpochRenew, epoch, rebuilder, lease.Milliseconds(), progress)
}

func (s *Store) changeEpoch(ctx context.Context, verb, query, epoch string, args ...any) error {
	tag, err := s.pool.Exec(ctx, query, append([]any{epoch}, args...)...)
	if err == nil && tag.RowsAffected() == 0 {
		err = recovery.ErrEpochChanged
	}
	if err != nil {
		return fmt.Errorf("%s epoch %s: %w", verb, epoch, err)
	}
	return nil
}

// BeginEpoch implements recovery.EpochStore.
func (s *Store) BeginEpoch(ctx context.Context, rebuilder string, lease time.Duration) (epoch string, err error) {
	err = s.pool.QueryRow(ctx, queryEpochBegin, rebuilder, lease.Milliseconds()).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		err = recovery.ErrEpochChanged
	}
	if err != nil {
		return "", fmt.Errorf("begin epoch: %w", err)
	}
	return epoch, nil
}

// keepCurrent prevents an epoch from being invalidated until the transaction ends. It returns
// holds.ErrDataLost when it was invalidated before: then what Redis answered under it does not
// count.
func keepCurrent(ctx context.Context, tx pgx.Tx, epoch string) error {
	var current bool
	err := tx.QueryRow(ctx, queryEpochCurrent, epoch).Scan(&current)
	if errors.Is(err, pgx.ErrNoRows) {
		return holds.ErrDataLost
	}
	return err
}

// reservationsMax bounds the holds in one query.
const reservationsMax = 5000

// Reservations implements recovery.EpochStore.
func (s *Store) Reservations(ctx context.Context, ids []holds.HoldID, each func(recovery.Reservation)) error {
	for chunk := range slices.Chunk(ids, reservationsMax) {
		texts := make([]string, len(chunk))
		for i, id := range chunk {
			texts[i] = id.String()
		}
		if err := s.read(ctx,
			func(conn *pgxpool.Conn) error { return readReservations(ctx, conn, texts, each) }); err != nil {
			return fmt.Errorf("read reservations: %w", err)
		}
	}
	return nil
}

func readReservations(ctx context.Context, conn *pgxpool.Conn, ids []string, each func(recovery.Reservation)) error {
	rows, _ := conn.Query(ctx, queryReservationsOf, ids) // ForEachRow returns its error
	var text string
	var confirmedAt time.Time
	var r recovery.Reservation
	_, err := pgx.ForEachRow(rows, []any{&text, &r.PaymentID, &confirmedAt, &r.Late}, func() (err error) {
		r.ConfirmedAt = holds.Time{Time: confirmedAt.UTC()}
		if r.Hold, err = holds.ParseHoldID(text); err == nil {
			each(r)
		}
		return err
	})
	return err
}
