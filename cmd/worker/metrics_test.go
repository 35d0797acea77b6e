package main

import (
	"errors"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/fx/fxtest"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// newMetrics returns a registry as the worker has it, and the lock metrics in it.
func newMetrics(t *testing.T) (*prometheus.Registry, *locking.Metrics) {
	t.Helper()
	registry, set := newMetricSet(t)
	return registry, locking.NewMetrics(set)
}

// newMetricSet returns a registry as the worker has it, and its set of metrics.
func newMetricSet(t *testing.T) (*prometheus.Registry, *telemetry.Set) {
	t.Helper()
	lc := fxtest.NewLifecycle(t)
	registry, set, err := provideMetrics(lc)
	stacktest.Must(t, err)
	lc.RequireStart()
	t.Cleanup(func() { lc.RequireStop() })
	return registry, set
}

func metricFamilies(t *testing.T, r *prometheus.Registry) []*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	stacktest.Must(t, err)
	return families
}

// TestMetricNames_TextAndRegistry_AreEqual checks that package locking uses the names that
// Prometheus exports, and that the text format and the registry have equal values.
func TestMetricNames_TextAndRegistry_AreEqual(t *testing.T) {
	t.Parallel()
	registry, metrics := newMetrics(t)
	b := newLockHarness(t)
	ctx := t.Context()
	l := b.locker(t, locking.FixedLease(100*time.Millisecond), metrics)
	lasting := b.locker(t, locking.FixedLease(locking.LeaseMax), nil)
	if _, err := lasting.Lock(ctx, "", time.Second, b.set("c")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(ctx, "", time.Millisecond, b.set("c")); !errors.Is(err, locking.ErrTimeout) {
		t.Errorf("a held lock was taken again: %v", err)
	}
	status, err := b.section(ctx, l, "a", func(lock *locking.Lock) { b.awaitLeaseEnd(t, lock) })
	if status != locking.StatusLockLost || err != nil {
		t.Errorf("an expired lock: %s, %v", status, err)
	}
	optimist := locking.New(locking.NewOptimistic(b.client), locking.Options{Metrics: metrics})
	status, err = b.section(ctx, optimist, "b", func(lock *locking.Lock) { b.client.Incr(ctx, lock.KeySet.Version) })
	if status != locking.StatusConflict || err != nil {
		t.Errorf("a changed revision: %s, %v", status, err)
	}

	families := metricFamilies(t, registry)
	for _, name := range []string{locking.MetricAttempts, locking.MetricLost, locking.MetricConflicts} {
		if n := lockCounts(families, name)["1"]; n < 1 {
			t.Errorf("%s: %v", name, n)
		}
	}
	web := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer web.Close()
	read, err := readMetrics(ctx, strings.TrimPrefix(web.URL, "http://"))
	stacktest.Must(t, err)
	for _, name := range []string{locking.MetricSections, locking.MetricWaits} {
		one, err := lockDurations(families, name)
		if err != nil || one["1"].Total() != 1 {
			t.Errorf("%s: %v, %v", name, one, err)
		}
		if again, err := lockDurations(read, name); err != nil || !reflect.DeepEqual(again, one) {
			t.Errorf("%s: %v, %v in the text format, want %v", name, again, err, one)
		}
		two, err := lockDurations(slices.Concat(families, read), name)
		if err != nil || two["1"].Total() != 2 {
			t.Errorf("%s of two workers: %v, %v", name, two, err)
		}
	}
}
