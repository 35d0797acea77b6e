package stack_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

func TestFailed_ChildDies_DeliversError(t *testing.T) {
	t.Parallel()
	for name, pid := range map[string]func(*stack.Stack) int{
		"redis-server": (*stack.Stack).RedisPID,
		"postgres":     (*stack.Stack).PostgresPID,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stacktest.Start(t, stack.Options{Redis: true, Postgres: true, NoInstall: true})
			stacktest.Must(t, syscall.Kill(pid(s), syscall.SIGKILL))
			err := <-s.Failed()
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "killed") {
				t.Errorf("Failed after a kill of %s: %v", name, err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close after a kill of %s: %v", name, err)
			}
		})
	}
}

// TestStart_Children_HaveOwnProcessGroups checks that a Ctrl-C, which a terminal sends to its foreground
// process group, does not reach the servers.
func TestStart_Children_HaveOwnProcessGroups(t *testing.T) {
	t.Parallel()
	s := stacktest.Start(t, all)
	for _, pid := range []int{s.RedisPID(), s.PostgresPID()} {
		if group, err := syscall.Getpgid(pid); err != nil || group != pid {
			t.Errorf("process group of %d = %d, %v", pid, group, err)
		}
	}
}

// TestStart_ServerFails_ErrorHasItsLog starts a server on corrupt data. Start stops the others and
// returns an error with the server's log.
func TestStart_ServerFails_ErrorHasItsLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, content, want string }{
		"redis":    {"redis/appendonlydir/appendonly.aof.manifest", "nonsense\n", "AOF"},
		"postgres": {"postgres/PG_VERSION", "9.0\n", "server configuration file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := all
			o.Dir = stacktest.DataDir(t)
			path := filepath.Join(o.Dir, c.file)
			stacktest.Must(t, errors.Join(os.Mkdir(o.Dir, 0o755), os.MkdirAll(filepath.Dir(path), 0o700)))
			stacktest.Must(t, os.WriteFile(path, []byte(c.content), 0o600))
			s, err := stack.Start(t.Context(), o)
			if err == nil {
				t.Fatal("started on corrupt data", s.Close())
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name+": ") {
				t.Errorf("error lacks the log of %s:\n%v", name, err)
			}
			// Start has released the directory.
			stacktest.Start(t, stack.Options{Dir: o.Dir, NATS: true})
		})
	}
}

func TestStart_StalePostgresPIDFile_Starts(t *testing.T) {
	t.Parallel()
	o := stack.Options{Dir: stacktest.DataDir(t), Postgres: true, NoInstall: true}
	s := stacktest.Start(t, o)
	stacktest.Must(t, s.Close())
	// As after a kill in a container, where another process has this pid now.
	stale := strconv.Itoa(os.Getpid()) + "\n"
	stacktest.Must(t, os.WriteFile(filepath.Join(o.Dir, "postgres", "postmaster.pid"), []byte(stale), 0o600))
	put(t, stacktest.Start(t, o), "started")
}

func TestStart_DirNotAccessible_IsExplained(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs postgres as another user")
	}
	closed := t.TempDir()
	stacktest.Must(t, os.Chmod(closed, 0o700))
	o := stack.Options{Dir: filepath.Join(closed, "data"), Postgres: true, NoInstall: true}
	_, err := stack.Start(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "cannot enter "+closed+" above") ||
		!strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("Start below a closed directory: %v", err)
	}
}
