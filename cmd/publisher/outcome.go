package main

import (
	"cmp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/members"
	"holdfast/internal/terminal"
)

// printStored prints an event that JetStream has stored.
func (p *program) printStored(m *nats.Msg, event events.Envelope) error {
	if p.json() {
		return p.printJSON(m.Data)
	}
	data, err := dataOf(event)
	if err != nil {
		return err
	}
	identity := members.Object{{Name: "event_id", Value: quoted(event.ID)}, {Name: "subject", Value: quoted(m.Subject)}}
	return p.print(page(eventName(event.Type)+" stored", append(identity, data...)))
}

// printReply prints the reply to an event. It returns errRejected or errDeadLettered for such a
// reply.
func (p *program) printReply(r client.Reply) error {
	var text string
	var refusal error
	switch {
	case r.DeadLetter != nil:
		refusal = errDeadLettered
		text = page("dead-lettered: "+terminal.Printable(r.DeadLetter.Error),
			members.Object{{Name: "detail", Value: quoted(r.DeadLetter.Detail)}})
	default:
		event := eventName(r.Envelope.Type)
		if strings.HasSuffix(event, "rejected") {
			refusal = errRejected
		}
		data, err := dataOf(r.Envelope)
		if err != nil {
			return err
		}
		text = page(headline(event, data), data)
	}
	if p.json() {
		return cmp.Or(p.printJSON(r.Body), refusal)
	}
	return cmp.Or(p.print(text), refusal)
}

// eventName returns the event name of a CloudEvents type: "hold.created" for
// "holdfast.hold.created.v1".
func eventName(ceType string) string {
	return terminal.Printable(strings.TrimSuffix(strings.TrimPrefix(ceType, "holdfast."), ".v1"))
}

// headline returns an event name with the reason and message of its data, if it has them.
func headline(event string, data members.Object) string {
	if reason := find(data, "reason"); reason != "" {
		event += ": " + reason
		if message := find(data, "message"); message != "" {
			event += " (" + message + ")"
		}
	}
	return event
}

// page returns an event as text: a headline, the members of the data, and a table for each list of
// slots with numbers.
func page(headline string, data members.Object) string {
	var rows [][]string
	tables := ""
	for _, m := range data {
		if list := objects(m.Value); len(list) > 0 {
			tables += "\n" + terminal.Printable(m.Name) + ":\n" + tableOf(list)
		} else {
			rows = append(rows, []string{m.Name, cell(m.Value)})
		}
	}
	return headline + "\n" + facts(rows) + tables
}

// dataOf returns the members of an event's data.
func dataOf(event events.Envelope) (members.Object, error) {
	return members.Parse("the data", event.Data)
}

// find returns the printable text of a member, or "".
func find(data members.Object, name string) string {
	value, found := data.Get(name)
	if !found {
		return ""
	}
	return cell(value)
}

// quoted returns a text as a JSON string. Invalid UTF-8 becomes U+FFFD, for which AppendQuote also
// returns an error.
func quoted(text string) jsontext.Value {
	value, _ := jsontext.AppendQuote(nil, text)
	return value
}

// elements returns the elements of a JSON array, or nil for another value.
func elements(value jsontext.Value) []jsontext.Value {
	var list []jsontext.Value
	if value.Kind() != '[' || json.Unmarshal(value, &list) != nil {
		return nil
	}
	return list
}

// objects returns the objects in a JSON array.
func objects(value jsontext.Value) (list []members.Object) {
	for _, element := range elements(value) {
		if object, err := members.Parse("an element", element); err == nil {
			list = append(list, object)
		}
	}
	return list
}

// tableOf returns objects as a table. Its columns are the members of the first one.
func tableOf(list []members.Object) string {
	var headers []string
	rows := make([][]string, len(list))
	for _, column := range list[0] {
		headers = append(headers, strings.ToUpper(terminal.Printable(column.Name)))
		for i, object := range list {
			rows[i] = append(rows[i], find(object, column.Name))
		}
	}
	return terminal.Table(headers, rows)
}

// cell returns the printable text of a valid JSON value: strings without quotes, arrays with commas, null
// as -.
func cell(value jsontext.Value) string {
	switch value.Kind() {
	case 'n':
		return "-"
	case '"':
		return terminal.Printable(members.Unquote(value))
	case '[':
		list := elements(value)
		cells := make([]string, len(list))
		for i, element := range list {
			cells[i] = cell(element)
		}
		return strings.Join(cells, ", ")
	default:
		compact := value.Clone()
		_ = compact.Compact() // fails only if it is not JSON
		return terminal.Printable(string(compact))
	}
}
