package events

import (
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/telemetry"
)

// The stages of an event: the label stage. Locks are measured by package locking.
const (
	stageFetch   = "fetch"   // stored, until fetched; of the oldest event of a batch
	stageQueue   = "queue"   // fetched, until a lane decides it; of the oldest event of a batch
	stageDecode  = "decode"  // of a batch
	stageDecide  = "decide"  // of a batch, with its locks
	stagePublish = "publish" // of a batch, until all outcomes are stored
)

// otherEvent is the label event of what is not an inbound event.
const otherEvent = "other"

// The bounds of the histograms, in seconds and in events.
var (
	latencyBounds = []float64{
		0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
	}
	batchBounds = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}
)

// retryReasons are the label reason of events that are delivered again.
var retryReasons = map[disposition]string{
	dispositionRetrySoon: "busy", dispositionPause: "outage", dispositionDefer: "corrupt",
	dispositionDeferLost: "rebuilding", dispositionDeferShard: "outage", dispositionRetryCounted: "failed",
}

// Metrics are the metrics of the consumers of a process. A nil *Metrics records nothing.
type Metrics struct {
	holds       *holds.Metrics
	received    *telemetry.Vec[telemetry.Counter]   // by inbound event
	latency     *telemetry.Vec[telemetry.Histogram] // likewise
	redelivered *telemetry.Counter
	retried     *telemetry.Vec[telemetry.Counter]
	dead        *telemetry.Vec[telemetry.Counter]
	stages      *telemetry.Vec[telemetry.Histogram]
	batches     *telemetry.Vec[telemetry.Histogram]
}

// NewMetrics adds the metrics to a set.
func NewMetrics(set *telemetry.Set, h *holds.Metrics) *Metrics {
	m := &Metrics{
		holds: h,
		received: set.Counters("holdfast.events.received", "{event}",
			"Events that this worker has taken to decide them, each delivery counted.", "event"),
		latency: set.Histograms("holdfast.event.latency", "s",
			"Time from the storage of an event in JetStream until its outcome or dead letter was stored.", latencyBounds, "event"),
		redelivered: set.Counters("holdfast.events.redelivered", "{event}",
			"Received events that had been delivered before.").With(),
		retried: set.Counters("holdfast.events.retried", "{event}",
			"Events without an outcome that are delivered again: busy (other work on the same slots), outage (of a "+
				"server), corrupt (data of the resource), rebuilding (its partition of Redis, while others are complete), failed (by its own fault, at most 5 times).",
			"reason"),
		dead: set.Counters("holdfast.events.dead_lettered", "{event}",
			"Events that this worker has moved to the stream of dead letters.", "reason"),
		stages: set.Histograms("holdfast.stage.duration", "s",
			"Time of a stage of a batch: fetch (stored, until fetched) and queue (fetched, until decided) of "+
				"its oldest event, decode, decide (with locks), publish (until stored).",
			latencyBounds, "consumer", "stage"),
		batches: set.Histograms("holdfast.batch.size", "{event}", "Events in a batch of a stage.", batchBounds,
			"consumer", "stage"),
	}
	for _, event := range append(slices.Collect(maps.Keys(decoders)), otherEvent) {
		m.received.With(event)
		m.latency.With(event)
	}
	for _, reason := range retryReasons {
		m.retried.With(reason)
	}
	for _, reason := range DeadLetterReasons() {
		m.dead.With(reason)
	}
	for _, consumer := range ConsumerNames() {
		for _, stage := range []string{stageFetch, stageQueue, stageDecode, stageDecide, stagePublish} {
			m.stages.With(consumer, stage)
		}
		for _, stage := range []string{stageDecode, stageDecide, stagePublish} {
			m.batches.With(consumer, stage)
		}
	}
	return m
}

// inboundEvent returns the event of an inbound subject, otherEvent when it is not one of
// Holdfast's.
func (ns Namespace) inboundEvent(subject string) string {
	event := subject[min(len(subject), len(ns)+len(".in.")):]
	event = event[:max(0, strings.LastIndexByte(event, '.'))]
	if _, known := decoders[event]; known {
		return event
	}
	return otherEvent
}

// received records a batch of a lane that is about to be decided.
func (c *Consumer) received(batch []*delivery) {
	m := c.process.Metrics
	if m == nil {
		return
	}
	now, fetched, stored := time.Now(), batch[0].fetched, time.Time{}
	for _, d := range batch {
		m.received.With(c.ns.inboundEvent(d.msg.Subject)).Add(1)
		if d.meta.NumDelivered > 1 {
			m.redelivered.Add(1)
		} else if stored.IsZero() || d.meta.Timestamp.Before(stored) {
			stored = d.meta.Timestamp
		}
		if d.fetched.Before(fetched) {
			fetched = d.fetched
		}
	}
	if !stored.IsZero() {
		m.stages.With(c.name, stageFetch).Record(max(0, fetched.Sub(stored).Seconds()))
	}
	m.stages.With(c.name, stageQueue).Record(now.Sub(fetched).Seconds())
}

// measure records the size of a batch, and returns a function that records the time since.
func (c *Consumer) measure(stage string, events int) (done func()) {
	m := c.process.Metrics
	if m == nil || events == 0 {
		return func() {}
	}
	began := time.Now()
	m.batches.With(c.name, stage).Record(float64(events))
	return func() { m.stages.With(c.name, stage).Record(time.Since(began).Seconds()) }
}

// failed records that an event has an error instead of an outcome.
func (c *Consumer) failed(d disposition) {
	if m, reason := c.process.Metrics, retryReasons[d]; m != nil && reason != "" {
		m.retried.With(reason).Add(1)
	}
}

// answered records an event whose outcome or dead letter is stored.
func (c *Consumer) answered(s *pendingMsg) {
	if s.dead {
		s.endTrace("dead letter")
	} else {
		s.endTrace(s.result.Outcome.Event)
	}
	m := c.process.Metrics
	if m == nil {
		return
	}
	m.latency.With(c.ns.inboundEvent(s.msg.Subject)).Record(max(0, time.Since(s.meta.Timestamp).Seconds()))
	if s.dead {
		m.dead.With(s.message.Header.Get(HeaderDLQReason)).Add(1)
	} else {
		m.holds.Published(s.result.Outcome)
	}
}
