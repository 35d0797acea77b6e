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

// TestPausedWorker_LeaseExpired_DecisionRefused stops a worker (SIGSTOP) when it has locked a slot, or
// read from Postgres where nothing is locked. Its lease expires, and another worker grants the last
// room. When the first continues, Redis refuses its decision, and it decides again.
func TestPausedWorker_LeaseExpired_DecisionRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	const lease = "HOLDFAST_LOCK_LEASE=1s"
	strategy, step := os.Getenv("HOLDFAST_LOCK_STRATEGY"), "place.locked"
	if strategy == "none" {
		step = "place.read"
	}
	paused := s.startWorker("HOLDFAST_FAILPOINT="+step+":stop", lease)
	s.setInventory("room", holds.SlotSelection{}, 1)
	release := s.lockByOther("room", holds.StockSlot)
	ana := s.book("room", "ana", "k-ana", holds.SlotSelection{}, 3600)
	release()
	paused.awaitPaused(t)

	s.startWorker(lease)
	// NATS may have delivered this event to the stopped worker; then it is redelivered.
	ben := s.book("room", "ben", "k-ben", holds.SlotSelection{}, 3600)
	if o := s.answer(ben); o.Type != events.Type(holds.EventHoldCreated) &&
		len(answers(s.ofType(holds.EventHoldCreated), ana)) == 0 {
		t.Errorf("the room was not granted: %s", o.Type)
	}
	paused.goOn(t)
	s.answer(ana)
	stacktest.Eventually(t, "the paused worker to detect that its lock is lost", func() bool {
		_, body := paused.get(t, "/metrics")
		return strategy == "optimistic" || strategy == "none" || strings.Contains(body, locking.MetricLost+"{")
	})
	if n := len(s.ofType(holds.EventHoldCreated)); n != 1 {
		t.Errorf("%d holds of the only room", n)
	}
	if got := s.counts("room")[holds.StockSlot]; got != "1" {
		t.Errorf("%s held, want 1", got)
	}
}

// awaitPaused waits until the process has stopped itself (SIGSTOP) at its failpoint, and goOn continues it.
func (p *process) awaitPaused(t *testing.T) {
	t.Helper()
	var status syscall.WaitStatus
	stacktest.Eventually(t, "the worker to stop itself", func() bool {
		pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		stacktest.Must(t, err)
		return pid != 0
	})
	if !status.Stopped() {
		t.Fatalf("the worker is not stopped: %v", status)
	}
}

func (p *process) goOn(t *testing.T) {
	t.Helper()
	stacktest.Must(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// TestPausedWorker_AnswerForgottenMeanwhile_EventHasOneOutcome stops a worker that has fetched an event. Another worker
// answers it, and Redis forgets the answer, and JetStream the id, before the first continues.
func TestPausedWorker_AnswerForgottenMeanwhile_EventHasOneOutcome(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	short := s.forgetsSoon()
	paused := s.startWorker(append(short, "HOLDFAST_FAILPOINT=requests.fetched:stop")...)
	s.setInventory("cabin", holds.SlotSelection{}, 2)
	book := func(key string) string {
		return s.book("cabin", "ana", key, holds.SlotSelection{}, 1)
	}
	id := book("k1")
	paused.awaitPaused(t)
	other := s.startWorker(short...)
	s.answer(id)
	s.awaitForgotten("cabin", "k1")
	other.stop(t)
	paused.goOn(t)
	s.answer(book("k2")) // after everything that the worker still does with the first one
	s.wantOneOutcome(id)
}
