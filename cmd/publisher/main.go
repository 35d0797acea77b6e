// Command publisher publishes the events of booking, payment and inventory services, waits for
// their outcomes, and manages dead letters.
//
// Every command is a struct: its fields are its flags, Validate checks them, Help describes it with an
// example, and Run executes it. To add a command, write its struct and add a field to cli in cli.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/alecthomas/kong"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// The exit codes.
const (
	exitOK           = 0
	exitFailed       = 1
	exitUsage        = 2
	exitRejected     = 3
	exitDeadLettered = 4
	exitReplyTimeout = 5
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() { // until the process ends
		for received := range signals {
			if received == os.Interrupt && editing.Load() {
				continue
			}
			cancel(signalError{received})
			signal.Stop(signals) // a second signal ends a command that waits for a file, such as a terminal
		}
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// editing is true while an editor has the terminal. Ctrl-C, which then reaches both programs, is for the editor: ed, and a
// command that vi runs, go on after it.
var editing atomic.Bool

// signalError is the cause with which a signal cancels a command: a context.Canceled that names the signal.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return e.String() + " signal received" }

// Is implements the interface of errors.Is.
func (signalError) Is(target error) bool { return target == context.Canceled }

// run runs one command until it is done or ctx is over, and returns its exit code. Results go to
// stdout, everything else to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	messages := &lockedWriter{w: stderr}
	defer messages.end()
	p := newProgram(stdout, messages)
	err := p.run(ctx, args)
	code := exitCode(err)
	switch {
	case code == exitOK, code == exitRejected, code == exitDeadLettered: // the result is on stdout
	case code == exitUsage && !errors.Is(err, errNoCommand):
		fmt.Fprintf(p.err, "publisher: %s (try --help)\n", terminal.Printable(err.Error()))
	default:
		fmt.Fprintf(p.err, "publisher: %s\n", terminal.PrintableLines(err.Error()))
	}
	return code
}

// usageError reports a mistake in the command line.
type usageError struct{ detail string }

func (e *usageError) Error() string { return e.detail }

func misused(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// The command was executed, but its event was rejected or dead-lettered. Only the exit code reports
// these errors, because the answer on stdout says why.
var (
	errRejected     = errors.New("rejected")
	errDeadLettered = errors.New("dead-lettered")
)

// errInterrupted reports that the operator interrupted the command.
var errInterrupted = errors.New("interrupted")

// errUnacknowledged reports that NATS did not acknowledge a message before the command ended.
var errUnacknowledged = errors.New("no acknowledgement from NATS")

// exitCode returns the exit code of the program for the error of a command.
func exitCode(err error) int {
	var usage *usageError
	var parse *kong.ParseError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.As(err, &parse), errors.Is(err, errNoCommand):
		return exitUsage
	case errors.Is(err, errRejected):
		return exitRejected
	case errors.Is(err, errDeadLettered):
		return exitDeadLettered
	case errors.Is(err, client.ErrReplyTimeout):
		return exitReplyTimeout
	default:
		return exitFailed
	}
}

// lockedWriter lets the connection and the command write messages at the same time.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// end discards what the connection still reports: it ends by itself after the command.
func (l *lockedWriter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = io.Discard
}

// Unwrap returns the stream.
func (l *lockedWriter) Unwrap() io.Writer { return l.w }
