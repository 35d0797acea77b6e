package events

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
	"holdfast/internal/telemetry"
)

func TestInboundEvent_EverySubject_IsKnownOrOther(t *testing.T) {
	t.Parallel()
	ns := Namespace("shop")
	for event := range decoders {
		if got := ns.inboundEvent(ns.In(event, "loft")); got != event {
			t.Errorf("%s has the event %q", ns.In(event, "loft"), got)
		}
	}
	for _, subject := range []string{"", "shop", "shop.in", "shop.in.", "shop.in.x", "shop.in.booking.made.loft", "a.b.c.d"} {
		if got := ns.inboundEvent(subject); got != otherEvent {
			t.Errorf("%q has the event %q", subject, got)
		}
	}
}

// BenchmarkMetrics_OneEvent measures what the metrics cost an event, in batches of 32.
func BenchmarkMetrics_OneEvent(b *testing.B) {
	set := telemetry.NewSet()
	ns := Namespace("shop")
	c := &Consumer{
		name: ConsumerRequests, ns: ns, process: &Process{Metrics: NewMetrics(set, holds.NewMetrics(set))},
	}
	batch := make([]*delivery, 32)
	for i := range batch {
		batch[i] = &delivery{
			msg:     &nats.Msg{Subject: ns.In(BookingRequested, "loft")},
			meta:    &nats.MsgMetadata{Timestamp: time.Now(), NumDelivered: 1},
			fetched: time.Now(),
			result:  holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldCreated, Data: holds.HoldCreated{}}},
		}
	}
	for b.Loop() {
		decoded := c.measure(stageDecode, len(batch))
		decoded()
		c.received(batch)
		decided := c.measure(stageDecide, len(batch))
		decided()
		published := c.measure(stagePublish, len(batch))
		for _, d := range batch {
			c.answered(&pendingMsg{delivery: d, message: &nats.Msg{}})
		}
		published()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/event")
}
