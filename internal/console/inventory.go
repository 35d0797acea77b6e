package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/queries"
)

// inventoryData is the form of a capacity, and what it would hit.
type inventoryData struct {
	Filter   []filterField
	Preview  *table
	Over     int64 // holds and reservations beyond the new capacity, over all slots
	Hits     hits  // likewise of each slot, for the form
	DryRun   events.DryRunResult
	Outcome  string // of the event that was published
	Refused  bool
	Problem  string
	Note     string // of a form that was refused
	Capacity int64
}

// hits are the present capacity of each slot, and the holds and reservations beyond the new one.
type hits [][2]int64

// String returns the hits as a form sends them back.
func (h hits) String() string {
	text, _ := json.Marshal(h) // numbers
	return string(text)
}

// exceed reports whether a capacity hits more, in any slot, than a form sends back, or the present one is neither that
// of the form nor the new one, as after a second click.
func (h hits) exceed(text string, capacity int64) bool {
	var shown hits
	return json.Unmarshal([]byte(text), &shown) != nil || !slices.EqualFunc(h, shown, func(now, shown [2]int64) bool {
		return (now[0] == shown[0] || now[0] == capacity) && now[1] <= shown[1]
	})
}

var inventoryFields = []filterField{
	{Name: "resource_id", Label: "Resource"}, {Name: "check_in", Label: "Nights from", Type: "date"},
	{Name: "check_out", Label: "to (exclusive)", Type: "date"}, {Name: "slots", Label: "or slots, with commas"},
	{Name: "capacity", Label: "New capacity", Type: "number"},
}

// inventory shows what another capacity would hit. A POST request sets the capacity before, unless it hits more by then than
// the form has shown.
func (c *Console) inventory(ctx context.Context, r *request) (*page, error) {
	q := r.Form
	d := inventoryData{Filter: filled(inventoryFields, q)}
	p := &page{Title: "Inventory", Nav: "Inventory", Body: "inventory", Data: &d, Command: command(
		"publisher inventory set", "--resource-id", q.Get("resource_id"), "--check-in", q.Get("check_in"),
		"--check-out", q.Get("check_out"), "--slot", strings.Join(slotNames(q), ","), "--capacity", q.Get("capacity"))}
	if strings.TrimSpace(q.Get("resource_id")) == "" {
		return p, nil
	}
	set, err := parseInventory(q)
	if err != nil {
		return nil, err
	}
	d.Capacity = set.Capacity
	if err := c.preview(ctx, set, &d); err != nil || r.Method != http.MethodPost {
		return p, err
	}
	if d.Hits.exceed(q.Get("hits"), set.Capacity) {
		d.Problem = "What the capacity hits has changed. Nothing was done: check and confirm again, or use the command."
		d.Note = q.Get("note")
		return p, nil
	}
	if err := c.setInventory(ctx, r, set, &d); err != nil || d.Outcome == "" {
		return p, err
	}
	if c.preview(ctx, set, &d) != nil {
		d.Preview, d.Problem = nil, "The event was answered. What the capacity affects now could not be read: reload the page."
	}
	return p, nil
}

// preview reads what a capacity hits.
func (c *Console) preview(ctx context.Context, set events.InventorySetData, d *inventoryData) error {
	found, err := c.Inquiry.Availability(ctx, set.ResourceID, set.SlotSelection)
	if err != nil {
		return err
	}
	d.Preview = newTable("Preview", "", "slot", "#capacity now", "#reserved", "#held", "#new capacity", "#over it")
	d.Over, d.Hits = 0, nil
	for _, slot := range found.Slots {
		beyond := max(0, slot.Reserved+slot.Held-set.Capacity)
		over := number(beyond)
		if beyond > 0 {
			over.Class = "bad"
		}
		d.Over, d.Hits = d.Over+beyond, append(d.Hits, [2]int64{slot.Capacity, beyond})
		d.Preview.add(text(slot.Slot), number(slot.Capacity), number(slot.Reserved), number(slot.Held), number(set.Capacity), over)
	}
	d.DryRun, err = c.dryRun(ctx, events.InventorySet, set.ResourceID, set)
	return err
}

// parseInventory returns the data of the event, checked as the queries check it.
func parseInventory(q url.Values) (set events.InventorySetData, err error) {
	values := given(q, "resource_id", "check_in", "check_out")
	for _, slot := range slotNames(q) {
		values.Add("slot", slot)
	}
	if set.ResourceID, set.SlotSelection, err = queries.ParseQuery(values.Encode()); err != nil {
		return set, err
	}
	set.Capacity, err = strconv.ParseInt(strings.TrimSpace(q.Get("capacity")), 10, 64)
	if err != nil || set.Capacity < 0 {
		return set, badRequest("The capacity must be a whole number, 0 or more.")
	}
	return set, nil
}

// slotNames returns the slots of a form.
func slotNames(q url.Values) (names []string) {
	for slot := range strings.SplitSeq(q.Get("slots"), ",") {
		if slot = strings.TrimSpace(slot); slot != "" {
			names = append(names, slot)
		}
	}
	return names
}

// setInventory publishes the event and adds its outcome.
func (c *Console) setInventory(ctx context.Context, r *request, set events.InventorySetData, d *inventoryData) error {
	note := strings.TrimSpace(r.Form.Get("note"))
	if note == "" {
		d.Problem = noReason
		return nil
	}
	c.logAction(r, "inventory.set "+set.ResourceID, note)
	m, event, err := client.NewEvent(c.Namespace, events.InventorySet, set.ResourceID, source, set)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, replyWithin)
	defer cancel()
	reply, err := c.Client.Request(waiting, m)
	if err != nil {
		return unanswered(event.ID, err)
	}
	outcome, _ := events.EventOf(reply.Envelope.Type)
	if l := reply.DeadLetter; l != nil {
		outcome = "dead letter (" + l.Error + ": " + l.Detail + ")"
	}
	d.Outcome, d.Refused = outcome+" for event "+event.ID, !strings.HasSuffix(outcome, ".updated")
	return nil
}

// unanswered returns what the operator sees when client.Request returned err for an event.
func unanswered(id string, err error) error {
	var refused *jetstream.APIError
	switch {
	case errors.Is(err, client.ErrReplyTimeout):
		return &statusError{http.StatusAccepted, "The event " + id + " is stored and has no outcome yet."}
	case errors.As(err, &refused), errors.Is(err, jetstream.ErrNoStreamResponse), events.IsTooLarge(err):
		return &statusError{http.StatusServiceUnavailable, "The event was not stored; nothing was changed: " + err.Error()}
	default:
		return &statusError{http.StatusServiceUnavailable, "It is unknown whether the event " + id + " is stored: " + err.Error() + ". " + permissionHint}
	}
}
