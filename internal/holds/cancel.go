package holds

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"holdfast/internal/failpoint"
	"holdfast/internal/locking"
	"holdfast/internal/record"
)

// CancelRequest requests the cancellation of a reservation.
type CancelRequest struct {
	EventID string   // the same at every delivery of the event
	Hold    HoldID   // the hold that became the reservation
	Reason  string   // the publisher's reason; may be ""
	Data    HoldData // what Redis has of the hold, for an answer that finds no reservation; Cancel sets it
}

// CancelDecision is the answer to a CancelRequest. It is the same for every delivery of an event.
type CancelDecision struct {
	Err         error    `json:"-"`               // ErrBusy when it could not be decided now although others could
	Reason      string   `json:"reason,omitzero"` // why it was rejected; "" when the reservation is cancelled
	CancelledAt Time     `json:"-"`               // zero when it was rejected
	Data        HoldData `json:"hold"`            // of the hold that was paid, as far as it is known
}

// Cancel cancels reservations and returns one result for each request. Postgres lowers the reserved
// numbers. Then Cancel bumps rev, also when Postgres has failed, so that a decision on the old numbers is refused and retried.
func (s *Service) Cancel(ctx context.Context, requests []CancelRequest) []Result {
	w := s.beginWork()
	results := make([]Result, len(requests))
	var ready []CancelRequest
	var pending []*Result // of the ready ones
	for i, r := range requests {
		if results[i].Err = w.pausedErr(r.Hold.Resource); results[i].Err == nil {
			ready, pending = append(ready, r), append(pending, &results[i])
		}
	}
	for i, d := range w.cancel(ctx, ready) {
		*pending[i] = Result{Err: d.Err}
		if d.Err == nil {
			pending[i].Outcome = d.outcome(ready[i])
		}
	}
	for i, r := range requests {
		if err := results[i].Err; err != nil {
			results[i].Err = fmt.Errorf("cancel reservation %s: %w", r.Hold, err)
		}
	}
	return results
}

// cancel cancels reservations whose partitions have an epoch. If what Redis has of their holds cannot be read, their
// answers have only the ids.
func (w *work) cancel(ctx context.Context, requests []CancelRequest) []CancelDecision {
	if len(requests) == 0 {
		return nil
	}
	s, partitions, ids := w.service, record.PartitionSet(0), make([]HoldID, len(requests))
	for i, r := range requests {
		partitions.Add(record.Partition(r.Hold.Resource))
		ids[i] = r.Hold
	}
	known, _ := w.readHolds(ctx, ids)
	for i, hold := range known {
		if hold != nil {
			requests[i].Data = hold.HoldData
		}
	}
	answers, err := s.inventory.Cancel(ctx, requests, func(ctx context.Context) (Time, error) {
		failpoint.Hit("cancel.committed")
		return s.nowIn(ctx, partitions)
	})
	failpoint.Hit("cancel.timed")
	failed := err != nil
	if failed { // what failed may be committed, and its event may come again much later
		answers = slices.Repeat([]CancelDecision{{Err: err}}, len(requests))
		var cancel context.CancelFunc
		ctx, cancel = locking.CleanUpContext(ctx)
		defer cancel()
	}
	var resources []string
	var cancelled []*CancelDecision // on these resources
	for i, r := range requests {
		if answers[i].Reason == "" && (failed || answers[i].Err == nil) {
			resources, cancelled = append(resources, r.Hold.Resource), append(cancelled, &answers[i])
		}
	}
	for i, err := range s.bump(ctx, resources) {
		cancelled[i].Err = cmp.Or(cancelled[i].Err, err)
	}
	return answers
}

func (a CancelDecision) outcome(r CancelRequest) Outcome {
	outcome := Outcome{Resource: r.Hold.Resource, Hold: r.Hold, At: a.CancelledAt}
	if a.Reason != "" {
		outcome.Event = EventCancelRejected
		outcome.Data = CancelRejected{HoldData: a.Data, Reason: a.Reason}
	} else {
		outcome.Event = EventReservationCancelled
		outcome.Data = ReservationCancelled{HoldData: a.Data, CancelledAt: a.CancelledAt}
	}
	return outcome
}
