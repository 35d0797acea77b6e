package audit_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/audit"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
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
	w, leases = &recordedReconciler{t: s.TB, set: telemetry.NewSet()}, &crashableLeases{Leases: s.store}
	w.Reconciler = audit.NewReconciler(s.backends, leases, s.term,
		audit.ReconcilerOptions{Heal: true, Memory: memory, Share: 1}, audit.NewMetrics(w.set), zerolog.New(w))
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
	stacktest.Eventually(t, "the counter to be healed",
		func() bool { return second.measured("holdfast.audit.healed") == 1 })
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

// awayLeases are leases in a Postgres that goes away.
type awayLeases struct{ away bool }

func (l *awayLeases) KeepLease(context.Context, string, string, time.Duration) (bool, error) {
	if l.away {
		return false, errors.New("postgres is away")
	}
	return true, nil
}

func (*awayLeases) ReleaseLease(context.Context, string, string) error { return nil }

// TestLease_PostgresAway_NoOtherWorkerHasIt attempts to renew an expired lease while Postgres is away. What is asked
// before the next attempt gets the same answer.
func TestLease_PostgresAway_NoOtherWorkerHasIt(t *testing.T) {
	t.Parallel()
	leases := &awayLeases{}
	keep, expire := audit.KeepLease(leases)
	if err := keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	leases.away = true
	expire()
	for range 2 {
		if err := keep(t.Context()); err == nil || errors.Is(err, audit.ErrNotMine) {
			t.Errorf("the lease is not kept: %v", err)
		}
	}
}
