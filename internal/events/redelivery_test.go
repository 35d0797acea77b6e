package events

import (
	"testing"
	"time"
)

// TestDropAnswered_WorkerSuspended_AnsweredEventIsDropped suspends a worker, long after its start, with an event that
// another one answers meanwhile. Redis has forgotten the answer. An event whose ack wait is not over is not searched for.
func TestDropAnswered_WorkerSuspended_AnsweredEventIsDropped(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.answerTTL = time.Nanosecond
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	b.awaitIdle(ConsumerRequests)
	c, d := b.fetchRequest("k") // the same event, as if it had been fetched before
	c.resumedAt.Store(0)
	for _, suspended := range []bool{false, true} {
		if suspended {
			d.waitFrom = d.waitFrom.Add(-2 * ackWait)
		}
		left := c.newLane(1).dropAnswered(t.Context(), []*delivery{d})
		if dropped := len(left) == 0; dropped != suspended || d.result.Err != nil {
			t.Errorf("suspended=%v: dropped %v, %v", suspended, dropped, d.result.Err)
		}
	}
}
