package holds_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// gauges returns the gauges of a set without the label state, and those with it by its value.
func gauges(t *testing.T, s *telemetry.Set) map[string]float64 {
	t.Helper()
	all, err := s.Produce(t.Context())
	stacktest.Must(t, err)
	values := make(map[string]float64)
	for _, m := range all[0].Metrics {
		if data, is := m.Data.(metricdata.Gauge[float64]); is {
			for _, point := range data.DataPoints {
				state, _ := point.Attributes.Value("state")
				values[m.Name+state.AsString()] = point.Value
			}
		}
	}
	return values
}

// TestCensus_ManyResources_CountsInBoundedSteps counts more resources than one step may.
func TestCensus_ManyResources_CountsInBoundedSteps(t *testing.T) {
	t.Parallel()
	k, set := newHarness(t), telemetry.NewSet()
	keys := record.Keyspace(k.namespace)
	const resources = 2500
	pipe := k.client.Pipeline()
	for i := range resources {
		resource := fmt.Sprintf("r%d", i)
		pipe.ZAdd(t.Context(), keys.Agenda(record.Partition(resource)), redis.Z{Score: 1, Member: resource})
		pipe.ZAdd(t.Context(), keys.Prefix(resource)+"due", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 1, Member: "b"})
	}
	pipe.ZAdd(t.Context(), keys.Prefix("r7")+"departing", redis.Z{Score: 1, Member: "c"})
	pipe.Set(t.Context(), keys.Prefix("r8")+"departing", "of a wrong type", 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	census := holds.NewCensus(k.service, holds.NewMetrics(set))
	steps := 0
	for gauges(t, set)["holdfast.holds.counted.timestamp"] == 0 {
		stacktest.Must(t, census.Step(t.Context()))
		if steps++; steps > 10 {
			t.Fatal("the count does not end")
		}
	}
	got := gauges(t, set)
	if steps < 3 || got["holdfast.resources"] != resources || got["holdfast.holdsheld"] != 2*resources ||
		got["holdfast.holdsunannounced"] != 1 {
		t.Errorf("after %d steps: %v", steps, got)
	}
}
