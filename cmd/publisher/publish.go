package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

// source is who publishes, in every event of this program.
const source = "/holdfast/publisher"

// publishing is what every verb takes that publishes an event.
type publishing struct {
	Wait    bool `help:"Wait for the outcome and print it."`
	Explain bool `help:"Print the message and the nats command that publishes it. Publishes nothing."`
}

// publish publishes an event about a resource, as how says. What would be dead-lettered for its
// form is wrong usage and not published; what the form allows is the worker's to decide.
func (p *program) publish(ctx context.Context, how publishing, event, resource string, data any) error {
	request, err := client.NewEvent(p.namespace(), event, resource, source, data)
	if err != nil {
		return misused("%v", err) // a value that JSON cannot have, like invalid UTF-8
	}
	m, err := request.Message()
	if err != nil {
		return misused("%v", err)
	}
	if _, err := p.namespace().Decode(m.Subject, m.Header, m.Data, time.Time{}); err != nil {
		return misused("%s", inFlags(err))
	}
	if how.Explain {
		return p.explain(m)
	}
	return p.deliver(ctx, m, request.Envelope, how.Wait)
}

// inFlags says what is wrong with the form of an event by the flag that was given for it.
func inFlags(err error) string {
	var why *events.UnprocessableError
	if !errors.As(err, &why) {
		return err.Error()
	}
	member, inData := strings.CutPrefix(why.Detail, "data.")
	name, detail, found := strings.Cut(member, ":")
	if !inData || !found {
		return why.Error()
	}
	flags := map[string]string{"slots": "slot", "ttl_seconds": "ttl"}
	flag, differs := flags[name]
	if !differs {
		flag = strings.ReplaceAll(name, "_", "-")
	}
	return "--" + flag + ":" + detail
}

// deliver publishes a message and prints the event as it was stored or, when it is to wait, its
// outcome. A refusal is printed and then errRejected or errDeadLettered.
func (p *program) deliver(ctx context.Context, m *nats.Msg, event events.Envelope, wait bool) error {
	cl, disconnect, err := p.connect()
	if err != nil {
		return err
	}
	defer disconnect()
	limited, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if !wait {
		if err := cl.Publish(limited, m); err != nil {
			return p.withHint(err)
		}
		return p.printStored(m, event)
	}
	answer, err := cl.Request(limited, m)
	switch {
	case ctx.Err() != nil && errors.Is(err, client.ErrReplyTimeout):
		return fmt.Errorf("interrupted; event %s is stored and will have its outcome", event.ID)
	case errors.Is(err, client.ErrReplyTimeout):
		return fmt.Errorf("%w (%s): event %s is stored on %s and will have its outcome. Does a worker run in namespace %s?",
			client.ErrReplyTimeout, p.Timeout, event.ID, m.Subject, p.Namespace)
	case err != nil:
		return p.withHint(err)
	}
	return p.printReply(answer)
}

// withHint adds to an error what to do about it.
func (p *program) withHint(err error) error {
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: namespace %s has no streams there; `worker migrate` or `worker run` creates them", err, p.Namespace)
	}
	return err
}
