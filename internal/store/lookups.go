package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
)

// HoldRows reads the reservation that a hold became, nil if it became none, and the answers to its
// payments in the order in which they were decided, at most paymentsMax.
func (s *Store) HoldRows(
	ctx context.Context, id holds.HoldID, paymentsMax int,
) (reservation *holds.ReservationRow, payments []holds.PaymentRow, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		var r holds.ReservationRow
		var confirmedAt time.Time
		var cancelledAt *time.Time
		err := conn.QueryRow(ctx, query("hold_reservation"), id.String()).Scan(&r.Status, &r.PaymentID, &r.Quantity, &r.Slots,
			&r.UserID, &confirmedAt, &cancelledAt, &r.CancelReason)
		switch {
		case err == nil:
			r.ConfirmedAt, reservation = holds.Time{Time: confirmedAt.UTC()}, &r
			if cancelledAt != nil {
				r.CancelledAt = holds.Time{Time: cancelledAt.UTC()}
			}
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		rows, _ := conn.Query(ctx, query("hold_payments"), id.String(), paymentsMax) // CollectRows returns its error
		payments, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p holds.PaymentRow, err error) {
			var decidedAt time.Time
			err = row.Scan(&p.PaymentID, &p.Outcome, &p.Reason, &decidedAt, &p.Late)
			p.DecidedAt = holds.Time{Time: decidedAt.UTC()}
			return p, err
		})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read rows of hold %s: %w", id, err)
	}
	return reservation, payments, nil
}

// resourcesRead bounds the resources of which a call of Resources reads rows.
const resourcesRead = 20_000

// Resources lists the resources that have inventory rows, in the order of their ids: those whose ids
// begin with prefix and come after another, at most limit. The order is that of the database's
// collation. next is where to continue when it has read as many other resources as it may in one call, else "".
func (s *Store) Resources(
	ctx context.Context, prefix, after string, limit int,
) (page []holds.ResourceRow, next string, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, query("resources_list"), prefix, after, limit, resourcesRead) // ForEachRow returns its error
		page, next = nil, ""
		var r holds.ResourceRow
		var wanted, last bool
		_, err := pgx.ForEachRow(rows, []any{&r.ResourceID, &r.Slots, &r.Capacity, &r.Reserved, &wanted, &last}, func() error {
			if wanted {
				page = append(page, r)
			}
			if last {
				next = r.ResourceID
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list resources: %w", err)
	}
	return page, next, nil
}

// Slots lists the slots of a resource that have inventory rows, in the order of their names: those
// after another, at most limit.
func (s *Store) Slots(ctx context.Context, resource, after string, limit int) (slots []string, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, query("slots_list"), resource, after, limit) // CollectRows returns its error
		slots, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list slots of %s: %w", resource, err)
	}
	return slots, nil
}
