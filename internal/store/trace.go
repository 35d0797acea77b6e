package store

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/telemetry"
)

// queryTracer records queries as spans, of those whose context has one.
type queryTracer struct{}

type spanKey struct{}

// TraceQueryStart implements pgx.QueryTracer. The span is named postgres. Its attribute db.operation.name is
// the first word of the statement; the statement and its arguments are not recorded.
func (queryTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	ctx, span := telemetry.Call(ctx, "postgresql", "postgres")
	if span == nil {
		return ctx
	}
	span.Set("db.operation.name", verbOf(q.SQL))
	return context.WithValue(ctx, spanKey{}, span)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (queryTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if span, traced := ctx.Value(spanKey{}).(*telemetry.Span); traced {
		span.End(q.Err)
	}
}

// verbOf returns the first word of a statement that is no comment.
func verbOf(sql string) string {
	for line := range strings.Lines(sql) {
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "--") {
			return strings.ToUpper(words[0])
		}
	}
	return ""
}
