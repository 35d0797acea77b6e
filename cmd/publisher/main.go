// Command publisher speaks to Holdfast as booking, payment and inventory services do: it
// publishes their events, waits for the outcomes when asked to, and shows what is answered.
//
// Every verb is one struct in a file of its own: its fields are its flags, Help says what it
// does with an example, and Run publishes. To add one, write it and name it in cli.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs one verb until it is done or ctx is over, and returns its exit code. Results go to
// stdout, everything else to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := newProgram(stdout, &lockedWriter{w: stderr})
	err := p.run(ctx, args)
	code := exitCode(err)
	switch {
	case code == exitOK, code == exitRejected, code == exitDeadLettered: // the answer is on stdout
	case code == exitUsage && !errors.Is(err, errNoVerb):
		fmt.Fprintf(p.err, "publisher: %s (try --help)\n", terminal.Printable(err.Error()))
	default:
		fmt.Fprintf(p.err, "publisher: %s\n", terminal.PrintableLines(err.Error()))
	}
	return code
}

// usageError says that the program was called in a way that has no meaning.
type usageError struct{ detail string }

func (e *usageError) Error() string { return e.detail }

func misused(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// An event that was refused is done, and yet not what was wanted. Both are told by the exit
// code alone, because the answer itself is the result.
var (
	errRejected     = errors.New("rejected")
	errDeadLettered = errors.New("dead-lettered")
)

// exitCode turns what a verb returns into the exit code of the program.
func exitCode(err error) int {
	var usage *usageError
	var parse *kong.ParseError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.As(err, &parse), errors.Is(err, errNoVerb):
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

// lockedWriter lets the connection complain while a verb does.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
