package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(file.Fd())
}

// printJSON prints a value for -o json.
func printJSON(to io.Writer, value any) error {
	text, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode json: %w", err)
	}
	fmt.Fprintf(to, "%s\n", text)
	return nil
}

// requireTerminal returns a usage error when stdin is no terminal, so a prompt is impossible.
func requireTerminal() error {
	if !isTerminal(os.Stdin) {
		return misused("stdin is not a terminal: add --yes to run without confirmation")
	}
	return nil
}

// confirmed prompts with a question and reports whether the answer is yes. It returns false when
// ctx is cancelled first.
func confirmed(ctx context.Context, to io.Writer, question string, args ...any) bool {
	fmt.Fprintf(to, question+" [y/N] ", args...)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // at the end of input it is empty, which means no
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

// newProgress returns a function that shows progress in one line of a terminal, and a function that
// clears the line. When to is no terminal, both do nothing.
func newProgress(to io.Writer) (progress func(string), end func()) {
	if !isTerminal(to) {
		return func(string) {}, func() {}
	}
	bar := progressbar.NewOptions(-1,
		progressbar.OptionSetWriter(to),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine of its own
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetElapsedTime(true))
	return bar.Describe, func() { _ = bar.Clear() } // fails only when the terminal is closed
}
