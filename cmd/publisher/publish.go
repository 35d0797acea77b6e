package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
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
	var unprocessable *events.UnprocessableError
	if !errors.As(err, &unprocessable) {
		return err.Error()
	}
	if member, inData := strings.CutPrefix(unprocessable.Detail, "data."); inData {
		return flagFor(member)
	}
	return unprocessable.Error()
}

// flagFor returns a text "<member>: <detail>" with the flag in place of the member, and any other text unchanged.
func flagFor(text string) string {
	name, detail, found := strings.Cut(text, ":")
	if !found || strings.Contains(name, " ") {
		return text
	}
	flags := map[string]string{"slots": "slot", "ttl_seconds": "ttl"}
	flag, differs := flags[name]
	if !differs {
		flag = strings.ReplaceAll(name, "_", "-")
	}
	return "--" + flag + ":" + detail
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
	if ctx.Err() != nil || errors.Is(err, nats.ErrDisconnected) {
		return fmt.Errorf("%w: it is unknown whether event %s is stored on %s", errUnacknowledged, event.ID, m.Subject)
	}
	return p.withHint(err)
}

// withHint adds advice to the error of a missing stream.
func (p *program) withHint(err error) error { return client.HintMigrate(err, p.namespace()) }
