package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
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
var reconciled = []Kind{
	Counter, Users, Due, Departing, Tombstone, Index, HoldKey, RequestAnswer, RecordCorrupt, ClaimStuck, Agenda, Rev,
	WrongType, Residue,
	Reserved,
}

// Metrics are the metrics of a Reconciler.
type Metrics struct {
	found, healed, resources, rounds metric.Int64Counter
	ofKind                           map[Kind]metric.MeasurementOption

	mu   sync.Mutex
	left map[Kind]int
}

// NewMetrics creates the instruments on meter.
func NewMetrics(meter metric.Meter) (*Metrics, error) {
	m := &Metrics{ofKind: make(map[Kind]metric.MeasurementOption)}
	var errs [5]error
	m.found, errs[0] = meter.Int64Counter("holdfast.audit.differences",
		metric.WithDescription("Differences found in stored data, each counted once while it lasts."))
	m.healed, errs[1] = meter.Int64Counter("holdfast.audit.healed", metric.WithDescription("Differences healed."))
	m.resources, errs[2] = meter.Int64Counter("holdfast.audit.resources",
		metric.WithDescription("Resources inspected."))
	m.rounds, errs[3] = meter.Int64Counter("holdfast.audit.rounds",
		metric.WithDescription("Complete rounds over all resources."))
	_, errs[4] = meter.Int64ObservableGauge("holdfast.audit.left",
		metric.WithDescription("Differences found and not healed."), metric.WithInt64Callback(m.observe))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("audit metrics: %w", err)
	}
	for _, kind := range reconciled {
		m.ofKind[kind] = metric.WithAttributeSet(attribute.NewSet(attribute.String(LabelKind, string(kind))))
		// A counter must exist before its first difference, or Prometheus sees no increase.
		m.found.Add(context.Background(), 0, m.ofKind[kind])
		m.healed.Add(context.Background(), 0, m.ofKind[kind])
	}
	m.resources.Add(context.Background(), 0)
	m.rounds.Add(context.Background(), 0)
	return m, nil
}

func (m *Metrics) observe(_ context.Context, o metric.Int64Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kind := range reconciled {
		o.Observe(int64(m.left[kind]), m.ofKind[kind])
	}
	return nil
}

func (m *Metrics) setLeft(left map[Kind]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = left
}

func (m *Metrics) countFound(f *Finding)  { m.found.Add(context.Background(), 1, m.ofKind[f.Kind]) }
func (m *Metrics) countHealed(f *Finding) { m.healed.Add(context.Background(), 1, m.ofKind[f.Kind]) }
func (m *Metrics) countInspected(n int)   { m.resources.Add(context.Background(), int64(n)) }
func (m *Metrics) countRound()            { m.rounds.Add(context.Background(), 1) }
