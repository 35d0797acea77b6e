package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisProgram returns the path of redis-server. It installs a missing one as Start does.
func RedisProgram(ctx context.Context) (string, error) {
	bins, err := Options{Redis: true}.programs(ctx)
	return bins.redis, err
}

// StartPostgresServer starts a durable postgres with its data in the directory postgres of dir, which
// it creates if need be, and returns when it answers queries. settings override the usual ones.
func StartPostgresServer(ctx context.Context, dir string, settings ...string) (*Server, error) {
	bins, err := Options{Postgres: true, Dir: dir}.programs(ctx)
	if err != nil {
		return nil, err
	}
	h, err := openHome(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.lock.Close() }() // the server has its own lock
	s, err := startPostgres(ctx, h, bins.postgres, settings...)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return s, nil
}

// Program describes a server program for StartProgram.
type Program struct {
	Path      string
	Args, Env []string
	Log       io.Writer                       // receives the whole output; nil means that only its end is kept
	Ready     func(ctx context.Context) error // returns nil when the program is ready
}

// StartProgram starts a program and returns when it is ready.
func StartProgram(ctx context.Context, p Program) (*Server, error) {
	s, err := startChild(command{
		name: filepath.Base(p.Path), path: p.Path, args: p.Args, env: p.Env, tee: p.Log,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
	})
	if err != nil {
		return nil, err
	}
	if err := s.awaitReady(ctx, readyWithin, p.Ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.name, err), s.stop(stopWithin))
	}
	return s, nil
}

// PID returns the process id of the server.
func (s *Server) PID() int { return s.process.Pid }

// Kill ends the server, paused or not, without time to write anything: postgres and its child
// processes by an immediate shutdown, other servers by SIGKILL. It returns when the server has ended.
func (s *Server) Kill() error {
	err := s.process.Signal(s.death)
	if s.death != syscall.SIGKILL { // a paused process handles the signal only after Resume
		err = errors.Join(err, s.Resume())
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", s.name, err)
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(readyWithin):
		return fmt.Errorf("kill %s: still running after %v", s.name, readyWithin)
	}
}

// Stop requests a graceful stop, and kills the server when that exceeds the given time. It returns an
// error unless the server exits with 0 in time.
func (s *Server) Stop(within time.Duration) error {
	if err := errors.Join(s.Resume(), s.stop(within)); err != nil {
		return err
	}
	if s.err != nil {
		return s.ExitError()
	}
	return nil
}

// Pause suspends the server and its child processes until Resume.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume continues a paused server.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// Log returns the end of the server's log, as the end of an error message.
func (s *Server) Log() string { return s.log.String() }

// Exited returns a channel that is closed when the server has ended.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// signal signals the server and its child processes: postgres has one for each connection, in its own
// process group. It ignores processes that have ended.
func (s *Server) signal(sig syscall.Signal) error {
	pid := s.PID()
	pids := []int{pid}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, field := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return err
		}
		pids = append(pids, child)
	}
	if sig == syscall.SIGSTOP {
		slices.Reverse(pids) // the postmaster last, because it starts new ones for those that end
	}
	for _, one := range pids {
		if err := syscall.Kill(one, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal %s: %w", s.name, err)
		}
	}
	return nil
}
