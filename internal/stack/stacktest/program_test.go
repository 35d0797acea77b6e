package stacktest

import (
	"os/exec"
	"strings"
	"testing"
)

func startShell(t *testing.T, script string) *Program {
	t.Helper()
	p, err := StartProgram(exec.Command("sh", "-c", script))
	Must(t, err)
	t.Cleanup(p.Kill)
	return p
}

func TestProgram_LinePrinted_IsReturned(t *testing.T) {
	t.Parallel()
	p := startShell(t, `echo one; echo "two is up" >&2; exec sleep 600`)
	if line, err := p.AwaitLine("is up"); err != nil || line != "two is up" {
		t.Errorf("%q, %v", line, err)
	}
	if err := p.Stop(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("stopped: %v", err)
	}
}

func TestProgram_LastLine_IsFoundAfterTheExit(t *testing.T) {
	t.Parallel()
	p := startShell(t, `echo one; echo two`)
	<-p.exited
	if line, err := p.AwaitLine("two"); err != nil || line != "two" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestProgram_ExitsWithoutLine_WaitEnds waits for a line that the program does not print.
func TestProgram_ExitsWithoutLine_WaitEnds(t *testing.T) {
	t.Parallel()
	p := startShell(t, `echo another; printf up; exit 3`)
	_, err := p.AwaitLine("up")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "another") {
		t.Errorf("%v", err)
	}
}
