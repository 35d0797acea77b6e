package console

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
)

const (
	rowsMax       = 50 // of a page
	resourcesRead = 5  // whose soonest holds are shown without a filter
	slotsShown    = 6  // of one hold in a list
)

// filterField is a field of a form of filters.
type filterField struct {
	Name, Label, Value string
	Options            []string // of a select; "" is any; nil for a text field
	Type               string
}

// filled returns fields with the values of a request.
func filled(fields []filterField, q url.Values) []filterField {
	fields = slices.Clone(fields)
	for i := range fields {
		fields[i].Value = strings.TrimSpace(q.Get(fields[i].Name))
	}
	return fields
}

// listData is a list with its filters.
type listData struct {
	Filter  []filterField
	Note    string
	Strange []error // what could not be read
	Tables  []*table
	Chosen  map[string]string // further actions on what is listed: text and address
}

var holdFields = []filterField{
	{Name: "resource_id", Label: "Resource"}, {Name: "user_id", Label: "User"},
	{Name: "state", Label: "State", Options: []string{"", string(holds.Held), string(holds.Confirming)}},
	{Name: "within", Label: "Deadline within", Options: []string{"", "1m", "5m", "15m", "1h"}},
}

// holds lists live holds: those of a resource, or the soonest of the resources with the most.
func (c *Console) holds(ctx context.Context, r *request) (*page, error) {
	q := r.Form
	resource := q.Get("resource_id")
	reveal := r.reveals()
	within, err := time.ParseDuration(cmp.Or(q.Get("within"), "0s"))
	if err != nil || within < 0 {
		return nil, badRequest("within must be a duration such as 5m")
	}
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	t := holdTable("no live hold matches", reveal)
	d := listData{Filter: filled(holdFields, q), Tables: []*table{t}}
	read := []string{resource}
	if live := s.Stats.LiveHolds; resource == "" {
		d.Tables, read = append(d.Tables, hottest(live)), nil
		if live != nil {
			for _, one := range live.Hottest[:min(resourcesRead, len(live.Hottest))] {
				read = append(read, one.ResourceID)
			}
			d.Note = "The soonest deadlines of the " + counted(len(read), "resource") + " with the most live holds, of " +
				counted(int(live.Total), "live hold") + ". Give a resource for all of its holds."
		}
	}
	var found []holds.HoldView
	for _, one := range read {
		listed, err := c.holdsOf(ctx, one, q, reveal)
		if err != nil {
			return nil, err
		}
		found = append(found, listed.Holds...)
		if resource != "" && listed.Next != "" {
			t.Next = with(r.URL, "after", listed.Next)
		}
		if listed.Partial != "" {
			d.Note += " Not all of " + one + " could be read: " + listed.Partial + "."
		}
	}
	if q.Get("within") != "" {
		all := len(found)
		found = slices.DeleteFunc(found, func(h holds.HoldView) bool { return time.Until(h.ExpiresAt.Time) > within })
		if len(found) < all {
			t.Next = "" // later holds have later deadlines
		}
	}
	slices.SortStableFunc(found, func(a, b holds.HoldView) int { return a.ExpiresAt.Compare(b.ExpiresAt.Time) })
	if t.Next != "" {
		t.Empty = "no live hold matches of those that were read for this page"
	}
	for _, hold := range found[:min(len(found), rowsMax)] {
		t.add(holdRow(hold, reveal)...)
	}
	return &page{
		Title: "Holds", Nav: "Holds", Body: "list", Data: d, Private: true,
		Command: command("publisher hold list", "--resource-id", cmp.Or(resource, "RESOURCE"), "--user-id", q.Get("user_id"),
			"--state", q.Get("state")),
	}, nil
}

// holdsOf checks the parameters as /v1/holds does.
func (c *Console) holdsOf(ctx context.Context, resource string, q url.Values, reveal bool) (listed queries.HoldsPage, err error) {
	values := given(q, "user_id", "state", "after")
	values.Set("resource_id", resource)
	values.Set("limit", strconv.Itoa(rowsMax))
	values.Set("reveal", strconv.FormatBool(reveal))
	query, err := queries.ParseHoldsQuery(values.Encode())
	if err != nil {
		return listed, err
	}
	return c.Inquiry.Holds(ctx, query)
}

func holdTable(empty string, reveal bool) *table {
	t := newTable("Live holds", empty, "hold", "resource", "slots", "#quantity", "state", "#left", "deadline")
	if reveal {
		t.Columns = append(t.Columns, column{Name: "user"}, column{Name: "metadata"})
	}
	return t
}

func holdRow(h holds.HoldView, reveal bool) []cell {
	id := h.HoldID.String()
	row := []cell{
		shortID(h.HoldID.UUID, address("holds/"+url.PathEscape(id)), id),
		link(h.ResourceID, address("holds", "resource_id", h.ResourceID)), text(slotsText(h.SlotSelection)), number(h.Quantity),
		stateBadge(string(h.State)), {Until: h.ExpiresAt}, at(h.ExpiresAt),
	}
	if reveal {
		row = append(row, cell{Text: h.UserID, Href: address("holds", "resource_id", h.ResourceID, "user_id", h.UserID, "reveal", "true")},
			text(string(h.Metadata)))
	}
	return row
}

// shortID returns the end of an id, which differs most, with a button that copies all of it.
func shortID(id, href, whole string) cell {
	return cell{Text: "…" + id[max(0, len(id)-8):], Href: href, Class: "id", Copy: whole}
}

// slotsText describes the slots of a hold.
func slotsText(s holds.SlotSelection) string {
	if s.CheckIn != "" {
		return s.CheckIn + " to " + s.CheckOut
	}
	names := slotsOf(s)
	if more := len(names) - slotsShown; more > 0 {
		return strings.Join(names[:slotsShown], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}

// stateBadge returns a state of a hold, named as in the commands.
func stateBadge(state string) cell {
	return badge(state, map[string]string{
		string(holds.Held): "warn", string(holds.Confirming): "warn", string(holds.Confirmed): "ok",
	}[state]+" ")
}

// holdData is a hold with its history.
type holdData struct {
	ID      string
	Hold    *holds.HoldView
	State   cell
	Slots   string
	Steps   []step
	Partial string
	PayNow  string // the address that asks what a payment would do
	Paid    *events.DryRunResult
}

// step is an entry of a history.
type step struct {
	queries.HistoryEntry
	Class string
	Title string
	Facts []fact
	Href  string
}

var stepTitles = map[string]string{
	queries.HistoryEvent: "event", queries.HistoryOutcome: "outcome", queries.HistoryDeadLetter: "dead letter",
	queries.HistoryPayment: "row in payments", queries.HistoryReservation: "row in reservations",
}

func (c *Console) hold(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	history, err := c.Inquiry.History(ctx, id, r.reveals())
	if err != nil {
		return nil, err
	}
	d := holdData{ID: id, Hold: history.Hold, Partial: history.Partial, PayNow: with(r.URL, "paid", "now")}
	if d.Hold != nil {
		d.State, d.Slots = stateBadge(string(d.Hold.State)), slotsText(d.Hold.SlotSelection)
	}
	for _, entry := range history.Entries {
		s := step{HistoryEntry: entry, Class: entry.Kind, Title: stepTitles[entry.Kind], Facts: facts(entry.Data)}
		if entry.Reason != "" && entry.Kind != queries.HistoryDeadLetter {
			s.Class += " refused"
		}
		if entry.Kind == queries.HistoryDeadLetter {
			s.Href = seqCell(entry.Seq).Href
		}
		d.Steps = append(d.Steps, s)
	}
	if r.URL.Query().Get("paid") == "now" {
		payment := events.PaymentConfirmedData{HoldID: id, PaymentID: "console-dry-run"}
		result, err := c.dryRun(ctx, events.PaymentConfirmed, history.HoldID.Resource, payment)
		if err != nil {
			return nil, err
		}
		d.Paid = &result
	}
	return &page{
		Title: "Hold " + id, Nav: "Holds", Body: "hold", Data: d, Private: true,
		Command: command("publisher hold history", "--hold-id", id),
	}, nil
}

// facts returns the members of an object as texts, in the order of their names.
func facts(data jsontext.Value) (all []fact) {
	var members map[string]jsontext.Value
	if len(data) == 0 || json.Unmarshal(data, &members, jsontext.AllowInvalidUTF8(true)) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		shown := string(members[name])
		if plain, err := jsontext.AppendUnquote(nil, members[name]); err == nil {
			shown = string(plain) // it is a string
		}
		all = append(all, fact{name, shown})
	}
	return all
}

// source is the CloudEvents source of every event that the console publishes.
const source = "/holdfast/console"

// dryRun returns the outcome that an event would have now.
func (c *Console) dryRun(ctx context.Context, event, resource string, data any) (result events.DryRunResult, err error) {
	m, _, err := client.NewEvent(c.Namespace, event, resource, source, data)
	if err != nil {
		return result, err
	}
	return c.DryRun(ctx, m)
}
