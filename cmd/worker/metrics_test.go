package main

import (
	"errors"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"go.uber.org/fx/fxtest"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/locking"
)

// newMetrics returns a registry as the worker has it, and the lock metrics in it.
func newMetrics(t *testing.T) (*prometheus.Registry, *locking.Metrics) {
	t.Helper()
	lc := fxtest.NewLifecycle(t)
	registry, metrics, _, err := provideMetrics(lc)
	if err != nil {
		t.Fatal(err)
	}
	lc.RequireStart()
	t.Cleanup(func() { lc.RequireStop() })
	return registry, metrics
}

func metricFamilies(t *testing.T, r *prometheus.Registry) []*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
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
	lasting := b.locker(t, locking.FixedLease(time.Hour), nil)
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestAlerts_EveryMetric_IsMeasured checks that a worker exports every metric that an alert uses.
func TestAlerts_EveryMetric_IsMeasured(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deployments/prometheus/holdfast.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Load(text, &rules, yaml.WithKnownFields()); err != nil {
		t.Fatal(err)
	}
	registry, _ := newMetrics(t)
	known := make(map[string]bool)
	for _, family := range metricFamilies(t, registry) {
		known[family.GetName()] = true
	}
	metric := regexp.MustCompile(`\bholdfast_[a-z_]+\b`)
	alerts := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alerts++
			names := metric.FindAllString(rule.Expr, -1)
			if len(names) == 0 || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" ||
				rule.Labels["severity"] == "" {
				t.Errorf("alert %s is incomplete", rule.Alert)
			}
			for _, name := range names {
				if !known[name] {
					t.Errorf("alert %s uses %s, which no worker exports", rule.Alert, name)
				}
			}
			if _, err := model.ParseDuration(rule.For); rule.For != "" && err != nil {
				t.Errorf("alert %s: for: %v", rule.Alert, err)
			}
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}
