package locking_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// TestHistogram_Quantile_Interpolates reads quantiles from a histogram.
func TestHistogram_Quantile_Interpolates(t *testing.T) {
	t.Parallel()
	d := locking.Histogram{Bounds: []float64{0.001, 0.002, 0.004}, Counts: []float64{50, 40, 9, 1}}
	for q, want := range map[float64]time.Duration{
		0.25: 500 * time.Microsecond, 0.5: time.Millisecond, 0.7: 1500 * time.Microsecond,
		0.99: 4 * time.Millisecond, 1: 4 * time.Millisecond, // above the last bound
	} {
		if got := d.Quantile(q); got.Round(time.Microsecond) != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := (locking.Histogram{}).Quantile(0.5); got != 0 {
		t.Errorf("quantile of an empty histogram: %v", got)
	}
}

// TestAutoLease_SectionsMeasured_FollowsThem passes measurements to an AutoLease. Its leases follow
// them within their bounds, each size class separately, and only with enough samples.
func TestAutoLease_SectionsMeasured_FollowsThem(t *testing.T) {
	t.Parallel()
	const initial = 5 * time.Second
	a := locking.NewAutoLease(initial)
	bounds := []float64{0.01, 0.1, 1, 10}
	total := make([]float64, len(bounds)+1)
	observe := func(at int, n float64) {
		total[at] += n
		counts := append([]float64(nil), total...)
		a.Observe(map[string]locking.Histogram{"2-7": {Bounds: bounds, Counts: counts}})
	}
	expect := func(what string, low, high time.Duration) {
		t.Helper()
		if got := a.Lease(3); got < low || got > high {
			t.Errorf("%s: the lease is %v, want %v to %v", what, got, low, high)
		}
		if got := a.Lease(1); got != initial {
			t.Errorf("%s: the lease of another class is %v", what, got)
		}
	}
	observe(0, locking.MinSamples-1)
	expect("too few", initial, initial)
	observe(0, 50)
	expect("quick work", 500*time.Millisecond, 500*time.Millisecond)
	observe(2, 50)
	expect("slow work", 5*time.Second, 10*time.Second)
	observe(4, 500)
	expect("endless work", 30*time.Second, 30*time.Second)
	for range 100 {
		observe(0, 100)
	}
	expect("quick work again", 500*time.Millisecond, time.Second)
}

// TestMetrics_WorkOutlivesLease_IsMeasured ends a lease before the work can write. The section is
// measured with its full duration; otherwise a lease that is too short would not be noticed. Work in one step is not
// measured: it is short, and would hide the few sections whose locks can be lost.
func TestMetrics_WorkOutlivesLease_IsMeasured(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	set := telemetry.NewSet()
	m := locking.NewMetrics(set)
	l := newLocker(t, ranges.make(k, 200*time.Millisecond), locking.Options{Metrics: m})
	script := lua.NewPacked("one step", "", 32, "local function run(KEYS, ARGV) return {'ok'} end")
	oneStep := &lua.Call{Script: script, Keys: []string{k.counter()}}
	l.ExecInOneStep(t.Context(), []int{1}, []*lua.Call{oneStep})
	if oneStep.Err != nil || oneStep.Status != "ok" {
		t.Errorf("one step: %q, %v", oneStep.Status, oneStep.Err)
	}
	lock := mustLock(t, l, k.keySet("a"))
	work, stop := l.WithContext(t.Context(), lock)
	defer stop()
	<-work.Done()
	_ = l.Unlock(t.Context(), lock) // the key may or may not have expired
	measured, err := set.Produce(t.Context())
	stacktest.Must(t, err)
	var sections uint64
	var lost int64
	for _, m := range measured[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				sections += point.Count
			}
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				if m.Name == "holdfast.lock.lost" {
					lost += point.Value
				}
			}
		}
	}
	if sections != 1 || lost != 1 {
		t.Errorf("%d sections and %d losses were measured, want one of each", sections, lost)
	}
}
