package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"holdfast/internal/client"
	"holdfast/internal/terminal"
)

// dlqExport writes dead letters.
type dlqExport struct {
	Filters deadLetterFlags `embed:""`
	File    string          `short:"f" type:"path" placeholder:"FILE" help:"Where to write. It must not be there yet, and is there only when it is whole. Default: stdout."`
}

// Help implements kong's detailed help.
func (*dlqExport) Help() string {
	return `Writes dead letters, oldest first, one JSON object a line: what list -o json tells, and stored_at, worker, headers ({name: [value, ...]}) and body, the original body as a JSON string; body_base64 in its place when it is not UTF-8; error when it cannot be read any more: then the exit code is 1.

Examples:

  publisher dlq export -f letters.ndjson
  publisher dlq export --reason malformed --since 1d | jq -r .body`
}

// outputs are those that it would not lie with: it always writes a value a line.
func (*dlqExport) outputs() []string { return []string{outputTable, outputNDJSON} }

// Run writes them.
func (v *dlqExport) Run(ctx context.Context, p *program) error {
	_, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	if v.File == "" {
		return v.write(ctx, p, p.out, deadLetters)
	}
	return v.writeFile(func(w io.Writer) error { return v.write(ctx, p, w, deadLetters) })
}

// writeFile has the file written beside its place, and put there when it is whole.
func (v *dlqExport) writeFile(write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(v.File); err == nil {
		return misused("--file: %s is there already", v.File)
	}
	file, err := os.CreateTemp(filepath.Dir(v.File), filepath.Base(v.File)+".part-*")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	incomplete := write(file)
	if incomplete != nil && !errors.Is(incomplete, errUnreadable) {
		return errors.Join(incomplete, file.Close())
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := os.Link(file.Name(), v.File); err != nil { // unlike a rename it replaces nothing
		return fmt.Errorf("export: %w", err)
	}
	return incomplete
}

// errUnreadable says that some letters were written without their bodies.
var errUnreadable = errors.New("exported without body, it cannot be read any more")

func (v *dlqExport) write(ctx context.Context, p *program, w io.Writer, deadLetters *client.DeadLetters) error {
	out := bufio.NewWriter(w)
	n, unreadable := 0, 0
	for l, err := range limited(deadLetters.All(ctx, v.Filters.filter(), true), v.Filters.Limit) {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		text, err := exportedOf(l)
		if err != nil {
			return err
		}
		if w == p.out && p.terminal {
			text = terminal.PrintableJSON(text)
		}
		if l.Missing != nil {
			unreadable++
		}
		if _, err := fmt.Fprintf(out, "%s\n", text); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		n++
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	fmt.Fprintf(p.err, "publisher: exported %s\n", counted(n, "dead letter"))
	if unreadable > 0 {
		return fmt.Errorf("%s: %w", counted(unreadable, "dead letter"), errUnreadable)
	}
	return nil
}
