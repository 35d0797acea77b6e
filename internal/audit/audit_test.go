package audit_test

import (
	"testing"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// scene is a namespace in which everything has happened that can happen. All of it has ended except
// two holds.
type scene struct {
	*harness
	live, other                              string // holds
	paid, late, cancelled, released, expired string // holds that have ended
}

func newScene(t testing.TB) *scene {
	t.Helper()
	s := &scene{harness: newHarness(t)}
	s.startWorkers(1)
	s.setInventory("hall", 5, "A-1", "A-2")
	s.setInventory("tent", 2)
	s.expired = s.request("hall", "dan", time.Second, 1, "A-2")
	s.late = s.request("tent", "eve", time.Second, 1)
	s.awaitOutcomes(holds.EventHoldExpired, 2)
	if got := s.pay(s.late, "p-eve"); got != events.Type(holds.EventHoldConfirmed) {
		t.Fatalf("the late payment was answered %s", got)
	}
	s.live = s.request("hall", "ana", time.Hour, 2, "A-1", "A-2")
	s.other = s.request("hall", "olga", time.Hour, 1, "A-1")
	s.paid = s.request("hall", "ben", time.Hour, 1, "A-1")
	s.pay(s.paid, "p-ben")
	s.pay(s.paid, "p-ben-2") // refused
	s.released = s.request("hall", "cleo", time.Hour, 1, "A-2")
	s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: s.released})
	s.cancelled = s.request("tent", "fay", time.Hour, 1)
	s.pay(s.cancelled, "p-fay")
	s.publish(events.ReservationCancelled, "tent", events.ReservationCancelledData{HoldID: s.cancelled})
	s.publish(events.PaymentStarted, "hall", events.PaymentStartedData{HoldID: s.live})
	if s.request("hall", "gus", time.Hour, 4, "A-1") != "" {
		t.Fatal("gus was granted more than the capacity")
	}
	bad := s.message(events.BookingRequested, "hall", "no object")
	if a, err := s.client.Request(stacktest.WaitContext(t), bad); err != nil || a.DeadLetter == nil {
		t.Fatalf("a malformed event: %+v, %v", a, err)
	}
	s.stopWorkers()
	return s
}

// TestRun_Healthy_NoFindings audits a namespace without faults: in one group, in many groups, and
// one resource at a time.
func TestRun_Healthy_NoFindings(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	report := s.wantNoFindings()
	if c := report.Stats; c.Events != 18 || c.Outcomes != 20-1 || c.DeadLetters != 1 || c.Resources != 2 || c.Reservations != 3 || c.Payments != 4 || c.Slots != 3 {
		t.Errorf("checked %+v", c)
	}
	if len(report.Inconclusive) > 0 || report.Pending.Events > 0 {
		t.Errorf("cannot tell %v, pending %+v", report.Inconclusive, report.Pending)
	}
	groups := s.audit(audit.InGroups(audit.Options{}, 3))
	if len(groups.Findings) > 0 || groups.Stats.Events != report.Stats.Events || groups.Stats.Reservations != report.Stats.Reservations {
		t.Errorf("in groups, checked %+v:\n%s", groups.Stats, findingsText(groups))
	}
	for _, resource := range []string{"hall", "tent", "nowhere"} {
		if one := s.audit(audit.Options{ResourceID: resource}); len(one.Findings) > 0 {
			t.Errorf("%s alone:\n%s", resource, findingsText(one))
		}
	}
}
