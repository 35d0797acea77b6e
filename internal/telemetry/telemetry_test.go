package telemetry_test

import (
	"slices"
	"sync"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"holdfast/internal/telemetry"
)

// collect returns the metrics of a set as a reader of the SDK sees them, by name.
func collect(t *testing.T, s *telemetry.Set) map[string]metricdata.Metrics {
	t.Helper()
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(s))
	_ = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]metricdata.Metrics)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

func TestSet_NothingRecorded_EverySeriesIsZero(t *testing.T) {
	t.Parallel()
	s := telemetry.NewSet()
	s.Counters("c", "{event}", "", "kind").With("a")
	s.Gauges("g", "s", "").With()
	s.Histograms("h", "s", "", []float64{1, 2}, "kind").With("a")
	all := collect(t, s)
	counters := all["c"].Data.(metricdata.Sum[int64]).DataPoints
	gauges := all["g"].Data.(metricdata.Gauge[float64]).DataPoints
	histograms := all["h"].Data.(metricdata.Histogram[float64]).DataPoints
	if len(counters) != 1 || counters[0].Value != 0 || len(gauges) != 1 || gauges[0].Value != 0 ||
		len(histograms) != 1 || histograms[0].Count != 0 || len(histograms[0].BucketCounts) != 3 {
		t.Errorf("%v %v %v, want one series of each with zero", counters, gauges, histograms)
	}
}

func TestHistogram_ValuesAtTheBounds_CountBelowThem(t *testing.T) {
	t.Parallel()
	s := telemetry.NewSet()
	h := s.Histograms("h", "s", "", []float64{0.5, 2}).With()
	for _, value := range []float64{0, 0.5, 0.6, 2, 2.1} {
		h.Record(value)
	}
	point := collect(t, s)["h"].Data.(metricdata.Histogram[float64]).DataPoints[0]
	if !slices.Equal(point.BucketCounts, []uint64{2, 2, 1}) || point.Count != 5 || point.Sum < 5.19 || point.Sum > 5.21 {
		t.Errorf("counts %v, %d values, sum %v", point.BucketCounts, point.Count, point.Sum)
	}
}

func TestVec_ConcurrentUse_LosesNothing(t *testing.T) {
	t.Parallel()
	s := telemetry.NewSet()
	counters := s.Counters("c", "{event}", "", "kind")
	histograms := s.Histograms("h", "s", "", []float64{1}, "kind")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				counters.With("a").Add(1)
				histograms.With("a").Record(1)
			}
		})
	}
	all.Wait()
	point := collect(t, s)["h"].Data.(metricdata.Histogram[float64]).DataPoints
	if n := counters.With("a").Value(); n != 8000 || len(point) != 1 || point[0].Count != 8000 || point[0].Sum != 8000 {
		t.Errorf("counted %d and %v, want 8000", n, point)
	}
}

func BenchmarkHistogram_Record(b *testing.B) {
	h := telemetry.NewSet().Histograms("h", "s", "", []float64{.001, .01, .1, .5, 1, 2, 5, 10, 60}).With()
	for b.Loop() {
		h.Record(0.3)
	}
}
