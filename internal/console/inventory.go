package console

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

// inventoryData is the form of a capacity, and what it would hit.
type inventoryData struct {
	Filter   []filterField
	Preview  *table
	Over     int64 // holds and reservations beyond the new capacity, over all slots
	DryRun   events.DryRunResult
	Outcome  string // of the event that was published
	Refused  bool
	Problem  string
	Fields   map[string]string
	AsksWho  bool
	Capacity int64
}

// inventory shows what another capacity would hit.
func (c *Console) inventory(ctx context.Context, r *request) (*page, error) {
	return c.inventoryWith(ctx, r, r.URL.Query(), inventoryData{})
}

func (c *Console) inventoryWith(ctx context.Context, r *request, q url.Values, d inventoryData) (*page, error) {
	d.AsksWho, d.Fields = r.visitor.Name == "", map[string]string{}
	for _, f := range []filterField{
		{Name: "resource_id", Label: "Resource"}, {Name: "check_in", Label: "Nights from", Type: "date"},
		{Name: "check_out", Label: "to (exclusive)", Type: "date"}, {Name: "slots", Label: "or slots, with commas"},
		{Name: "capacity", Label: "New capacity", Type: "number"},
	} {
		f.Value = strings.TrimSpace(q.Get(f.Name))
		d.Filter, d.Fields[f.Name] = append(d.Filter, f), f.Value
	}
	p := &page{Title: "Inventory", Nav: "inventory", Body: "inventory", Command: command("publisher inventory set", "--resource-id", d.Fields["resource_id"],
		"--check-in", d.Fields["check_in"], "--check-out", d.Fields["check_out"], "--slot", d.Fields["slots"], "--capacity", d.Fields["capacity"])}
	if d.Fields["resource_id"] == "" {
		p.Data = d
		return p, nil
	}
	set, err := parseInventory(d.Fields)
	if err != nil {
		return nil, err
	}
	d.Capacity = set.Capacity
	found, err := c.Slots.Availability(ctx, set.ResourceID, set.SlotSelection)
	if err != nil {
		return nil, err
	}
	t := table{Caption: "Preview", Columns: columns("slot", "#capacity now", "#reserved", "#held", "#new capacity", "#over it")}
	for _, slot := range found {
		over := max(0, slot.Reserved+slot.Held-set.Capacity)
		d.Over += over
		row := []cell{text(slot.Slot), number(slot.Capacity), number(slot.Reserved), number(slot.Held), number(set.Capacity), number(over)}
		if over > 0 {
			row[5].Class = "bad"
		}
		t.Rows = append(t.Rows, row)
	}
	d.Preview = &t
	if d.DryRun, err = c.dryRun(ctx, events.InventorySet, set.ResourceID, set); err != nil {
		return nil, err
	}
	p.Data = d
	return p, nil
}

// parseInventory returns the data of the event, checked as the queries check it.
func parseInventory(fields map[string]string) (set events.InventorySetData, err error) {
	values := url.Values{"resource_id": {fields["resource_id"]}}
	for _, name := range []string{"check_in", "check_out"} {
		if fields[name] != "" {
			values.Set(name, fields[name])
		}
	}
	for slot := range strings.SplitSeq(fields["slots"], ",") {
		if slot = strings.TrimSpace(slot); slot != "" {
			values.Add("slot", slot)
		}
	}
	if set.ResourceID, set.SlotSelection, err = events.ParseQuery(values.Encode()); err != nil {
		return set, err
	}
	if set.Capacity, err = strconv.ParseInt(fields["capacity"], 10, 64); err != nil || set.Capacity < 0 {
		return set, badRequest("The capacity must be a whole number, 0 or more.")
	}
	return set, nil
}

// setInventory publishes the event and shows its outcome.
func (c *Console) setInventory(ctx context.Context, r *request) (*page, error) {
	form := r.PostForm
	fields := map[string]string{}
	for _, name := range []string{"resource_id", "check_in", "check_out", "slots", "capacity"} {
		fields[name] = form.Get(name)
	}
	set, err := parseInventory(fields)
	if err != nil {
		return nil, err
	}
	note := strings.TrimSpace(form.Get("note"))
	if note == "" {
		return c.inventoryWith(ctx, r, form, inventoryData{Problem: "Give the reason: it is logged."})
	}
	c.logAction(r, "inventory.set "+set.ResourceID, note)
	e, err := client.NewEvent(c.Namespace, events.InventorySet, set.ResourceID, eventSource, set)
	if err != nil {
		return nil, err
	}
	m, err := e.Message()
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, replyWithin)
	defer cancel()
	reply, err := c.Client.Request(waiting, m)
	if err != nil {
		return nil, &statusError{http.StatusAccepted, "The event " + e.Envelope.ID + " has no outcome yet: " + err.Error()}
	}
	outcome, _ := events.EventOf(reply.Envelope.Type)
	d := inventoryData{Outcome: outcome + " for event " + e.Envelope.ID, Refused: !strings.HasSuffix(outcome, ".updated")}
	return c.inventoryWith(ctx, r, form, d)
}
