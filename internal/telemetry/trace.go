package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of what records the metrics and the spans.
const scope = "holdfast"

// Tracer records spans of events. It records an event only if its publisher has sampled it: the
// header traceparent says so. A nil *Tracer records nothing.
type Tracer struct{ tracer trace.Tracer }

// NewTracer returns a Tracer that gives its spans to a provider.
func NewTracer(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(scope)} }

// Span is a piece of work in a trace. A nil *Span does nothing.
type Span struct{ span trace.Span }

// Event begins the span of an event whose header has this traceparent, at the time began. It
// returns nil when the event is not sampled.
func (t *Tracer) Event(traceparent, name string, began time.Time) *Span {
	if t == nil || traceparent == "" {
		return nil
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer))
	return &Span{span}
}

// Batch begins the span of work for several events: a child of the first span, with links to the
// others. It returns ctx unchanged and nil when there is none.
func (t *Tracer) Batch(ctx context.Context, name string, of []*Span) (context.Context, *Span) {
	if t == nil || len(of) == 0 {
		return ctx, nil
	}
	links := make([]trace.Link, len(of)-1)
	for i, s := range of[1:] {
		links[i].SpanContext = s.span.SpanContext()
	}
	ctx, span := t.tracer.Start(trace.ContextWithSpan(ctx, of[0].span), name, trace.WithLinks(links...))
	return ctx, &Span{span}
}

// Call begins the span of a request to a server, as a child of the span in ctx. It returns ctx
// unchanged and nil when ctx has none.
func Call(ctx context.Context, system, name string) (context.Context, *Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("db.system.name", system)))
	return ctx, &Span{span}
}

// Set adds an attribute.
func (s *Span) Set(name, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// End ends the span, with an error if err is not nil.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}
