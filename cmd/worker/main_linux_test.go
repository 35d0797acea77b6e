package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"holdfast/internal/stack/stacktest"
)

// newMemoryGroup creates a cgroup whose processes may use so many bytes, and returns its directory. The test is
// skipped where this user or this machine cannot.
func newMemoryGroup(t *testing.T, limit int64) (dir string) {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes" // cgroups v1
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	dir = filepath.Join(root, "holdfast-test-"+uuid.NewString())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("cgroups with a memory limit need root and a writable ", root, ": ", err)
	}
	t.Cleanup(func() { stacktest.Must(t, os.Remove(dir)) })
	limited := []byte(fmt.Sprint(limit))
	if err := os.WriteFile(filepath.Join(dir, file), limited, 0o644); err != nil {
		t.Skip("cgroups without a memory controller: ", err)
	}
	return dir
}

// TestRun_ContainerWithMemoryLimit_CollectsGarbageBelowIt starts workers in a cgroup with a memory limit, one of
// them with a memory limit of its own.
func TestRun_ContainerWithMemoryLimit_CollectsGarbageBelowIt(t *testing.T) {
	t.Parallel()
	group := newMemoryGroup(t, 1000<<20)
	binary, err := workerBinary()
	stacktest.Must(t, err)
	s := newHarness(t)
	for own, limit := range map[string]int64{"": 800 << 20, "700MiB": 700 << 20} {
		inGroup := []string{"-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, group, binary}
		p := launchBinary(t, "/bin/sh", s.mayLack, append(inGroup, s.runArgs()...), "GOMEMLIMIT="+own)
		p.awaitStarted(t)
		p.awaitLog(t, fmt.Sprintf(`"memory_limit_bytes":%d,`, limit))
		p.stop(t)
	}
}
