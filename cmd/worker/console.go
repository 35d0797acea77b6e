package main

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"

	"holdfast/internal/audit"
	"holdfast/internal/console"
	"holdfast/internal/version"
)

// latenessShownMax is shown for a lateness beyond all buckets, in seconds.
const latenessShownMax = 3600

// consoleStatus returns what the console shows of this worker and of the namespace.
func (s *server) consoleStatus(ctx context.Context) (console.Status, error) {
	stats, ready, err := s.state(ctx)
	if err != nil {
		return console.Status{}, err
	}
	families, err := s.metrics.Gather()
	if err != nil {
		return console.Status{}, err
	}
	status := console.Status{
		Worker: workerName(), Version: version.Revision(), Readiness: ready,
		Stats: stats, AuditLeft: sumOf(families, audit.MetricLeft), Healed: sumOf(families, audit.MetricHealed),
	}
	total, p99 := lateness99(families)
	p99 = min(p99, latenessShownMax)
	status.Expired, status.LateP99 = int64(total), time.Duration(p99*float64(time.Second))
	classes, err := lockReport(families)
	for _, c := range classes {
		status.Locks = append(status.Locks, c.row())
	}
	return status, err
}

// sumOf adds up a counter or gauge over its labels.
func sumOf(families []*dto.MetricFamily, name string) (sum int64) {
	for _, m := range metricsOf(families, name) {
		sum += int64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
	}
	return sum
}

// lateness99 returns how many holds have expired since this worker has started, and the bound in
// seconds that 99 % of them kept, +Inf when it is none of the histogram's.
func lateness99(families []*dto.MetricFamily) (total uint64, bound float64) {
	within := make(map[float64]uint64)
	for _, metric := range metricsOf(families, latenessName) {
		total += metric.GetHistogram().GetSampleCount()
		for _, bucket := range metric.GetHistogram().GetBucket() {
			within[bucket.GetUpperBound()] += bucket.GetCumulativeCount()
		}
	}
	for _, bound := range slices.Sorted(maps.Keys(within)) {
		if float64(within[bound]) >= 0.99*float64(total) {
			return total, bound
		}
	}
	return total, math.Inf(1)
}
