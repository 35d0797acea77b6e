package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

// dlqShow shows one dead letter.
type dlqShow struct {
	Seq    uint64 `arg:"" help:"Sequence of the dead letter, as dlq list shows it."`
	Reveal bool   `help:"Show the user and the metadata in the body too, and a body that is not JSON."`
}

func (*dlqShow) Help() string {
	return `Shows a dead letter: reason and detail, subject, time, worker, headers and body. A JSON body is
indented, without the user and the metadata. -o json prints the whole object that publisher dlq
export writes.

Examples:

  publisher dlq show 12
  publisher dlq show 12 -o json | jq -r .body`
}

func (c *dlqShow) Run(ctx context.Context, p *program) error {
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	l, err := deadLetters.Get(ctx, c.Seq)
	if err != nil {
		return err
	}
	if p.json() {
		return p.printValue(exportedOf(l))
	}
	return p.print(p.deadLetterPage(l, c.Reveal))
}

// deadLetterPage returns a dead letter as text, with personal data only if reveal is true.
func (p *program) deadLetterPage(l *events.DeadLetter, reveal bool) string {
	rows := [][]string{
		{"detail", l.Detail},
		{"event", l.Event.Type},
		{"event_id", l.EventID},
		{"subject", l.Subject},
		{"stored", p.timeText(l.StoredAt) + ", " + since(l.StoredAt) + " ago"},
		{"dead-lettered", l.Time + " by " + l.Worker},
		{"deliveries", strconv.FormatUint(l.Deliveries, 10)},
		{"replays", strconv.FormatUint(l.Replays, 10)},
		{"stream_seq", strconv.FormatUint(l.StreamSeq, 10)},
	}
	if l.ClaimCheck != nil {
		rows = append(rows, []string{"claim check", fmt.Sprintf("the event is too large for a copy: it is sequence %d of %s",
			l.ClaimCheck.Seq, l.ClaimCheck.Stream)})
	}
	text := fmt.Sprintf("dead letter %d: %s\n", l.Seq, terminal.Printable(l.Reason)) + facts(rows)
	var headers [][]string
	for _, name := range slices.Sorted(maps.Keys(l.Header)) {
		if events.IsDeadLetterHeader(name) {
			continue // shown above
		}
		for _, value := range l.Header[name] {
			if !reveal && !queries.IsPublicHeader(name) {
				value = "hidden, see --reveal"
			}
			headers = append(headers, []string{name, value})
		}
	}
	if len(headers) > 0 {
		text += "\nheaders:\n" + facts(headers)
	}
	if l.Missing != nil {
		return text + "\nbody: " + terminal.Printable(l.Missing.Error()) + "\n"
	}
	if reveal {
		return text + "\nbody (" + bytesText(l.Size) + "):\n" + indented(l.Body)
	}
	public := client.PublicBody(l.Body)
	if public == nil {
		return text + "\nbody (" + bytesText(l.Size) + "): no JSON object, --reveal shows it\n"
	}
	return text + "\nbody (" + bytesText(l.Size) + "), --reveal shows the values in ‹›:\n" + indented(public)
}

// indented returns a body as text: JSON as client.EditableBody indents it, everything else unchanged.
func indented(body []byte) string {
	text := client.EditableBody(body)
	if jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) && utf8.Valid(text) {
		text = terminal.PrintableJSON(text)
	}
	var lines strings.Builder
	for line := range bytes.Lines(text) {
		lines.WriteString("  " + terminal.Printable(strings.TrimRight(string(line), "\r\n")) + "\n")
	}
	return lines.String()
}

// exported is a dead letter in the form of dlq export. Exactly one of Body, BodyBase64 and Error is set.
type exported struct {
	*events.DeadLetter
	StoredAt   holds.Time  `json:"stored_at"`
	Worker     string      `json:"worker"`
	Replays    uint64      `json:"replays"`
	Headers    nats.Header `json:"headers"`
	Body       *string     `json:"body,omitzero"`
	BodyBase64 *string     `json:"body_base64,omitzero"` // a body that is not UTF-8
	Error      string      `json:"error,omitzero"`       // why the body is missing
}

func exportedOf(l *events.DeadLetter) exported {
	e := exported{DeadLetter: l, StoredAt: holds.Time{Time: l.StoredAt}, Worker: l.Worker, Replays: l.Replays, Headers: l.Header}
	switch body := string(l.Body); {
	case l.Missing != nil:
		e.Error = l.Missing.Error()
	case utf8.ValidString(body):
		e.Body = &body
	default:
		encoded := base64.StdEncoding.EncodeToString(l.Body)
		e.BodyBase64 = &encoded
	}
	return e
}
