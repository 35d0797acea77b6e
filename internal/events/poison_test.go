package events

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// TestPoison_PubAckLost_NotDecidedAgain loses the PubAck of a dead letter; then the error
// disappears. The event is delivered again, but not decided again. It has one dead letter and no
// outcome.
func TestPoison_PubAckLost_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			js.failuresLeft.Store(1)
			b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
			failures := 0
			b.setFault(func(string, int) error { // only one event, so no lock is needed
				if failures++; failures > failuresMax {
					return nil
				}
				return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
			})
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
			b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
			b.awaitIdle(ConsumerRequests)
			if b.decidedCount("bad") != failuresMax || len(b.out) != 0 || len(b.dlq) != 1 {
				t.Errorf("decided %d times, want %d; %d outcomes, %d dead letters",
					b.decidedCount("bad"), failuresMax, len(b.out), len(b.dlq))
			}
			if h := b.dlq[0].Headers(); h.Get(HeaderDLQReason) != ReasonPoison || h.Get(HeaderDLQDetail) == "" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

// TestPoison_OutcomeStored_NoDeadLetter loses the PubAck of an outcome; then the event fails as
// often as poison. It has its outcome, and no dead letter.
func TestPoison_OutcomeStored_NoDeadLetter(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{storesFirst: true}
	js.failuresLeft.Store(1)
	b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
	first := true
	b.setFault(func(key string, _ int) error {
		if key == "other" {
			return nil
		}
		if first {
			first = false
			return nil
		}
		return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
	})
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("other"))
	b.await("another outcome", func() bool { return len(b.out) == 2 })
	b.awaitIdle(ConsumerRequests)
	if b.decidedCount("k") != 1+failuresMax || len(b.out) != 2 || len(b.dlq) != 0 {
		t.Errorf("decided %d times, want %d; %d outcomes, %d dead letters",
			b.decidedCount("k"), 1+failuresMax, len(b.out), len(b.dlq))
	}
}

// TestPoison_RegisterUnavailable_WaitsUntilRecorded stops Postgres when an event is found to be
// poison. The event waits, and is dead-lettered after it is recorded.
func TestPoison_RegisterUnavailable_WaitsUntilRecorded(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.poison.mu.Lock()
	b.poison.refuse = &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	b.poison.mu.Unlock()
	b.setFault(func(string, int) error { panic("bug") })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
	stacktest.Eventually(t, "two failures to record it", func() bool {
		b.poison.mu.Lock()
		defer b.poison.mu.Unlock()
		return b.poison.refused == 2
	})
	b.mu.Lock()
	dead := len(b.dlq)
	b.mu.Unlock()
	if dead != 0 {
		t.Error("a dead letter was stored before it was recorded")
	}
	b.poison.mu.Lock()
	b.poison.refuse = nil
	b.poison.mu.Unlock()
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
}

// TestPoison_EveryLane_EachCountedAlone makes events fail in all lanes, by a panic or by an error, two in one of them,
// among others. Each is decided alone and counted, and is dead-lettered after as many failures as an
// event that is alone. The others of their batches are answered, and none of them is delivered again.
func TestPoison_EveryLane_EachCountedAlone(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const each = 20
	published, publish := newGate(t)
	var mu sync.Mutex
	alone, together := make(map[string]int), make(map[string]int)
	b.setFault(func(key string, batch int) error {
		<-published
		mu.Lock()
		defer mu.Unlock()
		if batch == 1 {
			alone[key]++
		} else {
			together[key]++
		}
		switch {
		case strings.HasSuffix(key, "bad"):
			panic("bug")
		case strings.HasSuffix(key, "worse"):
			return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
		}
		return nil
	})
	var bad []string
	for i, resource := range resources {
		for number := range each {
			b.publishRequest(resource, number)
			// A panic ends the decision of a batch, so the other one is before it.
			if name := map[int]string{each / 3: "worse", each / 2: "bad"}[number]; name != "" && (name == "bad" || i == 0) {
				key := resource + ":" + name
				bad = append(bad, key)
				b.publish(b.ns.In(BookingRequested, resource), nil, strings.ReplaceAll(resourceKeyed(resource, 99999), resource+":99999", key))
			}
		}
	}
	b.awaitPublished()
	publish()
	b.await("all answers", func() bool { return len(b.out) == each*len(resources) && len(b.dlq) == len(bad) })
	for _, deadLetter := range b.dlq {
		h := deadLetter.Headers()
		if h.Get(HeaderDLQReason) != ReasonPoison || h.Get(HeaderDLQDeliveries) != fmt.Sprint(failuresMax) {
			t.Errorf("headers %v", h)
		}
	}
	info := b.awaitIdle(ConsumerRequests)
	if again, want := info.Delivered.Consumer-info.Delivered.Stream, uint64((failuresMax-1)*len(bad)); again != want {
		t.Errorf("%d redeliveries, want only those of the poison, %d", again, want)
	}
	for _, key := range bad {
		if alone[key] != failuresMax || together[key] == 0 {
			t.Errorf("%s was decided alone %d times, want %d, and %d times with others", key, alone[key], failuresMax, together[key])
		}
	}
}

// TestPayment_FailsOften_NeverDeadLettered makes a payment fail, with an error that counts, more
// often than other events may. It is not dead-lettered: it must end in a reservation or a refund.
func TestPayment_FailsOften_NeverDeadLettered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	var failures atomic.Int32
	b.setFault(func(string, int) error {
		if failures.Add(1) <= failuresMax+1 {
			return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
		}
		return nil
	})
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`","payment_id":"p"}`))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	if len(b.dlq) != 0 {
		t.Errorf("a payment was dead-lettered")
	}
}

// TestPoison_TwiceInABatch_BothArePoison lets a lane take two deliveries of a recorded event together: neither is decided.
func TestPoison_TwiceInABatch_BothArePoison(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c, first := b.fetchRequest("k")
	again := *first
	batch := []*delivery{first, &again}
	for _, d := range batch {
		d.meta.NumDelivered = 2
	}
	id, err := c.deadLetterID(t.Context(), batch[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := b.poison.RecordPoison(t.Context(), id, "room", "its own fault"); err != nil {
		t.Fatal(err)
	}
	c.newLane(1).findPoisoned(t.Context(), batch)
	for i, d := range batch {
		if d.result.Err == nil {
			t.Errorf("delivery %d would be decided again", i)
		}
	}
}

// TestPoison_ConsumerRecreated_NotDecidedAgain deletes the durable consumer after an event was dead-lettered as poison
// while an earlier one has no answer. The new consumer delivers both, and counts deliveries from one. The cause of the
// failures is repaired meanwhile. The event still has its dead letter, and no outcome.
func TestPoison_ConsumerRecreated_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	var repaired atomic.Bool
	b.setFault(func(key string, _ int) error {
		switch {
		case repaired.Load():
			return nil
		case key == "bad":
			return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
		default:
			return holds.ErrBusy
		}
	})
	b.publishRequest("busy", 0)
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
	decided := b.decidedCount("bad")
	if err := b.js.DeleteConsumer(t.Context(), b.ns.InStream(), ConsumerRequests); err != nil {
		t.Fatal(err)
	}
	repaired.Store(true)
	b.await("the outcome of the other event", func() bool { return len(b.out) > 0 })
	b.awaitIdle(ConsumerRequests)
	if b.decidedCount("bad") != decided || len(b.out) != 1 || len(b.dlq) != 1 {
		t.Errorf("decided %d times, want %d; %d outcomes, %d dead letters",
			b.decidedCount("bad"), decided, len(b.out), len(b.dlq))
	}
}

// TestPoison_AnsweredWhileSuspended_NoDeadLetter lets an event fail for the last time in a worker that is suspended
// then. Meanwhile another worker answers the event. It has its outcome, and no dead letter.
func TestPoison_AnsweredWhileSuspended_NoDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchAtLastFailure("k")
	d.meta.NumDelivered = failuresMax
	b.storeOutcome(d)
	if message, _ := l.finalMessage(t.Context(), d); message != nil || len(b.poison.details) != 0 {
		t.Errorf("an event with an outcome is poison: %v", b.poison.details)
	}
	b.awaitIdle(ConsumerRequests)
}

// TestPoison_ConsumerRecreatedBetweenFetches_NotDecidedAgain recreates the durable consumer while the worker fetches
// nothing, as during an outage, so that no fetch fails. An event that is recorded as poison is not decided again.
func TestPoison_ConsumerRecreatedBetweenFetches_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c, first := b.fetchRequest("bad")
	l := c.newLane(1)
	l.findPoisoned(t.Context(), []*delivery{first})
	if first.result.Err != nil {
		t.Fatal(first.result.Err)
	}
	if _, err := l.recordPoison(t.Context(), first, &panicError{"bug"}); err != nil {
		t.Fatal(err)
	}
	c.inFlight.remove(first) // its dead letter is stored
	b.recreateConsumer()
	again := b.fetchAllOf(c, 1)
	c.decodeBatch(again)
	l.findPoisoned(t.Context(), again)
	if deliveries := again[0].meta.NumDelivered; !is[*UnprocessableError](again[0].result.Err) || deliveries != 1 {
		t.Errorf("an event that is poison is decided at delivery %d: %v", deliveries, again[0].result.Err)
	}
	if err := c.readReplaced(t.Context()); err != nil || c.replaced {
		t.Errorf("the new consumer is not read: %v", err)
	}
	durable := consumerOf(t, b.js, b.ns, ConsumerRequests)
	if created := durable.CachedInfo().Created; !c.durable.Load().Created.Equal(created) {
		t.Errorf("the consumer was created at %s, want %s", c.durable.Load().Created, created)
	}
}

// TestPoison_ConsumerRecreatedWhileNothingIsFetched_NotDecidedAgain recreates the durable consumer while one worker fetches
// nothing, such as before its first fetch. The deliveries, of which another worker had all, do not show it.
func TestPoison_ConsumerRecreatedWhileNothingIsFetched_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, first := b.fetchPoison("bad")
	c := l.consumer
	c.inFlight.remove(first) // another worker had it
	c.sequence, c.fetchedAt = 0, time.Now().Add(-fetchGap)
	b.recreateConsumer()
	if err := c.readReplaced(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := b.fetchAllOf(c, 1)
	c.decodeBatch(again)
	l.findPoisoned(t.Context(), again)
	if !is[*UnprocessableError](again[0].result.Err) {
		t.Errorf("an event that is poison is decided: %v", again[0].result.Err)
	}
}

// TestPoison_WorkerSuspended_NotDecided suspends a worker with an event that another one records as poison meanwhile.
func TestPoison_WorkerSuspended_NotDecided(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchPoison("bad")
	d.waitFrom = d.waitFrom.Add(-2 * ackWait)
	l.findPoisoned(t.Context(), []*delivery{d})
	if !is[*UnprocessableError](d.result.Err) || d.meta.NumDelivered != 1 {
		t.Errorf("an event that is poison is decided at delivery %d: %v", d.meta.NumDelivered, d.result.Err)
	}
}

// registerWith is a PoisonRegister that calls a function before it records an event.
type registerWith struct {
	PoisonRegister
	before func()
}

func (r *registerWith) RecordPoison(ctx context.Context, id, resource, detail string) error {
	r.before()
	return r.PoisonRegister.RecordPoison(ctx, id, resource, detail)
}

// another returns the consumer of another worker of the harness, which does not run.
func (b *harness) another() *Consumer {
	b.t.Helper()
	process := NewProcess("w2", &b.poison, b.workers[0].log)
	c, err := NewConsumer(b.t.Context(), ConsumerRequests, b.ns, b.echo, b.nc, b.js, process)
	stacktest.Must(b.t, err)
	return c
}

// runAnother runs another worker of the harness until done returns true.
func (b *harness) runAnother(done func() bool) {
	b.t.Helper()
	other := b.another()
	ctx, stop := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	b.await("the answer of the other worker", done) // after the ack wait
	stop()
	stacktest.Must(b.t, <-ended)
}

// wantOneAnswer fails the test unless the only event has one outcome or one dead letter, and no more are stored.
func (b *harness) wantOneAnswer() {
	b.t.Helper()
	b.awaitIdle(ConsumerRequests)
	out := streamOf(b.t, b.js, b.ns.OutStream()).CachedInfo().State.Msgs
	dead := streamOf(b.t, b.js, b.ns.DLQStream()).CachedInfo().State.Msgs
	if out+dead != 1 {
		b.t.Errorf("the event has %d outcomes and %d dead letters", out, dead)
	}
}

// TestPoison_SuspendedBeforeRecord_NoDeadLetter suspends a worker after the last failure of an event, when it has found no
// outcome of it. Another worker answers the event before the first one records it as poison.
func TestPoison_SuspendedBeforeRecord_NoDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchAtLastFailure("k")
	d.meta.NumDelivered = failuresMax
	l.consumer.process.poison = &registerWith{&b.poison, func() { b.runAnother(func() bool { return len(b.out) == 1 }) }}
	l.publishBatch(t.Context(), []*delivery{d}, false)
	b.wantOneAnswer()
}

// TestPoison_EarlierDeliveryAnswers_NoDeadLetter lets a worker that had an earlier delivery of an event, and was suspended,
// answer it after this one has found no outcome, and before it records the event as poison.
func TestPoison_EarlierDeliveryAnswers_NoDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchAtLastFailure("k")
	l.consumer.process.poison = &registerWith{&b.poison, func() { b.storeOutcome(d) }}
	l.publishBatch(t.Context(), []*delivery{d}, false)
	b.wantOneAnswer()
}

// TestPoison_SuspendedWhileAnotherDecides_NoDeadLetter suspends a worker after the last failure of an event. Another worker,
// which has the event next, decides it before the first one records it as poison, and publishes its outcome after that.
func TestPoison_SuspendedWhileAnotherDecides_NoDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchAtLastFailure("k")
	other := b.another()
	again := b.fetchAllOf(other, 1) // after the ack wait
	next := other.newLane(1)
	other.decodeBatch(again)
	next.findPoisoned(t.Context(), again)
	other.decider.dispatch(t.Context(), again, func(*delivery) {})
	again[0].termID = b.TermID("room")
	stacktest.Must(t, again[0].result.Err)
	// It may have come early by the time that the first one was under way.
	stacktest.Eventually(t, "the first delivery is overdue", func() bool { return l.consumer.inFlight.isOverdue(d) })
	l.publishBatch(t.Context(), []*delivery{d}, false)
	next.publishBatch(t.Context(), again, false)
	b.wantOneAnswer()
}

// TestPoison_ConsumerRecreatedWhileInWork_OneAnswer recreates the durable consumer while a worker has an event in work. The new
// one delivers it to another worker too. Both find that it is not poison. Then one of them fails too often, and the other
// publishes the outcome.
func TestPoison_ConsumerRecreatedWhileInWork_OneAnswer(t *testing.T) {
	t.Parallel()
	for _, firstFails := range []bool{false, true} {
		t.Run(fmt.Sprint(firstFails), func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			c, first := b.fetchRequest("k")
			b.recreateConsumer()
			_, err := c.checkConsumers(t.Context()) // as supervise does
			stacktest.Must(t, err)
			other := b.another()
			again := b.fetchAllOf(other, 1)
			other.decodeBatch(again)
			failing, deciding := other.newLane(1), c.newLane(1)
			failed, decided := again[0], first
			if firstFails {
				failing, deciding, failed, decided = deciding, failing, decided, failed
			}
			deciding.findPoisoned(t.Context(), []*delivery{decided})
			deciding.consumer.decider.dispatch(t.Context(), []*delivery{decided}, func(*delivery) {})
			decided.termID = b.TermID("room")
			stacktest.Must(t, decided.result.Err)
			failing.failures[failed.origin()], failed.result.Err = failuresMax-1, &panicError{"bug"}
			failing.publishBatch(t.Context(), []*delivery{failed}, false)
			deciding.publishBatch(t.Context(), []*delivery{decided}, false)
			b.wantOneAnswer()
		})
	}
}

// TestPoison_SuspendedBeforeRecord_NextDeliveryDeadLettered suspends a worker after the last failure of an event, which no
// other worker receives meanwhile. The event has its dead letter after its next delivery.
func TestPoison_SuspendedBeforeRecord_NextDeliveryDeadLettered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchAtLastFailure("k")
	c := l.consumer
	d.waitFrom = d.waitFrom.Add(-2 * ackWait)
	l.publishBatch(t.Context(), []*delivery{d}, false)
	if dead := streamOf(t, b.js, b.ns.DLQStream()).CachedInfo().State.Msgs; dead != 0 || c.inFlight.len() != 0 {
		t.Fatalf("%d dead letters are stored, %d events are in flight", dead, c.inFlight.len())
	}
	again := b.fetchAllOf(c, 1)
	c.decodeBatch(again)
	l.findPoisoned(t.Context(), again)
	l.publishBatch(t.Context(), again, false)
	b.wantOneAnswer()
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
}

// TestPoison_RecordedAfterAnswer_NoDeadLetter delivers an event again that is recorded as poison and has an outcome: the
// worker that has recorded it was killed before it searched once more.
func TestPoison_RecordedAfterAnswer_NoDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchPoison("k")
	b.storeOutcome(d)
	d.meta.NumDelivered = 2
	l.findPoisoned(t.Context(), []*delivery{d})
	l.publishBatch(t.Context(), []*delivery{d}, false)
	b.wantOneAnswer()
}

// TestPoison_SuspendedBeforePublishing_NoOutcome suspends a worker that has granted an event, before it publishes the
// outcome. In another worker the event is poison. The hold that was granted is withdrawn.
func TestPoison_SuspendedBeforePublishing_NoOutcome(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		b := newHarness(t)
		b.grant = true
		c, d := b.fetchRequest("k")
		c.decider.dispatch(t.Context(), []*delivery{d}, func(*delivery) {})
		d.termID = b.TermID("room")
		stacktest.Must(t, d.result.Err)
		b.setFault(func(key string, _ int) error {
			if key == "k" {
				panic("bug")
			}
			return nil
		})
		b.runAnother(func() bool { return len(b.dlq) == 1 })
		c.newLane(1).publishBatch(t.Context(), []*delivery{d}, together)
		b.wantOneAnswer()
		if len(b.withdrawn) != 1 {
			t.Errorf("withdrawn are %v", b.withdrawn)
		}
	}
}

// TestPoison_ConsumerRecreatedByClockBehind_NotDecidedAgain delivers an event through a durable consumer that was recreated
// by a server whose clock is behind that of the server that stored the event. The event is recorded as poison.
func TestPoison_ConsumerRecreatedByClockBehind_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	l, d := b.fetchPoison("bad")
	d.streamCreated = d.meta.Timestamp.Add(-time.Hour)
	l.consumer.durable.Store(&jetstream.ConsumerInfo{Created: d.meta.Timestamp.Add(-ClockSkewMax / 2)})
	l.findPoisoned(t.Context(), []*delivery{d})
	if !is[*UnprocessableError](d.result.Err) {
		t.Errorf("an event that is poison is decided: %v", d.result.Err)
	}
}
