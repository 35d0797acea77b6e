package members

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

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
