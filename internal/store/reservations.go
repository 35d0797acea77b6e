package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/holds"
)

// Cancel implements holds.Inventory. It cancels all reservations in one transaction, or each in its
// own if a row is locked by others.
func (s *Store) Cancel(
	ctx context.Context, requests []holds.CancelRequest, now func(context.Context) (holds.Time, error),
) ([]holds.CancelDecision, error) {
	answers, err := s.cancel(ctx, requests, lockTimeout)
	if waitedForLock(err) {
		answers, err = make([]holds.CancelDecision, len(requests)), nil
		wait := shorter(lockTimeout)
		for i := range requests {
			one, e := s.cancel(ctx, requests[i:i+1], wait)
			if answers[i].Err = busyIfLocked(e, &wait); e == nil {
				answers[i] = one[0]
			}
		}
	}
	if err == nil {
		err = s.cancelledAt(ctx, requests, answers, now)
	}
	return answers, err
}

// cancel cancels reservations in one transaction. wait is for each locked row.
func (s *Store) cancel(
	ctx context.Context, requests []holds.CancelRequest, wait time.Duration,
) (answers []holds.CancelDecision, err error) {
	err = s.transactWaiting(ctx, wait, func(tx pgx.Tx) (err error) {
		answers, err = cancelIn(ctx, tx, requests)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cancel %d reservations: %w", len(requests), err)
	}
	return answers, nil
}

// reservation is a reservation to cancel.
type reservation struct {
	resource  string
	slots     []string
	quantity  int64
	cancelled bool
	hold      holds.HoldData
}

func cancelIn(ctx context.Context, tx pgx.Tx, requests []holds.CancelRequest) ([]holds.CancelDecision, error) {
	causes, holdIDs := make([]string, len(requests)), make([]string, len(requests))
	for i, r := range requests {
		causes[i], holdIDs[i] = r.EventID, r.Hold.String()
	}
	reservations, err := lockReservations(ctx, tx, holdIDs)
	if err != nil {
		return nil, err
	}
	remembered, err := readStoredAnswers(ctx, tx, causes)
	if err != nil {
		return nil, err
	}
	lost, err := lostHolds(ctx, tx, requests)
	if err != nil {
		return nil, err
	}
	answers := make([]holds.CancelDecision, len(requests))
	first := make(map[string]int) // event id -> its first request in this call
	var fresh, cancel []int       // requests without an answer; those of them that cancel a reservation
	for i, r := range requests {
		if text, answered := remembered[r.EventID]; answered {
			if err := json.Unmarshal([]byte(text), &answers[i]); err != nil {
				return nil, err
			}
			continue
		}
		if j, repeated := first[r.EventID]; repeated {
			answers[i] = answers[j]
			continue
		}
		if lost[holdIDs[i]] {
			answers[i].Err = errLost(r.Hold)
			continue
		}
		first[r.EventID] = i
		fresh = append(fresh, i)
		var cancels bool
		if answers[i], cancels = decideCancel(r, reservations[holdIDs[i]]); cancels {
			cancel = append(cancel, i)
		}
	}
	if err := restoreInventory(ctx, tx, requests, reservations, cancel); err != nil {
		return nil, err
	}
	var freshCauses, resources []string
	var texts []any
	for _, i := range fresh {
		freshCauses, resources, texts = append(freshCauses, causes[i]), append(resources, requests[i].Hold.Resource),
			append(texts, answers[i])
	}
	if len(fresh) == 0 {
		return answers, nil
	}
	return answers, storeAnswers(ctx, tx, freshCauses, resources, texts)
}

// decideCancel decides a request about a reservation, nil if there is none, and marks what it cancels as cancelled.
func decideCancel(r holds.CancelRequest, found *reservation) (decision holds.CancelDecision, cancels bool) {
	switch {
	case found == nil:
		decision.Data = r.Data
		decision.Data.ResourceID, decision.Data.HoldID = r.Hold.Resource, r.Hold
		decision.Reason = holds.ReasonUnknownReservation
		return decision, false
	case found.cancelled:
		decision.Reason = holds.ReasonAlreadyCancelled
	default:
		found.cancelled, cancels = true, true
	}
	decision.Data = found.hold
	return decision, cancels
}

func lostHolds(ctx context.Context, tx pgx.Tx, requests []holds.CancelRequest) (map[string]bool, error) {
	of := make([]holds.Payment, len(requests))
	for i, r := range requests {
		of[i].Hold = r.Hold
	}
	_, paid, err := readDecisions(ctx, tx, of)
	lost := make(map[string]bool)
	for i, p := range paid {
		lost[of[i].Hold.String()] = p.lost
	}
	return lost, err
}

func lockReservations(ctx context.Context, tx pgx.Tx, holdIDs []string) (map[string]*reservation, error) {
	rows, _ := tx.Query(ctx, query("reservations_lock"), holdIDs) // ForEachRow returns its error
	found := make(map[string]*reservation)
	var id, key, user string
	var hold *string
	var r reservation
	columns := []any{&id, &r.resource, &key, &user, &r.slots, &r.quantity, &r.cancelled, &hold}
	_, err := pgx.ForEachRow(rows, columns, func() (err error) {
		one := r
		one.slots = append([]string(nil), r.slots...)
		found[id] = &one
		if hold != nil {
			return json.Unmarshal([]byte(*hold), &one.hold)
		}
		one.hold = holds.HoldData{ResourceID: one.resource, RequestKey: key, UserID: user,
			SlotSelection: selectionOf(one.slots), Quantity: &one.quantity}
		one.hold.HoldID, err = holds.ParseHoldID(id)
		return err
	})
	return found, err
}

// restoreInventory cancels some reservations and subtracts them from inventory. It skips slots
// without an inventory row.
func restoreInventory(
	ctx context.Context, tx pgx.Tx, requests []holds.CancelRequest, reservations map[string]*reservation, which []int,
) error {
	if len(which) == 0 {
		return nil
	}
	var holdIDs, causes []string
	var reasons []*string
	for _, i := range which {
		r := requests[i]
		holdIDs, causes = append(holdIDs, r.Hold.String()), append(causes, r.EventID)
		reasons = append(reasons, nullable(strings.ReplaceAll(r.Reason, "\x00", "\uFFFD"))) // Postgres text has no NUL
	}
	if _, err := tx.Exec(ctx, query("reservations_cancel"), holdIDs, causes, reasons); err != nil {
		return err
	}
	sums := make(reservedSums)
	for _, id := range holdIDs {
		sums.add(reservations[id].resource, reservations[id].slots, -reservations[id].quantity)
	}
	_, err := addReserved(ctx, tx, sums)
	return err
}

// cancelledAt reads the clock and stores it as the time of the cancellations, unless an earlier
// delivery has stored one. So each delivery has the same answer.
func (s *Store) cancelledAt(ctx context.Context, requests []holds.CancelRequest, answers []holds.CancelDecision,
	now func(context.Context) (holds.Time, error)) error {
	var holdIDs []string
	for i, a := range answers {
		if a.Err == nil && a.Reason == "" {
			holdIDs = append(holdIDs, requests[i].Hold.String())
		}
	}
	if len(holdIDs) == 0 {
		return nil
	}
	at, err := now(ctx)
	if err != nil {
		return err
	}
	times := make(map[string]holds.Time)
	err = s.transact(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, query("reservations_cancelled_at"), holdIDs, at.Time) // ForEachRow returns its error
		var id string
		var written time.Time
		_, err := pgx.ForEachRow(rows, []any{&id, &written}, func() error {
			times[id] = holds.Time{Time: written.UTC()}
			return nil
		})
		return err
	})
	if waitedForLock(err) {
		err = fmt.Errorf("%w: %w", holds.ErrBusy, err)
	}
	if err != nil {
		return fmt.Errorf("store cancellation times: %w", err)
	}
	for i, r := range requests {
		if answers[i].Err == nil && answers[i].Reason == "" {
			if answers[i].CancelledAt = times[r.Hold.String()]; s.dry && answers[i].CancelledAt.IsZero() {
				answers[i].CancelledAt = at // a dry run cancels nothing
			}
		}
	}
	return nil
}
