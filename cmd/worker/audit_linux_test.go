package main

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestAudit_RepairAtTerminal_NeedsConfirmation runs `worker audit --repair` on a terminal and
// answers its prompt.
func TestAudit_RepairAtTerminal_NeedsConfirmation(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", seat, 3)
	key := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	stacktest.Must(t, s.redis.HSet(t.Context(), key, "A-12", "2").Err())
	for _, answer := range []string{"n\n", "\n", "\x04"} { // the last one is Ctrl-D, the end of input
		code, screen := s.atTerminal(t, answer)
		if code != exitDiffer || !strings.Contains(screen, "Repair 1 of 1 difference as described above? [y/N] ") ||
			!strings.Contains(screen, "Nothing was changed.") {
			t.Errorf("after %q: exit code %d:\n%s", answer, code, screen)
		}
		if got := s.counts("hall")["A-12"]; got != "2" {
			t.Errorf("after %q the counter is %q", answer, got)
		}
	}
	if code, screen := s.atTerminal(t, "y\n"); code != exitOK || !strings.Contains(screen, "1 repaired.") {
		t.Errorf("after y: exit code %d:\n%s", code, screen)
	}
	if got := s.counts("hall")["A-12"]; got != "" {
		t.Errorf("after the repair the counter is %q", got)
	}
}

// atTerminal runs `worker audit --repair` with a terminal as stdin and types an answer.
func (s *harness) atTerminal(t *testing.T, answer string) (code int, screen string) {
	t.Helper()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	near, far := stacktest.Terminal(t)
	defer func() { _ = near.Close() }()
	defer func() { _ = far.Close() }()
	var out lockedBuffer
	c := exec.Command(binary, s.auditFlags("--repair")...)
	c.Stdin, c.Stdout, c.Stderr = far, &out, &out
	stacktest.Must(t, c.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Wait() }() // the exit code is read below
	stacktest.Eventually(t, "the prompt", func() bool {
		select {
		case <-ended:
			t.Fatalf("it exited without a prompt: %s", out.String())
		default:
		}
		return strings.Contains(out.String(), "[y/N]")
	})
	if _, err := io.WriteString(near, answer); err != nil {
		t.Fatal(err)
	}
	<-ended
	return c.ProcessState.ExitCode(), out.String()
}
