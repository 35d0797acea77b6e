package events

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/stack/stacktest"
)

// TestWatchdog_ConsumersDeleted_AreRecreated deletes the durable consumers while workers run. They
// are recreated, every event is answered, no event that was answered long before is decided again,
// and Setup finds no drift later.
func TestWatchdog_ConsumersDeleted_AreRecreated(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("long-before"))
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "p1", `{"hold_id":"`+holdID+`","payment_id":"p1"}`))
	b.publish(b.ns.In(BookingCancelled, "room"), nil, envelopeOf(BookingCancelled, "c1", `{"hold_id":"`+holdID+`"}`))
	b.await("all outcomes", func() bool { return len(b.out) == 3 })
	for i, name := range []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} {
		b.awaitIdle(name)
		stacktest.Eventually(t, "the worker to recreate them", func() bool {
			seen := b.workers[i].floors.Load()
			return seen != nil && seen.of[name] == map[string]uint64{ConsumerRequests: 3, ConsumerChanges: 3, ConsumerPayments: 2}[name]
		})
		if err := b.js.DeleteConsumer(t.Context(), b.ns.InStream(), name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(key))
		b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "p"+key, `{"hold_id":"`+holdID+`","payment_id":"p`+key+`"}`))
	}
	b.await("an outcome of each", func() bool { return len(b.out) == 43 })
	b.mu.Lock()
	carried := readFloors(b.out[42].Headers().Get(headerFloors))
	b.mu.Unlock()
	if created, err := b.workers[0].readInboundCreated(t.Context()); err != nil || carried.on(created, ConsumerPayments) == 0 {
		t.Errorf("%v: the last outcome carries the floors %+v", err, carried)
	}
	if n := b.decidedCount("long-before"); n != 1 {
		t.Errorf("an event that was answered before was decided %d times", n)
	}
	stacktest.Eventually(t, "the third consumer, which has no events", func() bool {
		_, err := b.js.Consumer(t.Context(), b.ns.InStream(), ConsumerChanges)
		return err == nil
	})
	if err := Setup(t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Errorf("Setup after that: %v", err)
	}
	consumer := consumerOf(t, b.js, b.ns, ConsumerRequests)
	if config := consumer.CachedInfo().Config; config.MaxDeliver != -1 || config.AckPolicy != jetstream.AckExplicitPolicy {
		t.Errorf("recreated as %+v", config)
	}
}

// TestWatchdog_RecreateFailsAgain_IsLoggedAgain deletes a durable consumer and the outbound stream, without which it
// cannot be recreated, and does so again after both were repaired.
func TestWatchdog_RecreateFailsAgain_IsLoggedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	for times := 1; times <= 2; times++ {
		for _, err := range []error{
			b.js.DeleteStream(t.Context(), b.ns.OutStream()), b.js.DeleteConsumer(t.Context(), b.ns.InStream(), ConsumerRequests),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		stacktest.Eventually(t, "the failure to be logged", func() bool {
			return len(b.logged.with(t, "consumer deleted, recreate failed (run worker migrate)")) == times
		})
		setup(t, b.js, b.ns)
		for range 2 { // the first check may have begun before
			seen := b.workers[0].floors.Load()
			stacktest.Eventually(t, "a check of the consumers", func() bool { return b.workers[0].floors.Load() != seen })
		}
	}
}
