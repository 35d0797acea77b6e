package events

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestConsumer_SameEventTwice_StoresOneOutcome publishes an event twice, without a message id.
func TestConsumer_SameEventTwice_StoresOneOutcome(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	worker := b.unhurried() // decides each delivery, so none comes again
	for range 2 {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("twice"))
	}
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("once"))
	b.loops.Go(func() { _ = worker.Run(t.Context()) })
	b.awaitIdle(ConsumerRequests)
	b.await("both outcomes", func() bool { return len(b.out) >= 2 })
	var causes []string
	for _, m := range b.out {
		var e Envelope
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			t.Fatal(err)
		}
		causes = append(causes, e.CausationID)
		if e.ID == "" || m.Headers().Get("Nats-Msg-Id") != e.ID || e.SpecVersion != "1.0" || e.DataContentType != "application/json" {
			t.Errorf("outcome %+v with headers %v", e, m.Headers())
		}
	}
	if slices.Sort(causes); !slices.Equal(causes, []string{"once", "twice"}) || b.decidedCount("twice") != 2 {
		t.Errorf("outcomes of %v; decided %d times", causes, b.decidedCount("twice"))
	}
}

// TestConsumerStop_FetchedEvents_AreFinished stops a consumer when all events are fetched and
// none is decided. In every lane, the fetched events are decided, stored and acknowledged before
// the consumer ends. Each event is delivered once.
func TestConsumerStop_FetchedEvents_AreFinished(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	worker := b.unhurried()
	const each = 400 // more than one batch
	begun := make(chan struct{}, 1)
	stopping, stop := newGate(t)
	b.setFault(func(string, int) error {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-stopping
		return nil
	})
	for number := range each {
		for _, resource := range resources {
			b.publishRequest(resource, number)
		}
	}
	b.awaitPublished()
	ctx, cancel := context.WithCancel(t.Context())
	b.loops.Go(func() { _ = worker.Run(ctx) })
	<-begun
	// Not what NATS counts as delivered: that may be under way.
	stacktest.Eventually(t, "all to be fetched", func() bool { return worker.inFlight.len() == each*len(resources) })
	cancel()
	stop()
	b.loops.Wait()
	b.await("the outcomes", func() bool { return len(b.out) == each*len(resources) })
	if info := b.awaitIdle(ConsumerRequests); info.Delivered.Consumer != uint64(each*len(resources)) || info.NumRedelivered != 0 {
		t.Errorf("%d events, %d deliveries, %d redelivered", each*len(resources), info.Delivered.Consumer, info.NumRedelivered)
	}
}

// stuckService is a Service that decides a request only when its context has ended.
type stuckService struct {
	*echo
	begun chan struct{}
}

func (s *stuckService) Place(ctx context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result] {
	return func(yield func(int, holds.Result) bool) {
		select {
		case s.begun <- struct{}{}:
		default:
		}
		<-ctx.Done()
		s.echo.Place(ctx, requests)(yield)
	}
}

// TestConsumerStop_UnfinishedEvents_RedeliveredAtOnce stops a consumer while some events are being
// decided and others wait. The server delivers them to another worker at once, not after the ack
// wait, which is an hour here.
func TestConsumerStop_UnfinishedEvents_RedeliveredAtOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	b.ackWithin(ConsumerRequests, time.Hour)
	run := func(service Service) (stop func()) {
		process := NewProcess("w", &b.poison, zerolog.Nop())
		c, err := NewConsumer(t.Context(), ConsumerRequests, b.ns, service, b.nc, b.js, process)
		if err != nil {
			t.Fatal(err)
		}
		c.decideWithin, c.finishWithin = time.Minute, 0
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { _ = c.Run(ctx) })
		return func() { cancel(); loop.Wait() }
	}
	const number = 50
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	first := &stuckService{b.echo, make(chan struct{}, 1)}
	stop := run(first)
	<-first.begun
	stop()
	if n := b.decidedCount("room:00000"); n != 0 {
		t.Errorf("an event was decided %d times before the stop", n)
	}
	defer run(b.echo)()
	b.await("all outcomes", func() bool { return len(b.out) == number })
}

// TestConsumer_UnknownPaymentEvent_DeadLetteredOnce publishes a payment event of an unknown type. One of the consumers
// dead-letters it.
func TestConsumer_UnknownPaymentEvent_DeadLetteredOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.publish(b.ns.In("payment.refunded", "room"), nil, envelopeOf("payment.refunded", "e1", `{}`))
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
	for _, name := range []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} {
		b.awaitIdle(name)
	}
	if len(b.dlq) != 1 {
		t.Errorf("%d dead letters, want one", len(b.dlq))
	}
}

// TestConsumer_CorruptResource_EventsWait makes the data of one resource corrupt for more
// deliveries than a failing event is allowed. Its events wait, also a payment, and none is
// dead-lettered. All other events are answered, also those in the same batch, and the consumers do
// not pause.
func TestConsumer_CorruptResource_EventsWait(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "bad") {
			return fmt.Errorf("stock count: %w", holds.ErrCorrupt)
		}
		return nil
	})
	const number = 30
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("bad%d", i)))
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`","payment_id":"bad-payment"}`))
	b.await("all others' outcomes", func() bool { return len(b.out) == number })
	stacktest.Eventually(t, "more deliveries than failuresMax", func() bool {
		return b.decidedCount("bad0") > failuresMax && b.decidedCount("bad-payment") > failuresMax
	})
	for _, c := range b.workers {
		if c.Paused() {
			t.Errorf("consumer %s pauses", c.name)
		}
	}
	b.setFault(nil)
	b.await("all outcomes", func() bool { return len(b.out) == 2*number+1 })
	if len(b.dlq) > 0 {
		t.Errorf("%d dead letters", len(b.dlq))
	}
}

// TestConsumer_SameIDFromTwoSources_BothAnswered publishes events of two sources with the same
// event id and the same Nats-Msg-Id, to a stream that was created with the server's default
// duplicate window. Both have an outcome.
func TestConsumer_SameIDFromTwoSources_BothAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	updateStream(t, b.js, b.ns.InStream(), func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute })
	setup(t, b.js, b.ns)
	stream := streamOf(t, b.js, b.ns.InStream())
	if window := stream.CachedInfo().Config.Duplicates; window > time.Second {
		t.Fatalf("the duplicate window is still %v", window)
	}
	event := func(source string) *nats.Msg {
		m := nats.NewMsg(b.ns.In(BookingRequested, "room"))
		m.Data = []byte(`{"specversion":"1.0","id":"1","source":"` + source + `","type":"holdfast.booking.requested.v1",` +
			`"data":{"request_key":"` + source + `","user_id":"u","resource_id":"room","quantity":1}}`)
		m.Header.Set(headerMsgID, "1")
		return m
	}
	if _, err := b.js.PublishMsg(t.Context(), event("/one")); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the duplicate window to end", func() bool {
		ack, err := b.js.PublishMsg(t.Context(), event("/other"))
		if err != nil {
			t.Fatal(err)
		}
		return !ack.Duplicate
	})
	b.await("an outcome of each", func() bool { return len(b.out) == 2 })
	if b.decidedCount("/one") == 0 || b.decidedCount("/other") == 0 {
		t.Errorf("decided: %d of one source, %d of the other", b.decidedCount("/one"), b.decidedCount("/other"))
	}
}
