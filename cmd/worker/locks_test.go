package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	dto "github.com/prometheus/client_model/go"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// TestLocks_RealWorker_ShowsItsMetrics books at a real worker and finds the locks in /metrics and
// in the output of `worker locks`.
func TestLocks_RealWorker_ShowsItsMetrics(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	// The notification of Postgres about the new capacity can arrive while a booking is being
	// decided, which is a conflict.
	setUp := s.startWorker()
	s.setInventory("shoes", holds.SlotSelection{}, 1000)
	setUp.stop(t)
	settings := []string{"HOLDFAST_LOCK_LEASE=1m"}
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy == "" || strategy == "range" {
		settings = append(settings, "HOLDFAST_LOCK_FAIR=true") // decides no request in one step
	}
	worker := s.startWorker(settings...)
	const bookings = 20
	for i := range bookings {
		s.answer(s.book("shoes", fmt.Sprintf("user-%d", i), "k", holds.SlotSelection{}, 600))
	}
	status, metrics := worker.get(t, "/metrics")
	for _, want := range []string{
		locking.MetricSections + `_count\{slots="1"\} 20\n`,
		locking.MetricAttempts + `\{result="held",slots="1"\} 2[01]\n`, // optimistic starts again when Redis has not loaded the script
		"go_goroutines ", "process_open_fds ",
	} {
		if status != 200 || !regexp.MustCompile(want).MatchString(metrics) {
			t.Errorf("/metrics: %d without %s:\n%s", status, want, metrics)
		}
	}
	for _, noise := range []string{"otel_scope", "target_info"} {
		if strings.Contains(metrics, noise) {
			t.Errorf("/metrics shows %s", noise)
		}
	}

	dir := filepath.Dir(fileOf(t, "endpoints.env", "HOLDFAST_HTTP_ADDR="+worker.http+"\n")) // as of `worker dev`
	if code, out := locks("--data-dir", dir); code != exitOK ||
		!regexp.MustCompile(`(?m)^ +1 +20 .* not enough sections: 20 of 200$`).MatchString(out) {
		t.Errorf("worker locks: %d\n%s", code, out)
	}
	other := s.startWorker()
	code, out := locks("-o", "json", "--http-addr", worker.http+","+other.http)
	var report struct {
		Workers []string
		Classes []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &report, json.MatchCaseInsensitiveNames(true)); err != nil || code != exitOK {
		t.Fatalf("worker locks -o json: %d, %v\n%s", code, err, out)
	}
	if len(report.Workers) != 2 || len(report.Classes) != len(locking.SizeClasses) {
		t.Fatalf("worker locks -o json: %s", out)
	}
	if one := report.Classes[0]; one["slots"] != "1" || one["sections"] != float64(bookings) ||
		one["section_p99_ms"] == 0.0 || one["lease_ms"] != nil {
		t.Errorf("worker locks -o json: %v", one)
	}
}

// locks runs `worker locks`.
func locks(args ...string) (code int, out string) {
	return execute(context.Background(), append([]string{"locks"}, args...)...)
}

// TestLockReport_Samples_CountsAndRecommends checks the counts and recommendations of lockReport.
func TestLockReport_Samples_CountsAndRecommends(t *testing.T) {
	t.Parallel()
	for n, enough := range map[int]bool{locking.MinSamples - 1: false, locking.MinSamples: true} {
		if _, ok := locking.RecommendLease("1",
			locking.Histogram{Bounds: []float64{1}, Counts: []float64{float64(n), 0}}); ok != enough {
			t.Errorf("a lease is recommended from %d sections: %v; package locking has another minimum", n, ok)
		}
	}
	histogram := func(bound float64, below, all uint64) *dto.MetricFamily {
		name, label, class := locking.MetricSections, locking.LabelSlots, "2-7"
		return &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{
			Label:     []*dto.LabelPair{{Name: &label, Value: &class}},
			Histogram: &dto.Histogram{SampleCount: &all, Bucket: []*dto.Bucket{{UpperBound: &bound, CumulativeCount: &below}}},
		}}}
	}
	name, label, class, conflicts := locking.MetricConflicts, locking.LabelSlots, "2-7", 100.0
	clashes := &dto.MetricFamily{Name: &name, Metric: []*dto.Metric{{
		Label: []*dto.LabelPair{{Name: &label, Value: &class}}, Counter: &dto.Counter{Value: &conflicts},
	}}}
	classes, err := lockReport([]*dto.MetricFamily{histogram(0.2, 100, 100), clashes, histogram(0.2, 200, 200)})
	stacktest.Must(t, err)
	want := lockClass{
		Slots: "2-7", Sections: 300, SectionP50: 100, SectionP95: 190, SectionP99: 198,
		Conflicts: 100, ConflictRate: 0.25, Lease: 1980, LeaseNeeds: locking.MinSamples,
	}
	if got := classes[1]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var table strings.Builder
	stacktest.Must(t, printLocks(&table, classes))
	for _, want := range []string{" 198 ms ", "100 (25.0 %)", "1.98s, from the p99 of 300 sections\n",
		"not enough sections: 0 of 200\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	if _, err := lockReport([]*dto.MetricFamily{histogram(0.2, 1, 1), histogram(0.3, 1, 1)}); err == nil {
		t.Error("histograms with different bounds were added")
	}
}
