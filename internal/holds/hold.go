package holds

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"holdfast/internal/record"
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

// MarshalJSON writes TimeFormat. Without it the method of the embedded time.Time would be used, which writes
// a varying number of digits.
func (t Time) MarshalJSON() ([]byte, error) { return t.AppendJSON(nil), nil }

// AppendJSON appends TimeFormat in quotes.
func (t Time) AppendJSON(b []byte) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), TimeFormat), '"')
}

// UnmarshalJSON implements json.Unmarshaler; it accepts TimeFormat only.
func (t *Time) UnmarshalJSON(text []byte) error {
	parsed, err := time.Parse(`"`+TimeFormat+`"`, string(text))
	t.Time = parsed
	return err
}

// ResourcePattern matches resource ids, and SlotPattern slot names. They exclude every character with a
// meaning in a subject, a key, a hash tag or a terminal.
var (
	ResourcePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	SlotPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)
)

// ValidResource reports whether ResourcePattern matches s, and ValidSlot whether SlotPattern does.
// They are quicker than the patterns.
func ValidResource(s string) bool { return validToken(s, 64) }
func ValidSlot(s string) bool     { return validToken(s, 32) }

// validToken reports whether s has at most so many characters, all of them a-z, A-Z, 0-9, - or _, and
// does not begin with one of the last two.
func validToken(s string, longest int) bool {
	if s == "" || len(s) > longest || s[0] == '-' || s[0] == '_' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func validUUID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 32
}

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
func NewHoldID(resource string) HoldID {
	id := uuid.Must(uuid.NewV7()) // crypto/rand never fails
	return HoldID{Resource: resource, UUID: hex.EncodeToString(id[:])}
}

// ParseHoldID parses the text that String returns. It returns ErrHoldID for any other text.
func ParseHoldID(s string) (HoldID, error) {
	resource, id, found := strings.Cut(s, ".")
	if !found || !ValidResource(resource) || !validUUID(id) {
		return HoldID{}, ErrHoldID
	}
	return HoldID{Resource: resource, UUID: id}, nil
}

// CreatedAt returns the time in the id, in milliseconds, by the clock of the worker that created the
// hold.
func (id HoldID) CreatedAt() time.Time {
	ms, _ := strconv.ParseInt(id.UUID[:12], 16, 64) // ParseHoldID has validated it
	return time.UnixMilli(ms)
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

// Hold is a hold as its record in Redis describes it.
type Hold struct {
	HoldData  // what every outcome of it repeats
	State     State
	ExpiresAt Time
	CreatedAt Time
	EndedAt   Time     // of a claimed or confirmed hold the claim, of the others the end; else zero
	Names     []string // its slots, sorted
}

// parseRecord reads the record of a hold. It returns ErrCorrupt when the line is not a record.
func parseRecord(id HoldID, line string) (Hold, error) {
	r, err := record.Parse(line)
	if err != nil {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	hold, err := parseTail(id, r.Tail)
	if err != nil {
		return Hold{}, err
	}
	hold.State = State(r.State)
	hold.ExpiresAt, hold.CreatedAt = TimeFromMillis(r.Deadline), TimeFromMillis(r.Created)
	hold.Quantity = &r.Quantity
	if r.Ended != 0 {
		hold.EndedAt = TimeFromMillis(r.Ended)
	}
	return hold, nil
}

// parseTail reads the tail of a record. It returns ErrCorrupt when the text is not a tail.
func parseTail(id HoldID, text string) (Hold, error) {
	tail, err := record.ParseTail(text)
	if err != nil {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	data := HoldData{ResourceID: id.Resource, HoldID: id, RequestKey: tail.RequestKey, UserID: tail.User}
	if data.SlotSelection, data.Metadata, err = parseEcho(tail.Selection, tail.Metadata); err != nil {
		return Hold{}, fmt.Errorf("record of hold %s: %w", id, ErrCorrupt)
	}
	return Hold{HoldData: data, Names: strings.Split(tail.Slots, ",")}, nil
}

// parseEcho reads what is stored only to be repeated in outcomes.
func parseEcho(selection, metadata string) (SlotSelection, jsontext.Value, error) {
	var a SlotSelection
	if err := json.Unmarshal([]byte(selection), &a); err != nil {
		return SlotSelection{}, nil, err
	}
	if metadata == "" {
		return a, nil, nil
	}
	if !jsontext.Value(metadata).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return SlotSelection{}, nil, record.ErrMalformed
	}
	return a, jsontext.Value(metadata), nil
}

// RecordTail returns the tail of the hold's record. It returns an error when the nights are not a stay.
func (d HoldData) RecordTail() (record.Tail, error) {
	names, err := d.names(nightsWindow{max: math.MaxInt})
	if err != nil {
		return record.Tail{}, fmt.Errorf("hold %s: %w", d.HoldID, err)
	}
	selection, err := d.Compact()
	if err != nil {
		return record.Tail{}, err
	}
	return record.Tail{
		User: d.UserID, RequestKey: d.RequestKey, Slots: joinSlots(names), Selection: selection, Metadata: string(d.Metadata),
	}, nil
}
