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

func (e pendingEvents) len() int { return len(e.payments) + len(e.cancellations) }

// unacknowledgedBatch is how many payments and cancellations are processed together.
const unacknowledgedBatch = 1000

// eachUnacknowledged passes on what OutcomeLog.Unacknowledged finds in partitions after a sequence, in batches. A single event
// that cannot be answered holds all later ones of its kind above the ack floor, for as long as it lasts: most of them may be
// answered.
func (s *Supervisor) eachUnacknowledged(
	ctx context.Context, partitions record.PartitionSet, after uint64, each func(pendingEvents) error,
) (last uint64, err error) {
	var some pendingEvents
	passOn := func(min int) (err error) {
		if some.len() >= min {
			err, some = each(some), pendingEvents{}
		}
		return err
	}
	last, err = s.OutcomeLog.Unacknowledged(ctx, after, func(r holds.ConfirmRequest, storedAt holds.Time) error {
		if partitions.Has(record.Partition(r.Hold.Resource)) {
			some.payments = append(some.payments, holds.Payment{ConfirmRequest: r, At: storedAt})
		}
		return passOn(unacknowledgedBatch)
	}, func(r holds.ReleaseRequest, storedAt holds.Time) error {
		if partitions.Has(record.Partition(r.Resource)) {
			some.cancellations = append(some.cancellations, pendingCancellation{r, storedAt})
		}
		return passOn(unacknowledgedBatch)
	})
	if err == nil {
		err = passOn(1)
	}
	return last, err
}

// addTo adds pending events to those of their resources.
func (e pendingEvents) addTo(of map[string]pendingEvents) {
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
}
