package events

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/holds"
)

// members are the members of a JSON object, as it writes them.
type members []member

type member struct {
	name  string
	value jsontext.Value // a part of the text of the object
}

func (m members) get(name string) (value jsontext.Value, found bool) {
	for _, one := range m {
		if one.name == name {
			return one.value, true
		}
	}
	return nil, false
}

// membersUsual is the number of members that few objects exceed.
const membersUsual = 10

// parseMembers returns the members of a JSON object, nil for null. It refuses duplicate members,
// invalid UTF-8, lone surrogates and trailing text, at any depth.
func parseMembers(text []byte) (members, error) {
	var is isObject
	if err := json.Unmarshal(text, &is); err != nil || !is {
		return nil, err
	}
	return splitObject(text), nil
}

// isObject reports whether a JSON text is an object, and not null.
type isObject bool

var errNoObject = errors.New("must be a JSON object")

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (is *isObject) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	switch kind := decoder.PeekKind(); kind {
	case '{', 'n', jsontext.KindInvalid:
		*is = kind == '{'
		_, err := decoder.ReadValue()
		return err
	default:
		return errNoObject
	}
}

// splitObject returns the members of a text that is known to be a valid JSON object. It finds only
// where each of them ends: to parse the data of an event a second time would cost more than all the
// rest of decoding it.
func splitObject(text []byte) members {
	all := make(members, 0, membersUsual)
	at := afterSpace(text, afterSpace(text, 0)+1)
	for text[at] != '}' {
		if text[at] == ',' {
			at = afterSpace(text, at+1)
		}
		end := afterString(text, at)
		name := nameIn(text[at:end])
		at = afterSpace(text, afterSpace(text, end)+1)
		end = afterValue(text, at)
		all = append(all, member{name, text[at:end:end]})
		at = afterSpace(text, end)
	}
	return all
}

func afterSpace(text []byte, at int) int {
	for text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r' {
		at++
	}
	return at
}

func afterString(text []byte, at int) int {
	for at++; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at + 1
}

func afterValue(text []byte, at int) int {
	for depth := 0; ; {
		switch text[at] {
		case '"':
			at = afterString(text, at)
		case '{', '[':
			depth++
			at++
		case '}', ']':
			depth--
			at++
		default:
			at++
		}
		if depth > 0 {
			continue
		}
		switch text[at] {
		case ',', '}', ' ', '\n', '\t', '\r':
			return at
		}
	}
}

// nameIn returns the name of a member. A name that is known costs no memory.
func nameIn(quoted jsontext.Value) string {
	if name, known := knownNames[string(quoted[1:len(quoted)-1])]; known {
		return name
	}
	return unquote(quoted)
}

// knownNames has the names that most events have.
var knownNames = func() map[string]string {
	names := make(map[string]string)
	for _, name := range append([]string{
		"data", "request_key", "user_id", "resource_id", "check_in", "check_out", "slots", "quantity", "ttl_seconds",
		"metadata", "hold_id", "payment_id", "amount", "currency", "reason", "capacity",
	}, knownAttributes...) {
		names[name] = name
	}
	return names
}()

// unquote returns the text of a valid JSON string.
func unquote(quoted jsontext.Value) string {
	if inside := quoted[1 : len(quoted)-1]; bytes.IndexByte(inside, '\\') < 0 {
		return string(inside)
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // it is valid
	return string(text)
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

func (r *reader) has(name string) bool { _, found := r.get(name); return found }

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
	for _, given := range m {
		if given.name != name && plain(given.name) == plain(name) {
			return true
		}
	}
	return false
}

// raw returns a member of the given kind ('"', '0', '{' or '['), or nil.
func (r *reader) raw(name string, kind jsontext.Kind, want string) jsontext.Value {
	value, found := r.get(name)
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
		text = unquote(value)
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

// matching reads a string that must match a pattern. matches says whether it does, in less time.
func (r *reader) matching(name string, pattern *regexp.Regexp, matches func(string) bool) string {
	text := r.text(name)
	if r.err == nil && !matches(text) {
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

func (r *reader) resource() string {
	return r.matching("resource_id", holds.ResourcePattern, holds.ValidResource)
}

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
