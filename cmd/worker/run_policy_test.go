package main

import (
	"strconv"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// someNights returns n nights, the first a week from now.
func someNights(n int) holds.SlotSelection {
	in := time.Now().UTC().AddDate(0, 0, 7)
	return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat),
		CheckOut: in.AddDate(0, 0, n).Format(holds.DateFormat)}
}

// TestPolicyChanged_WorkerDied_EventHasOneOutcome kills a worker after it has published the outcome
// invalid_request and before it acknowledges the event. The policy then allows the request. The
// next worker must not grant it: its outcome would have the id of the first and would not be
// stored.
func TestPolicyChanged_WorkerDied_EventHasOneOutcome(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate("--nights-max", "2")
	doomed := s.startWorker("HOLDFAST_NIGHTS_MAX=2", "HOLDFAST_FAILPOINT=requests.published")
	s.setInventory("cabin", someNights(5), 1)
	selection := s.book("cabin", "ana", "k1", someNights(3), 600)
	doomed.killed(t)
	if o := s.answer(selection); decoded[holds.HoldRejected](t, o).Reason != holds.ReasonInvalidRequest {
		t.Fatalf("three nights were answered with %s", o.Data)
	}
	s.migrate("--nights-max", "30")
	s.startWorker("HOLDFAST_NIGHTS_MAX=30")
	s.awaitAcknowledged(events.ConsumerRequests)
	if held := s.counts("cabin"); len(held) != 0 {
		t.Errorf("slots are held for a request whose outcome is invalid_request: %v", held)
	}
	s.wantAnswer(s.book("cabin", "ana", "k2", someNights(3), 600), holds.EventHoldCreated)
	s.wantOneOutcome(selection)
}

// TestPolicyChanged_RunningWorker_UsesAndReportsIt stores a different policy while a worker runs.
func TestPolicyChanged_RunningWorker_UsesAndReportsIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate()
	worker := s.startWorker()
	awaitReady := func(mismatch string) {
		t.Helper()
		stacktest.Eventually(t, "/readyz to be 200 with the mismatch "+strconv.Quote(mismatch), func() bool {
			ready := worker.readiness(t)
			return ready.Ready && ready.Details["policy_mismatch"] == mismatch
		})
	}
	awaitReady("")
	const want = "hold-ttl-max: 1h0m0s here, 45m0s stored"
	s.migrate("--hold-ttl-max", "45m")
	awaitReady(want)
	worker.awaitLog(t, want)
	worker.awaitMetrics(t, func(value func(string) float64) bool { return value("holdfast_policy_mismatch") == 1 })
	s.setInventory("sauna", holds.SlotSelection{}, 2)
	for ttl, want := range map[int64]string{45*60 + 1: holds.EventHoldRejected, 45 * 60: holds.EventHoldCreated} {
		s.wantAnswer(s.book("sauna", "ana", strconv.FormatInt(ttl, 10), holds.SlotSelection{}, ttl), want)
	}
}
