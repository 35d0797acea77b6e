package main

import (
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/terminal"
)

// printJSON prints a value for -o json.
func printJSON(to io.Writer, value any) error {
	text, err := json.Marshal(value, jsontext.WithIndent("  "), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("encode json: %w", err)
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
