package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

var _ recovery.EpochStore = (*Store)(nil)

// Epochs implements recovery.EpochStore.
func (s *Store) Epochs(ctx context.Context) (epochs recovery.Epochs, err error) {
	var all epochRows
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, query("epoch_read")) // scanEpochs returns its error
		all, err = scanEpochs(rows)
		return err
	})
	if err == nil {
		epochs, err = all.known()
	}
	if err != nil {
		return recovery.Epochs{}, fmt.Errorf("read epochs: %w", postgres.HintMigrate(err))
	}
	return epochs, nil
}

// epochRows is what epoch_read returns.
type epochRows struct {
	epochs     recovery.Epochs
	partitions int   // their number
	worksFrom  int64 // the oldest schema version that a program may know
}

func scanEpochs(rows pgx.Rows) (all epochRows, err error) {
	var its []int
	var e recovery.Epoch
	columns := []any{&its, &e.Name, &e.Complete, &e.Server, &e.Lost, &e.Why, &e.Rebuilder, &e.Progress, &all.worksFrom}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		all.partitions += len(its)
		for _, p := range its {
			if p < record.Partitions {
				all.epochs[p] = e
			}
		}
		return nil
	})
	return all, err
}

// known returns the epochs, or an error unless this program knows the schema.
func (r *epochRows) known() (recovery.Epochs, error) {
	switch {
	case r.partitions != record.Partitions:
		return recovery.Epochs{}, fmt.Errorf("data has %d partitions, this program expects %d", r.partitions, record.Partitions)
	case r.worksFrom > SchemaVersion:
		return recovery.Epochs{}, fmt.Errorf("%w: it knows version %d, the schema requires %d", recovery.ErrUnknownSchema,
			SchemaVersion, r.worksFrom)
	}
	return r.epochs, nil
}

// CompleteEpoch implements recovery.EpochStore.
func (s *Store) CompleteEpoch(
	ctx context.Context, of record.PartitionSet, epoch, server, rebuilder string,
) error {
	return s.changeEpochs(ctx, "complete", func(tx pgx.Tx) error {
		return changeAll(ctx, tx, of, query("epoch_complete"), of.Sorted(), epoch, server, rebuilder)
	})
}

// CompleteFirstEpoch completes the first epoch of partitions on the server that write returns, after write has written
// the epoch to it. Meanwhile no other worker completes the epoch, so that nothing is decided under it, and nothing of that
// lost. It returns recovery.ErrEpochChanged, and write is not called, when the epoch is complete already or was lost. It
// waits for another worker that does the same.
func (s *Store) CompleteFirstEpoch(
	ctx context.Context, of record.PartitionSet, epoch string, write func() (server string, err error),
) error {
	names, none := slices.Repeat([]string{epoch}, of.Len()), slices.Repeat([]string{""}, of.Len())
	var failed error
	err := s.transactWaiting(ctx, 0, func(tx pgx.Tx) error {
		err := changeAll(ctx, tx, of, query("epoch_complete"), of.Sorted(), epoch, "", "")
		if err != nil {
			return err
		}
		var server string
		if server, failed = write(); failed != nil {
			return failed
		}
		return changeAll(ctx, tx, of, query("epoch_server"), of.Sorted(), names, none, server)
	})
	if failed != nil { // it is no error of Postgres
		return failed
	}
	if err != nil {
		return fmt.Errorf("complete the first epoch: %w", err)
	}
	return nil
}

// SetEpochServer implements recovery.EpochStore.
func (s *Store) SetEpochServer(
	ctx context.Context, of record.PartitionSet, epochs *recovery.Epochs, server string,
) error {
	return s.changeEpochs(ctx, "set the server of", func(tx pgx.Tx) error {
		names := make([]string, 0, of.Len())
		servers := make([]string, 0, of.Len())
		for p := range of.Each() {
			names, servers = append(names, epochs[p].Name), append(servers, epochs[p].Server)
		}
		return changeAll(ctx, tx, of, query("epoch_server"), of.Sorted(), names, servers, server)
	})
}

// InvalidateEpochs implements recovery.EpochStore.
func (s *Store) InvalidateEpochs(
	ctx context.Context, lost record.PartitionSet, epochs *recovery.Epochs,
) (changed record.PartitionSet, err error) {
	names := make([]string, 0, lost.Len())
	reasons := make([]string, 0, lost.Len())
	for p := range lost.Each() {
		names, reasons = append(names, epochs[p].Name), append(reasons, epochs[p].Why)
	}
	err = s.changeEpochs(ctx, "invalidate", func(tx pgx.Tx) error {
		changed, err = readPartitions(ctx, tx, query("epoch_invalidate"), lost.Sorted(), names, reasons)
		if err == nil && changed == 0 {
			err = recovery.ErrEpochChanged
		}
		return err
	})
	return changed, err
}

// RenewEpochLease implements recovery.EpochStore.
func (s *Store) RenewEpochLease(
	ctx context.Context, of record.PartitionSet, epoch, rebuilder string, lease time.Duration, progress string,
) error {
	return s.changeEpochs(ctx, "renew the lease of", func(tx pgx.Tx) error {
		return changeAll(ctx, tx, of, query("epoch_renew"), of.Sorted(), epoch, rebuilder, lease.Milliseconds(), progress)
	})
}

// BeginEpoch implements recovery.EpochStore.
func (s *Store) BeginEpoch(
	ctx context.Context, of record.PartitionSet, rebuilder string, lease time.Duration,
) (begun record.PartitionSet, epoch string, err error) {
	err = s.changeEpochs(ctx, "begin", func(tx pgx.Tx) error {
		begun = 0
		// ForEachRow returns the error of Query.
		rows, _ := tx.Query(ctx, query("epoch_begin"), of.Sorted(), rebuilder, lease.Milliseconds())
		var p int
		_, err := pgx.ForEachRow(rows, []any{&p, &epoch}, func() error {
			begun.Add(p)
			return nil
		})
		if err == nil && begun == 0 {
			err = recovery.ErrEpochChanged
		}
		return err
	})
	return begun, epoch, err
}

func (s *Store) changeEpochs(ctx context.Context, verb string, work func(tx pgx.Tx) error) error {
	if err := s.transact(ctx, work); err != nil {
		return fmt.Errorf("%s epochs: %w", verb, err)
	}
	return nil
}

// changeAll runs a statement that changes a row for each of some partitions. It returns
// recovery.ErrEpochChanged when it would change fewer.
func changeAll(ctx context.Context, tx pgx.Tx, of record.PartitionSet, query string, args ...any) error {
	tag, err := tx.Exec(ctx, query, args...)
	if err == nil && tag.RowsAffected() != int64(of.Len()) {
		err = recovery.ErrEpochChanged
	}
	return err
}

func readPartitions(ctx context.Context, tx pgx.Tx, query string, args ...any) (set record.PartitionSet, err error) {
	rows, _ := tx.Query(ctx, query, args...) // ForEachRow returns its error
	var p int
	_, err = pgx.ForEachRow(rows, []any{&p}, func() error {
		set.Add(p)
		return nil
	})
	return set, err
}

// keepCurrent prevents the epochs under which payments were claimed from being invalidated until the
// transaction ends. It returns a holds.ErrDataLost when one was invalidated before: then what Redis
// answered under it does not count.
func keepCurrent(ctx context.Context, tx pgx.Tx, payments []holds.Payment) error {
	var claimed, several record.PartitionSet
	var names [record.Partitions]string
	for i := range payments {
		p := record.Partition(payments[i].Hold.Resource)
		if claimed.Has(p) && names[p] != payments[i].Epoch {
			several.Add(p) // one of the two was invalidated
		}
		claimed.Add(p)
		names[p] = payments[i].Epoch
	}
	epochs := make([]string, 0, claimed.Len())
	for p := range claimed.Each() {
		epochs = append(epochs, names[p])
	}
	current, err := readPartitions(ctx, tx, query("epoch_current"), claimed.Sorted(), epochs)
	if invalidated := claimed&^current | several; err == nil && invalidated != 0 {
		err = fmt.Errorf("%w: %v", holds.ErrDataLost, invalidated)
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
	rows, _ := conn.Query(ctx, query("reservations_of"), ids) // ForEachRow returns its error
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
