package stacktest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// NeedTool skips a test if a program is not on PATH, as SkipUnlessRequired does.
func NeedTool(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		SkipUnlessRequired(t, "%s is not on PATH", program)
	}
}

// SkipUnlessRequired skips a test that needs something that not every machine has. With
// HOLDFAST_TEST_TOOLS=required, as in CI, it fails the test. The message says what is missing.
func SkipUnlessRequired(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("HOLDFAST_TEST_TOOLS") == "required" {
		t.Fatal(what)
	}
	t.Skipf("%s (CI requires it: HOLDFAST_TEST_TOOLS=required)", what)
}
