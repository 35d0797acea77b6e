package events

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// TestDropAnswered_WorkerSuspended_AnsweredEventIsDropped suspends a worker, long after its start, with an event that
// another one answers meanwhile. Redis has forgotten the answer. An event whose ack wait is not over is not searched for.
func TestDropAnswered_WorkerSuspended_AnsweredEventIsDropped(t *testing.T) {
	t.Parallel()
	l, d := fetchAnswered(t)
	for _, suspended := range []bool{false, true} {
		if suspended {
			d.waitFrom = d.waitFrom.Add(-2 * ackWait)
		}
		if dropped := l.drops(t, d); dropped != suspended {
			t.Errorf("suspended=%v: dropped %v", suspended, dropped)
		}
	}
}

// TestDropAnswered_RedeliveredToRunningWorker_AnsweredEventIsDropped delivers an event again, long after its worker has
// died before the ack: an operator had paused the consumer. No worker has started since, and nothing has failed.
func TestDropAnswered_RedeliveredToRunningWorker_AnsweredEventIsDropped(t *testing.T) {
	t.Parallel()
	l, d := fetchAnswered(t)
	d.meta.NumDelivered = 2
	if !l.drops(t, d) {
		t.Error("the event is decided again")
	}
}

// TestDropAnswered_ReplayOfOldDeadLetter_HasTheAnswerOfTheCopy replays a dead letter whose publisher has sent the event
// again meanwhile, and got an outcome.
func TestDropAnswered_ReplayOfOldDeadLetter_HasTheAnswerOfTheCopy(t *testing.T) {
	t.Parallel()
	l, d := fetchAnswered(t)
	nc := l.consumer.nc
	inbox := nc.NewInbox()
	replies, err := nc.SubscribeSync(inbox)
	stacktest.Must(t, err)
	old := DeadLetter{Subject: d.msg.Subject, Body: d.msg.Data, StoredAt: d.meta.Timestamp.Add(-time.Hour)}
	replay, err := old.Again(l.consumer.ns)
	stacktest.Must(t, err)
	replay.Header.Set(HeaderReplyTo, inbox)
	d.msg.Header = replay.Header
	if !l.drops(t, d) {
		t.Error("the event is decided again")
	}
	if reply, err := replies.NextMsgWithContext(stacktest.WaitContext(t)); err != nil || !strings.Contains(string(reply.Data), `"type":"holdfast.hold.`) {
		t.Errorf("the reply is %v, %v", reply, err)
	}
}

// TestDropAnswered_DeliveredOftenWithoutAnswer_SearchedOnce delivers an event often that has no outcome: at the second
// delivery a search would fail.
func TestDropAnswered_DeliveredOftenWithoutAnswer_SearchedOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c, d := b.fetchRequest("k")
	l := c.newLane(1)
	d.meta.NumDelivered, d.meta.Timestamp = 2, d.meta.Timestamp.Add(-b.AnswerTTL(time.Time{}))
	for range 2 {
		if l.drops(t, d) {
			t.Error("an event without an outcome is dropped")
		}
		if err := b.js.DeleteStream(t.Context(), b.ns.OutStream()); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
	}
}

// TestDropAnswered_DeadLetterStoredLongAgo_EventIsDropped delivers an event again whose dead letter is stored, as after a
// worker has died before it terminated the event: once while JetStream surely knows the id of the dead letter, once later.
func TestDropAnswered_DeadLetterStoredLongAgo_EventIsDropped(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	b.publish(b.ns.In(BookingRequested, "room"), nil, "{")
	c := b.workers[0]
	batch := b.fetchAllOf(c, 1)
	d, l := batch[0], c.newLane(1)
	created := d.meta.Timestamp.Add(-2 * dlqDuplicates)
	c.inboundCreated.Store(&streamCreation{readAt: time.Now().Add(time.Hour), created: created})
	c.decodeBatch(batch)
	l.publishBatch(t.Context(), batch, false)
	d.meta.NumDelivered = 2
	for _, age := range []time.Duration{0, dlqDuplicates} {
		d.meta.Timestamp = d.meta.Timestamp.Add(-age)
		left := l.dropAnswered(t.Context(), []*delivery{d})
		if dropped := len(left) == 0; dropped != (age > 0) || !is[*UnprocessableError](d.result.Err) {
			t.Errorf("after %v: dropped %v, %v", age, dropped, d.result.Err)
		}
	}
}

// TestDropAnswered_NoTimeForSearch_EventIsDeliveredAgain has a batch whose earlier searches have taken all the time that
// there is. The event is neither decided without a search, nor is that an outage.
func TestDropAnswered_NoTimeForSearch_EventIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	l, d := fetchAnswered(t)
	l.consumer.searchWithin = 0
	d.meta.NumDelivered = 2
	left := l.dropAnswered(t.Context(), []*delivery{d})
	if len(left) != 1 || d.result.Err == nil || dispositionOf(d.result.Err) != dispositionRetrySoon {
		t.Errorf("%d events are left, with the error %v", len(left), d.result.Err)
	}
}

// TestHasOutcome_EarlierCopyAnswered_IsFound has the copy of an event that was stored after the outcome of the event, which
// stands for both.
func TestHasOutcome_EarlierCopyAnswered_IsFound(t *testing.T) {
	t.Parallel()
	l, d := fetchAnswered(t)
	d.meta.Timestamp = d.meta.Timestamp.Add(outDuplicates / 2)
	if found, err := l.consumer.hasOutcome(t.Context(), d); err != nil || !found {
		t.Errorf("the outcome is found: %v, %v", found, err)
	}
}

// fetchAnswered fetches an event whose outcome is stored, and whose answer Redis has forgotten.
func fetchAnswered(t *testing.T) (l *lane, d *delivery) {
	t.Helper()
	b := newHarness(t)
	b.answerTTL = time.Nanosecond
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	b.awaitIdle(ConsumerRequests)
	c, d := b.fetchRequest("k") // the same event, as if it had been fetched before
	return c.newLane(1), d
}

// drops reports whether dropAnswered drops an event.
func (l *lane) drops(t *testing.T, d *delivery) bool {
	t.Helper()
	left := l.dropAnswered(t.Context(), []*delivery{d})
	if d.result.Err != nil {
		t.Fatal(d.result.Err)
	}
	return len(left) == 0
}
