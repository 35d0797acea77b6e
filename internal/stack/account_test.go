package stack_test

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestStart_NormalUser_TestsPass runs some tests again as the user nobody, without a home directory. It
// needs root.
func TestStart_NormalUser_TestsPass(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: every other test runs as a normal user")
	}
	account, err := user.Lookup("nobody")
	stacktest.Must(t, err)
	uid, gid := id(t, account.Uid), id(t, account.Gid)
	dir, err := os.MkdirTemp("", "holdfast-user-")
	stacktest.Must(t, err)
	t.Cleanup(func() { stacktest.Must(t, os.RemoveAll(dir)) })
	stacktest.Must(t, os.Chown(dir, int(uid), int(gid)))

	// A copy, because the user nobody cannot enter the directory of the original.
	binary := filepath.Join(dir, "stack.test")
	copyTestBinary(t, binary)
	const tests = "TestStart_Temporary_CloseRemovesAll|TestStart_DirGiven_DataSurvives|" +
		"TestStart_ParentKilled_ChildrenDie|TestStart_ParentKilled_DirTakenOver"
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^("+tests+")$", "-test.v", "-test.count=1")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for test := range strings.SplitSeq(tests, "|") {
		if !strings.Contains(string(out), "--- PASS: "+test) {
			t.Errorf("%s did not pass:\n%s", test, out)
		}
	}
}

func id(t *testing.T, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	stacktest.Must(t, err)
	return uint32(n)
}

// copyTestBinary copies this test program with cp. If this process wrote the copy, a child between fork
// and exec could have it open too, and then it cannot be executed (golang.org/issue/22315).
func copyTestBinary(t *testing.T, dst string) {
	t.Helper()
	exe, err := os.Executable()
	stacktest.Must(t, err)
	if out, err := exec.CommandContext(t.Context(), "cp", exe, dst).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	stacktest.Must(t, os.Chmod(dst, 0o755))
}
