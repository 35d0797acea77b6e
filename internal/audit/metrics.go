package audit

import (
	"maps"
	"slices"

	"holdfast/internal/telemetry"
)

// The names of a Reconciler's metrics in Prometheus.
const (
	MetricFound     = "holdfast_audit_differences_total" // by kind
	MetricHealed    = "holdfast_audit_healed_total"      // by kind
	MetricLeft      = "holdfast_audit_left"              // by kind: found in the last round and not repaired
	MetricResources = "holdfast_audit_resources_total"   // inspected
	MetricRounds    = "holdfast_audit_rounds_total"      // complete
	LabelKind       = "kind"
)

// reconciled lists the kinds that a Reconciler can find.
var reconciled = append(slices.Collect(maps.Keys(notices)), Reserved)

// Metrics are the metrics of a Reconciler.
type Metrics struct {
	found, healed     *telemetry.Vec[telemetry.Counter] // by kind
	left              *telemetry.Vec[telemetry.Gauge]   // by kind
	resources, rounds *telemetry.Counter
}

// NewMetrics adds the metrics to a set.
func NewMetrics(set *telemetry.Set) *Metrics {
	m := &Metrics{
		found: set.Counters("holdfast.audit.differences", "",
			"Differences found in stored data, each counted once while it lasts.", LabelKind),
		healed:    set.Counters("holdfast.audit.healed", "", "Differences healed.", LabelKind),
		left:      set.Gauges("holdfast.audit.left", "", "Differences found and not healed.", LabelKind),
		resources: set.Counters("holdfast.audit.resources", "", "Resources inspected.").With(),
		rounds:    set.Counters("holdfast.audit.rounds", "", "Complete rounds over all resources.").With(),
	}
	for _, kind := range reconciled { // a counter must exist before its first difference, or Prometheus sees no increase
		m.found.With(string(kind))
		m.healed.With(string(kind))
	}
	m.setLeft(nil)
	return m
}

// setLeft sets how many differences of each kind are found and not healed.
func (m *Metrics) setLeft(left map[Kind]int) {
	for _, kind := range reconciled {
		m.left.With(string(kind)).Set(float64(left[kind]))
	}
}
