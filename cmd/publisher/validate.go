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

// validate says what a worker would say of events, without any server.
type validate struct {
	File    string `short:"f" required:"" placeholder:"FILE" predictor:"file" help:"The events, one a line, or one event over several lines; - is standard input."`
	Subject string `placeholder:"SUBJECT" help:"Where the events are to be published. Without it each is taken to be published where it belongs."`
}

// Help implements kong's detailed help.
func (*validate) Help() string {
	return `Says for every event of a file, a line each, "ok" with its event and resource, or the reason and the detail of the dead letter that a worker would make of it, word for word. It asks no server. Events are CloudEvents in JSON or in the short form, as for load (publisher load --help).

What is well-formed and meaningless, like a quantity of 0, is ok: the outcome of such an event is a refusal, not a dead letter.

Exit codes: 0 all are ok, 4 one or more would be dead-lettered.

Examples:

  publisher validate -f events.ndjson
  publisher validate -f event.json --subject holdfast.in.booking.requested.loft
  generate | publisher validate -f - -o json`
}

func (*validate) outputs() []string { return []string{outputTable, outputJSON, outputNDJSON} }

// validation is what a worker would say of one event.
type validation struct {
	Line       int    `json:"line"`
	OK         bool   `json:"ok"`
	Event      string `json:"event,omitzero"`
	ResourceID string `json:"resource_id,omitzero"`
	Reason     string `json:"reason,omitzero"` // of the dead letter
	Detail     string `json:"detail,omitzero"`
}

func (v validation) String() string {
	if v.OK {
		return terminal.Printable(fmt.Sprintf("%d: ok %s %s", v.Line, v.Event, v.ResourceID))
	}
	return terminal.Printable(fmt.Sprintf("%d: %s: %s", v.Line, v.Reason, v.Detail))
}

// errLineTooLong is said of a line that is longer than lineMax.
var errLineTooLong = &events.UnprocessableError{Reason: events.ReasonTooLarge, Detail: "the line is longer than 128 KiB"}

// Run prints the verdicts.
func (v *validate) Run(ctx context.Context, p *program) error {
	in, err := p.openInput(v.File)
	if err != nil {
		return err
	}
	defer in.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	bad, out := 0, p.newList(nil, nil)
	err = v.each(newLineReader(ctx, in.file), p, func(result validation) error {
		if !result.OK {
			bad++
		}
		if out.isJSON() {
			return out.addValue(result)
		}
		return p.print(result.String() + "\n")
	})
	if ctx.Err() != nil {
		err = errStoppedByUser
	}
	if err == nil && out.isJSON() {
		err = out.end("")
	}
	if err == nil && bad > 0 {
		err = errDeadLettered
	}
	return err
}

// each hands what is said of every event to say.
func (v *validate) each(lines *lineReader, p *program, say func(validation) error) error {
	for {
		next, err := lines.event()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if next.tooLong {
			err = say(v.result(next.number, composed{}, errLineTooLong))
		} else {
			text := bytes.Clone(next.text)
			event, wrong := p.compose(text, "")
			if wrong == nil && v.Subject != "" {
				_, wrong = p.namespace().Decode(v.Subject, event.message.Header, event.message.Data, time.Time{})
			}
			err = say(v.result(next.number, event, wrong))
		}
		if err != nil {
			return err
		}
	}
}

func (v *validate) result(number int, event composed, wrong error) validation {
	var why *events.UnprocessableError
	if errors.As(wrong, &why) {
		return validation{Line: number, Reason: why.Reason, Detail: why.Detail}
	}
	return validation{Line: number, OK: true, Event: event.Event, ResourceID: event.Resource}
}
