package stack_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

func TestStart_ParentKilled_ChildrenDie(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	// The user that runs postgres must be able to enter both directories.
	for _, dir := range []string{temp, filepath.Dir(temp)} {
		stacktest.Must(t, os.Chmod(dir, 0o711))
	}
	cmd, started := startParent(t, "TMPDIR="+temp)
	if dirs := stackDirs(t, temp); len(dirs) != 1 {
		t.Fatalf("temporary directories of a running parent: %v, want one", dirs)
	}
	stacktest.Must(t, cmd.Process.Kill())
	for _, pid := range []int{started.RedisPID, started.PostgresPID} {
		stacktest.Eventually(t, fmt.Sprintf("end of process %d after its parent was killed", pid), func() bool { return !stacktest.Alive(pid) })
	}
	dirs := stackDirs(t, temp)
	if len(dirs) != 1 {
		t.Fatalf("temporary directories of a killed parent: %v, want one", dirs)
	}

	// The next start removes the directory as soon as the backends of its postgres have ended too.
	stacktest.Eventually(t, "removal of the killed parent's directory", func() bool {
		startParent(t, "TMPDIR="+temp)
		_, err := os.Stat(dirs[0])
		return errors.Is(err, os.ErrNotExist)
	})
}

func stackDirs(t *testing.T, temp string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(temp, "holdfast-stack-*"))
	stacktest.Must(t, err)
	return dirs
}

func TestStart_ParentKilled_DirTakenOver(t *testing.T) {
	t.Parallel()
	o := all
	o.Dir = stacktest.DataDir(t)
	cmd, started := startParent(t, "HOLDFAST_STACK_TEST_DIR="+o.Dir)
	put(t, &stack.Stack{NATSURL: started.NATSURL, PostgresURL: started.PostgresURL}, "acknowledged")
	stacktest.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // its own lock is free now, while its children may still run
	s := stacktest.Start(t, o)
	// Redis syncs only every second, so it may have lost the word.
	wantWord(t, &stack.Stack{NATSURL: s.NATSURL, PostgresURL: s.PostgresURL}, "acknowledged")
}
