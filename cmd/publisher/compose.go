package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/members"
)

// composed is an event of a file in the form in which it is published.
type composed struct {
	*events.Inbound
	message      *nats.Msg
	isCloudEvent bool // the file has it as a CloudEvent, with its own id
}

// The two members of the short form of an event.
const (
	shortEvent = "event"
	shortData  = "data"
)

// compose returns the message of an event that a file has as a CloudEvent in JSON or in the short
// form: an object with the member event, which is the event name, and data. compose derives the id
// of the short form from the content and batch. Every error is an *events.UnprocessableError. It is
// the error of the worker, except for an object that has event and no specversion and is not the
// short form either.
func (p *program) compose(text []byte, batch string) (composed, error) {
	c := composed{isCloudEvent: true}
	var given map[string]jsontext.Value
	err := json.Unmarshal(text, &given)
	_, isShort := given[shortEvent]
	_, isWhole := given["specversion"]
	if err == nil && isShort && !isWhole {
		c.isCloudEvent = false
		if text, err = p.expand(given, batch); err != nil {
			return composed{}, err
		}
	}
	c.message = events.NewStructuredMsg(text)
	if c.Inbound, err = events.DecodeEvent(c.message.Header, text, time.Time{}); err != nil {
		return composed{message: c.message}, err
	}
	c.message.Subject = p.namespace().In(c.Event, c.Resource)
	c.message.Header.Set(jetstream.MsgIDHeader, events.MessageID(c.Source, c.ID))
	return c, nil
}

// expand returns the CloudEvent of an event in the short form.
func (p *program) expand(given map[string]jsontext.Value, batch string) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if name != shortEvent && name != shortData {
			return nil, malformed("%s: unknown member, the short form of an event has event and data", name)
		}
	}
	var event string
	if err := json.Unmarshal(given[shortEvent], &event); err != nil || given[shortEvent].Kind() != '"' {
		return nil, malformed("event: must be a string, found %s", members.KindName(given[shortEvent]))
	}
	data := given[shortData] // nil if the event has no data
	text, err := json.Marshal(events.Envelope{
		SpecVersion: "1.0", ID: contentID(event, data, batch), Source: source, Type: events.Type(event),
		DataContentType: events.ContentTypeJSON, Data: data,
	})
	if err != nil {
		return nil, malformed("event: %v", err)
	}
	return text, nil
}

func malformed(format string, args ...any) error {
	return &events.UnprocessableError{Reason: events.ReasonMalformed, Detail: fmt.Sprintf(format, args...)}
}

// contentID derives the id of an event from its content, so that the same content is always the
// same event, whatever its white space.
func contentID(event string, data jsontext.Value, batch string) string {
	data = data.Clone()
	_ = data.Compact() // fails only if data is not JSON, for example empty
	h := sha256.New()
	for _, part := range []string{batch, event, string(data)} {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(part), part) // a hash never returns an error
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // RFC 9562: version 8, custom
	return id.String()
}
