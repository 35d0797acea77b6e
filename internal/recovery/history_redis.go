package recovery

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// lostCommitsWhy is the reason for which an epoch is invalidated.
const lostCommitsWhy = "postgres lost a payment: redis has it as settled, and it was not published"

// afterLostCommits makes Redis agree with a Postgres that lacks commits, before anything is decided
// on both. A later epoch gets a number that Redis has not seen, because Postgres may have lost
// numbers. When Redis has settled a payment whose commit is lost and whose outcome was not
// published, its hold takes no slots in either: the epoch is invalidated, and the rebuild makes it
// a live hold with a pending payment.
func (s *Supervisor) afterLostCommits(ctx context.Context) error {
	defer s.closeInspectClient()
	state, err := readState(ctx, s.Namespace, s.client())
	if err != nil {
		return err
	}
	e, err := s.EpochStore.Epoch(ctx)
	if err != nil {
		return err
	}
	highest := int64(0)
	for _, found := range state.epochs {
		if lineage(found) == lineage(e.Name) {
			highest = max(highest, generation(found))
		}
	}
	if err := s.history.Store.AdvanceGeneration(ctx, highest); err != nil || !e.Complete {
		return err
	}
	lost, err := s.lostSettledPayment(ctx)
	if err != nil || !lost {
		return err
	}
	e.Why = lostCommitsWhy
	return s.invalidate(ctx, e)
}

// lostSettledPayment reports whether Redis has settled a payment that is not acknowledged, and
// Postgres does not have its reservation.
func (s *Supervisor) lostSettledPayment(ctx context.Context) (bool, error) {
	var payments []holds.ConfirmRequest
	err := s.OutcomeLog.Unacknowledged(ctx,
		func(r holds.ConfirmRequest, _ holds.Time) { payments = append(payments, r) },
		func(holds.ReleaseRequest, holds.Time) {})
	if err != nil {
		return false, err
	}
	var settled []holds.HoldID
	for _, p := range payments {
		is, err := s.isSettled(ctx, p)
		if err != nil {
			return false, err
		}
		if is {
			settled = append(settled, p.Hold)
		}
	}
	if len(settled) == 0 {
		return false, nil
	}
	there := make(map[holds.HoldID]bool)
	err = s.EpochStore.Reservations(ctx, settled, func(r Reservation) { there[r.Hold] = true })
	for _, id := range settled {
		if err == nil && !there[id] {
			return true, nil
		}
	}
	return false, err
}

// isSettled reports whether Redis has a hold as confirmed by a payment.
func (s *Supervisor) isSettled(ctx context.Context, p holds.ConfirmRequest) (bool, error) {
	key := s.keys.Prefix(p.Hold.Resource) + "records"
	lines, err := s.client().HMGet(ctx, key, p.Hold.UUID, "late:"+p.Hold.UUID).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return false, nil // scripts find the corruption
	}
	if err != nil {
		return false, fmt.Errorf("read hold %s: %w", p.Hold, err)
	}
	for _, line := range lines {
		text, _ := line.(string)
		if r, err := record.Parse(text); err == nil && r.State == string(holds.Confirmed) && r.By == p.PaymentID {
			return true, nil
		}
	}
	return false, nil
}
