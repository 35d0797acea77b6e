package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/fx"

	"holdfast/internal/telemetry"
	"holdfast/internal/version"
)

// tracesWithin bounds how long a stop waits until the last spans are sent.
const tracesWithin = time.Second

// provideTracer returns the tracer, nil when no endpoint is set. It sends spans by OTLP over HTTP;
// the variables OTEL_EXPORTER_OTLP_* set headers, timeouts and certificates. At most 2,048 spans
// wait in memory: while the endpoint does not answer, more are dropped.
func provideTracer(lc fx.Lifecycle, c Config, log zerolog.Logger) (*telemetry.Tracer, error) {
	if c.OTLPEndpoint == "" {
		return nil, nil //nolint:nilnil // a nil Tracer records nothing
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("traces not sent") }))
	exporter, err := otlptracehttp.New(context.Background(),
		otlptracehttp.WithEndpointURL(strings.TrimSuffix(c.OTLPEndpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "holdfast-worker"), attribute.String("service.namespace", c.Namespace),
			attribute.String("service.instance.id", workerName()), attribute.String("service.version", version.Revision()),
		)))
	lc.Append(fx.StopHook(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, tracesWithin)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn().Err(err).Msg("last traces not sent")
		}
	}))
	return telemetry.NewTracer(provider), nil
}

// redisTrace records round trips to Redis as spans, of those whose context has one. Keys and
// arguments are not recorded.
type redisTrace struct{}

// DialHook implements redis.Hook.
func (redisTrace) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (redisTrace) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, span := telemetry.Call(ctx, "redis", "redis")
		span.Set("db.operation.name", cmd.FullName())
		err := next(ctx, cmd)
		span.End(err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (redisTrace) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, span := telemetry.Call(ctx, "redis", "redis")
		span.Set("db.operation.name", "PIPELINE")
		err := next(ctx, cmds)
		span.End(err)
		return err
	}
}
