package locking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The Prometheus names of the metrics and labels. Every metric has the label slots, a size class.
const (
	MetricSections  = "holdfast_lock_section_seconds" // from the attempt to the end of the work
	MetricWaits     = "holdfast_lock_wait_seconds"    // of blocked sets, until they were held or given up
	MetricAttempts  = "holdfast_lock_attempts_total"  // by result: held, blocked, failed
	MetricLost      = "holdfast_lock_lost_total"
	MetricConflicts = "holdfast_lock_conflicts_total" // of Optimistic
	LabelSlots      = "slots"
	LabelResult     = "result"
)

// Metrics records the metrics of a Locker. A nil *Metrics records nothing.
type Metrics struct {
	sections, waits             metric.Float64Histogram
	attempts, losses, conflicts metric.Int64Counter
	bySizeClass                 []metric.MeasurementOption
	byResult                    map[string][]metric.MeasurementOption // by result, then by size class
}

// The results of an attempt.
const (
	resultHeld    = "held"
	resultBlocked = "blocked"
	resultFailed  = "failed"
)

// NewMetrics creates the instruments on meter.
func NewMetrics(meter metric.Meter) (*Metrics, error) {
	bounds := metric.WithExplicitBucketBoundaries(boundaries()...)
	m := new(Metrics)
	var errs [5]error
	m.sections, errs[0] = meter.Float64Histogram("holdfast.lock.section", metric.WithUnit("s"), bounds,
		metric.WithDescription("Time from the attempt to lock to the end of the work under the lock."))
	m.waits, errs[1] = meter.Float64Histogram("holdfast.lock.wait", metric.WithUnit("s"), bounds,
		metric.WithDescription("Time from the first blocked attempt until the lock was held or given up."))
	m.attempts, errs[2] = meter.Int64Counter("holdfast.lock.attempts",
		metric.WithDescription("Attempts to lock: held, blocked, or failed."))
	m.losses, errs[3] = meter.Int64Counter("holdfast.lock.lost",
		metric.WithDescription("Locks that ended before their work. The work was refused and retried."))
	m.conflicts, errs[4] = meter.Int64Counter("holdfast.lock.conflicts",
		metric.WithDescription("Optimistic transactions that were refused because a version had changed."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("lock metrics: %w", err)
	}
	m.byResult = make(map[string][]metric.MeasurementOption)
	for _, class := range SizeClasses {
		slots := attribute.String(LabelSlots, class)
		m.bySizeClass = append(m.bySizeClass, metric.WithAttributeSet(attribute.NewSet(slots)))
		for _, result := range []string{resultHeld, resultBlocked, resultFailed} {
			set := attribute.NewSet(slots, attribute.String(LabelResult, result))
			m.byResult[result] = append(m.byResult[result], metric.WithAttributeSet(set))
		}
	}
	return m, nil
}

// boundaries returns the bounds of the histograms in seconds, from 0.2 ms to a minute. Each is 1.5
// times the one before, which limits the error of a quantile.
func boundaries() []float64 {
	var all []float64
	for bound := 0.0002; bound < 60; bound *= 1.5 {
		all = append(all, bound)
	}
	return append(all, 60)
}

func (m *Metrics) sizeClass(l *Lock) metric.MeasurementOption {
	return m.bySizeClass[sizeClassOf(len(l.KeySet.Keys))]
}

// section records the duration of a lock's critical section, once for each lock.
func (m *Metrics) section(l *Lock) {
	if m != nil && l.sectionMeasured.CompareAndSwap(false, true) {
		m.sections.Record(context.Background(), time.Since(l.began).Seconds(), m.sizeClass(l))
	}
}

func (m *Metrics) waited(l *Lock, since time.Time) {
	if m != nil {
		m.waits.Record(context.Background(), time.Since(since).Seconds(), m.sizeClass(l))
	}
}

func (m *Metrics) tried(locks []*Lock) {
	if m == nil {
		return
	}
	for _, l := range locks {
		result := resultBlocked
		if l.Held {
			result = resultHeld
		}
		m.attempt(l, result)
	}
}

func (m *Metrics) failed(locks []*Lock) {
	if m == nil {
		return
	}
	for _, l := range locks {
		m.attempt(l, resultFailed)
	}
}

func (m *Metrics) attempt(l *Lock, result string) {
	m.attempts.Add(context.Background(), 1, m.byResult[result][sizeClassOf(len(l.KeySet.Keys))])
}

// lost counts a lost lock, once for each lock.
func (m *Metrics) lost(l *Lock) {
	if m != nil && l.lossCounted.CompareAndSwap(false, true) {
		m.losses.Add(context.Background(), 1, m.sizeClass(l))
	}
}

func (m *Metrics) conflict(l *Lock) {
	if m != nil && l.tx.refused { // false when the server only did not know the script yet
		m.conflicts.Add(context.Background(), 1, m.sizeClass(l))
	}
}
