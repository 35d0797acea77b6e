package console

import (
	"cmp"
	"context"
	"errors"
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

// listData is a list with its filters.
type listData struct {
	Filter []filterField
	Note   string
	Tables []table
	Chosen map[string]string // further actions on what is listed: text and address
}

var deadlines = []string{"", "1m", "5m", "15m", "1h"}

// holds lists live holds: those of a resource, or the soonest of the resources with the most.
func (c *Console) holds(ctx context.Context, r *request) (*page, error) {
	q := r.URL.Query()
	resource, user, state, within := q.Get("resource_id"), q.Get("user_id"), q.Get("state"), q.Get("within")
	d := listData{Filter: []filterField{
		{Name: "resource_id", Label: "Resource", Value: resource}, {Name: "user_id", Label: "User", Value: user},
		{Name: "state", Label: "State", Value: state, Options: []string{"", string(holds.Held), string(holds.Confirming)}},
		{Name: "within", Label: "Deadline within", Value: within, Options: deadlines},
	}}
	reveal := c.reveals(r)
	p := &page{
		Title: "Holds", Nav: "holds", Body: "list", Private: true,
		Command: command("publisher hold list", "--resource-id", cmp.Or(resource, "RESOURCE"), "--user-id", user, "--state", state),
	}
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	t := table{Caption: "Live holds", Empty: "no live hold matches"}
	var read []string
	if resource != "" {
		read = append(read, resource)
	} else if live := s.Stats.LiveHolds; live != nil {
		for _, one := range live.Hottest[:min(resourcesRead, len(live.Hottest))] {
			read = append(read, one.ResourceID)
		}
		d.Note = "The soonest deadlines of the " + counted(len(read), "resource") + " with the most live holds, of " +
			counted(int(live.Total), "live hold") + ". Give a resource for all of its holds."
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
	}
	if limit, err := time.ParseDuration(within); err == nil {
		found = slices.DeleteFunc(found, func(h holds.HoldView) bool { return time.Until(h.ExpiresAt.Time) > limit })
		if len(found) < rowsMax {
			t.Next = "" // later holds have later deadlines
		}
	}
	slices.SortStableFunc(found, func(a, b holds.HoldView) int { return a.ExpiresAt.Compare(b.ExpiresAt.Time) })
	t.Columns = holdColumns(reveal)
	for _, hold := range found[:min(len(found), rowsMax)] {
		t.Rows = append(t.Rows, holdRow(hold, reveal))
	}
	d.Tables = []table{t}
	if resource == "" {
		d.Tables = append(d.Tables, hottest(s.Stats.LiveHolds))
	}
	p.Data = d
	return p, nil
}

// holdsOf reads the holds of a resource.
func (c *Console) holdsOf(ctx context.Context, resource string, q url.Values, reveal bool) (listed events.HoldsPage, err error) {
	query, err := holdsQuery(resource, q, reveal)
	if err != nil {
		return listed, err
	}
	return c.Inquiry.Holds(ctx, query)
}

// holdsQuery returns the query for the holds of a resource, checked as /v1/holds checks it.
func holdsQuery(resource string, q url.Values, reveal bool) (events.HoldsQuery, error) {
	values := url.Values{"resource_id": {resource}, "limit": {strconv.Itoa(rowsMax)}, "reveal": {strconv.FormatBool(reveal)}}
	for _, name := range []string{"user_id", "state", "after"} {
		if value := q.Get(name); value != "" {
			values.Set(name, value)
		}
	}
	return events.ParseHoldsQuery(values.Encode())
}

func holdColumns(reveal bool) []column {
	if reveal {
		return columns("hold", "resource", "slots", "#quantity", "state", "#left", "deadline", "user", "metadata")
	}
	return columns("hold", "resource", "slots", "#quantity", "state", "#left", "deadline")
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
	switch {
	case s.CheckIn != "":
		return s.CheckIn + " to " + s.CheckOut
	case len(s.Slots) > slotsShown:
		return strings.Join(s.Slots[:slotsShown], ", ") + " and " + strconv.Itoa(len(s.Slots)-slotsShown) + " more"
	case len(s.Slots) > 0:
		return strings.Join(s.Slots, ", ")
	default:
		return "stock"
	}
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
	events.HistoryEntry
	Class string
	Title string
	Facts []fact
	Href  string
}

// fact is a member of data.
type fact struct{ Name, Value string }

var stepTitles = map[string]string{
	events.HistoryEvent: "event", events.HistoryOutcome: "outcome", events.HistoryDeadLetter: "dead letter",
	events.HistoryPayment: "row in payments", events.HistoryReservation: "row in reservations",
}

// hold shows what became of a hold.
func (c *Console) hold(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	history, err := c.Inquiry.History(ctx, id, c.reveals(r))
	if errors.Is(err, events.ErrNoHistory) {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	d := holdData{ID: id, Hold: history.Hold, Partial: history.Partial, PayNow: with(r.URL, "paid", "now")}
	if d.Hold != nil {
		d.State, d.Slots = stateBadge(string(d.Hold.State)), slotsText(d.Hold.SlotSelection)
	}
	for _, entry := range history.Entries {
		s := step{HistoryEntry: entry, Class: entry.Kind, Title: stepTitles[entry.Kind], Facts: facts(entry.Data)}
		if entry.Reason != "" && entry.Kind != events.HistoryDeadLetter {
			s.Class += " refused"
		}
		if entry.Kind == events.HistoryDeadLetter {
			s.Href = address("dead-letters/" + strconv.FormatUint(entry.Seq, 10))
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
		Title: "Hold " + id, Nav: "holds", Body: "hold", Data: d, Private: true,
		Command: command("publisher hold history", "--hold-id", id),
	}, nil
}

// facts returns the members of an object as texts, in their order.
func facts(data jsontext.Value) (all []fact) {
	var members map[string]jsontext.Value
	if len(data) == 0 || json.Unmarshal(data, &members, jsontext.AllowInvalidUTF8(true)) != nil {
		return nil
	}
	for name, value := range members {
		shown := string(value)
		if value.Kind() == '"' {
			if plain, err := jsontext.AppendUnquote(nil, value); err == nil {
				shown = string(plain)
			}
		}
		all = append(all, fact{name, shown})
	}
	slices.SortFunc(all, func(a, b fact) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// dryRun returns the outcome that an event would have now.
func (c *Console) dryRun(ctx context.Context, event, resource string, data any) (events.DryRunResult, error) {
	e, err := client.NewEvent(c.Namespace, event, resource, eventSource, data)
	if err != nil {
		return events.DryRunResult{}, err
	}
	m, err := e.Message()
	if err != nil {
		return events.DryRunResult{}, err
	}
	return c.DryRun(ctx, m)
}

// eventSource is the source of events that the console publishes.
const eventSource = "/holdfast/console"
