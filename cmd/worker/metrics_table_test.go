package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	dto "github.com/prometheus/client_model/go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestMetricsTable_LiveWorker_IsCurrent compares the table of docs/metrics.md with what a worker
// that has answered nothing exports: every metric, with all of its labels.
func TestMetricsTable_LiveWorker_IsCurrent(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	families := s.startWorker().metrics(t)
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	want := "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n"
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "holdfast_") {
			continue
		}
		want += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()),
			unitOf(family.GetName()), strings.Join(labelsOf(family), ", "), family.GetHelp())
		if family.GetHelp() == "" {
			t.Errorf("%s has no description", family.GetName())
		}
		for _, m := range family.GetMetric() {
			if family.GetName() != "holdfast_build_info" && len(m.GetLabel()) != len(labelsOf(family)) {
				t.Errorf("%s has series with other labels: %v", family.GetName(), m.GetLabel())
			}
		}
	}
	stacktest.CheckGenerated(t, "../../docs/metrics.md", "metrics",
		"go test ./cmd/worker -run MetricsTable -update", want, *update)
}

// metrics returns what /metrics of a worker has.
func (p *process) metrics(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	families, err := readMetrics(t.Context(), p.http)
	stacktest.Must(t, err)
	return families
}

// unitOf returns the unit that the name of a metric ends with.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, unit := range []string{"seconds", "bytes", "ratio"} {
		if strings.HasSuffix(name, "_"+unit) {
			return unit
		}
	}
	return "number"
}

// labelsOf returns the names of the labels of a metric, sorted.
func labelsOf(family *dto.MetricFamily) (names []string) {
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			if !slices.Contains(names, label.GetName()) {
				names = append(names, label.GetName())
			}
		}
	}
	slices.Sort(names)
	return names
}

// awaitMetrics reads the metrics of a worker until they are as so wants: an outcome is counted
// after it is stored.
func (p *process) awaitMetrics(t *testing.T, so func(value func(series string) float64) bool) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for bound := time.After(time.Minute); ; {
		values := make(map[string]float64)
		_, text := p.get(t, "/metrics")
		for line := range strings.Lines(text) {
			series, number, found := strings.Cut(strings.TrimSpace(line), " ")
			if value, err := strconv.ParseFloat(number, 64); found && err == nil {
				values[series] = value
			}
		}
		if so(func(series string) float64 {
			value, found := values[series]
			if !found {
				t.Fatalf("there is no %s in\n%s", series, text)
			}
			return value
		}) {
			return
		}
		select {
		case <-ticker.C:
		case <-bound:
			t.Fatalf("timeout waiting for the metrics; they are\n%s", text)
		}
	}
}

// TestMetrics_EventsOfEveryKind_AreCounted lets a worker create holds that are paid, released,
// expire and stay, and a dead letter, and reads the metrics of all that.
func TestMetrics_EventsOfEveryKind_AreCounted(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("shoes", holds.SlotSelection{}, 4)
	created := make([]events.Envelope, 4)
	for i, ttl := range []int64{600, 600, 1, 600} {
		user := fmt.Sprintf("u%d", i)
		created[i] = s.answer(s.book("shoes", user, user, holds.SlotSelection{}, ttl))
	}
	s.answer(s.pay(created[0].Subject, "p"))
	s.answer(s.publish(events.BookingCancelled, "shoes", events.BookingCancelledData{HoldID: created[1].Subject}))
	s.answer(s.publish(events.BookingCancelled, "shoes", events.BookingCancelledData{HoldID: created[1].Subject}))
	s.publish(events.BookingCancelled, "shoes", "not an object")
	s.await("an expired hold and a dead letter", func(outcomes []events.Envelope, dead []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldExpired)) == 1 && len(dead) == 1
	})
	if status, _ := worker.get(t, "/v1/availability?resource_id=shoes"); status != http.StatusOK {
		t.Errorf("availability: %d", status)
	}
	worker.awaitMetrics(t, func(value func(string) float64) bool {
		lateness := 0.0
		for _, trigger := range []string{"timer", "notification", "backlog"} {
			lateness += value(`holdfast_expiry_lateness_seconds_count{trigger="` + trigger + `"}`)
		}
		want := map[string]float64{
			`holdfast_holds_created_total`:                                             4,
			`holdfast_holds_ended_total{how="confirmed"}`:                              1,
			`holdfast_holds_ended_total{how="released"}`:                               1,
			`holdfast_holds_ended_total{how="expired"}`:                                1,
			`holdfast_payments_total{outcome="confirmed"}`:                             1,
			`holdfast_payments_total{outcome="rejected"}`:                              0,
			`holdfast_events_received_total{event="booking.requested"}`:                4,
			`holdfast_event_latency_seconds_count{event="booking.requested"}`:          4,
			`holdfast_event_latency_seconds_count{event="booking.cancelled"}`:          3,
			`holdfast_events_dead_lettered_total{reason="malformed"}`:                  1,
			`holdfast_outcomes_total{event="hold.release_rejected",reason="released"}`: 1,
			`holdfast_outcomes_total{event="inventory.updated",reason="none"}`:         1,
			`holdfast_queries_total{route="/v1/availability",status="200"}`:            1,
			`holdfast_payments_unsettled`:                                              0,
			`holdfast_dead_letters{reason="malformed"}`:                                1,
			`holdfast_stream_messages{stream="dlq"}`:                                   1,
			`holdfast_consumer_pending{consumer="requests"}`:                           0,
			`holdfast_consumer_oldest_age_seconds{consumer="payments"}`:                0,
			`holdfast_ready`:                     1,
			`holdfast_not_ready{reason="redis"}`: 0,
			`holdfast_resources`:                 1,
			`holdfast_holds{state="held"}`:       1,
			`holdfast_batch_size_count{consumer="payments",stage="publish"}`:            1,
			`holdfast_stage_duration_seconds_count{consumer="payments",stage="decide"}`: 1,
		}
		for series, n := range want {
			if value(series) != n {
				return false
			}
		}
		return lateness == 1 && value(`holdfast_pool_connections{pool="redis",state="idle"}`) > 0
	})
}
