package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// Headers that we read or write. Header names are case-sensitive in NATS.
const (
	headerContentType = "Content-Type"
	headerReplyTo     = "Holdfast-Reply-To"
	headerTraceParent = "traceparent"
	headerMsgID       = "Nats-Msg-Id"
	contentTypeEvent  = "application/cloudevents+json"
	contentTypeJSON   = "application/json"
	inboxPrefix       = "_INBOX."
)

// BodyMax is the largest body of an inbound event, in bytes.
const BodyMax = 64 << 10

// Envelope is a CloudEvent 1.0, as far as we use it. It is written in structured mode.
type Envelope struct {
	SpecVersion     string         `json:"specversion"`
	ID              string         `json:"id"`
	Source          string         `json:"source"`
	Type            string         `json:"type"`
	Subject         string         `json:"subject,omitzero"`
	Time            holds.Time     `json:"time,omitzero"`
	DataContentType string         `json:"datacontenttype,omitzero"`
	CausationID     string         `json:"causationid,omitzero"`
	Data            jsontext.Value `json:"data,omitzero"`
}

// malformedError says what about an event has the wrong form.
type malformedError struct{ detail string }

func (e *malformedError) Error() string { return e.detail }

func malformed(format string, args ...any) error {
	return &malformedError{fmt.Sprintf(format, args...)}
}

// malformedJSON says what is wrong with a JSON text without repeating any of it: it may hold
// what is nobody's business in a log.
func malformedJSON(where string, err error) error {
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !isSyntax:
		return malformed("%s: want a JSON object", where)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return malformed("%s: a member is repeated, at byte %d", where, syntax.ByteOffset)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return malformed("%s: the JSON text ends too early", where)
	default:
		return malformed("%s: not one JSON text in UTF-8, at byte %d", where, syntax.ByteOffset)
	}
}

// decodeEnvelope reads a CloudEvent in structured or binary mode (NATS protocol binding 1.0).
// Every error is a *malformedError.
func decodeEnvelope(header nats.Header, body []byte) (Envelope, error) {
	contentType := header.Get(headerContentType)
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return Envelope{}, malformed("Content-Type: %v", err)
	}
	if media == contentTypeEvent || contentType == "" && header.Get("ce-specversion") == "" {
		return decodeStructured(body)
	}
	return decodeBinary(header, media, body)
}

func decodeStructured(body []byte) (Envelope, error) {
	var attributes members
	if err := json.Unmarshal(body, &attributes); err != nil {
		return Envelope{}, malformedJSON("body", err)
	}
	if attributes == nil {
		return Envelope{}, malformed("body: want a JSON object")
	}
	r := reader{members: attributes}
	e := Envelope{
		SpecVersion: r.text("specversion"),
		ID:          r.text("id"),
		Source:      r.text("source"),
		Type:        r.text("type"),
		Data:        r.object("data"),
	}
	contentType, _ := r.optionalText("datacontenttype")
	e.DataContentType = contentType
	at, timed := r.optionalText("time")
	if r.err != nil {
		return Envelope{}, r.err
	}
	return e, e.check(at, timed)
}

func decodeBinary(header nats.Header, media string, body []byte) (Envelope, error) {
	if media != "" && media != contentTypeJSON && !strings.HasSuffix(media, "+json") {
		return Envelope{}, malformed("Content-Type: want %s or %s, got %s", contentTypeEvent, contentTypeJSON, media)
	}
	attribute := func(name string) (string, bool, error) {
		values, found := header["ce-"+name]
		if !found {
			values, found = header[textproto.CanonicalMIMEHeaderKey("ce-"+name)]
		}
		if !found || len(values) == 0 {
			return "", false, nil
		}
		value, err := url.PathUnescape(values[0])
		if err != nil || len(values) > 1 {
			return "", true, malformed("ce-%s: want one percent-encoded value", name)
		}
		return value, true, nil
	}
	e := Envelope{DataContentType: media, Data: body}
	for name, field := range map[string]*string{"specversion": &e.SpecVersion, "id": &e.ID, "source": &e.Source, "type": &e.Type} {
		value, found, err := attribute(name)
		if err != nil {
			return Envelope{}, err
		}
		if !found {
			return Envelope{}, malformed("ce-%s: missing", name)
		}
		*field = value
	}
	at, timed, err := attribute("time")
	if err != nil {
		return Envelope{}, err
	}
	var data members
	if err := json.Unmarshal(body, &data); err != nil {
		return Envelope{}, malformedJSON("body", err)
	}
	if data == nil {
		return Envelope{}, malformed("body: want a JSON object")
	}
	return e, e.check(at, timed)
}

// check checks the attributes that every CloudEvent has.
func (e Envelope) check(at string, timed bool) error {
	if e.SpecVersion != "1.0" {
		return malformed("specversion: want 1.0")
	}
	for name, value := range map[string]string{"id": e.ID, "source": e.Source, "type": e.Type} {
		if value == "" {
			return malformed("%s: must not be empty", name)
		}
		if strings.ContainsFunc(value, unicode.IsControl) {
			return malformed("%s: must not have control characters", name)
		}
	}
	if _, err := url.Parse(e.Source); err != nil {
		return malformed("source: want a URI reference")
	}
	if timed {
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
			return malformed("time: want RFC 3339")
		}
	}
	return nil
}

// outcomeID derives the id of an event's outcome from its source, id and body: the same event
// has the same, whenever and wherever it is decided. It is the event's cause in package holds.
func outcomeID(source, id string, body []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(source), []byte(id), body} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		_, _ = h.Write(length[:]) // a hash never returns an error
		_, _ = h.Write(part)
	}
	return derivedID(h.Sum(nil))
}

// expiryID derives the id of a hold.expired from its hold.
func expiryID(hold holds.HoldID) string {
	sum := sha256.Sum256([]byte(holds.EventHoldExpired + " " + hold.String()))
	return derivedID(sum[:])
}

// derivedID makes a UUIDv8 (RFC 9562: of one's own making) of a hash.
func derivedID(hash []byte) string {
	var id uuid.UUID
	copy(id[:], hash)
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// encode returns the event that tells an outcome.
func (ns Subjects) encode(o holds.Outcome, id, causationID string) (Envelope, error) {
	data, err := json.Marshal(o.Data)
	if err != nil {
		return Envelope{}, fmt.Errorf("encode %s: %w", o.Event, err)
	}
	return Envelope{
		SpecVersion: "1.0", ID: id, Source: "/holdfast/" + string(ns), Type: Type(o.Event),
		Subject: o.Hold.String(), Time: o.At, DataContentType: contentTypeJSON, CausationID: causationID, Data: data,
	}, nil
}

// message returns the message that carries an event to a subject.
func (e Envelope) message(subject string) (*nats.Msg, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.Type, err)
	}
	m := nats.NewMsg(subject)
	m.Data = body
	m.Header.Set(headerContentType, contentTypeEvent)
	m.Header.Set(headerMsgID, e.ID)
	return m, nil
}
