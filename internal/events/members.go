package events

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/holds"
)

// members is a JSON object. Decoding into it refuses duplicate members, invalid UTF-8, lone
// surrogates and trailing text, at any depth.
type members map[string]jsontext.Value

var errNoObject = errors.New("must be a JSON object")

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It does what decoding into a map does, in a
// third of the time: that is most of what decoding an event costs.
func (m *members) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	first, err := decoder.ReadToken()
	switch {
	case err != nil:
		return err
	case first.Kind() == 'n':
		*m = nil
		return nil
	case first.Kind() != '{':
		return errNoObject
	}
	*m = make(members)
	values := make([]byte, 0, 512) // of all members; what the decoder returns is its own
	for decoder.PeekKind() == '"' {
		token, err := decoder.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		value, err := decoder.ReadValue()
		if err != nil {
			return err
		}
		from := len(values)
		values = append(values, value...)
		(*m)[name] = values[from:len(values):len(values)]
	}
	_, err = decoder.ReadToken() // the end, or what stands in its place
	return err
}

// reader reads the members of an object by their form and keeps the first error, always a
// *malformedError that begins with the member's name.
type reader struct {
	members
	err error
}

func (r *reader) fail(name, detail string) {
	if r.err == nil {
		r.err = malformed("%s: %s", name, detail)
	}
}

// failFound keeps that a member must be one thing and was found to be another. found never
// repeats the member's value: it may be private, and details are logged.
func (r *reader) failFound(name, want, found string) {
	r.fail(name, "must be "+want+", found "+found)
}

func (r *reader) has(name string) bool { _, found := r.members[name]; return found }

// KindName names the kind of a JSON value, with its article.
func KindName(value jsontext.Value) string {
	switch value.Kind() {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case jsontext.KindInvalid, jsontext.KindEndObject, jsontext.KindEndArray:
	}
	return "no JSON"
}

// otherSpelling reports whether there is a member that differs from a name in case and underscores
// only.
func (m members) otherSpelling(name string) bool {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	for given := range m {
		if given != name && plain(given) == plain(name) {
			return true
		}
	}
	return false
}

// raw returns a member of the given kind ('"', '0', '{' or '['), or nil.
func (r *reader) raw(name string, kind jsontext.Kind, want string) jsontext.Value {
	value, found := r.members[name]
	switch {
	case !found && r.otherSpelling(name):
		r.fail(name, "missing, found it in another spelling: names are in lower case, with underscores")
	case !found:
		r.fail(name, "missing, must be "+want)
	case value.Kind() != kind:
		r.failFound(name, want, KindName(value))
	default:
		return value
	}
	return nil
}

func (r *reader) text(name string) string { return r.textOf(name, "a string") }

// textOf reads a string; want says what it must be, in full.
func (r *reader) textOf(name, want string) (text string) {
	if value := r.raw(name, '"', want); value != nil {
		unquoted, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			r.failFound(name, want, "one that is not UTF-8")
		}
		text = string(unquoted)
	}
	return text
}

func (r *reader) object(name string) jsontext.Value { return r.raw(name, '{', "an object") }

// name reads a request key, a user id or a payment id.
func (r *reader) name(name string) string {
	text := r.text(name)
	if r.err == nil && !holds.ValidName(text) {
		r.failFound(name, "1 to 128 printable ASCII characters without space", unlike(text))
	}
	return text
}

func (r *reader) matching(name string, pattern *regexp.Regexp) string {
	text := r.text(name)
	if r.err == nil && !pattern.MatchString(text) {
		r.fail(name, "must match "+pattern.String()+", found "+unlike(text))
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

func (r *reader) resource() string { return r.matching("resource_id", holds.ResourcePattern) }

func (r *reader) holdID() holds.HoldID {
	text := r.text("hold_id")
	id, err := holds.ParseHoldID(text)
	if err != nil {
		r.failFound("hold_id", "<resource_id>.<32 lowercase hex digits>", unlike(text))
	}
	return id
}

// integer reads a number that is written as a plain integer within 64 bits.
func (r *reader) integer(name string) int64 {
	const want = "an integer such as 2"
	value := r.raw(name, '0', want)
	if value == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64) // it has the form of a JSON number already
	switch {
	case errors.Is(err, strconv.ErrRange):
		r.failFound(name, want, "one beyond 64 bits")
	case err != nil:
		r.failFound(name, want, "a number with a fraction or an exponent")
	}
	return n
}

func (r *reader) optionalInteger(name string) *int64 {
	if !r.has(name) {
		return nil
	}
	n := r.integer(name)
	return &n
}

// metadataMax is the largest metadata of a request as it is written, in bytes.
const metadataMax = 4 << 10

func (r *reader) metadata() jsontext.Value {
	if !r.has("metadata") {
		return nil
	}
	value := r.object("metadata")
	if len(value) > metadataMax {
		r.fail("metadata", fmt.Sprintf("must not be larger than 4 KiB, found %d bytes", len(value)))
		return nil
	}
	compact := value.Clone()
	if err := compact.Compact(); err != nil {
		r.failFound("metadata", "an object", "no JSON")
	}
	return compact
}
