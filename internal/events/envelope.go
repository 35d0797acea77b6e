package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
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
	"holdfast/internal/members"
)

// Headers that we read or write. Header names are case-sensitive in NATS.
const (
	HeaderContentType = "Content-Type"
	HeaderReplyTo     = "Holdfast-Reply-To"
	headerTraceParent = "traceparent"
	headerMsgID       = "Nats-Msg-Id"
	headerMsgSize     = "Nats-Msg-Size" // of a body that was not requested
	ContentTypeEvent  = "application/cloudevents+json"
	ContentTypeJSON   = "application/json"
	inboxPrefix       = "_INBOX."

	// These carry holds.RebuildMetadata, which a rebuild of Redis needs and the data of an outcome
	// lacks.
	headerFingerprint = "Holdfast-Fingerprint"
	headerFirstCause  = "Holdfast-First-Cause"
	headerStarted     = "Holdfast-Payment-Started"

	// These are what Postgres stores and the data of an outcome lacks, see holds.RebuildMetadata.
	headerAmount   = "Holdfast-Amount"
	headerCurrency = "Holdfast-Currency"
	headerPosition = "Holdfast-Inbound-Position" // see formatPosition

	headerFloors = "Holdfast-Floors" // see floors
)

// BodyMax is the largest body of an inbound event, in bytes.
const BodyMax = 64 << 10

// Envelope is a CloudEvent 1.0, with the attributes that Holdfast uses. It is encoded in structured
// mode.
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

// decodeEnvelope decodes a CloudEvent in structured or binary mode (NATS protocol binding 1.0), and
// reports which one it is. Its data is a valid JSON object. Every error is a *members.Error.
func decodeEnvelope(header nats.Header, body []byte) (e Envelope, binary bool, err error) {
	headers, err := headerAttributes(header)
	if err != nil {
		return Envelope{}, false, err
	}
	contentType, _ := headers.get("content-type")
	media, err := mediaType(contentType, ContentTypeEvent, ContentTypeJSON)
	if err != nil {
		return Envelope{}, false, members.Errorf("content-type: %v", err)
	}
	if media == ContentTypeEvent || media == "" && !headers.haveAttribute() {
		e, err = decodeStructured(body)
		return e, false, err
	}
	e, err = decodeBinary(headers, media, body)
	return e, true, err
}

// attribute is an attribute of a CloudEvent, or a header of one.
type attribute struct{ name, text string }

// attributes are sorted by name, so that of two errors always the same one is reported.
type attributes []attribute

func (as attributes) get(name string) (text string, found bool) {
	for _, a := range as {
		if a.name == name {
			return a.text, true
		}
	}
	return "", false
}

// haveAttribute reports whether one of the headers is an attribute.
func (as attributes) haveAttribute() bool {
	return slices.ContainsFunc(as, func(a attribute) bool { return strings.HasPrefix(a.name, attributePrefix) })
}

// headerAttributes returns the headers of a CloudEvent, content-type and ce-..., by their
// lower-case names. Header names are case-sensitive in NATS, but not in CloudEvents.
func headerAttributes(header nats.Header) (attributes, error) {
	var as attributes
	for given, values := range header {
		if IsAttributeHeader(given) {
			name := strings.ToLower(given)
			for _, text := range values {
				as = append(as, attribute{name, text})
			}
		}
	}
	slices.SortFunc(as, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(as); i++ {
		if as[i].name == as[i-1].name {
			return nil, members.Errorf("%s: must be given once, found it repeated", as[i].name)
		}
	}
	return as, nil
}

// IsAttributeHeader reports whether a CloudEvent may be made of a header.
func IsAttributeHeader(header string) bool {
	const prefix = len(attributePrefix)
	return strings.EqualFold(header, HeaderContentType) ||
		len(header) >= prefix && strings.EqualFold(header[:prefix], attributePrefix)
}

// mediaType returns the media type of a Content-Type. It must be a JSON type (CloudEvents JSON format, section 3.1: the
// subtype is json or ends with +json), and the charset, if given, UTF-8. Its errors suggest the usual types.
func mediaType(contentType string, usual ...string) (string, error) {
	switch contentType {
	case "", ContentTypeEvent, ContentTypeJSON: // nearly always
		return contentType, nil
	}
	media, parameters, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.Contains(media, "/") {
		return "", errors.New("must be a media type such as " + usual[0] + ", found none")
	}
	if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return "", errors.New("must have the charset utf-8, found another")
	}
	found := ""
	switch {
	case media == "application/cloudevents-batch+json":
		found = "a batch: publish each event by itself"
	case !strings.HasSuffix(media, "/json") && !strings.HasSuffix(media, "+json"):
		found = "another type"
	}
	if found != "" {
		return "", fmt.Errorf("must be %s, found %s", strings.Join(usual, " or "), found)
	}
	return media, nil
}

func decodeStructured(body []byte) (Envelope, error) {
	all, err := members.Parse("body", body)
	switch {
	case err != nil:
		return Envelope{}, err
	case !haveEnvelope(all):
		return Envelope{}, errNoEnvelope
	}
	all.Sort()
	r, texts := members.NewReader(all), make(attributes, 0, len(all))
	for _, a := range all {
		switch kind := a.Value.Kind(); {
		case a.Name == "data":
		case a.Name == "data_base64":
			r.Fail(a.Name, "must be data, a JSON object, found data in base64")
		case slices.Contains(knownAttributes, strings.ToLower(a.Name)) && a.Name != strings.ToLower(a.Name):
			r.Fail(a.Name, "must be "+strings.ToLower(a.Name)+", found it in other capitals")
		case !isAttributeName(a.Name):
			r.Fail(a.Name, "must be within data: attributes have names of lower-case letters and digits")
		case kind == 'n' && !slices.Contains(requiredAttributes, a.Name): // the same as none
		case kind == '"':
			texts = append(texts, attribute{a.Name, members.Unquote(a.Value)})
		case slices.Contains(knownAttributes, a.Name):
			r.FailFound(a.Name, "a string", members.KindName(a.Value))
		case kind == 't', kind == 'f', plainInteger.Match(a.Value):
		case kind == '0':
			r.FailFound(a.Name, "a string, a boolean or an integer", "another number")
		default:
			r.FailFound(a.Name, "a string, a boolean or an integer", members.KindName(a.Value))
		}
	}
	if r.Err() != nil {
		return Envelope{}, r.Err()
	}
	e, err := newEnvelope(texts)
	if err != nil {
		return Envelope{}, err
	}
	e.Data = r.JSON("data")
	return e, r.Err()
}

// haveEnvelope reports whether these may be the members of a whole CloudEvent, valid or not, and
// not those of its data.
func haveEnvelope(all members.Object) bool {
	return all.Has("specversion") || all.Has("data") && all.Has("type")
}

// errNoEnvelope is the error of an event with attributes neither in its body nor in its headers.
// errContentType is the error of an event with attributes in its body, and a Content-Type that does
// not allow that.
var (
	errNoEnvelope = members.Errorf("body: must be a CloudEvent, found none: send "+
		`{"specversion": "1.0", "id": ..., "source": ..., "type": "holdfast.<event>.v1", "data": {...}} `+
		"with Content-Type: %s, or data as the body and the headers ce-specversion, ce-id, ce-source, ce-type",
		ContentTypeEvent)
	errContentType = members.Errorf("content-type: must be %s for a CloudEvent in the body, found another: "+
		"with any other the attributes are headers (ce-specversion, ce-id, ce-source, ce-type) and the body is data",
		ContentTypeEvent)
)

// noAttributes returns the error of a message with a content type and without any ce- header: the
// one that fits what its publisher probably meant.
func noAttributes(body []byte) error {
	if all, err := members.Parse("body", body); err == nil && haveEnvelope(all) {
		return errContentType
	}
	return errNoEnvelope
}

func decodeBinary(headers attributes, media string, body []byte) (Envelope, error) {
	if !headers.haveAttribute() {
		return Envelope{}, noAttributes(body)
	}
	as := make(attributes, 0, len(headers)+1)
	for _, header := range headers {
		name, ours := strings.CutPrefix(header.name, attributePrefix)
		if !ours {
			continue
		}
		if !isAttributeName(name) {
			return Envelope{}, members.Errorf("ce-%s: must have a name of lower-case letters and digits", name)
		}
		text, err := url.PathUnescape(unquoted(header.text))
		if err != nil {
			return Envelope{}, members.Errorf("ce-%s: must be a percent-encoded attribute, found another form", name)
		}
		as = append(as, attribute{name, text})
	}
	if _, given := as.get(datacontenttype); media != "" && !given {
		as = append(as, attribute{datacontenttype, media})
		slices.SortFunc(as, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	}
	e, err := newEnvelope(as)
	if err != nil {
		return Envelope{}, err
	}
	if _, err := members.Parse("body", body); err != nil {
		return Envelope{}, err
	}
	e.Data = body
	return e, nil
}

var (
	quotedString = regexp.MustCompile(`^"((?:[^"\\]|\\.)*)"$`)
	quotedPair   = regexp.MustCompile(`\\(.)`)
)

// unquoted returns the text of a header, which may be a quoted string of RFC 9110 (section 5.6.4 there, and 3.1.3.2 in
// the NATS protocol binding of CloudEvents).
func unquoted(header string) string {
	if found := quotedString.FindStringSubmatch(header); found != nil {
		return quotedPair.ReplaceAllString(found[1], "$1")
	}
	return header
}

// The attributes of CloudEvents, and the form of some.
const (
	attributePrefix = "ce-"
	datacontenttype = "datacontenttype"
)

var (
	requiredAttributes = []string{"specversion", "id", "source", "type"}
	knownAttributes    = append([]string{datacontenttype, "dataschema", "subject", "time"}, requiredAttributes...)
	plainInteger       = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	uriReference       = regexp.MustCompile(`^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+$`)
	timestamp          = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)
)

// isAttributeName reports whether an attribute may have a name: lower-case letters and digits.
func isAttributeName(name string) bool {
	isOther := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	return name != "" && !strings.ContainsFunc(name, isOther)
}

func isURIReference(text string) bool {
	_, err := url.Parse(text)
	return err == nil && uriReference.MatchString(text)
}

// newEnvelope validates the attributes of an event, of either mode.
func newEnvelope(as attributes) (Envelope, error) {
	for _, name := range requiredAttributes {
		if _, found := as.get(name); !found {
			return Envelope{}, members.Errorf("%s: missing", name)
		}
	}
	for _, a := range as {
		switch {
		case !utf8.ValidString(a.text):
			return Envelope{}, members.Errorf("%s: must be UTF-8, found other bytes", a.name)
		case strings.ContainsFunc(a.text, unicode.IsControl):
			return Envelope{}, members.Errorf("%s: must not have control characters, found some", a.name)
		case a.text == "" && slices.Contains(knownAttributes, a.name):
			return Envelope{}, members.Errorf("%s: must not be empty, found an empty string", a.name)
		}
	}
	if version, _ := as.get("specversion"); version != "1.0" {
		return Envelope{}, members.Errorf("specversion: must be 1.0, found another version")
	}
	for _, name := range []string{"source", "dataschema"} {
		value, found := as.get(name)
		if found && !isURIReference(value) {
			return Envelope{}, members.Errorf("%s: must be a URI reference such as /box-office, found another string", name)
		}
	}
	if at, found := as.get("time"); found {
		at = strings.ToUpper(at)
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil || !timestamp.MatchString(at) {
			return Envelope{}, members.Errorf("time: must be RFC 3339 such as 2026-12-31T09:00:00Z, found another string")
		}
	}
	e := Envelope{SpecVersion: "1.0"}
	e.ID, _ = as.get("id")
	e.Source, _ = as.get("source")
	e.Type, _ = as.get("type")
	e.DataContentType, _ = as.get(datacontenttype)
	if _, err := mediaType(e.DataContentType, ContentTypeJSON); err != nil {
		return Envelope{}, members.Errorf("datacontenttype: %v", err)
	}
	return e, nil
}

// outcomeID derives the id of an event's outcome from its source, id and body. In binary mode
// besides contains type and resource, which the body lacks. So the same event has the same outcome
// id, whenever and wherever it is decided. Package holds calls it the event id.
func outcomeID(source, id string, body []byte, besides ...string) string {
	text := make([]byte, 0, 128+len(source)+len(id)+len(body))
	text = append(binary.BigEndian.AppendUint64(text, uint64(len(source))), source...)
	text = append(binary.BigEndian.AppendUint64(text, uint64(len(id))), id...)
	text = append(binary.BigEndian.AppendUint64(text, uint64(len(body))), body...)
	for _, part := range besides {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(text)
	return derivedID(sum[:])
}

// expiryID derives the id of a hold.expired from its hold.
func expiryID(hold holds.HoldID) string {
	sum := sha256.Sum256([]byte(holds.EventHoldExpired + " " + hold.String()))
	return derivedID(sum[:])
}

// derivedID returns a UUIDv8 (RFC 9562: with custom content) from a hash.
func derivedID(hash []byte) string {
	var id uuid.UUID
	copy(id[:], hash)
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// outcomeMessage returns the message that stores an outcome under an id.
func (ns Namespace) outcomeMessage(o holds.Outcome, id, causationID string) (*nats.Msg, error) {
	m := &nats.Msg{Subject: ns.Out(o.Event, o.Resource), Header: make(nats.Header, 8)}
	var err error
	if m.Data, err = ns.appendOutcome(make([]byte, 0, outcomeBytes+len(causationID)), o, id, causationID); err != nil {
		return nil, fmt.Errorf("encode the event for %s: %w", m.Subject, err)
	}
	m.Header.Set(HeaderContentType, ContentTypeEvent)
	m.Header.Set(headerMsgID, id)
	metadata, started, position := o.RebuildMetadata, "", ""
	if metadata.Started {
		started = "true"
	}
	if metadata.Position != (holds.StreamPosition{}) {
		position = formatPosition(metadata.Position)
	}
	for _, h := range [...]struct{ name, value string }{
		{headerFingerprint, metadata.Fingerprint}, {headerFirstCause, metadata.FirstEventID}, {headerStarted, started},
		{headerAmount, metadata.Amount}, {headerCurrency, metadata.Currency}, {headerPosition, position},
	} {
		if h.value != "" {
			m.Header.Set(h.name, h.value)
		}
	}
	return m, nil
}

// outcomeBytes is the size of most outcomes that are larger than usual, without headers.
const outcomeBytes = 768

// appendOutcome appends an outcome as json.Marshal would encode its Envelope.
func (ns Namespace) appendOutcome(b []byte, o holds.Outcome, id, causationID string) ([]byte, error) {
	var errs [3]error
	b = append(b, `{"specversion":"1.0","id":`...)
	b, errs[0] = jsontext.AppendQuote(b, id)
	b = append(append(append(b, `,"source":"/holdfast/`...), ns...), `","type":"`...)
	b = append(append(append(append(b, typePrefix...), o.Event...), typeVersion...), '"')
	if o.Hold.UUID != "" {
		b, errs[1] = jsontext.AppendQuote(append(b, `,"subject":`...), o.Hold.String())
	}
	if !o.At.IsZero() {
		b = o.At.AppendJSON(append(b, `,"time":`...))
	}
	b = append(b, `,"datacontenttype":"`+ContentTypeJSON+`"`...)
	if causationID != "" {
		b, errs[2] = jsontext.AppendQuote(append(b, `,"causationid":`...), causationID)
	}
	data, err := json.Marshal(o.Data)
	return append(append(append(b, `,"data":`...), data...), '}'), errors.Join(errs[0], errs[1], errs[2], err)
}

// NewStructuredMsg returns a message with an event in structured mode, without a subject and a
// message id.
func NewStructuredMsg(body []byte) *nats.Msg {
	m := nats.NewMsg("")
	m.Data = body
	m.Header.Set(HeaderContentType, ContentTypeEvent)
	return m
}
