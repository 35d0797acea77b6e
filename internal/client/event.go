package client

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// Event is an inbound event that is ready to publish.
type Event struct {
	Subject  string
	Envelope events.Envelope
}

// NewEvent returns an event about a resource, with a new UUIDv7 as its id. event is a type such as
// events.BookingRequested, source is a URI reference that identifies the publisher, and data is
// encoded as JSON.
func NewEvent(ns events.Namespace, event, resource, source string, data any) (Event, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Event{}, fmt.Errorf("new event id: %w", err)
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return Event{}, fmt.Errorf("encode %s: %w", event, err)
	}
	return Event{ns.In(event, resource), events.Envelope{
		SpecVersion: "1.0", ID: id.String(), Source: source, Type: events.Type(event),
		DataContentType: events.ContentTypeJSON, Data: encoded,
	}}, nil
}

// Message returns the NATS message of the event: a CloudEvent in structured mode.
func (e Event) Message() (*nats.Msg, error) {
	body, err := json.Marshal(e.Envelope)
	if err != nil {
		return nil, fmt.Errorf("encode the event for %s: %w", e.Subject, err)
	}
	m := events.NewStructuredMsg(body)
	m.Subject = e.Subject
	m.Header.Set(jetstream.MsgIDHeader, events.MessageID(e.Envelope.Source, e.Envelope.ID))
	return m, nil
}

// EditableBody returns a body as an operator edits it: indented if it is JSON, else unchanged.
func EditableBody(body []byte) []byte {
	value := jsontext.Value(body).Clone()
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return body
	}
	return append(value, '\n')
}
