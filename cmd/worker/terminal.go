package main

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/terminal"
)

// output is the standard output of a command. Once a write has failed, it writes no more.
type output struct {
	io.Writer
	mu  sync.Mutex
	err error // of the write that failed
}

func (o *output) Write(text []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		n, o.err = o.Writer.Write(text)
	}
	return n, o.err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Unwrap returns the stream.
func (o *output) Unwrap() io.Writer { return o.Writer }

// printJSON prints a value for -o json. On a terminal it prints characters that could control the terminal as JSON
// escapes, which do not change the value.
func printJSON(to io.Writer, value any) error {
	text, err := json.Marshal(value, jsontext.WithIndent("  "), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("encode json: %w", err)
	}
	if terminal.Is(to) {
		text = terminal.PrintableJSON(text)
	}
	if _, err := fmt.Fprintf(to, "%s\n", text); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

// requireTerminal returns a usage error when stdin is no terminal, so a prompt is impossible.
func requireTerminal() error {
	if !terminal.Is(os.Stdin) {
		return misused("stdin is not a terminal: add --yes to run without confirmation")
	}
	return nil
}
