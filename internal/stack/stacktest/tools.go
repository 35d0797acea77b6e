package stacktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// BackupStreams copies streams of a NATS server. restore replaces them by their copies. A test that restores on the shared
// server is not parallel: while it restores a stream, nats-server 2.15 reads its map of streams without the lock under
// which it adds those of other tests (jsAccount.tieredReservation, called by RestoreStreamV2).
func BackupStreams(t testing.TB, url string, streams ...string) (restore func()) {
	t.Helper()
	NeedTool(t, "nats")
	dir := t.TempDir()
	command := func(args ...string) {
		t.Helper()
		args = append([]string{"--server", url, "stream"}, args...)
		if output, err := exec.CommandContext(t.Context(), "nats", args...).CombinedOutput(); err != nil {
			t.Fatalf("nats %v: %v\n%s", args, err, output)
		}
	}
	for _, stream := range streams {
		command("backup", stream, filepath.Join(dir, stream), "--no-progress")
	}
	return func() {
		t.Helper()
		for _, stream := range streams {
			command("rm", stream, "--force")
			command("restore", filepath.Join(dir, stream), "--no-progress")
		}
	}
}
