package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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
	headerMsgSize     = "Nats-Msg-Size" // of a body that was not asked for
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
	attributes, err := headerAttributes(header)
	if err != nil {
		return Envelope{}, err
	}
	media, err := mediaType(attributes["content-type"])
	if err != nil {
		return Envelope{}, malformed("content-type: %v", err)
	}
	if media == contentTypeEvent || media == "" && !hasAttribute(attributes) {
		return decodeStructured(body)
	}
	return decodeBinary(attributes, media, body)
}

// headerAttributes returns the headers that a CloudEvent is made of, content-type and ce-...,
// by their lower-case names: NATS tells cases apart, CloudEvents does not.
func headerAttributes(header nats.Header) (map[string]string, error) {
	attributes := make(map[string]string)
	for _, given := range slices.Sorted(maps.Keys(header)) { // of two mistakes always the same is told
		if !isAttribute(given) {
			continue
		}
		name, values := strings.ToLower(given), header[given]
		if _, repeated := attributes[name]; repeated || len(values) != 1 {
			return nil, malformed("%s: want one value", name)
		}
		attributes[name] = values[0]
	}
	return attributes, nil
}

// isAttribute reports whether a CloudEvent may be made of a header.
func isAttribute(header string) bool {
	header = strings.ToLower(header)
	return header == "content-type" || strings.HasPrefix(header, attributePrefix)
}

func hasAttribute(attributes map[string]string) bool {
	for name := range attributes {
		if strings.HasPrefix(name, attributePrefix) {
			return true
		}
	}
	return false
}

// mediaType returns the type of a Content-Type, which must be JSON in UTF-8 where it says so.
func mediaType(contentType string) (string, error) {
	if contentType == "" {
		return "", nil
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.Contains(media, "/") {
		return "", errors.New("not a media type")
	}
	if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", errors.New("want the charset utf-8")
	}
	if media != contentTypeJSON && !strings.HasSuffix(media, "+json") || media == "application/cloudevents-batch+json" {
		return "", fmt.Errorf("want %s or %s", contentTypeEvent, contentTypeJSON)
	}
	return media, nil
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
	texts := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(attributes)) { // of two mistakes always the same is told
		value := attributes[name]
		switch kind := value.Kind(); {
		case name == "data":
		case !attributeName.MatchString(name): // data_base64 among them
			r.fail(name, "not the name of an attribute")
		case kind == '"':
			texts[name] = r.text(name)
		case slices.Contains(knownAttributes, name):
			r.fail(name, "want a string")
		case kind == 't', kind == 'f', plainInteger.Match(value):
		default:
			r.fail(name, "want a string, a boolean or an integer")
		}
	}
	if r.err != nil {
		return Envelope{}, r.err
	}
	e, err := newEnvelope(texts)
	if err != nil {
		return Envelope{}, err
	}
	e.Data = r.object("data")
	return e, r.err
}

func decodeBinary(attributes map[string]string, media string, body []byte) (Envelope, error) {
	texts := make(map[string]string)
	for _, header := range slices.Sorted(maps.Keys(attributes)) {
		name, isAttribute := strings.CutPrefix(header, attributePrefix)
		if !isAttribute {
			continue
		}
		text, err := url.PathUnescape(attributes[header])
		if err != nil || !attributeName.MatchString(name) {
			return Envelope{}, malformed("ce-%s: want a percent-encoded attribute", name)
		}
		texts[name] = text
	}
	if media != "" {
		texts["datacontenttype"] = media
	}
	e, err := newEnvelope(texts)
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
	e.Data = body
	return e, nil
}

// The attributes that CloudEvents defines, and the form of some.
const attributePrefix = "ce-"

var (
	requiredAttributes = []string{"specversion", "id", "source", "type"}
	knownAttributes    = append([]string{"datacontenttype", "dataschema", "subject", "time"}, requiredAttributes...)
	plainInteger       = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	attributeName      = regexp.MustCompile(`^[a-z0-9]+$`)
	uriReference       = regexp.MustCompile(`^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+$`)
	timestamp          = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)
)

// newEnvelope checks the attributes of an event, whichever way they came.
func newEnvelope(attributes map[string]string) (Envelope, error) {
	for _, name := range requiredAttributes {
		if _, found := attributes[name]; !found {
			return Envelope{}, malformed("%s: missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		switch {
		case !utf8.ValidString(value):
			return Envelope{}, malformed("%s: want UTF-8", name)
		case strings.ContainsFunc(value, unicode.IsControl):
			return Envelope{}, malformed("%s: must not have control characters", name)
		case value == "" && slices.Contains(knownAttributes, name):
			return Envelope{}, malformed("%s: must not be empty", name)
		}
	}
	if attributes["specversion"] != "1.0" {
		return Envelope{}, malformed("specversion: want 1.0")
	}
	for _, name := range []string{"source", "dataschema"} {
		value, found := attributes[name]
		if _, err := url.Parse(value); found && (err != nil || !uriReference.MatchString(value)) {
			return Envelope{}, malformed("%s: want a URI reference", name)
		}
	}
	if at, found := attributes["time"]; found {
		at = strings.ToUpper(at)
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil || !timestamp.MatchString(at) {
			return Envelope{}, malformed("time: want RFC 3339")
		}
	}
	if _, err := mediaType(attributes["datacontenttype"]); err != nil {
		return Envelope{}, malformed("datacontenttype: %v", err)
	}
	return Envelope{
		SpecVersion: "1.0", ID: attributes["id"], Source: attributes["source"], Type: attributes["type"],
		DataContentType: attributes["datacontenttype"],
	}, nil
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

// outcomeMessage returns the message that stores an outcome under an id.
func (ns Subjects) outcomeMessage(o holds.Outcome, id, causationID string) (*nats.Msg, error) {
	envelope, err := ns.encode(o, id, causationID)
	if err != nil {
		return nil, err
	}
	return envelope.message(ns.Out(o.Event, o.Resource))
}

// message returns the message that carries an event to a subject.
func (e Envelope) message(subject string) (*nats.Msg, error) {
	body, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", e.Type, err)
	}
	m := Structured(body)
	m.Subject = subject
	m.Header.Set(headerMsgID, e.ID)
	return m, nil
}

// Structured returns the message of an event that is written in structured mode, without a
// subject and a message id yet.
func Structured(body []byte) *nats.Msg {
	m := nats.NewMsg("")
	m.Data = body
	m.Header.Set(headerContentType, contentTypeEvent)
	return m
}
