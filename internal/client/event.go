package client

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// NewEvent returns an event about a resource, with a new UUIDv7 as its id, and its message: a CloudEvent in
// structured mode. event is a type such as events.BookingRequested, source is a URI reference that identifies the
// publisher, and data is encoded as JSON.
func NewEvent(ns events.Namespace, event, resource, source string, data any) (*nats.Msg, events.Envelope, error) {
	e := events.Envelope{
		SpecVersion: "1.0", ID: uuid.Must(uuid.NewV7()).String(), // rand.Read never fails
		Source: source, Type: events.Type(event), DataContentType: events.ContentTypeJSON,
	}
	var err error
	if e.Data, err = json.Marshal(data); err != nil {
		return nil, e, fmt.Errorf("encode %s: %w", event, err)
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, e, fmt.Errorf("encode %s: %w", event, err)
	}
	m := events.NewStructuredMsg(body)
	m.Subject = ns.In(event, resource)
	m.Header.Set(jetstream.MsgIDHeader, events.MessageID(e.Source, e.ID))
	return m, e, nil
}

// indentDepthMax is how deep an indented body may be nested: each level makes all lines inside of it longer.
const indentDepthMax = 64

// EditableBody returns a body as an operator reads and edits it: indented if it is JSON with at most 64 objects and arrays
// inside of each other, else unchanged.
func EditableBody(body []byte) []byte {
	decoder := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for _, err := decoder.ReadToken(); err == nil; _, err = decoder.ReadToken() {
		if decoder.StackDepth() > indentDepthMax {
			return body
		}
	}
	value := jsontext.Value(body).Clone()
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return body
	}
	return append(value, '\n')
}
