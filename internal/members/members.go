// Package members reads JSON objects strictly, for events and for queries: no member may be repeated,
// and each must have the form that the contract gives it. Numbers, dates and ids are read as they are
// written, and no conversion makes a value fit.
//
// Every error is an [Error] that begins with the name of the member. It says what the member must be
// and what was found, and never repeats a value: values may be private, and errors are logged.
package members

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Object has the members of a JSON object, as it writes them.
type Object []Member

// Member is a member of an object.
type Member struct {
	Name  string
	Value jsontext.Value // a part of the text of the object
}

// Get returns the value of a member.
func (o Object) Get(name string) (value jsontext.Value, found bool) {
	for _, one := range o {
		if one.Name == name {
			return one.Value, true
		}
	}
	return nil, false
}

// Has reports whether there is a member.
func (o Object) Has(name string) bool { _, found := o.Get(name); return found }

// Sort sorts the members by name, so that of two errors always the same one is found first.
func (o Object) Sort() {
	slices.SortFunc(o, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
}

// Parse returns the members of a JSON object. It refuses other values, duplicate members, invalid
// UTF-8, lone surrogates and trailing text, at any depth. where names the text in an error.
func Parse(where string, text []byte) (Object, error) {
	split := splitter{text: text}
	if jsontext.Value(text).Kind() != '{' || json.Unmarshal(text, &split) != nil {
		return nil, malformedJSON(where, text)
	}
	return split.members, nil
}

// splitter splits a JSON object into its members, which stay parts of its text.
type splitter struct {
	text    []byte
	members Object
}

// membersUsual is the number of members that few objects exceed.
const membersUsual = 10

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (s *splitter) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	s.members = make(Object, 0, membersUsual)
	_, err := from.ReadToken() // the brace
	for err == nil && from.PeekKind() == '"' {
		var quoted, value jsontext.Value
		if quoted, err = from.ReadValue(); err != nil {
			return err
		}
		name := nameIn(quoted) // the next read may overwrite quoted
		value, err = from.ReadValue()
		end := int(from.InputOffset())
		s.members = append(s.members, Member{name, s.text[end-len(value) : end : end]})
	}
	if err == nil {
		_, err = from.ReadToken() // the other brace
	}
	return err
}

// nameIn returns the name of a member. A name that is known costs no memory.
func nameIn(quoted jsontext.Value) string {
	if name, known := knownNames[string(quoted[1:len(quoted)-1])]; known {
		return name
	}
	return Unquote(quoted)
}

// knownNames has the names that most events have.
var knownNames = func() map[string]string {
	names := make(map[string]string)
	for _, name := range []string{
		"specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject", "time",
		"data", "request_key", "user_id", "resource_id", "check_in", "check_out", "slots", "quantity", "ttl_seconds",
		"metadata", "hold_id", "payment_id", "amount", "currency", "reason", "capacity",
	} {
		names[name] = name
	}
	return names
}()

// Lax are options that accept JSON that Parse refuses, for a summary that need not be correct.
var Lax = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// LaxObject returns the members of a JSON object, nil for another value. Of a truncated text it
// returns the members before the end.
func LaxObject(value []byte) (object map[string]jsontext.Value) {
	_ = json.Unmarshal(value, &object, Lax) // members before an error are kept
	return object
}

// LaxText returns a JSON string, "" for another value.
func LaxText(value jsontext.Value) (text string) {
	if value.Kind() == '"' {
		_ = json.Unmarshal(value, &text, Lax) // it stays empty
	}
	return text
}

// Unquote returns the text of a valid JSON string.
func Unquote(quoted jsontext.Value) string {
	if inside := quoted[1 : len(quoted)-1]; bytes.IndexByte(inside, '\\') < 0 {
		return string(inside)
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // it is valid
	return string(text)
}

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

// Error is the error of a text that has the wrong form.
type Error struct{ detail string }

func (e *Error) Error() string { return e.detail }

// Errorf returns an *Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// malformedJSON describes a JSON text that is not an object, or that has an error. It quotes none of
// the text, which may be private.
func malformedJSON(where string, text []byte) error {
	err := json.Unmarshal(text, new(jsontext.Value))
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	kind := jsontext.Value(text).Kind()
	switch {
	case !isSyntax, kind != '{' && kind != 'n' && kind != jsontext.KindInvalid:
		return Errorf("%s: must be a JSON object, found %s", where, KindName(text))
	case len(bytes.TrimSpace(text)) == 0:
		return Errorf("%s: must be a JSON object, found nothing", where)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return Errorf("%s: a member is repeated, at byte %d", where, syntax.ByteOffset)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return Errorf("%s: the JSON text ends too early", where)
	default:
		return Errorf("%s: not one JSON text in UTF-8, at byte %d", where, syntax.ByteOffset)
	}
}
