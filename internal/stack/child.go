package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	// portAttemptsMax is how often a server is started again because its
	// port was taken between the choice and its bind.
	portAttemptsMax = 5
	// readyPoll is the pause between two questions whether a server is ready.
	readyPoll = 5 * time.Millisecond
	// probeWithin bounds one such question.
	probeWithin = 2 * time.Second
)

// command says how to run a server.
type command struct {
	name  string // for messages
	path  string
	args  []string
	env   []string       // besides childEnv
	user  *account       // nil: this process' own
	stop  syscall.Signal // asks for a graceful end
	death syscall.Signal // sent by the kernel when this process dies (Linux)
	lock  *os.File       // inherited, held as long as the server or a process of its own lives
	tee   io.Writer      // has all that it says; nil = only its end is kept
}

// child is a running server process. A nil child has pid 0 and stops at once.
type child struct {
	command
	process *os.Process
	log     *tail
	exited  chan struct{} // closed when it is gone and was waited for
	err     error         // how it ended, to be read after exited
}

// startChild runs a command in a process group of its own, so that a Ctrl-C in
// the terminal does not reach the server before its worker has drained.
//
// The goroutine keeps its OS thread for the whole life of the child, because
// the kernel sends the death signal when the *thread* that forked ends, not the
// process, and Go ends idle threads as it likes (golang.org/issue/27505).
func startChild(c command) (*child, error) {
	ch := &child{command: c, log: &tail{}, exited: make(chan struct{})}
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = "/" // the user of the child may not be able to enter ours
	cmd.Env = append(childEnv(), c.env...)
	cmd.Stdout, cmd.Stderr = ch.log, ch.log
	if c.tee != nil {
		both := io.MultiWriter(ch.log, c.tee)
		cmd.Stdout, cmd.Stderr = both, both
	}
	cmd.WaitDelay = time.Second // for a grandchild that keeps the log open
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

// childEnv drops what would configure a server behind our back (PGPORT, PGDATA,
// NOTIFY_SOCKET) or differ from machine to machine (LANG).
func childEnv() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (c *child) pid() int {
	if c == nil {
		return 0
	}
	return c.process.Pid
}

// exitError says how the child ended. Only after exited.
func (c *child) exitError() error {
	how := "exit status 0"
	if c.err != nil {
		how = c.err.Error()
	}
	return fmt.Errorf("%s (pid %d) ended by itself: %s; %s", c.name, c.process.Pid, how, c.log)
}

// awaitReady asks probe until it succeeds, the child ends, or readyWithin or
// ctx is over.
func (c *child) awaitReady(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %v", readyWithin))
	defer cancel()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		probeCtx, done := context.WithTimeout(ctx, probeWithin)
		err := probe(probeCtx)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-c.exited:
			return c.exitError()
		case <-ctx.Done():
			return fmt.Errorf("%w (last answer: %w); %s", context.Cause(ctx), err, c.log)
		case <-poll.C:
		}
	}
}

// stop asks the child to end, kills it when it has not within the given time,
// and returns when it is gone. One that was gone already is no error.
func (c *child) stop(within time.Duration) error {
	if c == nil {
		return nil
	}
	for _, sig := range []os.Signal{c.command.stop, os.Kill} {
		if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s (pid %d): %w", c.name, c.process.Pid, err)
		}
		select {
		case <-c.exited:
			return nil
		case <-time.After(within):
		}
	}
	return fmt.Errorf("stop %s (pid %d): still there %v after SIGKILL", c.name, c.process.Pid, within)
}

// onFreePort starts a server on a free port of 127.0.0.1 and waits until it is
// ready, with another port when somebody else was faster to take it.
func onFreePort(ctx context.Context, make func(port int) command, probe func(ctx context.Context, c *child, port int) error) (*child, int, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, 0, err
		}
		c, err := startChild(make(port))
		if err != nil {
			return nil, 0, err
		}
		err = c.awaitReady(ctx, func(ctx context.Context) error { return probe(ctx, c, port) })
		if err == nil {
			return c, port, nil
		}
		lost := c.log.has("Address already in use", "could not bind")
		if err := errors.Join(err, c.stop(stopWithin)); !lost || attempt == portAttemptsMax || ctx.Err() != nil {
			return nil, 0, err
		}
	}
}
