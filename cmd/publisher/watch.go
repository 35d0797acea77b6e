package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/members"
	"holdfast/internal/terminal"
)

// watch follows outcomes and dead letters.
type watch struct {
	ResourceID string `nonzero:"is empty; leave the flag out for all resources" placeholder:"R" help:"Only events of this resource."`
	Reveal     bool   `help:"Show the users too."`
	Since      moment `placeholder:"WHEN" help:"Also what was stored since then: RFC 3339, or an age like 90m or 2d. Default: only from now on."`
}

func (*watch) Help() string {
	return `Shows outcomes and dead letters from now on, or from --since on, one line each, until Ctrl-C. Those
of each stream are in the order in which they were stored. -o ndjson prints the event of an outcome,
and for a dead letter an object of seq, reason, detail, subject, event_id, stream_seq, deliveries
and time. -o json prints the same, because the list has no end. While a stream cannot be read, the
reason is printed once, and the reading begins again behind what was shown.

Examples:

  publisher watch
  publisher watch --since 10m
  publisher watch --resource-id deluxe -o ndjson`
}

func (c *watch) Run(ctx context.Context, p *program) error {
	if c.ResourceID != "" && !holds.ResourcePattern.MatchString(c.ResourceID) {
		return misused("--resource-id: must match %s", holds.ResourcePattern)
	}
	cl, err := p.connect(ctx)
	if err != nil {
		return err
	}
	following, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	var mu sync.Mutex // both streams call show and failed
	show := func(m events.StoredMsg) {
		mu.Lock()
		defer mu.Unlock()
		if err := c.show(p, m); err != nil {
			stop(err)
		}
	}
	ready := func() {
		fmt.Fprintf(p.err, "publisher: watching %s and %s, Ctrl-C stops\n", p.namespace().AllOut(), p.namespace().AllDLQ())
	}
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		p.reportf("%v; trying again", p.withHint(err))
	}
	err = cl.Follow(following, c.Since.Time, ready, show, failed)
	switch cause := context.Cause(following); {
	case ctx.Err() != nil:
		return events.Refused(ctx, nil)
	case cause != nil: // why the following was stopped, such as an output that cannot be written
		return cause
	default:
		return p.withHint(err)
	}
}

// show prints one stored message: an outcome or a dead letter.
func (c *watch) show(p *program, m events.StoredMsg) error {
	if strings.HasPrefix(m.Subject, p.namespace().DLQ("")) {
		l := p.namespace().ReadDeadLetter(m)
		switch {
		case !c.wants(l.Subject):
			return nil
		case p.Output != outputTable:
			return p.printValue(l)
		}
		return p.print(p.line(m.Meta, "dead-lettered", l.Subject, []string{
			field("reason", l.Reason), field("detail", l.Detail), field("event_id", l.EventID),
			field("seq", strconv.FormatUint(l.Seq, 10)),
		}))
	}
	if !c.wants(m.Subject) {
		return nil
	}
	if p.Output != outputTable {
		return p.printCompact(m.Data)
	}
	var event events.Envelope
	var data members.Object
	err := json.Unmarshal(m.Data, &event)
	if err == nil {
		data, err = dataOf(event)
	}
	if err != nil {
		return p.print(p.line(m.Meta, "unreadable", m.Subject, []string{field("detail", err.Error())}))
	}
	identity := cmp.Or(find(data, "hold_id"), find(data, "resource_id"))
	return p.print(p.line(m.Meta, eventName(event.Type), identity, essentials(data, c.Reveal)))
}

// wants reports whether a subject is of the resource. A subject ends with its resource.
func (c *watch) wants(subject string) bool {
	return c.ResourceID == "" || strings.HasSuffix(subject, "."+c.ResourceID)
}

// printCompact prints a JSON value on one line. It skips text that is not JSON.
func (p *program) printCompact(value jsontext.Value) error {
	if !value.IsValid() {
		p.reportf("skipped an outcome that is not JSON")
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

// line returns the line of an event: time of storage, event name, hold or resource, fields.
func (p *program) line(meta *nats.MsgMetadata, event, identity string, fields []string) string {
	at := p.timeText(meta.Timestamp)
	text := fmt.Sprintf("%s  %-22s  %s  %s", at, terminal.Printable(event), terminal.Printable(identity),
		strings.Join(fields, " "))
	return strings.TrimRight(text, " ") + "\n"
}

// field returns name=value. It quotes a value that is not one word.
func field(name, value string) string {
	value = terminal.Printable(value)
	if value == "" || strings.ContainsAny(value, ` "`) {
		value = strconv.Quote(value)
	}
	return name + "=" + value
}

// slotsShownMax is the number of slots that a line names.
const slotsShownMax = 4

// essentials returns the members of an event's data that a line shows, the user only with reveal.
func essentials(data members.Object, reveal bool) (fields []string) {
	for _, m := range data {
		switch m.Name {
		case "user_id":
			if reveal {
				fields = append(fields, field("user", cell(m.Value)))
			}
		case "check_in":
			fields = append(fields, field("slots", cell(m.Value)+".."+find(data, "check_out")))
		case "slots", "unavailable":
			fields = append(fields, slotFields(m)...)
		case "quantity", "ttl_seconds", "payment_id", "reason", "field", "retry_at", "expires_at", "restored_at", "late",
			"refund_required", "replayed":
			if m.Value.Kind() != 'f' { // an outcome leaves out what is false
				fields = append(fields, field(m.Name, cell(m.Value)))
			}
		}
	}
	return fields
}

// slotFields returns the names in a list of slots and, if all slots have the same capacity, the
// capacity.
func slotFields(m members.Member) []string {
	var names []string
	capacities := make(map[string]struct{})
	for _, slot := range objects(m.Value) {
		names = append(names, find(slot, "slot"))
		capacities[find(slot, "capacity")] = struct{}{}
	}
	if names == nil {
		for _, name := range elements(m.Value) {
			names = append(names, cell(name))
		}
	}
	fields := []string{field(m.Name, shownSlots(names))}
	for capacity := range capacities {
		if len(capacities) == 1 && m.Name == "slots" {
			fields = append(fields, field("capacity", capacity))
		}
	}
	return fields
}

// shownSlots returns the first names of slots and how many there are besides.
func shownSlots(names []string) string {
	shown := strings.Join(names[:min(len(names), slotsShownMax)], ",")
	if more := len(names) - slotsShownMax; more > 0 {
		shown += fmt.Sprintf(",+%d", more)
	}
	return shown
}
