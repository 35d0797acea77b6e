package client

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/members"
	"holdfast/internal/queries"
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

// PublicBody returns the body of an event, in structured or binary mode, without what may be private: a malformed event may
// have it in any member. It keeps names, null, and the values that the contract defines in the form that it gives them,
// except the user and metadata. A text that names the kind replaces every other value. The result is nil for what is no
// JSON object.
func PublicBody(body jsontext.Value) jsontext.Value {
	if body.Kind() != '{' || !body.IsValid(jsontext.AllowDuplicateNames(true)) {
		return nil
	}
	_, isEvent := members.LaxObject(body)["specversion"]
	return publicObject(body, isEvent)
}

// publicObject returns the public part of a valid object: of a whole event, or of its data.
func publicObject(object jsontext.Value, isEvent bool) jsontext.Value {
	var text bytes.Buffer
	decoder := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowDuplicateNames(true))
	encoder := jsontext.NewEncoder(&text, jsontext.AllowDuplicateNames(true))
	begin, err := decoder.ReadToken()
	err = errors.Join(err, encoder.WriteToken(begin))
	for err == nil && decoder.PeekKind() == '"' {
		quoted, _ := decoder.ReadToken()
		name := quoted.String()
		value, _ := decoder.ReadValue()
		switch {
		case isEvent && name == "data" && value.Kind() == '{':
			value = publicObject(value, false)
		case isEvent && queries.IsPublicAttribute(name) && value.Kind() == '"', queries.IsPublicMember(name, value), value.Kind() == 'n':
		default:
			value = hiddenValue(value)
		}
		err = errors.Join(encoder.WriteToken(jsontext.String(name)), encoder.WriteValue(value))
	}
	if errors.Join(err, encoder.WriteToken(jsontext.EndObject)) != nil {
		return nil // it is not valid
	}
	return bytes.TrimSpace(text.Bytes())
}

// hiddenValue returns the text in place of a value.
func hiddenValue(value jsontext.Value) jsontext.Value {
	kind := members.KindName(value)
	if value.Kind() == '"' {
		kind = fmt.Sprintf("a string of %d characters", utf8.RuneCount(value)-len(`""`))
	}
	return jsontext.Value(`"‹` + kind + `›"`)
}
