// Package terminal has what the programs share on a command line: tables, text from outside in a form that
// is safe to print, whether a stream is a terminal at all, and how command lines are parsed and completed.
package terminal

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"os/user"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/mattn/go-isatty"
)

// Is reports whether a stream, or the one that its method Unwrap returns, is a terminal.
func Is(stream any) bool {
	if wrapper, wraps := stream.(interface{ Unwrap() io.Writer }); wraps {
		stream = wrapper.Unwrap()
	}
	file, isFile := stream.(*os.File)
	return isFile && isatty.IsTerminal(file.Fd())
}

// UntilStopped returns a context that ends with a signal to stop: SIGINT, SIGTERM, or SIGHUP, which the end of a terminal
// sends, unless it is ignored as under nohup.
func UntilStopped() (context.Context, context.CancelFunc) {
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		stops = append(stops, syscall.SIGHUP)
	}
	return signal.NotifyContext(context.Background(), stops...)
}

// Counted returns a number and its noun, in the plural unless n is 1.
func Counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// ByCount returns what was counted, the most frequent first.
func ByCount[N int | uint64](counts map[string]N) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
}

// Confirmed asks a question on a terminal and reports whether the answer is yes. It returns false when ctx
// is cancelled first.
func Confirmed(ctx context.Context, in io.Reader, to io.Writer, question string) bool {
	fmt.Fprintf(to, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // "" at the end of input, which means no
		answered <- line
	}()
	select {
	case answer := <-answered:
		word := strings.ToLower(strings.TrimSpace(answer))
		return word == "y" || word == "yes"
	case <-ctx.Done():
		fmt.Fprintln(to)
		return false
	}
}

// Operator returns the name of the operator who runs the program: the one that is given, unless it is "", else
// user@host. What the system does not know is "unknown".
func Operator(given string) string {
	if given != "" {
		return given
	}
	name, host := "unknown", "unknown"
	if account, err := user.Current(); err == nil {
		name = account.Username
	}
	if found, err := os.Hostname(); err == nil {
		host = found
	}
	return name + "@" + host
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Flag returns a flag and its value as they are written for a POSIX shell. A value that begins with "-" would be read as
// another flag.
func Flag(name, value string) string {
	if strings.HasPrefix(value, "-") {
		return name + "=" + Quote(value)
	}
	return name + " " + Quote(value)
}

// Quote quotes a word for a POSIX shell.
func Quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
