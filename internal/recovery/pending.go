package recovery

import (
	"context"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// pendingEvents are the payments and the cancellations of bookings that wait for an answer.
type pendingEvents struct {
	payments      []holds.Payment // At is when each was stored
	cancellations []pendingCancellation
}

type pendingCancellation struct {
	request  holds.ReleaseRequest
	storedAt holds.Time
}

// unacknowledgedBatch is how many payments or cancellations are processed together.
const unacknowledgedBatch = 1000

// eachUnacknowledged passes on what OutcomeLog.Unacknowledged finds in partitions, in batches. A single event that cannot
// be answered holds all later ones of its kind above the ack floor, for as long as it lasts: most of them may be answered.
func (s *Supervisor) eachUnacknowledged(
	ctx context.Context, partitions record.PartitionSet,
	payments func([]holds.Payment) error, cancellations func([]pendingCancellation) error,
) error {
	var paid []holds.Payment
	var cancelled []pendingCancellation
	err := s.OutcomeLog.Unacknowledged(ctx, func(r holds.ConfirmRequest, storedAt holds.Time) (err error) {
		if partitions.Has(record.Partition(r.Hold.Resource)) {
			if paid = append(paid, holds.Payment{ConfirmRequest: r, At: storedAt}); len(paid) == unacknowledgedBatch {
				err, paid = payments(paid), nil
			}
		}
		return err
	}, func(r holds.ReleaseRequest, storedAt holds.Time) (err error) {
		if partitions.Has(record.Partition(r.Resource)) {
			if cancelled = append(cancelled, pendingCancellation{r, storedAt}); len(cancelled) == unacknowledgedBatch {
				err, cancelled = cancellations(cancelled), nil
			}
		}
		return err
	})
	if err == nil && len(paid) > 0 {
		err = payments(paid)
	}
	if err == nil && len(cancelled) > 0 {
		err = cancellations(cancelled)
	}
	return err
}

// byResource groups pending events by resource.
func (e pendingEvents) byResource() map[string]pendingEvents {
	of := make(map[string]pendingEvents)
	for _, payment := range e.payments {
		its := of[payment.Hold.Resource]
		its.payments = append(its.payments, payment)
		of[payment.Hold.Resource] = its
	}
	for _, c := range e.cancellations {
		its := of[c.request.Resource]
		its.cancellations = append(its.cancellations, c)
		of[c.request.Resource] = its
	}
	return of
}
