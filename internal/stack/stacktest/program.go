package stacktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"holdfast/internal/stack"
)

// Program is a program that runs as a child process. It keeps what the program prints.
type Program struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has exited
	err    error         // how it exited, valid after exited is closed

	mu     sync.Mutex // guards output
	output bytes.Buffer
}

// StartProgram starts a program. Its output is what it prints to the streams that cmd leaves nil. The
// caller calls Stop or Kill.
func StartProgram(cmd *exec.Cmd) (*Program, error) {
	p := &Program{cmd: cmd, exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// Write adds to the output.
func (p *Program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

// Output returns what the program has printed so far.
func (p *Program) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// AwaitLine waits until the program has printed a line that contains text, and returns the line. When
// the program exits first, or has not printed it within [WaitBound], it kills the program and returns an
// error with the output.
func (p *Program) AwaitLine(text string) (line string, err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), WaitBound, fmt.Errorf("the program runs for %v", WaitBound))
	defer cancel()
	err = stack.Poll(ctx, pollMin, func() (found bool, err error) {
		select {
		case <-p.exited:
			err = fmt.Errorf("the program exited (%w)", p.err)
		default:
		}
		if line, found = lineWith(p.Output(), text); found {
			err = nil
		}
		return found, err
	})
	if err != nil {
		p.Kill()
		return "", fmt.Errorf("%w without printing %q:\n%s", err, text, p.Output())
	}
	return line, nil
}

// lineWith returns the first whole line of output that contains text.
func lineWith(output, text string) (line string, found bool) {
	for line := range strings.Lines(output) {
		if strings.HasSuffix(line, "\n") && strings.Contains(line, text) {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}

// Stop sends SIGTERM, waits until the program has exited, and returns an error unless it exited with 0.
func (p *Program) Stop() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.exited
	return errors.Join(err, p.err)
}

// Kill sends SIGKILL and waits until the program has exited.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill() // it may have exited
	<-p.exited
}

// Alive reports whether a process with this id runs. A zombie does not run: in a container whose first
// process does not reap, orphans stay zombies.
func Alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return runtime.GOOS != "linux" || !errors.Is(err, os.ErrNotExist)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
