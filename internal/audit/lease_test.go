package audit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"holdfast/internal/audit"
	"holdfast/internal/stack/stacktest"
)

// crashableLeases is a worker's view of the leases. After a crash of the worker it releases none.
type crashableLeases struct {
	audit.Leases
	refused atomic.Int64
	dead    atomic.Bool
}

func (m *crashableLeases) KeepLease(ctx context.Context, name, holder string, lease time.Duration) (bool, error) {
	held, err := m.Leases.KeepLease(ctx, name, holder, lease)
	if err == nil && !held {
		m.refused.Add(1)
	}
	return held, err
}

func (m *crashableLeases) ReleaseLease(ctx context.Context, name, holder string) error {
	if m.dead.Load() {
		return nil
	}
	return m.Leases.ReleaseLease(ctx, name, holder)
}

// runReconciler runs another Reconciler until stop is called.
func (s *scene) runReconciler() (w *recordedReconciler, leases *crashableLeases, stop func()) {
	s.Helper()
	w, leases = &recordedReconciler{t: s.TB, reader: sdkmetric.NewManualReader()}, &crashableLeases{Leases: s.store}
	metrics, err := audit.NewMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)).Meter("test"))
	s.must(err)
	w.Reconciler = audit.NewReconciler(s.backends, leases, s.term, audit.ReconcilerOptions{Heal: true, Memory: memory, Share: 1}, metrics, zerolog.New(w))
	w.Pace(time.Millisecond, time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	stop = func() { cancel(); <-done }
	s.Cleanup(stop)
	return w, leases, stop
}

// TestReconciler_SeveralWorkers_OneReads runs several Reconcilers. One runs the rounds, while the
// others only heal the resources that their own scripts report. When it ends, the next takes over:
// at once if it was stopped, at the end of its lease if it was killed.
func TestReconciler_SeveralWorkers_OneReads(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rounds := func(w *recordedReconciler, want int64) {
		t.Helper()
		stacktest.Eventually(t, "a round", func() bool { return w.measured("holdfast.audit.rounds") >= want })
	}
	refused := func(leases *crashableLeases) {
		t.Helper()
		for until := leases.refused.Load() + 3; leases.refused.Load() < until; {
			stacktest.Eventually(t, "refusals", func() bool { return leases.refused.Load() >= until })
		}
	}
	first, killed, kill := s.runReconciler()
	rounds(first, 1)
	second, leases, stop := s.runReconciler()
	refused(leases)
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "x")
	second.RecheckSoon("hall")
	stacktest.Eventually(t, "the counter to be healed", func() bool { return second.measured("holdfast.audit.healed") == 1 })
	if got := s.redis.HGet(t.Context(), s.key("hall", "counts"), "A-1").Val(); got != "3" {
		t.Errorf("%s are held", got)
	}
	killed.dead.Store(true)
	kill()
	refused(leases)
	if got := second.measured("holdfast.audit.rounds"); got != 0 {
		t.Errorf("the second has run %d rounds", got)
	}
	s.execute(`UPDATE leases SET held_until = clock_timestamp()`)
	rounds(second, 1)
	third, leases, _ := s.runReconciler()
	refused(leases)
	if got := third.measured("holdfast.audit.rounds"); got != 0 {
		t.Errorf("the third has run %d rounds", got)
	}
	stop()
	rounds(third, 1)
}

// TestReconciler_BudgetExhausted_HealsWhatIsReported leaves no budget for a round, which rests. A
// resource that is reported meanwhile is healed at once.
func TestReconciler_BudgetExhausted_HealsWhatIsReported(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := s.newReconciler(true)
	w.Exhaust()
	s.redis.HSet(t.Context(), s.key("hall", "counts"), "A-1", "x")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Round(ctx) }()
	w.RecheckSoon("hall")
	stacktest.Eventually(t, "the counter to be healed", func() bool { return w.measured("holdfast.audit.healed") == 1 })
	cancel()
	if err := <-done; err == nil {
		t.Error("the round ended without an error")
	}
}

// TestResources_ManySlots_ReadsNoOthers reads a page of resources with many slots: about one row of
// each is read.
func TestResources_ManySlots_ReadsNoOthers(t *testing.T) {
	t.Parallel()
	const resources, limit = 20, 12
	w := newHarness(t)
	w.execute(`INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'r' || lpad(r::text, 2, '0'), 's' || s, 1 FROM generate_series(1, $1) AS r, generate_series(1, 500) AS s`, resources)
	w.execute(`ANALYZE inventory`)
	var found []string
	for last := ""; ; last = found[len(found)-1] {
		var page []string
		w.must(w.backends.Postgres.QueryRow(t.Context(), `SELECT coalesce(array_agg(resource_id), '{}') FROM (`+audit.QueryResources+`) AS page`, last, limit).Scan(&page))
		if found = append(found, page...); len(page) == 0 {
			break
		}
	}
	for i, name := range found {
		if want := fmt.Sprintf("r%02d", i+1); name != want || len(found) != resources {
			t.Errorf("resource %d of %d is %s, want %s", i, len(found), name, want)
		}
	}
	var text string
	w.must(w.backends.Postgres.QueryRow(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+audit.QueryResources, "", limit).Scan(&text))
	var plans []struct{ Plan planNode }
	w.must(json.Unmarshal([]byte(text), &plans))
	if got := plans[0].Plan.rowsOf("inventory"); got < limit || got > 2*limit {
		t.Errorf("%v rows are read for %d resources:\n%s", got, limit, text)
	}
}

// planNode is a node of an executed query plan.
type planNode struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []planNode
}

// rowsOf returns how many rows of a table were read.
func (n planNode) rowsOf(table string) (rows float64) {
	if n.Relation == table {
		rows = (n.Rows + n.Removed) * n.Loops
	}
	for _, child := range n.Plans {
		rows += child.rowsOf(table)
	}
	return rows
}
