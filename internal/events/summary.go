package events

import (
	"cmp"
	"strings"

	"github.com/nats-io/nats.go"

	"holdfast/internal/members"
)

// EventSummary is what can be read of an event, even if its form is wrong. A field that cannot be
// read is "".
type EventSummary struct {
	ID       string
	Source   string
	Type     string // the event, like booking.requested, or the whole type if it is not one of Holdfast's
	Resource string
	User     string
}

// Summarize reads a summary from an event. Type and resource that the event does not contain come
// from the subject that it was published on: <ns>.in.<event>.<resource>.
func Summarize(subject string, header nats.Header, body []byte) EventSummary {
	event := members.LaxObject(body)
	data := members.LaxObject(event["data"])
	if data == nil {
		data = event // in binary mode
	}
	a := EventSummary{
		ID:       cmp.Or(members.LaxText(event["id"]), attributeOf(header, "id")),
		Source:   cmp.Or(members.LaxText(event["source"]), attributeOf(header, "source")),
		Type:     cmp.Or(members.LaxText(event["type"]), attributeOf(header, "type")),
		Resource: members.LaxText(data["resource_id"]),
		User:     members.LaxText(data["user_id"]),
	}
	if ours, known := EventOf(a.Type); known {
		a.Type = ours
	}
	if a.Resource == "" {
		a.Resource, _, _ = strings.Cut(members.LaxText(data["hold_id"]), ".")
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

// attributeOf returns an attribute of an event in binary mode, "" if it is missing.
func attributeOf(header nats.Header, name string) string {
	for given, values := range header {
		if strings.EqualFold(given, attributePrefix+name) && len(values) > 0 {
			return strings.ToValidUTF8(values[0], "\uFFFD") // as LaxText
		}
	}
	return ""
}
