package holds

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// State is a state in the life of a hold. doc.go has the drawing.
type State string

// The states of a hold. Held and confirming holds are live: they take capacity.
const (
	Held       State = "held"
	Confirming State = "confirming"
	Confirmed  State = "confirmed"
	Released   State = "released"
	Expired    State = "expired"
)

// Time is a time of Redis' clock in UTC, in milliseconds.
type Time struct{ time.Time }

// TimeFormat is RFC 3339 in UTC with milliseconds, always of the same length.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// TimeFromMillis returns the moment that is ms milliseconds after the Unix epoch.
func TimeFromMillis(ms int64) Time { return Time{time.UnixMilli(ms).UTC()} }

// AppendText, MarshalText, MarshalJSON and MarshalJSONTo write TimeFormat. Without them the methods
// of the embedded time.Time would be used, which write a varying number of digits.
func (t Time) AppendText(b []byte) ([]byte, error) { return t.UTC().AppendFormat(b, TimeFormat), nil }

// MarshalText implements encoding.TextMarshaler.
func (t Time) MarshalText() ([]byte, error) { return t.AppendText(nil) }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return t.UTC().AppendFormat(nil, `"`+TimeFormat+`"`), nil
}

// MarshalJSONTo implements json.MarshalerTo.
func (t Time) MarshalJSONTo(encoder *jsontext.Encoder) error {
	return encoder.WriteValue(t.UTC().AppendFormat(encoder.AvailableBuffer(), `"`+TimeFormat+`"`))
}

// UnmarshalText implements encoding.TextUnmarshaler; it accepts TimeFormat only.
func (t *Time) UnmarshalText(text []byte) error {
	parsed, err := time.Parse(TimeFormat, string(text))
	t.Time = parsed
	return err
}

// UnmarshalJSON implements json.Unmarshaler; it accepts TimeFormat only.
func (t *Time) UnmarshalJSON(text []byte) error {
	parsed, err := time.Parse(`"`+TimeFormat+`"`, string(text))
	t.Time = parsed
	return err
}

// ResourcePattern matches resource ids, SlotPattern slot names, and NamePattern request keys, user
// ids and payment ids. The first two exclude every character with a meaning in a subject, a key, a
// hash tag or a terminal.
var (
	ResourcePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	SlotPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)
	NamePattern     = regexp.MustCompile(`^[!-~]{1,128}$`)
	uuidPattern     = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// ValidName reports whether s can be a request key, a user id or a payment id: 1 to 128
// printable ASCII characters without space.
func ValidName(s string) bool {
	return len(s) >= 1 && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// ErrHoldID says that a text is not a hold id.
var ErrHoldID = errors.New("not a hold id: want <resource_id>.<32 lowercase hex digits>")

// HoldID identifies a hold by its resource and a UUIDv7 in 32 lowercase hex digits.
type HoldID struct {
	Resource string
	UUID     string
}

// NewHoldID returns an id for a new hold on a resource.
func NewHoldID(resource string) (HoldID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return HoldID{}, fmt.Errorf("new hold id: %w", err)
	}
	return HoldID{Resource: resource, UUID: hex.EncodeToString(id[:])}, nil
}

// ParseHoldID parses the text that String returns. It returns ErrHoldID for any other text.
func ParseHoldID(s string) (HoldID, error) {
	resource, id, found := strings.Cut(s, ".")
	if !found || !ResourcePattern.MatchString(resource) || !uuidPattern.MatchString(id) {
		return HoldID{}, ErrHoldID
	}
	return HoldID{Resource: resource, UUID: id}, nil
}

// String returns <resource_id>.<uuid>, or "" for the zero HoldID.
func (id HoldID) String() string {
	if id.UUID == "" {
		return ""
	}
	return id.Resource + "." + id.UUID
}

// MarshalText implements encoding.TextMarshaler.
func (id HoldID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *HoldID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseHoldID(string(text))
	return err
}
