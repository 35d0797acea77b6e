package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// source is the CloudEvents source of every event that this program creates.
const source = "/holdfast/publisher"

// publishFlags are the flags of every command that publishes an event.
type publishFlags struct {
	Wait    bool `help:"Wait for the outcome and print it."`
	Explain bool `help:"Print the message and the nats command that publishes it, and publish nothing."`
}

// publish publishes an event of a resource. An event that a worker would dead-letter is a
// usageError and not published. The worker decides about every other event.
func (p *program) publish(ctx context.Context, flags publishFlags, event, resource string, data any) error {
	m, envelope, err := client.NewEvent(p.namespace(), event, resource, source, data)
	if err != nil {
		return misused("%v", err) // JSON cannot encode a value, for example invalid UTF-8
	}
	if _, err := p.namespace().Decode(m.Subject, m.Header, m.Data, time.Time{}); err != nil {
		return misused("%s", inFlags(err))
	}
	if flags.Explain {
		return p.explain(m)
	}
	return p.deliver(ctx, m, envelope, flags.Wait)
}

// inFlags returns the text of a decoding error, with the flag in place of the member of the event.
func inFlags(err error) string {
	if refused, is := errors.AsType[*events.UnprocessableError](err); is {
		if member, inData := strings.CutPrefix(refused.Detail, "data."); inData {
			return flagFor(member)
		}
	}
	return err.Error()
}

// flagFor returns a text "<member>: <detail>" with the flag in place of the member, and any other text unchanged.
func flagFor(text string) string {
	name, detail, found := strings.Cut(text, ":")
	if !found || strings.Contains(name, " ") {
		return text
	}
	flag := map[string]string{"slots": "slot", "ttl_seconds": "ttl"}[name]
	return "--" + cmp.Or(flag, strings.ReplaceAll(name, "_", "-")) + ":" + detail
}

// deliver publishes a message. It prints the stored event or, with wait, the outcome. It returns
// errRejected or errDeadLettered after it has printed such an answer.
func (p *program) deliver(ctx context.Context, m *nats.Msg, event events.Envelope, wait bool) error {
	if wait {
		if err := p.checkReplies(); err != nil {
			return err
		}
	}
	cl, err := p.connect(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if !wait {
		if err := cl.Publish(limited, m); err != nil {
			return p.publishError(limited, err, m, event)
		}
		return p.printStored(m, event)
	}
	reply, err := cl.Request(limited, m)
	switch {
	case ctx.Err() != nil && errors.Is(err, client.ErrReplyTimeout):
		return fmt.Errorf("%w; event %s is stored and will have an outcome", errInterrupted, event.ID)
	case errors.Is(err, client.ErrReplyTimeout):
		return fmt.Errorf("%w (%s): event %s is stored on %s and will have an outcome. "+
			"Is a worker running in namespace %s, and not paused?",
			client.ErrReplyTimeout, p.Timeout, event.ID, m.Subject, p.Namespace)
	case err != nil:
		return p.publishError(limited, err, m, event)
	}
	return p.printReply(reply)
}

// publishError returns the error of a message whose publishing failed. ctx limited it.
func (p *program) publishError(ctx context.Context, err error, m *nats.Msg, event events.Envelope) error {
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // not stored, also when ctx is over
		return p.withHint(err)
	}
	if ctx.Err() != nil || errors.Is(err, nats.ErrDisconnected) {
		return fmt.Errorf("%w: it is unknown whether event %s is stored on %s", errUnacknowledged, event.ID, m.Subject)
	}
	return p.withHint(err)
}

// withHint adds advice to the error of a missing stream. It is called when the program has connected.
func (p *program) withHint(err error) error { return p.client.HintMigrate(err) }

// explain prints a message instead of publishing it. Without -o json it also prints the nats command
// that publishes it.
func (p *program) explain(m *nats.Msg) error {
	if p.json() {
		headers := make(map[string]string)
		for name := range m.Header {
			headers[name] = m.Header.Get(name)
		}
		return p.printValue(struct {
			Subject string            `json:"subject"`
			Headers map[string]string `json:"headers"`
			Body    jsontext.Value    `json:"body"`
		}{m.Subject, headers, m.Data})
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Subject: %s\nHeaders:\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fmt.Fprintf(&text, "  %s: %s\n", name, m.Header.Get(name))
	}
	fmt.Fprintf(&text, "Body:\n%sThe same with the nats command:\n  %s\n", indented(m.Data), strings.Join(p.natsCommand(m), " "))
	return p.print(text.String())
}

// natsCommand returns the words of the command that publishes a message, quoted for a POSIX shell.
// It names the server if the URL is known without a connection and has no password.
func (p *program) natsCommand(m *nats.Msg) []string {
	words := []string{"nats", "pub", "--jetstream", terminal.Quote(m.Subject)}    // which waits until the message is stored
	if server, err := p.natsURL(); err == nil && !strings.Contains(server, "@") { // no URL of the list has a password
		words = append(words, "--server", terminal.Quote(server))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		words = append(words, "--header", terminal.Quote(name+":"+m.Header.Get(name)))
	}
	// In JSON two adjacent opening braces occur only inside a string. The nats command would read
	// them as the beginning of a template.
	body := strings.ReplaceAll(string(terminal.PrintableJSON(m.Data)), "{{", `{\u007b`)
	return append(words, terminal.Quote(body))
}
