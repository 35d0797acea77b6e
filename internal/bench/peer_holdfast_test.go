package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/stack/endpoints"
	"holdfast/internal/stack/stacktest"
)

// started waits until a script has written its process id and arguments to a file, and returns the id and the
// directory in the arguments.
func started(t *testing.T, file string) (pid int, dir string) {
	t.Helper()
	var words []string
	stacktest.Eventually(t, "the worker program", func() bool {
		text, _ := os.ReadFile(file) // nothing before it is complete
		words = strings.Fields(string(text))
		return len(words) > 0
	})
	pid, err := strconv.Atoi(words[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid, words[len(words)-1]
}

// TestStartDurable_WorkerEnds_FailsAndLeavesNothing starts a worker with its own servers that ends at once.
func TestStartDurable_WorkerEnds_FailsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "started")
	b := &runner{Options: given(), sizes: allSizes[Tiny], name: "bench_ends", report: &Report{}}
	b.Worker = script(t, `echo $$ "$@" > `+file+`; echo no more rooms >&2; exit 7`)
	d, err := b.startDurable(t.Context())
	pid, dir := started(t, file)
	want := fmt.Sprintf("worker run --embedded: worker (pid %d) exited: exit status 7; its log ends with:\nno more rooms", pid)
	if d != nil || err == nil || err.Error() != want {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// TestStartDurable_CancelledMeanwhile_EndsServersAndLeavesNothing cancels the start of a worker whose servers run, and
// which does not log that it has started.
func TestStartDurable_CancelledMeanwhile_EndsServersAndLeavesNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "started")
	b := &runner{Options: given(), sizes: allSizes[Tiny], name: "bench_cancelled", report: &Report{}}
	b.Worker = script(t, `echo $$ "$@" > `+file+`.new; mv `+file+`.new `+file+`; exec >/dev/null 2>&1`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := b.startDurable(ctx)
		failed <- err
	}()
	pid, dir := started(t, file)
	stacktest.Eventually(t, "the servers", func() bool {
		_, err := os.Stat(filepath.Join(dir, endpoints.FileName))
		return err == nil
	})
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	postgres, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("cancelled: %v", err)
	}
	for _, ended := range []int{pid, postgres} {
		if err := syscall.Kill(ended, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d still runs: %v", ended, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// TestStartDurable_OtherServersInEnvironment_NotPassedOn starts a worker with its own servers while the environment has
// the URLs and the settings of another worker.
func TestStartDurable_OtherServersInEnvironment_NotPassedOn(t *testing.T) {
	s := stacktest.Shared()
	for name, value := range map[string]string{
		"HOLDFAST_NATS_URL": s.NATSURL, "HOLDFAST_REDIS_URL": s.RedisURL, "HOLDFAST_POSTGRES_URL": s.PostgresURL,
		"HOLDFAST_NAMESPACE": "theirs", "HOLDFAST_HORIZON": "1", "HOLDFAST_INSTALL": "never",
	} {
		t.Setenv(name, value)
	}
	file := filepath.Join(t.TempDir(), "environment")
	b := &runner{Options: given(), sizes: allSizes[Tiny], name: "bench_environ", report: &Report{}}
	b.Worker = script(t, `env > `+file+`; exit 7`)
	if d, err := b.startDurable(t.Context()); err == nil {
		t.Errorf("started: %v", d.close())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	same := &runner{name: b.name}
	want := append(same.newCluster().policies(), "HOLDFAST_INSTALL=never")
	var found []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "HOLDFAST_") {
			found = append(found, line)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) || !strings.Contains(string(text), "PATH="+os.Getenv("PATH")+"\n") {
		t.Errorf("environment %q\nwant %q and PATH", found, want)
	}
}
