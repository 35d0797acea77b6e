package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
	"holdfast/internal/store"
	"holdfast/internal/telemetry"
	"holdfast/internal/version"
)

// How often the observer measures, and how long one measurement may take. A scrape reads only what
// was measured last, so it costs the servers nothing however often it comes.
const (
	observeEach   = 10 * time.Second
	observeWithin = 3 * time.Second
)

// The values of labels.
const (
	serverRedis, serverPostgres = "redis", "postgres"
	poolRedis, poolPostgres     = serverRedis, serverPostgres
	poolUsed, poolIdle          = "used", "idle"
)

// notReadyReasons are the reasons of /readyz.
var notReadyReasons = []string{"redis", "postgres", "nats", "paused", "rebuilding"}

// observer measures what only a request to a server can show, and what other components count, for
// the metrics.
type observer struct {
	server *server
	redis  redis.UniversalClient
	clock  func(context.Context) (holds.Time, error) // of Redis
	store  *store.Store
	holds  *holds.Metrics
	log    zerolog.Logger
	parts  []part

	ready, policyMismatch, notifications *telemetry.Gauge
	partitions, eviction                 *telemetry.Gauge
	notReady, paused, operatorPaused     *telemetry.Vec[telemetry.Gauge]
	skew                                 *telemetry.Vec[telemetry.Gauge]
	connections, connectionsMax          *telemetry.Vec[telemetry.Gauge]
	waits, waited, timeouts              *telemetry.Vec[telemetry.Gauge]
	failures                             *telemetry.Vec[telemetry.Counter]
	failing                              map[string]bool // the parts whose last failure was logged
}

// part is a part of what the observer measures: the label part.
type part struct {
	name    string
	measure func(context.Context) error
}

func newObserver(
	s *server, q *reader, r redis.UniversalClient, db *store.Store, js jetstream.JetStream, ns events.Namespace,
	set *telemetry.Set, m *holds.Metrics, log zerolog.Logger,
) *observer {
	x := &observer{server: s, redis: r, clock: q.Now, store: db, holds: m, log: log, failing: make(map[string]bool)}
	x.register(set)
	watch := events.NewWatch(js, ns, set, x.skew.With(events.ClockNATS))
	x.parts = []part{
		{"ready", x.observeReady},
		{"streams", watch.Observe},
		{"clocks", x.observeClocks},
		{"pools", func(ctx context.Context) error { x.observeRedisPool(ctx); x.observePostgresPool(); return nil }},
		{"holds", holds.NewCensus(q.Service, m).Step},
	}
	x.failures = set.Counters("holdfast.observe.failures", "{failure}",
		"Measurements that have failed. The metrics of the part keep their last values.", "part")
	for _, p := range x.parts {
		x.failures.With(p.name)
	}
	return x
}

// register adds the metrics that the observer itself measures.
func (x *observer) register(set *telemetry.Set) {
	x.ready = set.Gauges("holdfast.ready", "", "1 while /readyz answers 200.").With()
	gauges := func(name, unit, help, label string, values ...string) *telemetry.Vec[telemetry.Gauge] {
		v := set.Gauges(name, unit, help, label)
		for _, value := range values {
			v.With(value) // 0 until it is measured
		}
		return v
	}
	x.notReady = gauges("holdfast.not_ready", "", "1 while /readyz gives this reason.", "reason", notReadyReasons...)
	x.partitions = set.Gauges("holdfast.partitions.ready", "{partition}",
		fmt.Sprintf("Partitions of Redis, of %d, in which this worker decides. It waits for the others to be rebuilt.",
			record.Partitions)).With()
	x.paused = gauges("holdfast.consumer.paused", "",
		"1 while the consumer waits for an outage to end, or is paused by an operator.", "consumer", consumerNames...)
	x.operatorPaused = gauges("holdfast.consumer.paused_by_operator", "",
		"1 while the consumer is paused by an operator (worker pause).", "consumer", consumerNames...)
	x.policyMismatch = set.Gauges("holdfast.policy.mismatch", "",
		"1 while a setting of this worker differs from the stored policy, which applies.").With()
	x.eviction = set.Gauges("holdfast.redis.eviction", "",
		"1 while Redis evicts keys when its memory is full, or has evicted some since the last rebuild.").With()
	x.notifications = set.Gauges("holdfast.keyspace_notifications", "",
		"1 while keyspace notifications arrive. Without them the timer alone starts the sweep.").With()
	x.skew = gauges("holdfast.clock.skew", "s",
		"How far the clock of a server is ahead of this machine's (negative: behind). Holds expire by Redis' clock.",
		"server", serverRedis, serverPostgres, events.ClockNATS)
	x.connections = set.Gauges("holdfast.pool.connections", "{connection}",
		"Connections of a pool. That of Redis has those for pipelines too.", "pool", "state")
	x.connectionsMax = set.Gauges("holdfast.pool.connections.max", "{connection}", "Most connections of a pool.", "pool")
	x.waits = set.Totals("holdfast.pool.waits", "{wait}", "Requests that had to wait for a connection of a pool.", "pool")
	x.waited = set.Totals("holdfast.pool.wait", "s", "Time that requests have waited for a connection of a pool.", "pool")
	x.timeouts = set.Totals("holdfast.pool.timeouts", "{wait}",
		"Requests that got no connection of a pool in time.", "pool")
	for _, pool := range []string{poolRedis, poolPostgres} {
		x.connections.With(pool, poolUsed)
		x.connections.With(pool, poolIdle)
		for _, v := range []*telemetry.Vec[telemetry.Gauge]{x.connectionsMax, x.waits, x.waited, x.timeouts} {
			v.With(pool)
		}
	}
	build := set.Gauges("holdfast.build.info", "", "1. The labels are the version of this worker.", "revision", "go_version")
	build.With(version.Revision(), runtime.Version()).Set(1)
}

// run measures every observeEach until ctx is cancelled.
func (x *observer) run(ctx context.Context) error {
	x.runOnce(ctx)
	every(ctx, observeEach, func() { x.runOnce(ctx) })
	return nil
}

// runOnce measures all parts. A part that fails is retried at the next tick; its failure is logged
// when it begins.
func (x *observer) runOnce(ctx context.Context) {
	for _, p := range x.parts {
		measuring, cancel := context.WithTimeout(ctx, observeWithin)
		err := p.measure(measuring)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			x.failures.With(p.name).Add(1)
			if !x.failing[p.name] {
				x.log.Debug().Err(err).Str("part", p.name).Msg("measurement failed, will retry")
			}
		}
		x.failing[p.name] = err != nil
	}
}

func gaugeOf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (x *observer) observeReady(ctx context.Context) error {
	ready := x.server.check(ctx)
	x.ready.Set(gaugeOf(ready.Ready))
	x.partitions.Set(float64(x.server.term.Current().Ready.Len()))
	for _, reason := range notReadyReasons {
		_, because := ready.Details[reason]
		x.notReady.With(reason).Set(gaugeOf(because))
	}
	for i, consumer := range x.server.consumers {
		byOperator := consumer.OperatorPause() != nil
		x.paused.With(consumerNames[i]).Set(gaugeOf(consumer.Paused() || byOperator))
		x.operatorPaused.With(consumerNames[i]).Set(gaugeOf(byOperator))
	}
	x.policyMismatch.Set(gaugeOf(ready.Details["policy_mismatch"] != ""))
	x.eviction.Set(gaugeOf(ready.Details["redis_eviction"] != ""))
	x.notifications.Set(gaugeOf(x.server.expirer.NotificationError() == nil))
	return nil
}

// observeClocks compares the clocks of Redis and Postgres with this machine's.
func (x *observer) observeClocks(ctx context.Context) error {
	// In a cluster this is the clock that is the most behind, as far as the servers answer.
	sent := time.Now()
	read, err := x.clock(ctx)
	if err != nil {
		return err
	}
	now := read.Time
	x.skew.With(serverRedis).Set(events.CertainSkew(sent, time.Now(), now).Seconds())
	x.holds.ObserveAges(now)
	sent = time.Now()
	if now, err = x.store.Clock(ctx); err != nil {
		return err
	}
	x.skew.With(serverPostgres).Set(events.CertainSkew(sent, time.Now(), now).Seconds())
	return nil
}

// pipelinesMax returns the most connections of a client that are for pipelines only. go-redis has a pool of
// its own for them, beside the one of PoolSize.
func pipelinesMax(o *redis.Options) int {
	return max(cmp.Or(o.PipelinePoolSize, redis.DefaultPipelinePoolSize), 0)
}

// observeRedisPool measures the connections to Redis for commands and those for pipelines, as one pool.
func (x *observer) observeRedisPool(ctx context.Context) {
	r := *x.redis.PoolStats()
	if p := r.PipelineStats; p != nil {
		r.TotalConns, r.IdleConns = r.TotalConns+p.TotalConns, r.IdleConns+p.IdleConns
		r.WaitCount, r.WaitDurationNs = r.WaitCount+p.WaitCount, r.WaitDurationNs+p.WaitDurationNs
		r.Timeouts += p.Timeouts
	}
	x.connections.With(poolRedis, poolUsed).Set(float64(r.TotalConns - r.IdleConns))
	x.connections.With(poolRedis, poolIdle).Set(float64(r.IdleConns))
	x.waits.With(poolRedis).Set(float64(r.WaitCount))
	x.waited.With(poolRedis).Set(time.Duration(r.WaitDurationNs).Seconds())
	x.timeouts.With(poolRedis).Set(float64(r.Timeouts))
	primaries, err := lua.Primaries(ctx, x.redis) // each has its own pools
	if err != nil {
		return // the metric keeps its value
	}
	options := primaries[0].Options()
	x.connectionsMax.With(poolRedis).Set(float64(len(primaries) * (options.PoolSize + pipelinesMax(options))))
}

// observePostgresPool measures the pool of connections to Postgres.
func (x *observer) observePostgresPool() {
	p := x.store.PoolStats()
	x.connections.With(poolPostgres, poolUsed).Set(float64(p.AcquiredConns()))
	x.connections.With(poolPostgres, poolIdle).Set(float64(p.IdleConns()))
	x.connectionsMax.With(poolPostgres).Set(float64(p.MaxConns()))
	x.waits.With(poolPostgres).Set(float64(p.EmptyAcquireCount()))
	x.waited.With(poolPostgres).Set(p.EmptyAcquireWaitTime().Seconds())
	x.timeouts.With(poolPostgres).Set(float64(p.CanceledAcquireCount()))
}

// queryBounds are in seconds.
var queryBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}

// queryMetrics are the metrics of queries by HTTP.
type queryMetrics struct {
	answers  *telemetry.Vec[telemetry.Counter]
	duration *telemetry.Vec[telemetry.Histogram]
}

func newQueryMetrics(set *telemetry.Set) *queryMetrics {
	m := &queryMetrics{
		answers: set.Counters("holdfast.queries", "{query}", "Queries by HTTP, by route and status of the answer.",
			"route", "status"),
		duration: set.Histograms("holdfast.query.duration", "s", "Time to answer a query by HTTP.", queryBounds, "route"),
	}
	for _, q := range apiQueries {
		m.duration.With(q.route)
		for _, status := range []int{
			http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusServiceUnavailable,
		} {
			m.answers.With(q.route, strconv.Itoa(status))
		}
	}
	return m
}

// answered records the answer to a query.
func (m *queryMetrics) answered(r *http.Request, status int, took time.Duration) {
	_, route, _ := strings.Cut(r.Pattern, " ") // without the method
	m.answers.With(route, strconv.Itoa(status)).Add(1)
	m.duration.With(route).Record(took.Seconds())
}
