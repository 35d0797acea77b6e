package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/holds"
)

// errInsufficientCapacity means that a payment of the batch does not fit: a slot has no inventory
// row, or too little is left. errRaced means that another transaction has decided one of the
// payments.
var (
	errInsufficientCapacity = errors.New("insufficient capacity")
	errRaced                = errors.New("another transaction decided one of these payments")
)

// Decide implements holds.Inventory. It decides all payments in one transaction. If one does not fit,
// its epoch was invalidated, or a row is locked by others, it uses one transaction for each resource:
// payments of a locked resource are ErrBusy, those of an invalidated epoch ErrDataLost, and those of a
// full one are decided one by one. It may be called again after any error, even a lost commit, because
// it first reads the stored answers.
func (s *Store) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	answers, err := s.decide(ctx, payments, "", lockTimeout)
	switch {
	case waitedForLock(err):
		return s.decideByResource(ctx, payments, shorter(lockTimeout))
	case errors.Is(err, errInsufficientCapacity), errors.Is(err, holds.ErrDataLost):
		return s.decideByResource(ctx, payments, lockTimeout)
	}
	return answers, err
}

// FindDecisions implements holds.Inventory.
func (s *Store) FindDecisions(
	ctx context.Context, payments []holds.Payment,
) (answers []holds.PaymentDecision, err error) {
	err = s.read(ctx, func(conn *pgxpool.Conn) error {
		var paid []paidHold
		answers, paid, err = readDecisions(ctx, conn, payments)
		for i, p := range paid {
			if p.blocked && p.by == "" && answers[i].DecidedAt.IsZero() {
				answers[i].Err = errBlocked(payments[i].Hold)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read answers to %d payments: %w", len(payments), err)
	}
	return answers, nil
}

// decideByResource decides the payments of each resource separately, and those of a full one each separately: it refuses
// those that do not fit. It waits for each locked row, until the first is found locked for that long.
func (s *Store) decideByResource(
	ctx context.Context, payments []holds.Payment, wait time.Duration,
) ([]holds.PaymentDecision, error) {
	byResource := make(map[string][]int)
	for i, p := range payments {
		byResource[p.Hold.Resource] = append(byResource[p.Hold.Resource], i)
	}
	groups := slices.Collect(maps.Values(byResource))
	answers := make([]holds.PaymentDecision, len(payments))
	for len(groups) > 0 {
		its := groups[0]
		groups = groups[1:]
		some := make([]holds.Payment, len(its))
		for j, i := range its {
			some[j] = payments[i]
		}
		decided, err := s.decide(ctx, some, "", wait)
		switch {
		case errors.Is(err, errInsufficientCapacity) && len(its) > 1:
			groups = slices.AppendSeq(groups, slices.Chunk(its, 1))
			continue
		case errors.Is(err, errInsufficientCapacity):
			decided, err = s.decide(ctx, some, holds.ReasonSoldOut, wait)
		}
		if err != nil && !waitedForLock(err) && !errors.Is(err, holds.ErrDataLost) {
			return nil, err
		}
		err = busyIfLocked(err, &wait)
		for j, i := range its {
			if answers[i].Err = err; err == nil {
				answers[i] = decided[j]
			}
		}
	}
	return answers, nil
}

// decide decides payments in one transaction. refuse, unless "", is the reason with which claimed
// payments are refused. wait is for each locked row. It returns errInsufficientCapacity when a claimed
// payment does not fit.
func (s *Store) decide(
	ctx context.Context, payments []holds.Payment, refuse string, wait time.Duration,
) (answers []holds.PaymentDecision, err error) {
	err = s.transactWaiting(ctx, wait, func(tx pgx.Tx) error {
		if err := keepCurrent(ctx, tx, payments); err != nil {
			return err
		}
		answers, err = decideIn(ctx, tx, payments, refuse)
		return err
	})
	if exceedsCapacity(err) {
		return nil, errInsufficientCapacity
	}
	if err != nil {
		return nil, fmt.Errorf("decide %d payments: %w", len(payments), err)
	}
	return answers, nil
}

func decideIn(
	ctx context.Context, tx pgx.Tx, payments []holds.Payment, refuse string,
) ([]holds.PaymentDecision, error) {
	answers, paid, err := readDecisions(ctx, tx, payments)
	if err != nil {
		return nil, err
	}
	var fresh, reserve []int // payments without an answer; those of them that get a reservation
	for i, p := range payments {
		if !answers[i].DecidedAt.IsZero() {
			continue
		}
		if paid[i].lost {
			answers[i].Err = errLost(p.Hold)
			continue
		}
		if paid[i].blocked && paid[i].by == "" && p.Reason == holds.ReasonSoldOut {
			answers[i].Err = errBlocked(p.Hold)
			continue
		}
		fresh = append(fresh, i)
		answers[i] = holds.PaymentDecision{Confirmed: p.Claimed, Late: p.Late, Reason: p.Reason, DecidedAt: p.At,
			Data: p.Data}
		reject := func(reason string) {
			answers[i].Confirmed, answers[i].Late, answers[i].Reason = false, false, reason
		}
		switch {
		case paid[i].by != "" && paid[i].by != p.PaymentID:
			reject(holds.ReasonAlreadyConfirmed) // the reservation decides, even if Redis no longer remembers the hold
			if p.Data.Quantity == nil && paid[i].hold.Quantity != nil {
				answers[i].Data = paid[i].hold
			}
		case paid[i].by == p.PaymentID:
			if answers[i], err = answerReserved(ctx, tx, p); err != nil {
				return nil, err
			}
		case p.Claimed && refuse != "":
			reject(refuse)
		case p.Claimed:
			reserve = append(reserve, i)
		}
	}
	if len(fresh) == 0 {
		return answers, nil
	}
	if err := makeReservations(ctx, tx, payments, reserve); err != nil {
		return nil, err
	}
	return answers, writeDecisions(ctx, tx, payments, answers, fresh)
}

// answerReserved returns the answer to a payment that has made a reservation, and whose answer alone is missing, as when
// single tables are restored. It was late if the hold has expired. Where Redis has forgotten the hold, it has of it what the
// reservation has, and does not say that.
func answerReserved(ctx context.Context, tx pgx.Tx, p holds.Payment) (holds.PaymentDecision, error) {
	hold := holds.HoldData{ResourceID: p.Hold.Resource, HoldID: p.Hold, Quantity: new(int64)}
	var slots []string
	var confirmedAt time.Time
	err := tx.QueryRow(ctx, query("reservation_paid"), p.Hold.String(), p.PaymentID).Scan(&confirmedAt, &hold.RequestKey,
		&hold.UserID, &slots, hold.Quantity)
	if hold.SlotSelection = selectionOf(slots); p.Data.Quantity != nil {
		hold = p.Data
	}
	expired := p.Reason == holds.ReasonExpired || p.Reason == holds.ReasonSoldOut // as when it could not take its slots again
	return holds.PaymentDecision{
		Confirmed: true, Late: p.Late || expired, DecidedAt: holds.Time{Time: confirmedAt.UTC()}, Data: hold,
	}, err
}

// selectionOf returns the selection of sorted slots by which most bookings select them.
func selectionOf(slots []string) holds.SlotSelection {
	if len(slots) > 0 {
		last, _ := time.Parse(holds.DateFormat, slots[len(slots)-1]) // zero when it is no night
		nights := holds.SlotSelection{CheckIn: slots[0], CheckOut: last.AddDate(0, 0, 1).Format(holds.DateFormat)}
		for _, selection := range []holds.SlotSelection{nights, {}} {
			if names, err := selection.ReservedSlots(); err == nil && slices.Equal(names, slots) {
				return selection
			}
		}
	}
	return holds.SlotSelection{Slots: slots}
}

// errLost says that what was published of a hold may still be put back. Until then, or until an operator removes it,
// nothing else is decided of the hold: it would contradict what was published.
func errLost(hold holds.HoldID) error {
	return fmt.Errorf("hold %s waits until its lost commit is put back or removed: %w", hold, holds.ErrBusy)
}

// errBlocked says that nothing is granted on the resource of an expired hold that was paid late: its slots seem sold out,
// and may be free.
func errBlocked(hold holds.HoldID) error {
	return fmt.Errorf("the late payment of hold %s waits until the lost commits of its resource are put back or removed: %w",
		hold, holds.ErrBusy)
}

// querier is a session or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// paidHold is what Postgres has of the hold of a payment.
type paidHold struct {
	by      string         // the payment of its reservation, "" when it has none
	hold    holds.HoldData // as that payment had it
	lost    bool           // a published outcome of it is a lost commit
	blocked bool           // its resource has a lost commit, of this hold or of others
}

// readDecisions reads the answer of each payment (DecidedAt is zero when it has none), and its hold.
func readDecisions(
	ctx context.Context, from querier, payments []holds.Payment,
) ([]holds.PaymentDecision, []paidHold, error) {
	holdIDs, paymentIDs := make([]string, len(payments)), make([]string, len(payments))
	for i, p := range payments {
		holdIDs[i], paymentIDs[i] = p.Hold.String(), p.PaymentID
	}
	rows, _ := from.Query(ctx, query("payments_answered"), holdIDs, paymentIDs) // ForEachRow returns its error
	answers, paid := make([]holds.PaymentDecision, len(payments)), make([]paidHold, len(payments))
	var (
		n                            int64
		outcome, reason, data, owner *string
		late                         *bool
		lost, blocked                bool
		decidedAt                    *time.Time
	)
	columns := []any{&n, &outcome, &reason, &late, &decidedAt, &data, &owner, &lost, &blocked}
	_, err := pgx.ForEachRow(rows, columns, func() error {
		paid[n-1].lost, paid[n-1].blocked = lost, blocked
		var hold holds.HoldData
		if data != nil {
			if err := json.Unmarshal([]byte(*data), &hold); err != nil {
				return fmt.Errorf("answer to payment %s of hold %s: %w", paymentIDs[n-1], holdIDs[n-1], err)
			}
		}
		if owner != nil {
			paid[n-1].by, paid[n-1].hold = *owner, hold
		}
		if outcome == nil {
			return nil
		}
		a := holds.PaymentDecision{Confirmed: *outcome == "confirmed", Late: *late, Data: hold,
			DecidedAt: holds.Time{Time: decidedAt.UTC()}}
		if reason != nil {
			a.Reason = *reason
		}
		answers[n-1] = a
		return nil
	})
	return answers, paid, err
}

// makeReservations inserts the reservations of some payments and adds them to inventory.
func makeReservations(ctx context.Context, tx pgx.Tx, payments []holds.Payment, which []int) error {
	if len(which) == 0 {
		return nil
	}
	if err := insertReservations(ctx, tx, payments, which); err != nil {
		return err
	}
	sums := make(reservedSums)
	for _, i := range which {
		sums.add(payments[i].Hold.Resource, payments[i].Names, *payments[i].Data.Quantity)
	}
	added, err := addReserved(ctx, tx, sums)
	if err == nil && added != len(sums) {
		err = errInsufficientCapacity // a slot has no inventory row
	}
	return err
}

func insertReservations(ctx context.Context, tx pgx.Tx, payments []holds.Payment, which []int) error {
	var holdIDs, resources, users, slots, paymentIDs, keys []string
	var quantities []int64
	var confirmedAt []time.Time
	for _, i := range which {
		p := payments[i]
		holdIDs, resources = append(holdIDs, p.Hold.String()), append(resources, p.Hold.Resource)
		users, slots = append(users, p.Data.UserID), append(slots, strings.Join(p.Names, ","))
		quantities, paymentIDs = append(quantities, *p.Data.Quantity), append(paymentIDs, p.PaymentID)
		keys, confirmedAt = append(keys, p.Data.RequestKey), append(confirmedAt, p.At.Time)
	}
	made, err := tx.Exec(ctx, query("reservations_insert"), holdIDs, resources, users, slots, quantities, paymentIDs, keys,
		confirmedAt)
	if err == nil && int(made.RowsAffected()) != len(which) {
		err = errRaced
	}
	return err
}

// reservedSums has what to add to inventory.reserved of each slot.
type reservedSums map[struct{ resource, slot string }]int64

func (sums reservedSums) add(resource string, slots []string, quantity int64) {
	for _, slot := range slots {
		sums[struct{ resource, slot string }{resource, slot}] += quantity
	}
}

// addReserved changes inventory.reserved of slots in one statement, which locks them in order. It returns the number of
// those with an inventory row, which it changed.
func addReserved(ctx context.Context, tx pgx.Tx, sums reservedSums) (changed int, err error) {
	var resources, slots []string
	var quantities []int64
	for of, quantity := range sums {
		resources, slots, quantities = append(resources, of.resource), append(slots, of.slot), append(quantities, quantity)
	}
	tag, err := tx.Exec(ctx, query("inventory_reserve"), resources, slots, quantities)
	return int(tag.RowsAffected()), err
}

func writeDecisions(
	ctx context.Context, tx pgx.Tx, payments []holds.Payment, answers []holds.PaymentDecision, which []int,
) error {
	var holdIDs, paymentIDs, outcomes, data []string
	var reasons, amounts, currencies []*string
	var late []bool
	var decidedAt []time.Time
	for _, i := range which {
		p, a := payments[i], answers[i]
		echo, err := json.Marshal(a.Data)
		if err != nil {
			return err
		}
		outcome := "rejected"
		if a.Confirmed {
			outcome = "confirmed"
		}
		holdIDs, paymentIDs = append(holdIDs, p.Hold.String()), append(paymentIDs, p.PaymentID)
		outcomes, reasons = append(outcomes, outcome), append(reasons, nullable(a.Reason))
		amounts, currencies = append(amounts, nullable(p.Amount)), append(currencies, nullable(p.Currency))
		decidedAt, data = append(decidedAt, a.DecidedAt.Time), append(data, string(echo))
		late = append(late, a.Late)
	}
	written, err := tx.Exec(ctx, query("payments_insert"), holdIDs, paymentIDs, outcomes, reasons, decidedAt, amounts,
		currencies, data, late)
	if err == nil && int(written.RowsAffected()) != len(which) {
		err = errRaced
	}
	return err
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
