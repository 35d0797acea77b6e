package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// portAttemptsMax bounds the starts of a server whose port another process took before its bind.
	portAttemptsMax = 5
	// readyPoll is the pause between two probes of a starting server.
	readyPoll = 5 * time.Millisecond
	// slowPoll is the same after readyWithin.
	slowPoll = 200 * time.Millisecond
	// probeWithin bounds one probe.
	probeWithin = 2 * time.Second
)

// command describes how to run a server.
type command struct {
	name  string // for messages
	path  string
	args  []string
	env   []string       // added to childEnv
	user  *account       // nil means this process' own user
	stop  syscall.Signal // requests a graceful stop
	death syscall.Signal // sent by the kernel when this process dies (Linux)
	lock  *os.File       // inherited: stays locked while the server or one of its children lives
	tee   io.Writer      // receives the whole output; nil means that only its end is kept

	waiting func(line string) // see home.waiting
}

// Server is one server process. On Linux it dies with this process. The exported methods are for fault tests,
// which kill, pause and restart it on the same data, and for the bench.
type Server struct {
	Port int // on 127.0.0.1; StartProgram leaves it to the caller

	command
	process *os.Process
	log     *tail
	exited  chan struct{} // closed when the process has ended
	err     error         // of the wait for the process; read it only after exited is closed
}

// startChild runs a command in a new process group, so that a Ctrl-C in the terminal does not stop
// the server before its worker has drained.
//
// The goroutine keeps its OS thread for the whole life of the child: the kernel sends the death signal
// when the *thread* that forked ends, not the process, and Go may end idle threads
// (golang.org/issue/27505).
func startChild(c command) (*Server, error) {
	ch := &Server{command: c, log: &tail{}, exited: make(chan struct{})}
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = "/" // the user of the child may not be able to enter ours
	cmd.Env = append(childEnv(), c.env...)
	cmd.Stdout, cmd.Stderr = ch.log, ch.log
	if c.tee != nil {
		both := io.MultiWriter(ch.log, c.tee)
		cmd.Stdout, cmd.Stderr = both, both
	}
	cmd.WaitDelay = time.Second // a grandchild may keep the output open
	cmd.SysProcAttr = childAttr(c.user, c.death)
	if c.lock != nil {
		cmd.ExtraFiles = []*os.File{c.lock}
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		ch.process = cmd.Process
		started <- err
		if err != nil {
			return
		}
		ch.err = cmd.Wait()
		close(ch.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", c.path, err)
	}
	return ch, nil
}

// childEnv returns the environment of a child. It leaves out variables that would change the
// configuration of a server (PGPORT, PGDATA, NOTIFY_SOCKET) or that differ between machines (LANG).
func childEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// ExitError returns an error with the exit status of the child and the end of its log. Call it only
// after Exited is closed.
func (s *Server) ExitError() error {
	how := "exit status 0"
	if s.err != nil {
		how = s.err.Error()
	}
	return fmt.Errorf("%s (pid %d) exited: %s; %s", s.name, s.process.Pid, how, s.log)
}

// awaitReady calls probe until it succeeds. It returns an error when the child ends, within is over or ctx is done
// first. A child with waiting has no limit: waiting receives a line each time when within is over.
func (s *Server) awaitReady(ctx context.Context, within time.Duration, probe func(context.Context) error) error {
	late := fmt.Errorf("not ready within %v", within)
	for every := readyPoll; ; every = slowPoll {
		limited, cancel := context.WithTimeoutCause(ctx, within, late)
		last, err := s.poll(limited, every, probe)
		cancel()
		if s.waiting == nil || !errors.Is(err, late) {
			return err
		}
		s.waiting(fmt.Sprintf("waiting for %s (pid %d) to recover its data: %s", s.name, s.PID(),
			strings.Join(strings.Fields(last.Error()), " ")))
	}
}

// poll calls probe until it succeeds, and returns its last error. It returns an error when the child ends or ctx is done
// first.
func (s *Server) poll(
	ctx context.Context, every time.Duration, probe func(context.Context) error,
) (last, err error) {
	err = Poll(ctx, every, func() (bool, error) {
		probeCtx, done := context.WithTimeout(ctx, probeWithin)
		defer done()
		if last = probe(probeCtx); last == nil {
			return true, nil
		}
		select {
		case <-s.exited:
			return false, s.ExitError()
		default:
			return false, nil
		}
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (last probe: %w); %s", err, last, s.log)
	}
	return last, err
}

// stop requests a graceful stop, kills the child when that exceeds the given time, and returns when
// the child has ended. It is no error if the child had ended before.
func (s *Server) stop(within time.Duration) error {
	for _, sig := range []os.Signal{s.command.stop, os.Kill} {
		if err := s.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s (pid %d): %w", s.name, s.process.Pid, err)
		}
		select {
		case <-s.exited:
			return nil
		case <-time.After(within):
		}
	}
	return fmt.Errorf("stop %s (pid %d): still running %v after SIGKILL", s.name, s.process.Pid, within)
}

// onFreePort starts a server on a free port of 127.0.0.1 and returns it when it is ready. When another
// process takes the port first, it tries another port.
func onFreePort(ctx context.Context, make func(port int) command,
	probe func(ctx context.Context, s *Server) error,
) (*Server, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		s, err := startChild(make(port))
		if err != nil {
			return nil, err
		}
		s.Port = port
		err = s.awaitReady(ctx, readyWithin, func(ctx context.Context) error { return probe(ctx, s) })
		if err == nil {
			return s, nil
		}
		log := s.log.String()
		lost := strings.Contains(log, "Address already in use") || strings.Contains(log, "could not bind")
		if err := errors.Join(err, s.stop(stopWithin)); !lost || attempt == portAttemptsMax || ctx.Err() != nil {
			return nil, err
		}
	}
}
