package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// validate decodes events as a worker does, without any server.
type validate struct {
	File    string `short:"f" required:"" placeholder:"FILE" predictor:"file" help:"File of events, one a line, or one event over several lines; - for standard input."`
	Subject string `nonzero:"is empty; leave the flag out for the right subject of each event" placeholder:"SUBJECT" help:"Subject on which the events will be published. Default: the right subject of each event."`
}

func (*validate) Help() string {
	return `Validates the events of a file without any server. For each event it prints a line: "ok" with event
name and resource, or the reason and detail of the dead letter that a worker would store. Events are
CloudEvents in JSON or in the short form, see publisher load --help.

A well-formed event with a meaningless value, like a quantity of 0, is ok: its outcome is a
rejection, not a dead letter.

Exit codes: 0 all events are ok, 4 an event would be dead-lettered.

Examples:

  publisher validate -f events.ndjson
  publisher validate -f event.json --subject holdfast.in.booking.requested.loft
  generate | publisher validate -f - -o json`
}

// validation is the result of one event.
type validation struct {
	Line       int    `json:"line"`
	OK         bool   `json:"ok"`
	Event      string `json:"event,omitzero"`
	ResourceID string `json:"resource_id,omitzero"`
	Reason     string `json:"reason,omitzero"` // of the dead letter
	Detail     string `json:"detail,omitzero"`
}

// errLineTooLong is the error of a line longer than lineMax.
var errLineTooLong = &events.UnprocessableError{Reason: events.ReasonTooLarge,
	Detail: "the line is longer than 128 KiB"}

func (c *validate) Run(ctx context.Context, p *program) error {
	in, err := p.openInput("--file", c.File)
	if err != nil {
		return err
	}
	defer in.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	bad, out := 0, p.newList(nil, nil)
	for lines := newLineReader(ctx, in.file); err == nil; {
		var next inputLine
		if next, err = lines.event(); err != nil {
			break
		}
		result := c.result(p, next)
		line := fmt.Sprintf("%d: ok %s %s", result.Line, result.Event, result.ResourceID)
		if !result.OK {
			bad++
			line = fmt.Sprintf("%d: %s: %s", result.Line, result.Reason, result.Detail)
		}
		if out.isJSON() {
			err = out.addValue(result)
		} else {
			err = p.print(terminal.Printable(line) + "\n")
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if err == nil && out.isJSON() {
		err = out.end("")
	}
	if err == nil && bad > 0 {
		err = errDeadLettered
	}
	return err
}

// result is the result of one line.
func (c *validate) result(p *program, of inputLine) validation {
	var event composed
	err := error(errLineTooLong)
	if !of.tooLong {
		if event, err = p.compose(bytes.Clone(of.text), ""); err == nil && c.Subject != "" {
			_, err = p.namespace().Decode(c.Subject, event.message.Header, event.message.Data, time.Time{})
		}
	}
	var unprocessable *events.UnprocessableError
	if errors.As(err, &unprocessable) {
		return validation{Line: of.number, Reason: unprocessable.Reason, Detail: unprocessable.Detail}
	}
	return validation{Line: of.number, OK: true, Event: event.Event, ResourceID: event.Resource}
}
