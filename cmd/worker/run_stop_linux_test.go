package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestRunStop_OwnServerHangs_ExitsInTime stops a worker while the Redis or the Postgres that it has started hangs.
func TestRunStop_OwnServerHangs_ExitsInTime(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"redis-server", "postgres"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			worker := launch(t, false, []string{"run", "--embedded", "--http-addr", "127.0.0.1:0", "--data-dir", stacktest.DataDir(t)})
			worker.awaitStarted(t)
			server := children(t, worker.cmd.Process.Pid, program)[0]
			var stopped []int
			goOn := func() {
				for _, pid := range stopped {
					_ = syscall.Kill(pid, syscall.SIGCONT) // the children of a killed postgres end then
				}
			}
			t.Cleanup(goOn)
			stop := func(pid int) {
				stopped = append(stopped, pid)
				// A session of Postgres may have ended since it was listed.
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Fatal(err)
				}
			}
			stop(server) // first: it then begins no session that would be missing below
			for _, pid := range children(t, server, "") {
				stop(pid)
			}
			reason := map[string]string{"redis-server": "redis", "postgres": "postgres"}[program]
			worker.eventually(t, "the server to hang", func() bool { return slices.Contains(worker.readiness(t).Reasons, reason) })
			worker.stopWithin(t, 10*time.Second)
			goOn()
			for _, pid := range stopped { // until then they write to the directory, which is removed next
				stacktest.Eventually(t, "the server to end", func() bool { return !stacktest.Alive(pid) })
			}
		})
	}
}

// TestRunStop_LogReaderEnded_ExitsWithZero ends what reads the log of a worker. The worker answers, and stops as
// after SIGTERM, which it logs.
func TestRunStop_LogReaderEnded_ExitsWithZero(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	binary, err := workerBinary()
	stacktest.Must(t, err)
	reader, writer, err := os.Pipe()
	stacktest.Must(t, err)
	cmd := exec.Command(binary, s.runArgs()...)
	cmd.Stderr = writer
	stacktest.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	_ = writer.Close()
	lines := bufio.NewScanner(reader)
	for lines.Scan() && !strings.Contains(lines.Text(), "worker started") {
		t.Log(lines.Text())
	}
	_ = reader.Close()
	s.setInventory("room", holds.SlotSelection{}, 1)
	stacktest.Must(t, cmd.Process.Signal(syscall.SIGHUP)) // as when a terminal is closed
	if err := cmd.Wait(); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
}

// children returns the child processes of a process that run a program, "" for any.
func children(t *testing.T, parent int, program string) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	stacktest.Must(t, err)
	for _, list := range lists {
		some, _ := os.ReadFile(list) // nothing when the thread has ended
		for _, field := range strings.Fields(string(some)) {
			name, err := os.ReadFile("/proc/" + field + "/comm")
			if err == nil && (program == "" || strings.TrimSpace(string(name)) == program) {
				pid, _ := strconv.Atoi(field) // a number
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestRunStop_NATSHangs_ExitsInTime stops a worker during its start, while three NATS servers accept connections
// and do not answer.
func TestRunStop_NATSHangs_ExitsInTime(t *testing.T) {
	t.Parallel()
	silent, connected := silentServers(t, 3)
	shared := stacktest.Shared()
	worker := launch(t, false, []string{
		"run", "--http-addr", "127.0.0.1:0", "--namespace", stacktest.Namespace(t),
		"--nats-url", silent, "--redis-url", shared.RedisURL, "--postgres-url", shared.PostgresURL,
	})
	<-connected
	worker.stopWithin(t, 10*time.Second)
}

// TestRunStop_PostgresHangsInQuery_ExitsInTime stops a worker during its start, while Postgres does not answer a query
// any more.
func TestRunStop_PostgresHangsInQuery_ExitsInTime(t *testing.T) {
	t.Parallel()
	shared := stacktest.Shared()
	s := newHarnessOn(t, urls{shared.NATSURL, shared.RedisURL, shared.PostgresURL})
	conn := stacktest.ConnectPostgres(t, s.urls.postgres)
	tx, err := conn.Begin(t.Context())
	stacktest.Must(t, err)
	table := s.namespace + ".policies"
	stacktest.Exec(t, tx, "LOCK TABLE "+table)
	address, hang := newHangingProxy(t, s.urls.postgres)
	worker := launch(t, false, append(s.runArgs(), "--postgres-url", address))
	worker.eventually(t, "the worker to wait for the lock", func() (waits bool) {
		err := tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)",
			table).Scan(&waits)
		return err == nil && waits
	})
	hang()
	worker.stopWithin(t, 10*time.Second)
}
