package locking

import (
	"time"

	"holdfast/internal/telemetry"
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
	sections, waits   []*telemetry.Histogram // by size class, as all below
	losses, conflicts []*telemetry.Counter
	attempts          map[string][]*telemetry.Counter // by result
}

// The results of an attempt.
const (
	resultHeld    = "held"
	resultBlocked = "blocked"
	resultFailed  = "failed"
)

// NewMetrics adds the metrics to a set.
func NewMetrics(set *telemetry.Set) *Metrics {
	sections := set.Histograms("holdfast.lock.section", "s",
		"Time from the attempt to lock to the end of the work under the lock. Work in one step holds none.", boundaries(), LabelSlots)
	waits := set.Histograms("holdfast.lock.wait", "s",
		"Time from the first blocked attempt until the lock was held or given up.", boundaries(), LabelSlots)
	attempts := set.Counters("holdfast.lock.attempts", "{attempt}",
		"Attempts to lock: held, blocked, or failed.", LabelSlots, LabelResult)
	losses := set.Counters("holdfast.lock.lost", "{lock}",
		"Locks that ended before their work. The work was refused and retried.", LabelSlots)
	conflicts := set.Counters("holdfast.lock.conflicts", "{transaction}",
		"Optimistic transactions that were refused because a version had changed.", LabelSlots)
	m := &Metrics{attempts: make(map[string][]*telemetry.Counter)}
	for _, class := range SizeClasses {
		m.sections, m.waits = append(m.sections, sections.With(class)), append(m.waits, waits.With(class))
		m.losses, m.conflicts = append(m.losses, losses.With(class)), append(m.conflicts, conflicts.With(class))
		for _, result := range []string{resultHeld, resultBlocked, resultFailed} {
			m.attempts[result] = append(m.attempts[result], attempts.With(class, result))
		}
	}
	return m
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

func sizeClass(l *Lock) int { return sizeClassOf(len(l.KeySet.Names)) }

// section records the duration of a lock's critical section, once for each lock.
func (m *Metrics) section(l *Lock) {
	if m != nil && l.sectionMeasured.CompareAndSwap(false, true) {
		m.sections[sizeClass(l)].Record(time.Since(l.began).Seconds())
	}
}

func (m *Metrics) waited(l *Lock, since time.Time) {
	if m != nil {
		m.waits[sizeClass(l)].Record(time.Since(since).Seconds())
	}
}

// attempted counts an attempt to lock a number of keys.
func (m *Metrics) attempted(keys int, result string) {
	if m != nil {
		m.attempts[result][sizeClassOf(keys)].Add(1)
	}
}

// lost counts a lost lock, once for each lock.
func (m *Metrics) lost(l *Lock) {
	if m != nil && l.lossCounted.CompareAndSwap(false, true) {
		m.losses[sizeClass(l)].Add(1)
	}
}

func (m *Metrics) conflict(l *Lock) {
	if m != nil && l.tx.refused { // false when the server only did not know the script yet
		m.conflicts[sizeClass(l)].Add(1)
	}
}
