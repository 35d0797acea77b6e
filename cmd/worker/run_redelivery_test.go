package main

import (
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestWorkersDown_LongerThanAnswersAreRemembered_EventHasOneOutcome kills a worker after it has published an outcome and
// before it acknowledges the event. The next worker starts when Redis has forgotten the answer, and JetStream the id.
func TestWorkersDown_LongerThanAnswersAreRemembered_EventHasOneOutcome(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	short := s.forgetsSoon()
	doomed := s.startWorker(append(short, "HOLDFAST_FAILPOINT=requests.published")...)
	s.setInventory("cabin", holds.SlotSelection{}, 1)
	id := s.book("cabin", "ana", "k1", holds.SlotSelection{}, 1)
	doomed.killed(t)
	s.answer(id)
	s.awaitForgotten("cabin", "k1")
	s.startWorker(short...)
	s.awaitAcknowledged(events.ConsumerRequests)
	if left := s.setInventory("cabin", holds.SlotSelection{}, 1); left[0].Held != 0 { // an answer that follows all others
		t.Errorf("%d units are held for an event whose hold has expired", left[0].Held)
	}
	s.wantOneOutcome(id)
}

// forgetsSoon makes JetStream forget the ids of outcomes at once, and returns the environment of workers that remember an
// answer for a second.
func (s *harness) forgetsSoon() []string {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), s.subjects.OutStream())
	stacktest.Must(s.t, err)
	config := stream.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond
	if _, err := s.js.UpdateStream(s.t.Context(), config); err != nil {
		s.t.Fatal(err)
	}
	return []string{"HOLDFAST_HOLD_TTL=1s", "HOLDFAST_HOLD_TTL_MAX=1s", "HOLDFAST_HOLD_LIFETIME_MAX=1s",
		"HOLDFAST_PAYMENT_WINDOW=1s", "HOLDFAST_REQUEST_KEY_TTL=1s"}
}

// awaitForgotten waits until Redis has forgotten the answer to a request.
func (s *harness) awaitForgotten(resource, key string) {
	s.t.Helper()
	stacktest.Eventually(s.t, "the answer to be forgotten", func() bool {
		n, err := s.redis.Exists(s.t.Context(), record.Keyspace(s.namespace).Prefix(resource)+"request:"+key).Result()
		return err == nil && n == 0
	})
}

// awaitAcknowledged waits until a consumer has no event that is not acknowledged.
func (s *harness) awaitAcknowledged(name string) {
	s.t.Helper()
	stacktest.Eventually(s.t, "the events to be acknowledged", func() bool {
		consumer, err := s.js.Consumer(s.t.Context(), s.subjects.InStream(), name)
		stacktest.Must(s.t, err)
		info := consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
}
