package stacktest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// NeedTool skips a test that runs a program which is not on PATH, or fails it where CI requires all tools.
func NeedTool(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		SkipUnlessRequired(t, "%s is not on PATH", program)
	}
}

// SkipUnlessRequired skips a test for the lack of something that not every machine has, or fails it where CI requires
// that: HOLDFAST_TEST_TOOLS=required.
func SkipUnlessRequired(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("HOLDFAST_TEST_TOOLS") == "required" {
		t.Fatal(what)
	}
	t.Skipf("%s (.ci/run has it, and sets HOLDFAST_TEST_TOOLS=required)", what)
}
