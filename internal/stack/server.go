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

// Server is one server in a process of its own that may be killed, paused and started again on the
// same data, for tests of faults. Nobody watches it. It dies with this process (on Linux).
type Server struct {
	Port  int // of postgres, on 127.0.0.1; of others what the caller knows
	child *child
}

// RedisProgram returns the path of redis-server, which it installs if it may.
func RedisProgram(ctx context.Context) (string, error) {
	bins, err := Options{Redis: true}.programs(ctx)
	return bins.redis, err
}

// StartPostgresServer starts a postgres with its data in the directory postgres of dir, which it makes
// when there is none, and these settings besides the usual ones of a durable stack, and returns
// when it answers queries.
func StartPostgresServer(ctx context.Context, dir string, settings ...string) (*Server, error) {
	bins, err := Options{Postgres: true, Dir: dir}.programs(ctx)
	if err != nil {
		return nil, err
	}
	h, err := openHome(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = h.lock.Close() }() // the server's own lock says whether it lives
	c, url, err := startPostgres(ctx, h, bins.postgres, func(string) {}, settings...)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	port, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(url, "postgres://postgres@127.0.0.1:"), "/postgres?sslmode=disable"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("postgres: %w", err), c.stop(stopWithin))
	}
	return &Server{Port: port, child: c}, nil
}

// Program is any other program that serves.
type Program struct {
	Path      string
	Args, Env []string
	Log       io.Writer                       // has all that it says; nil = only its end is kept
	Ready     func(ctx context.Context) error // returns nil once it serves
}

// StartProgram starts a program and returns when it is ready.
func StartProgram(ctx context.Context, p Program) (*Server, error) {
	c, err := startChild(command{
		name: filepath.Base(p.Path), path: p.Path, args: p.Args, env: p.Env, tee: p.Log,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
	})
	if err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx, p.Ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", c.name, err), c.stop(stopWithin))
	}
	return &Server{child: c}, nil
}

// Kill ends the server without giving it time to write anything: postgres by an immediate stop,
// of all its processes, the others by SIGKILL. It returns when the server is gone. One that is
// paused is killed as well.
func (s *Server) Kill() error {
	err := s.child.process.Signal(s.child.death)
	if s.child.death != syscall.SIGKILL { // a paused process sees it when it goes on
		err = errors.Join(err, s.Resume())
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", s.child.name, err)
	}
	select {
	case <-s.child.exited:
		return nil
	case <-time.After(readyWithin):
		return fmt.Errorf("kill %s: still there after %v", s.child.name, readyWithin)
	}
}

// Stop asks the server to end, and kills it when it has not within the given time. It returns an
// error unless the server has ended by itself, with 0.
func (s *Server) Stop(within time.Duration) error {
	if err := errors.Join(s.Resume(), s.child.stop(within)); err != nil {
		return err
	}
	if s.child.err != nil {
		return s.child.exitError()
	}
	return nil
}

// Pause stops the server and its processes where they are, until Resume.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// Err says how the server ended, once Exited is closed.
func (s *Server) Err() error { return s.child.exitError() }

// Exited is closed when the server has ended.
func (s *Server) Exited() <-chan struct{} { return s.child.exited }

// Log returns the end of what the server has said.
func (s *Server) Log() string { return s.child.log.String() }

// signal signals the server and its child processes, each of which may be gone already: postgres
// has one for each connection, in a process group of its own.
func (s *Server) signal(sig syscall.Signal) error {
	pid := s.child.pid()
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
		slices.Reverse(pids) // the postmaster last: it would start others
	}
	for _, one := range pids {
		if err := syscall.Kill(one, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal %s: %w", s.child.name, err)
		}
	}
	return nil
}
