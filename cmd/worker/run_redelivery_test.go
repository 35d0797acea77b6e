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
	short := []string{"HOLDFAST_HOLD_TTL=1s", "HOLDFAST_HOLD_TTL_MAX=1s", "HOLDFAST_HOLD_LIFETIME_MAX=1s",
		"HOLDFAST_PAYMENT_WINDOW=1s", "HOLDFAST_REQUEST_KEY_TTL=1s"}
	doomed := s.startWorker(append(short, "HOLDFAST_FAILPOINT=requests.published")...)
	s.setInventory("cabin", holds.SlotSelection{}, 1)
	stream, err := s.js.Stream(t.Context(), s.subjects.OutStream())
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	id := s.publish(events.BookingRequested, "cabin", bookingData("cabin", "ana", "k1", holds.SlotSelection{}, 1))
	doomed.killed(t)
	s.answer(id)
	key := record.Keyspace(s.namespace).Prefix("cabin") + "request:k1"
	stacktest.Eventually(t, "the answer to be forgotten", func() bool {
		n, err := s.redis.Exists(t.Context(), key).Result()
		return err == nil && n == 0
	})
	s.startWorker(short...)
	s.awaitAcknowledged(events.ConsumerRequests)
	if left := s.setInventory("cabin", holds.SlotSelection{}, 1); left[0].Held != 0 { // an answer that follows all others
		t.Errorf("%d units are held for an event whose hold has expired", left[0].Held)
	}
	s.wantOneOutcome(id)
}

// awaitAcknowledged waits until a consumer has no event that is not acknowledged.
func (s *harness) awaitAcknowledged(name string) {
	s.t.Helper()
	stacktest.Eventually(s.t, "the events to be acknowledged", func() bool {
		consumer, err := s.js.Consumer(s.t.Context(), s.subjects.InStream(), name)
		if err != nil {
			s.t.Fatal(err)
		}
		info := consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
}
