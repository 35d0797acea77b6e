package audit_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/stack/stacktest"
)

// faultyLeases is a worker's view of the leases.
type faultyLeases struct {
	audit.Leases
	down            atomic.Bool // Postgres fails, each time with another error
	taken           atomic.Bool // another worker has each lease
	dead            atomic.Bool // the worker was killed, and releases none
	failed, refused atomic.Int64
}

func (l *faultyLeases) KeepLease(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error) {
	if l.down.Load() {
		return false, fmt.Errorf("failure %d", l.failed.Add(1))
	}
	if !l.taken.Load() {
		held, err = l.Leases.KeepLease(ctx, name, holder, lease)
	}
	if err == nil && !held {
		l.refused.Add(1)
	}
	return held, err
}

func (l *faultyLeases) ReleaseLease(ctx context.Context, name, holder string) error {
	if l.dead.Load() {
		return nil
	}
	return l.Leases.ReleaseLease(ctx, name, holder)
}

// runReconciler runs another Reconciler until stop is called.
func (s *scene) runReconciler() (w *recordedReconciler, leases *faultyLeases, stop func()) {
	s.Helper()
	leases = &faultyLeases{Leases: s.store}
	w = s.newReconcilerWith(leases, s.term, true)
	w.Pace(time.Millisecond, time.Hour)
	return w, leases, w.start()
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
	refused := func(leases *faultyLeases) {
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
	s.wantCount("hall", "A-1", "3")
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

// TestLease_PostgresAway_NoOtherWorkerHasIt attempts to renew an expired lease while Postgres is away. What is asked
// before the next attempt gets the same answer.
func TestLease_PostgresAway_NoOtherWorkerHasIt(t *testing.T) {
	t.Parallel()
	leases := &faultyLeases{Leases: newHarness(t).store}
	keep, expire := audit.KeepLease(leases)
	stacktest.Must(t, keep(t.Context()))
	leases.down.Store(true)
	expire()
	for range 2 {
		if err := keep(t.Context()); err == nil || errors.Is(err, audit.ErrNotMine) {
			t.Errorf("the lease is not kept: %v", err)
		}
	}
}
