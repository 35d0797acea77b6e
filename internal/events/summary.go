package events

import (
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
)

// EventSummary is what can be read of an event, even if its form is wrong. A field that cannot be
// read is "".
type EventSummary struct {
	ID       string
	Type     string // the event, like booking.requested, or the whole type if it is not one of Holdfast's
	Resource string
	User     string
}

// Summarize reads a summary from an event. Type and resource that the event does not contain come
// from the subject that it was published on: <ns>.in.<event>.<resource>.
func Summarize(subject string, header nats.Header, body []byte) EventSummary {
	event := laxObject(body)
	data := laxObject(event["data"])
	if data == nil {
		data = event // in binary mode
	}
	a := EventSummary{
		ID: laxText(event["id"]), Type: laxText(event["type"]),
		Resource: laxText(data["resource_id"]), User: laxText(data["user_id"]),
	}
	if a.ID == "" {
		a.ID = attributeOf(header, "id")
	}
	if a.Type == "" {
		a.Type = attributeOf(header, "type")
	}
	if ours, known := EventOf(a.Type); known {
		a.Type = ours
	}
	if a.Resource == "" {
		a.Resource, _, _ = strings.Cut(laxText(data["hold_id"]), ".")
	}
	if tokens := strings.SplitN(subject, ".", 3); len(tokens) == 3 {
		dot := strings.LastIndexByte(tokens[2], '.')
		if a.Type == "" && dot >= 0 {
			a.Type = tokens[2][:dot]
		}
		if a.Resource == "" {
			a.Resource = tokens[2][dot+1:]
		}
	}
	return a
}

// sourceOf returns the source of an event, "" if it cannot be read.
func sourceOf(header nats.Header, body []byte) string {
	if source := laxText(laxObject(body)["source"]); source != "" {
		return source
	}
	return attributeOf(header, "source")
}

// attributeOf returns an attribute of an event in binary mode, "" if it is missing.
func attributeOf(header nats.Header, name string) string {
	for given, values := range header {
		if strings.EqualFold(given, attributePrefix+name) && len(values) > 0 {
			return values[0]
		}
	}
	return ""
}

// lax accepts JSON that strict decoding refuses: a summary need not be correct.
var lax = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// laxObject returns the members of a JSON object, nil for another value. Of a truncated text it
// returns the members before the end.
func laxObject(value []byte) (object map[string]jsontext.Value) {
	_ = json.Unmarshal(value, &object, lax) // members before an error are kept
	return object
}

// laxText returns a JSON string, "" for another value.
func laxText(value jsontext.Value) (text string) {
	if value.Kind() == '"' {
		_ = json.Unmarshal(value, &text, lax) // it stays empty
	}
	return text
}
