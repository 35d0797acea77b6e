package holds

import (
	"time"

	"holdfast/internal/record"
)

// work is one piece of work of a Service: one call of a verb, one query, or one round of a sweep.
// All of it is done under the epochs that are current when it begins, so that data read before a
// loss is never combined with data written after it.
//
// A method that needs an epoch is a method of work. The methods of Service need none, or begin a
// work of their own.
type work struct {
	service *Service
	epochs  *CurrentEpochs
	policy  Policy // in force at the beginning, with this worker's LockWait
}

// beginWork begins a piece of work. The calls for a partition that has no epoch fail with its
// *RebuildingError.
func (s *Service) beginWork() *work {
	epochs := s.term.Current()
	w := &work{service: s, epochs: epochs, policy: s.policy}
	if epochs.Policies != nil {
		w.policy = epochs.Policies.At(time.Now())
		w.policy.LockWait = s.policy.LockWait
	}
	return w
}

func (w *work) epochName(resource string) string { return w.epochs.Of(resource).Name }

// pausedErr returns a *RebuildingError while nothing is decided on a resource, else nil.
func (w *work) pausedErr(resource string) error {
	if w.epochs.Ready == record.AllPartitions {
		return nil
	}
	return w.epochs.Of(resource).Err
}

// policyAt returns the policy that validates a request whose event was stored at a time.
func (w *work) policyAt(storedAt time.Time) Policy {
	if w.epochs.Policies == nil {
		return w.policy
	}
	return w.epochs.Policies.At(storedAt)
}

// requestKeyTTLMS returns how long ended holds and answers are remembered, in milliseconds.
func (w *work) requestKeyTTLMS() int64 { return w.policy.RequestKeyTTL.Milliseconds() }
