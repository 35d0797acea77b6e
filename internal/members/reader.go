package members

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/holds"
)

// Reader reads the members of an object by their form and keeps the first error. After an error, what
// it returns has no meaning.
type Reader struct {
	Object
	err error
}

// NewReader returns a Reader of an object.
func NewReader(o Object) *Reader { return &Reader{Object: o} }

// Err returns the first error, an *Error that begins with the member's name.
func (r *Reader) Err() error { return r.err }

// Keep keeps an error, unless there is one already.
func (r *Reader) Keep(err error) { r.err = cmp.Or(r.err, err) }

// Fail keeps an error of a member, unless there is one already.
func (r *Reader) Fail(name, detail string) {
	r.Keep(Errorf("%s: %s", name, detail))
}

// FailFound keeps that a member must be one thing and was found to be another. found never
// repeats the member's value: it may be private, and details are logged.
func (r *Reader) FailFound(name, want, found string) {
	r.Fail(name, "must be "+want+", found "+found)
}

// otherSpelling reports whether there is a member that differs from a name in case and underscores
// only.
func (o Object) otherSpelling(name string) bool {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	for _, given := range o {
		if given.Name != name && plain(given.Name) == plain(name) {
			return true
		}
	}
	return false
}

// raw returns a member of the given kind ('"', '0', '{' or '['), or nil.
func (r *Reader) raw(name string, kind jsontext.Kind, want string) jsontext.Value {
	value, found := r.Get(name)
	switch {
	case !found && r.otherSpelling(name):
		r.Fail(name, "missing, found it in another spelling: names are in lower case, with underscores")
	case !found:
		r.Fail(name, "missing, must be "+want)
	case value.Kind() != kind:
		r.FailFound(name, want, KindName(value))
	default:
		return value
	}
	return nil
}

// Text reads a string.
func (r *Reader) Text(name string) string { return r.textOf(name, "a string") }

// textOf reads a string; want says what it must be, in full.
func (r *Reader) textOf(name, want string) (text string) {
	if value := r.raw(name, '"', want); value != nil {
		text = Unquote(value)
	}
	return text
}

// JSON reads a JSON object.
func (r *Reader) JSON(name string) jsontext.Value { return r.raw(name, '{', "an object") }

// Name reads a request key, a user id or a payment id.
func (r *Reader) Name(name string) string {
	text := r.Text(name)
	if r.err == nil && !holds.ValidName(text) {
		r.FailFound(name, "1 to 128 printable ASCII characters without space", unlike(text))
	}
	return text
}

// Matching reads a string that must match a pattern. matches says whether it does, in less time.
func (r *Reader) Matching(name string, pattern *regexp.Regexp, matches func(string) bool) string {
	text := r.Text(name)
	if r.err == nil && !matches(text) {
		r.Fail(name, "must match "+pattern.String()+", found "+unlike(text))
	}
	return text
}

// unlike describes a string that has not the form that it must have.
func unlike(text string) string {
	if text == "" {
		return "an empty string"
	}
	return fmt.Sprintf("another string of length %d", utf8.RuneCountInString(text))
}

// Resource reads resource_id.
func (r *Reader) Resource() string {
	return r.Matching("resource_id", holds.ResourcePattern, holds.ValidResource)
}

// HoldID reads hold_id.
func (r *Reader) HoldID() holds.HoldID {
	text := r.Text("hold_id")
	id, err := holds.ParseHoldID(text)
	if err != nil {
		r.FailFound("hold_id", "<resource_id>.<32 lowercase hex digits>", unlike(text))
	}
	return id
}

// Integer reads a number that is written as a plain integer within 64 bits.
func (r *Reader) Integer(name string) int64 {
	const want = "an integer such as 2"
	value := r.raw(name, '0', want)
	if value == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64) // it has the form of a JSON number already
	switch {
	case errors.Is(err, strconv.ErrRange):
		r.FailFound(name, want, "one beyond 64 bits")
	case err != nil:
		r.FailFound(name, want, "a number with a fraction or an exponent")
	}
	return n
}

// OptionalInteger is Integer, or nil when the member is missing.
func (r *Reader) OptionalInteger(name string) *int64 {
	if !r.Has(name) {
		return nil
	}
	n := r.Integer(name)
	return &n
}

// metadataMax is the largest metadata of a request as it is written, in bytes.
const metadataMax = 4 << 10

// Metadata reads metadata as compact JSON, nil when it is missing.
func (r *Reader) Metadata() jsontext.Value {
	if !r.Has("metadata") {
		return nil
	}
	value := r.JSON("metadata")
	if len(value) > metadataMax {
		r.Fail("metadata", fmt.Sprintf("must not be larger than 4 KiB, found %d bytes", len(value)))
		return nil
	}
	compact := value.Clone()
	if err := compact.Compact(); err != nil {
		r.FailFound("metadata", "an object", "no JSON")
	}
	return compact
}

// AmountPattern is the form of an amount.
var AmountPattern = regexp.MustCompile(`^-?[0-9]{1,30}(\.[0-9]{1,30})?$`)

// Amount reads amount, a decimal in a string.
func (r *Reader) Amount() string {
	const want = `a decimal in a string such as "12.50"`
	text := r.textOf("amount", want)
	if !AmountPattern.MatchString(text) {
		r.FailFound("amount", want, unlike(text))
	}
	return text
}

// SlotSelection reads a slot selection: nights, a list of at most slotsMax slots, or neither.
func (r *Reader) SlotSelection(slotsMax int) holds.SlotSelection {
	nights := r.Has("check_in") || r.Has("check_out")
	switch {
	case nights && r.Has("slots"):
		r.Fail("slots", "must not be together with nights, found both")
		return holds.SlotSelection{}
	case nights:
		return holds.SlotSelection{CheckIn: r.date("check_in"), CheckOut: r.date("check_out")}
	case r.Has("slots"):
		return holds.SlotSelection{Slots: r.slots(slotsMax)}
	}
	return holds.SlotSelection{}
}

func (r *Reader) date(name string) string {
	const want = `a date of the calendar such as "2026-12-31"`
	text := r.textOf(name, want)
	if _, err := time.Parse(holds.DateFormat, text); err != nil {
		r.FailFound(name, want, unlike(text))
	}
	return text
}

func (r *Reader) slots(limit int) []string {
	const want = "a list of 1 to %d slots"
	value := r.raw("slots", '[', fmt.Sprintf(want, limit))
	if value == nil {
		return nil
	}
	var list []jsontext.Value
	if err := json.Unmarshal(value, &list); err != nil || len(list) == 0 || len(list) > limit {
		r.FailFound("slots", fmt.Sprintf(want, limit), fmt.Sprintf("%d", len(list)))
		return nil
	}
	names, seen := make([]string, len(list)), make(map[string]struct{}, len(list))
	for i, element := range list {
		one := Reader{Object: Object{{"slots", element}}}
		names[i] = one.Matching("slots", holds.SlotPattern, holds.ValidSlot)
		r.Keep(one.err)
		if _, repeated := seen[names[i]]; repeated {
			r.Fail("slots", "must not repeat a slot, found one twice")
		}
		seen[names[i]] = struct{}{}
	}
	return names
}
