package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/fx"
	"golang.org/x/net/http/httpguts"

	"holdfast/internal/telemetry"
	"holdfast/internal/version"
)

// tracesWithin bounds how long a stop waits until the last spans are sent.
const tracesWithin = time.Second

// headerVariables are the variables with which the exporter sends headers, each a list of key=value.
var headerVariables = []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}

// tracesURL returns where spans are sent, "" when there are no traces.
func (o *Operations) tracesURL() string {
	if o.OTLPTraces != "" || o.OTLPEndpoint == "" {
		return o.OTLPTraces
	}
	return strings.TrimSuffix(o.OTLPEndpoint, "/") + "/v1/traces"
}

// checkTraces returns a usage error when an endpoint or the headers of traces cannot be used. The
// error names the variable, and not what it contains: that may be a password.
func (o *Operations) checkTraces() error {
	if o.tracesURL() == "" {
		return nil
	}
	if o.OTLPEndpoint != "" && !isReceiver(o.OTLPEndpoint) {
		return misused("--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT) must be a URL such as http://collector:4318 or https://collector, " +
			"without user and query: OTEL_EXPORTER_OTLP_HEADERS has a login")
	}
	if o.OTLPTraces != "" && !isReceiver(o.OTLPTraces) {
		return misused("--otlp-traces-endpoint (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) must be a URL such as http://collector:4318/v1/traces, " +
			"without user and query: OTEL_EXPORTER_OTLP_TRACES_HEADERS has a login")
	}
	for _, variable := range headerVariables {
		if !areHeaders(strings.TrimSpace(os.Getenv(variable))) {
			return misused("%s must be key=value pairs, separated by commas, with percent-encoded values", variable)
		}
	}
	return nil
}

// isReceiver reports whether the exporter can use all parts of a URL. It would drop a user and a query. With an @ in the path,
// the host begins a login, and the exporter's errors would contain it.
func isReceiver(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == "" && !strings.Contains(u.Path, "@")
}

// areHeaders reports whether the exporter can parse a list of headers. An empty one has none.
func areHeaders(list string) bool {
	for header := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(header) == "" { // the exporter skips it
			continue
		}
		name, value, found := strings.Cut(header, "=")
		if _, err := url.PathUnescape(value); err != nil || !found || !httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) {
			return false
		}
	}
	return true
}

// settingLog logs which setting the exporter cannot use. It drops the error and the values that come
// with it: they contain the setting, which may be a password.
type settingLog struct {
	logr.LogSink // drops everything else
	log          zerolog.Logger
}

// Error implements logr.LogSink. step is a constant, such as "parse duration".
func (s settingLog) Error(_ error, step string, _ ...any) {
	s.log.Warn().Str("setting", step).Msg("setting of traces ignored")
}

// provideTracer returns the tracer, nil when no endpoint is set. It sends spans by OTLP over HTTP;
// the variables OTEL_EXPORTER_OTLP_* set headers, timeouts and certificates. At most 2,048 spans
// wait in memory: while the endpoint does not answer, more are dropped.
func provideTracer(lc fx.Lifecycle, c Config, log zerolog.Logger) (*telemetry.Tracer, error) {
	if c.tracesURL() == "" {
		return nil, nil //nolint:nilnil // a nil Tracer records nothing
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("traces not sent") }))
	dropped := funcr.New(func(string, string) {}, funcr.Options{})
	otel.SetLogger(logr.New(settingLog{dropped.GetSink(), log}))
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(c.tracesURL()))
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
func (redisTrace) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (redisTrace) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return traced(ctx, cmd.FullName(), func(ctx context.Context) error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements redis.Hook.
func (redisTrace) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return traced(ctx, "PIPELINE", func(ctx context.Context) error { return next(ctx, cmds) })
	}
}

func traced(ctx context.Context, operation string, call func(context.Context) error) error {
	ctx, span := telemetry.Call(ctx, "redis", "redis")
	span.Set("db.operation.name", operation)
	err := call(ctx)
	span.End(err)
	return err
}
