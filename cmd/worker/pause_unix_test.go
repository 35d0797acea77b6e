//go:build unix

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// TestPausedWorker_LeaseExpired_DecisionRefused has a worker stop (SIGSTOP) while it decides, under a lock, on what it has read
// from Postgres. Its lease ends, and another worker gives the last room to somebody else. When the first
// goes on, what it was about to do is refused, and it decides anew.
func TestPausedWorker_LeaseExpired_DecisionRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	const lease = "HOLDFAST_LOCK_LEASE=1s"
	paused := s.startWorker("HOLDFAST_FAILPOINT=place.read:stop", lease)
	s.setInventory("room", holds.SlotSelection{}, 1)
	ana := s.publish(events.BookingRequested, "room", bookingData("room", "ana", "k-ana", holds.SlotSelection{}, 3600))
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(paused.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the worker is not stopped: %v %v", status, err)
	}

	s.startWorker(lease)
	// The stopped worker may have this one as well; then it is delivered again.
	ben := s.publish(events.BookingRequested, "room", bookingData("room", "ben", "k-ben", holds.SlotSelection{}, 3600))
	if o := s.answer(ben); o.Type != events.Type(holds.EventHoldCreated) && len(answers(s.ofType(holds.EventHoldCreated), ana)) == 0 {
		t.Errorf("nobody has the room: %s", o.Type)
	}
	if err := paused.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.answer(ana)
	stacktest.Eventually(t, "the paused worker to have found its lock lost", func() bool {
		_, body := paused.get(t, "/metrics")
		strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY")
		return strategy == "optimistic" || strategy == "none" || strings.Contains(body, locking.MetricLost+"{")
	})
	if n := len(s.ofType(holds.EventHoldCreated)); n != 1 {
		t.Errorf("%d have the only room", n)
	}
	if got := s.counts("room")[holds.StockSlot]; got != "1" {
		t.Errorf("%s held, want 1", got)
	}
}
