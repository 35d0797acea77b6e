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

	"holdfast/internal/client"
	"holdfast/internal/events"
)

// composed is an event of a file, as it is published.
type composed struct {
	*events.Inbound
	message      *nats.Msg
	isCloudEvent bool // it was written as a CloudEvent, with an id of its own
}

// The members of the short form of an event.
const (
	shortEvent = "event"
	shortData  = "data"
)

// compose makes the message of an event that is written as a CloudEvent in JSON, or in the short
// form: an object of event, its name, and data. batch is part of the id that the short form gets.
// Every error is an *events.UnprocessableError. It is the worker's own word, except about what
// has event, no specversion and is yet not the short form.
func (p *program) compose(text []byte, batch string) (composed, error) {
	c := composed{isCloudEvent: true}
	var members map[string]jsontext.Value
	err := json.Unmarshal(text, &members)
	_, isShort := members[shortEvent]
	_, isWhole := members["specversion"]
	if err == nil && isShort && !isWhole {
		c.isCloudEvent = false
		if text, err = p.expand(members, batch); err != nil {
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

// expand returns the CloudEvent that the short form means.
func (p *program) expand(members map[string]jsontext.Value, batch string) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name != shortEvent && name != shortData {
			return nil, malformed("%s: unknown, the short form of an event has event and data", name)
		}
	}
	var event string
	if err := json.Unmarshal(members[shortEvent], &event); err != nil || members[shortEvent].Kind() != '"' {
		return nil, malformed("event: must be a string, found %s", events.KindName(members[shortEvent]))
	}
	request, err := client.NewEvent(p.namespace(), event, "", source, nil)
	if err != nil {
		return nil, malformed("event: %v", err)
	}
	request.Envelope.Data = members[shortData] // nil when there is none
	request.Envelope.ID = contentID(event, request.Envelope.Data, batch)
	m, err := request.Message()
	if err != nil {
		return nil, malformed("event: %v", err)
	}
	return m.Data, nil
}

func malformed(format string, args ...any) error {
	return &events.UnprocessableError{Reason: events.ReasonMalformed, Detail: fmt.Sprintf(format, args...)}
}

// contentID derives the id of an event from its content, so that the same content is the same
// event whenever it is published, with whatever white space it is written.
func contentID(event string, data jsontext.Value, batch string) string {
	data = data.Clone()
	_ = data.Compact() // only fails for what is no JSON, like no data
	h := sha256.New()
	for _, part := range []string{batch, event, string(data)} {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(part), part) // a hash never returns an error
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // RFC 9562: version 8, of one's own making
	return id.String()
}
