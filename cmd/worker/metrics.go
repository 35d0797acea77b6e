package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/fx"

	"holdfast/internal/locking"
	"holdfast/internal/telemetry"
)

// provideMetrics returns the registry behind /metrics, and the set of metrics that it collects.
func provideMetrics(lc fx.Lifecycle) (*prometheus.Registry, *telemetry.Set, error) {
	registry, set := prometheus.NewRegistry(), telemetry.NewSet()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithProducer(set),
		otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo()) // they would add the same labels everywhere
	if err != nil {
		return nil, nil, fmt.Errorf("metrics: %w", err)
	}
	lc.Append(fx.StopHook(sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)).Shutdown))
	return registry, set, nil
}

// lockDurations adds up the histograms called name by size class, over all workers. It returns an
// error when their bounds differ.
func lockDurations(families []*dto.MetricFamily, name string) (map[string]locking.Histogram, error) {
	sums := make(map[string]locking.Histogram)
	for _, m := range metricsOf(families, name) {
		class, one := classOf(m), durationsOf(m.GetHistogram())
		sum, found := sums[class]
		if !found {
			sums[class] = one
			continue
		}
		if !slices.Equal(sum.Bounds, one.Bounds) {
			return nil, fmt.Errorf("the buckets of %s differ between workers (do they run different versions?)", name)
		}
		for i, n := range one.Counts {
			sum.Counts[i] += n
		}
	}
	return sums, nil
}

// lockCounts adds up the counters called name by size class.
func lockCounts(families []*dto.MetricFamily, name string) map[string]float64 {
	sums := make(map[string]float64)
	for _, m := range metricsOf(families, name) {
		sums[classOf(m)] += m.GetCounter().GetValue()
	}
	return sums
}

func metricsOf(families []*dto.MetricFamily, name string) (all []*dto.Metric) {
	for _, family := range families {
		if family.GetName() == name {
			all = append(all, family.GetMetric()...)
		}
	}
	return all
}

func classOf(m *dto.Metric) string {
	for _, label := range m.GetLabel() {
		if label.GetName() == locking.LabelSlots {
			return label.GetValue()
		}
	}
	return ""
}

// durationsOf converts a histogram: the count of a Prometheus bucket includes all lower buckets,
// the count of a locking.Histogram does not. Only the text format has the bucket with the bound
// +Inf.
func durationsOf(h *dto.Histogram) (d locking.Histogram) {
	below := 0.0
	for _, bucket := range h.GetBucket() {
		if math.IsInf(bucket.GetUpperBound(), 1) {
			break
		}
		counted := float64(bucket.GetCumulativeCount())
		d.Bounds, d.Counts = append(d.Bounds, bucket.GetUpperBound()), append(d.Counts, counted-below)
		below = counted
	}
	d.Counts = append(d.Counts, float64(h.GetSampleCount())-below)
	return d
}
