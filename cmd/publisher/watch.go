package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// watch follows outcomes and dead letters.
type watch struct {
	ResourceID string `placeholder:"R" help:"Only what is about this resource."`
}

// Help implements kong's detailed help.
func (*watch) Help() string {
	return `Shows what is stored from now on, one line each, until Ctrl-C. With -o ndjson an outcome is its event, and a dead letter is an object of seq, reason, detail, subject, event_id, stream_seq, deliveries and time; -o json, which has no end to its list here, does the same.

Examples:

  publisher watch
  publisher watch --resource-id deluxe -o ndjson`
}

func (*watch) outputs() []string { return []string{outputTable, outputNDJSON, outputJSON} }

// Run shows what comes until ctx is over.
func (v *watch) Run(ctx context.Context, p *program) error {
	if v.ResourceID != "" && !holds.ResourcePattern.MatchString(v.ResourceID) {
		return misused("--resource-id: must match %s", holds.ResourcePattern)
	}
	cl, disconnect, err := p.connect()
	if err != nil {
		return err
	}
	defer disconnect()
	following, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	var mu sync.Mutex // the streams are followed side by side, and what comes late is not shown
	ended := false
	show := func(m jetstream.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		if err := v.show(p, m); err != nil {
			stop(err)
		}
	}
	ready := func() {
		fmt.Fprintf(p.err, "publisher: watching %s and %s, Ctrl-C ends\n", p.namespace().AllOut(), p.namespace().AllDLQ())
	}
	err = cl.Follow(following, ready, show)
	mu.Lock()
	defer mu.Unlock()
	ended = true
	switch cause := context.Cause(following); {
	case ctx.Err() != nil:
		return events.Refused(ctx, nil)
	case err != nil:
		return p.withHint(err)
	case cause != nil:
		return cause
	default:
		return errors.New("the connection to NATS was closed")
	}
}

// show prints what was stored.
func (v *watch) show(p *program, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read %s: %w", m.Subject(), err)
	}
	if strings.HasPrefix(m.Subject(), p.namespace().DLQ("")) {
		deadLetter, err := p.namespace().ReadDeadLetter(m)
		if err == nil && v.wants(deadLetter.Subject) {
			err = v.showDeadLetter(p, meta, deadLetter)
		}
		return err
	}
	if !v.wants(m.Subject()) {
		return nil
	}
	if p.Output != outputTable {
		return p.printCompact(m.Data())
	}
	var event events.Envelope
	if err := json.Unmarshal(m.Data(), &event); err != nil {
		return p.print(line(meta, "unreadable", m.Subject(), []string{field("detail", err.Error())}))
	}
	data, err := membersOf(event.Data)
	if err != nil {
		return p.print(line(meta, "unreadable", m.Subject(), []string{field("detail", err.Error())}))
	}
	identity := find(data, "hold_id")
	if identity == "" {
		identity = find(data, "resource_id")
	}
	return p.print(line(meta, eventName(event.Type), identity, essentials(data)))
}

// showDeadLetter prints a dead letter on one line.
func (v *watch) showDeadLetter(p *program, meta *jetstream.MsgMetadata, l *events.DeadLetter) error {
	if p.Output != outputTable {
		text, err := l.JSON()
		if err != nil {
			return err
		}
		return p.printJSON(text)
	}
	fields := []string{
		field("reason", l.Reason), field("detail", l.Detail), field("event_id", l.EventID),
		field("seq", strconv.FormatUint(l.Seq, 10)),
	}
	return p.print(line(meta, "dead-lettered", l.Subject, fields))
}

// wants reports whether what has a subject is about the resource. A subject ends in its resource.
func (v *watch) wants(subject string) bool {
	return v.ResourceID == "" || strings.HasSuffix(subject, "."+v.ResourceID)
}

// printCompact prints a JSON value on one line. What is none is no line of the output.
func (p *program) printCompact(value jsontext.Value) error {
	if !value.IsValid() {
		fmt.Fprintln(p.err, "publisher: passed over an outcome that is not JSON")
		return nil
	}
	if strings.ContainsAny(string(value), "\r\n") {
		value = value.Clone()
		if err := value.Compact(); err != nil {
			return fmt.Errorf("compact an outcome: %w", err)
		}
	}
	return p.printJSON(value)
}

// line is what is shown of an event: when it was stored, what it is, what it is about.
func line(meta *jetstream.MsgMetadata, event, identity string, fields []string) string {
	at := meta.Timestamp.UTC().Format(holds.TimeFormat)
	text := fmt.Sprintf("%s  %-22s  %s  %s", at, terminal.Printable(event), terminal.Printable(identity), strings.Join(fields, " "))
	return strings.TrimRight(text, " ") + "\n"
}

// field is name=value, with the value quoted when it would not read as one word.
func field(name, value string) string {
	value = terminal.Printable(value)
	if value == "" || strings.ContainsAny(value, ` "`) {
		value = strconv.Quote(value)
	}
	return name + "=" + value
}

// slotsShownMax is how many slots a line names.
const slotsShownMax = 4

// essentials are the members of an event's data that tell what happened.
func essentials(data []member) (fields []string) {
	for _, m := range data {
		switch m.name {
		case "user_id":
			fields = append(fields, field("user", cell(m.value)))
		case "check_in":
			fields = append(fields, field("slots", cell(m.value)+".."+find(data, "check_out")))
		case "slots", "unavailable":
			fields = append(fields, slotFields(m)...)
		case "quantity", "payment_id", "reason", "field", "retry_at", "expires_at", "restored_at", "late", "refund_required", "replayed":
			fields = append(fields, field(m.name, cell(m.value)))
		}
	}
	return fields
}

// slotFields are the names in a list of slots and, when the list has numbers and they are the
// same, the capacity.
func slotFields(m member) []string {
	var names []string
	capacities := make(map[string]struct{})
	for _, element := range elements(m.value) {
		if element.Kind() != '{' {
			names = append(names, cell(element))
			continue
		}
		object, err := membersOf(element)
		if err != nil {
			continue
		}
		names = append(names, find(object, "slot"))
		capacities[find(object, "capacity")] = struct{}{}
	}
	shown := strings.Join(names[:min(len(names), slotsShownMax)], ",")
	if more := len(names) - slotsShownMax; more > 0 {
		shown += fmt.Sprintf(",+%d", more)
	}
	fields := []string{field(m.name, shown)}
	if len(capacities) == 1 && m.name == "slots" {
		for capacity := range capacities {
			fields = append(fields, field("capacity", capacity))
		}
	}
	return fields
}
