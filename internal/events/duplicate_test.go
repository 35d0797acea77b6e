package events

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// outcomeIDOf returns the outcome id of an event.
func (b *harness) outcomeIDOf(subject, body string) string {
	b.t.Helper()
	in, err := b.ns.Decode(subject, nil, []byte(body), storedAt)
	if err != nil {
		b.t.Fatal(err)
	}
	return in.OutcomeID
}

// TestDuplicate_IDOfOtherMessage_StoredUnderNewID stores another message under the message ids of
// an outcome. The outcome is stored nevertheless, once, however often its event is delivered.
func TestDuplicate_IDOfOtherMessage_StoredUnderNewID(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	subject := b.ns.In(BookingRequested, "room")
	id := b.outcomeIDOf(subject, keyed("k"))
	b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {id}}, "of another program")
	b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {id + "#1"}}, keyed("no outcome"))
	for range 2 {
		b.publish(subject, nil, keyed("k"))
	}
	b.publish(subject, nil, keyed("last"))
	b.awaitIdle(ConsumerRequests)
	b.await("the outcomes", func() bool { return len(b.out) == 4 })
	if b.decidedCount("k") != 2 {
		t.Errorf("the event was decided %d times, want 2", b.decidedCount("k"))
	}
	stored := 0
	for _, m := range b.out {
		if strings.Contains(string(m.Data()), `"causationid":"k"`) {
			stored++
		}
	}
	if stored != 1 {
		t.Errorf("%d outcomes of the event are stored, want 1", stored)
	}
}

// TestDuplicate_DeadLetterOfOtherBody_StoredUnderNewID dead-letters an event whose dead letter's message id is in use by that
// of another event: the inbound stream has lost its end, and has other events under the same sequences now.
func TestDuplicate_DeadLetterOfOtherBody_StoredUnderNewID(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	subject := b.ns.In(BookingRequested, "room")
	id := b.ns.deadLetterID(streamOf(t, b.js, b.ns.InStream()).CachedInfo().Created, 1)
	b.publish(b.ns.DLQ(ReasonMalformed), nats.Header{
		headerMsgID: {id}, HeaderDLQStreamSeq: {"1"}, HeaderDLQSubject: {subject}, HeaderDLQReason: {ReasonMalformed},
	}, "{lost}")
	b.publish(subject, nil, "{stored}")
	b.await("its dead letter", func() bool { return len(b.dlq) == 2 && string(b.dlq[1].Data()) == "{stored}" })
}

// TestDuplicate_EpochEndsMeanwhile_IsNotStored stores another message under the message id of an outcome, and
// ends the epoch of the outcome after it was sent under that id. It is not published under a new id: the
// rebuilt Redis decides the event again.
func TestDuplicate_EpochEndsMeanwhile_IsNotStored(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop() // so that the test publishes the outcome
	subject := b.ns.In(BookingRequested, "room")
	id := b.outcomeIDOf(subject, keyed("k"))
	b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {id}}, "of another program")
	b.publish(subject, nil, keyed("k"))
	worker := b.workers[0]
	batch := b.decided(worker, 1)
	b.setVerify(func(verified int) error {
		if verified > 1 {
			return holds.ErrDataLost
		}
		return nil
	})
	worker.newLane(1).publishBatch(t.Context(), batch, false)
	if n := streamOf(t, b.js, b.ns.OutStream()).CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("%d messages are stored, want only that of the other program", n)
	}
}

// TestDuplicate_SameOutcomeDecidedAgain_StoredOneIsReply decides an event again in the same way, with another message. The
// reply is the outcome that is stored.
func TestDuplicate_SameOutcomeDecidedAgain_StoredOneIsReply(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	subject := b.ns.In(BookingRequested, "room")
	decided := string(b.requestReply(subject, keyed("other")).Data)
	before := strings.NewReplacer(
		b.outcomeIDOf(subject, keyed("other")), b.outcomeIDOf(subject, keyed("k")),
		`"causationid":"other"`, `"causationid":"k"`, `"message":"`, `"message":"at that time, `).Replace(decided)
	b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {b.outcomeIDOf(subject, keyed("k"))}}, before)
	if reply := b.requestReply(subject, keyed("k")); string(reply.Data) != before || before == decided {
		t.Errorf("the reply is %s, want %s", reply.Data, before)
	}
}

// TestDuplicate_DifferentOutcome_StoredOneStands decides an event for the second time, with another
// outcome. The first outcome stands, and the reply contains it.
func TestDuplicate_DifferentOutcome_StoredOneStands(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	subject := b.ns.In(BookingRequested, "room")
	id := b.outcomeIDOf(subject, keyed("k"))
	before := envelopeOf(holds.EventHoldCreated, id, `{}`)
	before = strings.Replace(before, `"data"`, `"causationid":"k","data"`, 1)
	b.publish(b.ns.Out(holds.EventHoldCreated, "room"), nats.Header{headerMsgID: {id}}, before)
	if reply := b.requestReply(subject, keyed("k")); string(reply.Data) != before {
		t.Errorf("the reply is %s, want %s", reply.Data, before)
	}
	b.publish(subject, nil, keyed("last"))
	b.await("the last outcome", func() bool { return len(b.out) >= 2 })
	b.awaitIdle(ConsumerRequests)
	if b.mu.Lock(); len(b.out) != 2 {
		t.Errorf("%d messages are stored, want the first outcome and that of the last event", len(b.out))
	}
	b.mu.Unlock()
}

// TestDuplicate_GrantedAfterOtherOutcome_HoldWithdrawn grants a hold to an event whose stored outcome is a rejection. No
// outcome names the hold: it would only keep others out until its deadline.
func TestDuplicate_GrantedAfterOtherOutcome_HoldWithdrawn(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.grant = true
	subject := b.ns.In(BookingRequested, "room")
	id := b.outcomeIDOf(subject, keyed("k"))
	before := envelopeOf(holds.EventHoldRejected, id, `{}`)
	before = strings.Replace(before, `"data"`, `"causationid":"k","data"`, 1)
	b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {id}}, before)
	if reply := b.requestReply(subject, keyed("k")); string(reply.Data) != before {
		t.Errorf("the reply is %s, want %s", reply.Data, before)
	}
	b.echo.mu.Lock()
	defer b.echo.mu.Unlock()
	if want := []string{"room." + strings.Repeat("a", 32)}; !slices.Equal(b.withdrawn, want) {
		t.Errorf("withdrew %v, want %v", b.withdrawn, want)
	}
}

// TestDuplicate_WithdrawalFails_OthersGoOn makes the withdrawal of a hold fail for a reason that concerns only the servers or
// the data of its resource. The consumer does not pause, and the hold is withdrawn later.
func TestDuplicate_WithdrawalFails_OthersGoOn(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"shard down": &shardDownError{context.DeadlineExceeded}, "corrupt": holds.ErrCorrupt} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			b.grant = true
			const withdrawal = "" // its key
			b.setFault(func(key string, _ int) error {
				if key == withdrawal {
					return failure
				}
				return nil
			})
			subject := b.ns.In(BookingRequested, "room")
			id := b.outcomeIDOf(subject, keyed("k"))
			before := strings.Replace(envelopeOf(holds.EventHoldRejected, id, `{}`), `"data"`, `"causationid":"k","data"`, 1)
			b.publish(b.ns.Out(holds.EventHoldRejected, "room"), nats.Header{headerMsgID: {id}}, before)
			b.publish(subject, nil, keyed("k"))
			stacktest.Eventually(t, "another attempt", func() bool { return b.decidedCount(withdrawal) > 1 })
			if err := b.workers[0].Outage(); err != nil {
				t.Errorf("the consumer has paused: %v", err)
			}
			b.setFault(nil)
			b.awaitIdle(ConsumerRequests)
			b.echo.mu.Lock()
			defer b.echo.mu.Unlock()
			if len(b.withdrawn) != 1 {
				t.Errorf("withdrew %v", b.withdrawn)
			}
		})
	}
}

// TestReadStored_CallerHasNoTime_ChecksGoOn reads a stored message within a time that is over, which is no failure of NATS.
func TestReadStored_CallerHasNoTime_ChecksGoOn(t *testing.T) {
	t.Parallel()
	l, _ := fetchAnswered(t)
	c := l.consumer
	over, cancel := context.WithCancel(t.Context())
	cancel()
	stored := &jetstream.PubAck{Stream: c.ns.OutStream(), Sequence: 1}
	if found, known := c.readStored(over, stored); known {
		t.Errorf("%v is read", found)
	}
	if found, known := c.readStored(t.Context(), stored); !known {
		t.Errorf("%v is not read afterwards", found)
	}
}
