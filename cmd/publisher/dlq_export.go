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

// dlqExport writes dead letters with headers and bodies.
type dlqExport struct {
	Filters deadLetterFlags `embed:""`
	File    string          `short:"f" type:"path" placeholder:"FILE" help:"Output file. It must not exist, and is written atomically. Default, and -: stdout."`
}

func (*dlqExport) Help() string {
	return `Writes dead letters, oldest first, as one JSON object a line, or with -o json as one array. An object has
the members of publisher dlq list -o json, and stored_at, worker, replays, headers ({name: [value, ...]}) and
body, the original body as a JSON string. If the body is not UTF-8, body_base64 replaces it. If the body no
longer exists, error replaces it and the exit code is 1.

Examples:

  publisher dlq export -f dead-letters.ndjson
  publisher dlq export --reason malformed --since 1d | jq -r .body`
}

// standardOutput is the file name that stands for stdout.
const standardOutput = "-"

func (c *dlqExport) Run(ctx context.Context, p *program) error {
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	if c.File == "" || c.File == standardOutput {
		return c.write(ctx, p, p.out, deadLetters)
	}
	return c.writeFile(func(w io.Writer) error { return c.write(ctx, p, w, deadLetters) })
}

// writeFile writes a temporary file in the same directory and links it to its name when it is complete.
func (c *dlqExport) writeFile(write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(c.File); err == nil {
		return misused("--file: %s exists", c.File)
	}
	file, err := os.CreateTemp(filepath.Dir(c.File), filepath.Base(c.File)+".part-*")
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
	if err := os.Link(file.Name(), c.File); err != nil { // a rename would replace a file
		return fmt.Errorf("export: %w", err)
	}
	return incomplete
}

// errUnreadable reports that some dead letters were written without their bodies.
var errUnreadable = errors.New("exported without body, which no longer exists")

func (c *dlqExport) write(ctx context.Context, p *program, w io.Writer, deadLetters *client.DeadLetters) error {
	out := bufio.NewWriter(w)
	to := *p
	to.out, to.isTerminal = out, w == p.out && p.isTerminal
	list := to.newList(nil, nil)
	unreadable := 0
	for l, err := range limited(deadLetters.All(ctx, c.Filters.filter(), true), c.Filters.Limit) {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		if l.Missing != nil {
			unreadable++
		}
		if err := list.addValue(exportedOf(l)); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	if err := errors.Join(list.end(""), out.Flush()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	p.reportf("exported %s", terminal.Counted(list.n, "dead letter"))
	if unreadable > 0 {
		return fmt.Errorf("%s: %w", terminal.Counted(unreadable, "dead letter"), errUnreadable)
	}
	return nil
}
