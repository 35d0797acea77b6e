package telemetry

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Set is a set of metrics. It implements metric.Producer, by which a reader of the SDK collects
// them; the SDK itself is linked only into the worker.
type Set struct {
	began time.Time

	mu       sync.Mutex
	families []func(now time.Time) metricdata.Metrics
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{began: time.Now()} }

// Produce implements metric.Producer.
func (s *Set) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	s.mu.Lock()
	families := slices.Clone(s.families)
	s.mu.Unlock()
	now := time.Now()
	metrics := make([]metricdata.Metrics, len(families))
	for i, collect := range families {
		metrics[i] = collect(now)
	}
	return []metricdata.ScopeMetrics{{Scope: instrumentation.Scope{Name: scope}, Metrics: metrics}}, nil
}

// definition describes a metric. The name and the unit follow the conventions of OpenTelemetry: the
// exporter writes dots as underscores and appends the unit, and _total to a counter.
type definition struct {
	name, unit, meaning string
	labels              []string
}

// Vec has a series for each combination of values of its labels.
type Vec[S any] struct {
	definition
	create func() *S

	mu     sync.RWMutex
	series map[string]*S
	order  []point[S]
}

type point[S any] struct {
	labels attribute.Set
	series *S
}

// addVec adds a metric to a set. data returns its series as they are now.
func addVec[S any](
	s *Set, d definition, create func() *S, data func(all []point[S], now time.Time) metricdata.Aggregation,
) *Vec[S] {
	v := &Vec[S]{definition: d, create: create, series: make(map[string]*S)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families = append(s.families, func(now time.Time) metricdata.Metrics {
		v.mu.RLock()
		defer v.mu.RUnlock()
		return metricdata.Metrics{Name: d.name, Description: d.meaning, Unit: d.unit, Data: data(v.order, now)}
	})
	return v
}

// With returns the series with these values of the labels, in their order, and creates it with zero
// when it does not exist. Values must come from a bounded set: they are never ids.
func (v *Vec[S]) With(values ...string) *S {
	key := strings.Join(values, "\x00")
	v.mu.RLock()
	found := v.series[key]
	v.mu.RUnlock()
	if found != nil {
		return found
	}
	if len(values) != len(v.labels) {
		panic(fmt.Sprintf("metric %s has the labels %v, not %d values", v.name, v.labels, len(values)))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if found = v.series[key]; found == nil {
		found = v.create()
		labels := make([]attribute.KeyValue, len(values))
		for i, value := range values {
			labels[i] = attribute.String(v.labels[i], value)
		}
		v.series[key] = found
		v.order = append(v.order, point[S]{attribute.NewSet(labels...), found})
	}
	return found
}

// Counter is a number that only grows.
type Counter struct{ n atomic.Int64 }

// Add adds n, which is not negative.
func (c *Counter) Add(n int) { c.n.Add(int64(n)) }

// Value returns the sum so far.
func (c *Counter) Value() int64 { return c.n.Load() }

// Counters adds a counter to the set.
func (s *Set) Counters(name, unit, meaning string, labels ...string) *Vec[Counter] {
	return addVec(s, definition{name, unit, meaning, labels}, func() *Counter { return new(Counter) },
		func(all []point[Counter], now time.Time) metricdata.Aggregation {
			return sumOf(numbers(all, s.began, now, (*Counter).Value))
		})
}

// Gauge is a number that was measured last.
type Gauge struct{ bits atomic.Uint64 }

// Set stores the number.
func (g *Gauge) Set(value float64) { g.bits.Store(math.Float64bits(value)) }

// Value returns the number that was stored last, 0 before the first.
func (g *Gauge) Value() float64 { return math.Float64frombits(g.bits.Load()) }

func numbers[S any, N int64 | float64](
	all []point[S], began, now time.Time, value func(*S) N,
) []metricdata.DataPoint[N] {
	points := make([]metricdata.DataPoint[N], len(all))
	for i, p := range all {
		points[i] = metricdata.DataPoint[N]{Attributes: p.labels, StartTime: began, Time: now, Value: value(p.series)}
	}
	return points
}

func sumOf[N int64 | float64](points []metricdata.DataPoint[N]) metricdata.Sum[N] {
	return metricdata.Sum[N]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: true, DataPoints: points}
}

// Gauges adds a gauge to the set.
func (s *Set) Gauges(name, unit, meaning string, labels ...string) *Vec[Gauge] {
	return addVec(s, definition{name, unit, meaning, labels}, func() *Gauge { return new(Gauge) },
		func(all []point[Gauge], now time.Time) metricdata.Aggregation {
			return metricdata.Gauge[float64]{DataPoints: numbers(all, s.began, now, (*Gauge).Value)}
		})
}

// Totals adds a counter to the set whose sums another component keeps: Set stores the sum so far.
func (s *Set) Totals(name, unit, meaning string, labels ...string) *Vec[Gauge] {
	return addVec(s, definition{name, unit, meaning, labels}, func() *Gauge { return new(Gauge) },
		func(all []point[Gauge], now time.Time) metricdata.Aggregation {
			return sumOf(numbers(all, s.began, now, (*Gauge).Value))
		})
}

// Histogram counts values by bucket.
type Histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds
	sum    atomic.Uint64   // the bits of a float64
}

// Record counts a value.
func (h *Histogram) Record(value float64) {
	bucket, _ := slices.BinarySearch(h.bounds, value) // a bucket includes its upper bound
	h.counts[bucket].Add(1)
	for {
		before := h.sum.Load()
		if h.sum.CompareAndSwap(before, math.Float64bits(math.Float64frombits(before)+value)) {
			return
		}
	}
}

// Counts returns the numbers of values by bucket; the last one has no upper bound.
func (h *Histogram) Counts() []uint64 {
	counts := make([]uint64, len(h.counts))
	for i := range h.counts {
		counts[i] = h.counts[i].Load()
	}
	return counts
}

// Histograms adds a histogram to the set. The bounds of its buckets ascend.
func (s *Set) Histograms(name, unit, meaning string, bounds []float64, labels ...string) *Vec[Histogram] {
	create := func() *Histogram {
		return &Histogram{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
	}
	return addVec(s, definition{name, unit, meaning, labels}, create,
		func(all []point[Histogram], now time.Time) metricdata.Aggregation {
			histogram := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
			for _, p := range all {
				one := metricdata.HistogramDataPoint[float64]{
					Attributes: p.labels, StartTime: s.began, Time: now,
					Bounds: bounds, BucketCounts: p.series.Counts(), Sum: math.Float64frombits(p.series.sum.Load()),
				}
				for _, n := range one.BucketCounts {
					one.Count += n
				}
				histogram.DataPoints = append(histogram.DataPoints, one)
			}
			return histogram
		})
}
