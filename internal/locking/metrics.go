package locking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The names of what is measured, as Prometheus has them. All have the label slots, a class.
const (
	MetricSections  = "holdfast_lock_section_seconds" // from the attempt to the end of the work
	MetricWaits     = "holdfast_lock_wait_seconds"    // of those that were blocked, until held or given up
	MetricAttempts  = "holdfast_lock_attempts_total"  // by result: held, blocked, failed
	MetricLost      = "holdfast_lock_lost_total"
	MetricConflicts = "holdfast_lock_conflicts_total" // of Optimistic
	LabelSlots      = "slots"
	LabelResult     = "result"
)

// Metrics measures a Locker. A nil one measures nothing.
type Metrics struct {
	sections, waits             metric.Float64Histogram
	attempts, losses, conflicts metric.Int64Counter
	bySizeClass                 []metric.MeasurementOption
	byResult                    map[string][]metric.MeasurementOption // and class
}

// The results of an attempt.
const (
	resultHeld    = "held"
	resultBlocked = "blocked"
	resultFailed  = "failed"
)

// NewMetrics makes the instruments on meter.
func NewMetrics(meter metric.Meter) (*Metrics, error) {
	bounds := metric.WithExplicitBucketBoundaries(boundaries()...)
	m := new(Metrics)
	var errs [5]error
	m.sections, errs[0] = meter.Float64Histogram("holdfast.lock.section", metric.WithUnit("s"), bounds,
		metric.WithDescription("Time from the attempt to lock to the end of the work under the lock."))
	m.waits, errs[1] = meter.Float64Histogram("holdfast.lock.wait", metric.WithUnit("s"), bounds,
		metric.WithDescription("Time for which those waited who were blocked, until they had the lock or gave up."))
	m.attempts, errs[2] = meter.Int64Counter("holdfast.lock.attempts",
		metric.WithDescription("Attempts to lock: held, blocked, or failed."))
	m.losses, errs[3] = meter.Int64Counter("holdfast.lock.lost",
		metric.WithDescription("Locks that ended before their work: refused, and done again."))
	m.conflicts, errs[4] = meter.Int64Counter("holdfast.lock.conflicts",
		metric.WithDescription("Optimistic transactions that were refused because something had changed."))
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

// boundaries are those of the histograms, from 0.2 ms to a minute, each half as large again as
// the one before: a quantile is off by less than that.
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

// section measures a lock's section once, however it ends.
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

// lost counts a lock once, however many notice that it is lost.
func (m *Metrics) lost(l *Lock) {
	if m != nil && l.lossCounted.CompareAndSwap(false, true) {
		m.losses.Add(context.Background(), 1, m.sizeClass(l))
	}
}

func (m *Metrics) conflict(l *Lock) {
	if m != nil && l.tx.refused { // not when the server only did not know the script yet
		m.conflicts.Add(context.Background(), 1, m.sizeClass(l))
	}
}
