package events

import (
	"context"

	"holdfast/internal/telemetry"
)

// traceDecision begins the spans of the sampled events of a batch, and the span of their decision,
// under which the requests to Redis and Postgres are recorded. Call done when the batch is decided.
func (c *Consumer) traceDecision(ctx context.Context, batch []*delivery) (traced context.Context, done func()) {
	if c.process.Tracer == nil {
		return ctx, func() {}
	}
	var spans []*telemetry.Span
	for _, d := range batch {
		d.span = c.process.Tracer.Event(d.in.TraceParent, "process "+d.in.Event, d.fetched)
		if d.span != nil {
			d.span.Set("messaging.system", "nats")
			d.span.Set("messaging.destination.name", d.msg.Subject)
			d.span.Set("messaging.message.id", d.in.ID)
			spans = append(spans, d.span)
		}
	}
	ctx, span := c.process.Tracer.Batch(ctx, "decide "+c.name, spans)
	return ctx, func() { span.End(nil) }
}

// endTrace ends the span of an event: with its outcome, as a dead letter, or without an outcome
// when it is delivered again. What is not decided, because it cannot be read, has no span.
func (d *delivery) endTrace(outcome string) {
	if d.span == nil {
		return
	}
	d.span.Set("holdfast.outcome", outcome)
	if d.result.Err == nil {
		d.span.Set("holdfast.reason", d.result.Outcome.Reason())
		d.span.Set("holdfast.hold_id", d.result.Outcome.Hold.String())
	}
	d.span.End(d.result.Err)
}
