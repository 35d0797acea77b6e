package events

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// filled returns an event of so many bytes, by means of a long id.
func filled(event, data string, size int) string {
	body := envelopeOf(event, "", data)
	return strings.Replace(body, `"id":""`, `"id":"`+strings.Repeat("x", size-len(body))+`"`, 1)
}

func requestData(key string) string {
	return `{"request_key":"` + key + `","user_id":"u","resource_id":"room","quantity":1}`
}

// TestOversized_OutcomeAboveLimit_NotDecided publishes events whose outcomes are larger than the
// server allows. Each is dead-lettered once and at once, without being decided, and the consumers
// do not pause. A payment is decided and retried.
func TestOversized_OutcomeAboveLimit_NotDecided(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	b := newHarnessAt(t, stacktest.NATSWithMaxPayload(t, limit), func(js JetStream) JetStream { return js })
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("large"), limit-100))
	b.publish(b.ns.In(InventorySet, "nights"), nil, envelopeOf(InventorySet, "i1",
		`{"resource_id":"nights","check_in":"2026-01-01","check_out":"2028-12-31","capacity":7}`))
	payment := func(id string) string { return `{"hold_id":"` + holdID + `","payment_id":"` + id + `"}` }
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, filled(PaymentConfirmed, payment("large-payment"), limit-100))
	b.await("the dead letters", func() bool { return len(b.dlq) == 2 })
	for _, m := range b.dlq {
		h := m.Headers()
		said := strings.HasPrefix(h.Get(HeaderDLQDetail), "the outcome has ")
		if h.Get(HeaderDLQReason) != ReasonPoison || !said || h.Get(HeaderDLQDeliveries) != "1" {
			t.Errorf("headers %.300v", h)
		}
	}
	stacktest.Eventually(t, "more deliveries of the payment", func() bool { return b.decidedCount("large-payment") > 3 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("small"))
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e2", payment("small-payment")))
	b.await("the other outcomes", func() bool { return len(b.out) == 2 })
	if n := b.decidedCount("large") + b.decidedCount("nights"); n != 0 {
		t.Errorf("%d events with oversized outcomes were decided", n)
	}
	for _, c := range b.workers {
		if c.failure.Load() != nil {
			t.Errorf("consumer %s has paused", c.name)
		}
	}
	if len(b.dlq) != 2 {
		t.Errorf("%d dead letters, want 2", len(b.dlq))
	}
}

// TestOversized_HeadersNearTheLimit_NothingWaits publishes events whose headers leave no room for those
// of their dead letter or outcome.
func TestOversized_HeadersNearTheLimit_NothingWaits(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	subject := b.ns.In(BookingRequested, "room")
	const most = 65535 - len("NATS/1.0\r\n\r\n: \r\n") // what one header may have, its name and its value
	for _, name := range []string{"X", headerTraceParent, HeaderDLQReplays} {
		header := nats.Header{name: {strings.Repeat("x", most-len(name))}}
		b.publish(subject, header, "{")
		b.publish(subject, header, keyed(name))
	}
	b.await("the outcomes and dead letters", func() bool { return len(b.out) == 3 && len(b.dlq) == 3 })
	b.awaitIdle(ConsumerRequests)
	for m, err := range ReadAll(t.Context(), b.js, streamOf(t, b.js, b.ns.DLQStream()), fromFirst) {
		if err != nil {
			t.Fatal(err)
		}
		l := b.ns.ReadDeadLetter(m)
		if l.Reason != ReasonMalformed || l.ClaimCheck == nil || l.Deliveries != 1 {
			t.Errorf("dead letter %+v", l)
		}
	}
	if b.workers[0].failure.Load() != nil {
		t.Error("the consumer has paused")
	}
}

// TestOversized_LimitShrinks_WithdrawsHold lowers the message size limit of the outbound stream. The
// hold that is granted before the worker sees that is withdrawn, its request is dead-lettered, and
// the next such request is not decided.
func TestOversized_LimitShrinks_WithdrawsHold(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.mu.Lock()
	b.grant = true
	b.mu.Unlock()
	updateStream(t, b.js, b.ns.OutStream(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8 << 10 })
	for i, key := range []string{"first", "second"} {
		b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData(key), 9<<10))
		b.await("the dead letter", func() bool { return len(b.dlq) == i+1 })
	}
	b.awaitIdle(ConsumerRequests)
	b.echo.mu.Lock()
	withdrawn := fmt.Sprint(b.withdrawn)
	b.echo.mu.Unlock()
	first, second := b.decidedCount("first"), b.decidedCount("second")
	if first != 1 || second != 0 || withdrawn != "[room."+strings.Repeat("a", 32)+"]" || len(b.out) != 0 {
		t.Errorf("decided %d and %d times, withdrew %s, %d outcomes", first, second, withdrawn, len(b.out))
	}
	if b.workers[0].failure.Load() != nil {
		t.Error("the consumer has paused")
	}
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("small"))
	b.await("the outcome of a small event", func() bool { return len(b.out) == 1 })
}

// TestOversized_LimitShrinksAfterOutcome_HoldStays loses the PubAck of the outcome of a grant, and lowers the message size
// limit of the outbound stream before the event is delivered again. The hold was announced: it is not withdrawn.
func TestOversized_LimitShrinksAfterOutcome_HoldStays(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{storesFirst: true}
	js.failuresLeft.Store(1)
	b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
	b.mu.Lock()
	b.grant = true
	b.mu.Unlock()
	shrunk, shrink := newGate(t)
	b.setFault(func(string, int) error {
		if b.decidedCount("k") > 1 {
			<-shrunk
		}
		return nil
	})
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("k"), 9<<10))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	stacktest.Eventually(t, "another delivery", func() bool { return b.decidedCount("k") > 1 })
	updateStream(t, b.js, b.ns.OutStream(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 8 << 10 })
	shrink()
	b.awaitIdle(ConsumerRequests)
	b.echo.mu.Lock()
	defer b.echo.mu.Unlock()
	if len(b.withdrawn) != 0 || len(b.dlq) != 0 {
		t.Errorf("withdrew %v, %d dead letters", b.withdrawn, len(b.dlq))
	}
}

// TestLargestOutcome_EachEvent_BoundsSize compares the computed bound with the size of real
// outcomes.
func TestLargestOutcome_EachEvent_BoundsSize(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	c := b.workers[0]
	text := strings.Repeat(`\"`, 2000)
	for i, event := range []struct{ event, body string }{
		{BookingRequested, envelopeOf(BookingRequested, text,
			`{"request_key":"k","user_id":"u","resource_id":"room","quantity":1,"metadata":{"a":"`+text[:3000]+`"}}`)},
		{InventorySet, envelopeOf(InventorySet, "i",
			`{"resource_id":"room","check_in":"2026-01-01","check_out":"2028-12-31","capacity":9223372036854775807}`)},
		{InventorySet, envelopeOf(InventorySet, "i", `{"resource_id":"room","capacity":7}`)},
		{BookingExtended, envelopeOf(BookingExtended, text, `{"hold_id":"`+holdID+`","ttl_seconds":5}`)},
		{BookingCancelled, envelopeOf(BookingCancelled, text, `{"hold_id":"`+holdID+`"}`)},
		{ReservationCancelled, envelopeOf(ReservationCancelled, text, `{"hold_id":"`+holdID+`"}`)},
	} {
		b.publish(b.ns.In(event.event, "room"), nats.Header{headerTraceParent: {"t"}}, event.body)
		d := b.fetchAllOf(c, 1)[0]
		in, err := DecodeEvent(d.msg.Header, d.msg.Data, d.meta.Timestamp)
		if err != nil {
			t.Fatal(err)
		}
		d.in = in
		m, err := c.message(d, largestOutcome(in))
		if err != nil {
			t.Fatal(err)
		}
		if size, rough := messageSize(m), roughSize(d); size > rough {
			t.Errorf("event %d: %d bytes, above the bound of %d", i, size, rough)
		}
		if _, err := b.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		stream := streamOf(t, b.js, b.ns.OutStream())
		stored, err := stream.GetLastMsgForSubject(t.Context(), m.Subject)
		if err != nil {
			t.Fatal(err)
		}
		if size := messageSize(&nats.Msg{Header: stored.Header, Data: stored.Data}); size != messageSize(m) {
			t.Errorf("event %d: %d bytes were stored, %d were counted", i, size, messageSize(m))
		}
		c.ack(d)
	}
}

// TestOversized_MaxPayloadRaisedByReload_IsAnswered raises max_payload while the worker is connected: the client
// of NATS still has the lower limit. The next such request and the payment that waits are answered.
func TestOversized_MaxPayloadRaisedByReload_IsAnswered(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	options := &server.Options{JetStream: true, StoreDir: t.TempDir(), MaxPayload: limit}
	served := stacktest.StartNATS(t, options)
	b := newHarnessAt(t, served.ClientURL(), func(js JetStream) JetStream { return js })
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("first"), limit-100))
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
	payment := `{"hold_id":"` + holdID + `","payment_id":"p"}`
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, filled(PaymentConfirmed, payment, limit-100))
	stacktest.Eventually(t, "more deliveries of the payment", func() bool { return b.decidedCount("p") > 1 })
	raised := options.Clone()
	raised.MaxPayload = 2 * limit
	if err := served.ReloadOptions(raised); err != nil {
		t.Fatal(err)
	}
	b.await("the outcome of the payment", func() bool { return len(b.out) == 1 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("second"), limit-100))
	b.await("the outcome of the request", func() bool { return len(b.out) == 2 })
	b.awaitIdle(ConsumerRequests)
	if len(b.dlq) != 1 {
		t.Errorf("%d dead letters, want 1", len(b.dlq))
	}
}

// TestAcceptsNow_LimitOfAccount_IsNotTakenForRaised reads the limit of an account, which is lower than that of its server: to
// reconnect would interrupt all that is being published, again and again.
func TestAcceptsNow_LimitOfAccount_IsNotTakenForRaised(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	b := newHarnessAt(t, stacktest.NATSWithAccountPayload(t, limit), func(js JetStream) JetStream { return js })
	c := b.workers[0]
	stacktest.Eventually(t, "the client to know the limit", func() bool { return c.nc.MaxPayload() == limit })
	if read, err := c.readPayload(); read != limit || err != nil {
		t.Errorf("read %d (%v), want %d", read, err, limit)
	}
	if c.acceptsNow(t.Context(), limit+1) {
		t.Error("it accepts more than the limit")
	}
	if n := c.nc.Stats().Reconnects; n != 0 {
		t.Errorf("the worker has reconnected %d times", n)
	}
}

// TestOversized_MaxPayloadRaised_RequestIsDecided raises max_payload before a request whose outcome the client of
// NATS would still refuse. It is decided and not dead-lettered.
func TestOversized_MaxPayloadRaised_RequestIsDecided(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10
	options := &server.Options{JetStream: true, StoreDir: t.TempDir(), MaxPayload: limit}
	served := stacktest.StartNATS(t, options)
	b := newHarnessAt(t, served.ClientURL(), func(js JetStream) JetStream { return js })
	raised := options.Clone()
	raised.MaxPayload = 2 * limit
	if err := served.ReloadOptions(raised); err != nil {
		t.Fatal(err)
	}
	b.publish(b.ns.In(BookingRequested, "room"), nil, filled(BookingRequested, requestData("large"), limit-100))
	b.await("the outcome", func() bool { return len(b.out) == 1 || len(b.dlq) == 1 })
	if len(b.dlq) != 0 {
		t.Errorf("the request was dead-lettered: %v", b.dlq[0].Headers())
	}
}
