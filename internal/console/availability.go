package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/queries"
)

const (
	chunkRows   = 20   // resources whose days are read by one request
	mapRowsMax  = 1000 // of one page
	daysDefault = "35"
	daysMax     = 90
	slotsMax    = 400  // of one resource on one page
	holdsOfMap  = 100  // of one resource, for the deadlines of its cells; also of one request
	holdsRead   = 2000 // of one resource, for those on a slot
	lastHour    = time.Hour
)

// mapData is a heat map: resources by day, or the slots of one resource.
type mapData struct {
	Filter []filterField
	Days   []string
	Rows   []mapRow
	Gaps   []gap  // rows that are read when they are scrolled to
	Next   string // the page after the rows, or slots, that are read
	After  string // the page after the gaps
	Slots  []mapCell
	Tables []*table
	Slot   string
	Retry  holds.Time
	Notes  []string // what was not read
}

type mapRow struct {
	Resource, Note string // what it has instead of nights
	Cells          []mapCell
}

// gap is a part of the map that is not read yet.
type gap struct {
	Href string
	Rows int
}

// mapCell is a slot: f free, l less than half free, h held out, s sold out, u without inventory.
type mapCell struct {
	holds.SlotAvailability
	Class string
	Until int64 // the earliest deadline of a hold on it, in ms since 1970; 0 for none
	Href  string
}

func newMapCell(s holds.SlotAvailability, until map[string]holds.Time) mapCell {
	cell := mapCell{SlotAvailability: s, Class: "f"}
	switch {
	case !s.Known:
		cell.Class = "u"
	case s.Available == 0 && s.Held > 0:
		cell.Class = "h"
	case s.Available == 0:
		cell.Class = "s"
	case 2*s.Available <= s.Capacity:
		cell.Class = "l"
	}
	if deadline, held := until[s.Slot]; held && s.Held > 0 {
		cell.Until = deadline.UnixMilli()
	}
	return cell
}

// heldSlots are live holds of a resource, in the order of their deadlines.
type heldSlots struct {
	Holds []holds.HoldView
	Until map[string]holds.Time // the earliest deadline of each slot, as far as the holds that were read show it
	Notes []string              // what was not read
}

// heldSlots reads the live holds of a resource that are on a slot, with "" on any: rowsMax of them, found among the
// soonest of the resource, at most holdsRead.
func (c *Console) heldSlots(ctx context.Context, resource, slot string, reveal bool) (h heldSlots, err error) {
	h.Until = make(map[string]holds.Time)
	query, read := queries.HoldsQuery{ResourceID: resource, Limit: holdsOfMap, Reveal: reveal}, 0
	for range holdsRead / holdsOfMap {
		listed, err := c.Inquiry.Holds(ctx, query)
		if err != nil {
			return h, err
		}
		for _, hold := range listed.Holds {
			names := slotsOf(hold.SlotSelection)
			for _, name := range names {
				h.Until[name] = cmp.Or(h.Until[name], hold.ExpiresAt)
			}
			if slot == "" || slices.Contains(names, slot) {
				h.Holds = append(h.Holds, hold)
			}
		}
		read += len(listed.Holds)
		if listed.Partial != "" && len(h.Notes) == 0 {
			h.Notes = append(h.Notes, "Not all of it could be read: "+listed.Partial+".")
		}
		query.After = listed.Next
		if query.After == "" || len(h.Holds) > rowsMax {
			break
		}
	}
	switch {
	case len(h.Holds) > rowsMax:
		h.Holds = h.Holds[:rowsMax]
		h.Notes = append(h.Notes, "The "+counted(rowsMax, "soonest hold")+" are shown, of more.")
	case query.After != "":
		h.Notes = append(h.Notes, "Only the "+counted(read, "soonest hold")+" of this resource were read.")
	}
	return h, nil
}

// slotsOf returns the names of the slots of a selection.
func slotsOf(s holds.SlotSelection) []string {
	names, _ := s.ReservedSlots() // a hold that was granted has some
	return names
}

var mapFields = []filterField{
	{Name: "prefix", Label: "Resource begins with"}, {Name: "from", Label: "From", Type: "date"},
	{Name: "days", Label: "Days", Options: []string{"14", "35", "60", "90"}},
}

// availability shows resources by day. With part=rows it answers with some rows alone.
func (c *Console) availability(ctx context.Context, r *request) (*page, error) {
	q := r.Form
	q.Set("from", cmp.Or(q.Get("from"), time.Now().UTC().Format(holds.DateFormat)))
	q.Set("days", cmp.Or(q.Get("days"), daysDefault))
	from, err := time.Parse(holds.DateFormat, q.Get("from"))
	days, daysErr := strconv.Atoi(q.Get("days"))
	if err != nil || daysErr != nil || days < 1 || days > daysMax {
		return nil, badRequest(fmt.Sprintf("from must be a date, and days 1 to %d", daysMax))
	}
	prefix, limit := q.Get("prefix"), mapRowsMax
	later := func(query ...string) string { // of the same days, also after midnight
		return with(r.URL, append(query, "from", q.Get("from"), "days", q.Get("days"))...)
	}
	p := &page{
		Title: "Availability", Nav: "Availability", Body: "availability", Command: command("publisher inventory list", "--prefix", prefix),
	}
	if q.Get("part") == "rows" {
		p.Body, p.Part, limit = "map-rows", true, chunkRows
	}
	d := mapData{Filter: filled(mapFields, q), Days: slotsOf(holds.SlotSelection{
		CheckIn: q.Get("from"), CheckOut: from.AddDate(0, 0, days).Format(holds.DateFormat),
	})}
	query, err := queries.ParseResourcesQuery(given(q, "prefix", "after").Encode())
	if err != nil {
		return nil, err
	}
	query.Limit = limit
	listed, err := c.Inquiry.Resources(ctx, query)
	if err != nil {
		return nil, err
	}
	all := listed.Resources
	for n := chunkRows; n < len(all); n += chunkRows {
		d.Gaps = append(d.Gaps, gap{later("part", "rows", "after", all[n-1].ResourceID), min(chunkRows, len(all)-n)})
	}
	if listed.Next != "" {
		d.After = later("after", listed.Next)
		d.Next = d.After
	}
	if len(all) > chunkRows {
		d.Next = later("after", all[chunkRows-1].ResourceID)
	}
	for _, one := range all[:min(len(all), chunkRows)] {
		row, err := c.mapRow(ctx, one, d.Days)
		if err != nil {
			return nil, err
		}
		d.Rows = append(d.Rows, row)
	}
	p.Data = d
	return p, nil
}

// mapRow reads the days of a resource.
func (c *Console) mapRow(ctx context.Context, one queries.Resource, days []string) (row mapRow, err error) {
	row.Resource = one.ResourceID
	found, err := c.Inquiry.Availability(ctx, one.ResourceID, holds.SlotSelection{Slots: days})
	if err != nil {
		return row, err
	}
	var held heldSlots
	if slices.ContainsFunc(found.Slots, func(s holds.SlotAvailability) bool { return s.Held > 0 }) {
		if held, err = c.heldSlots(ctx, one.ResourceID, "", false); err != nil {
			return row, err
		}
	}
	known := false
	for _, slot := range found.Slots {
		row.Cells, known = append(row.Cells, newMapCell(slot, held.Until)), known || slot.Known
	}
	if !known {
		row.Note = fmt.Sprintf("%s, %s of %s sold, %s", counted(int(one.Slots), "slot"), thousands(one.Reserved), thousands(one.Capacity),
			counted(int(one.LiveHolds), "live hold"))
	}
	return row, nil
}

// resource shows the slots of a resource and, with slot, what holds one of them.
func (c *Console) resource(ctx context.Context, r *request) (*page, error) {
	id, slot, after := r.PathValue("resource"), r.URL.Query().Get("slot"), r.URL.Query().Get("after")
	if !holds.ValidResource(id) {
		return nil, badRequest("this is no resource id")
	}
	if after != "" && !holds.ValidSlot(after) {
		return nil, badRequest("after must be a slot")
	}
	names, err := c.Inquiry.Slots(ctx, id, after, slotsMax)
	if err != nil {
		return nil, err
	}
	d := mapData{Slot: slot}
	if len(names) == slotsMax {
		d.Next = with(r.URL, "after", names[slotsMax-1])
	}
	reveal := r.reveals()
	live, err := c.heldSlots(ctx, id, slot, reveal)
	if err != nil {
		return nil, err
	}
	d.Notes = live.Notes
	if len(names) > 0 {
		found, err := c.Inquiry.Availability(ctx, id, holds.SlotSelection{Slots: names})
		if err != nil {
			return nil, err
		}
		for _, one := range found.Slots {
			cell := newMapCell(one, live.Until)
			cell.Href = with(r.URL, "slot", one.Slot)
			d.Slots = append(d.Slots, cell)
			if one.Slot == slot && one.Available == 0 {
				d.Retry = live.Until[slot]
			}
		}
	}
	none := "no live hold"
	if len(live.Notes) > 0 {
		none = "no live hold was found"
	}
	held := holdTable(none, reveal)
	for _, hold := range live.Holds {
		held.add(holdRow(hold, reveal)...)
	}
	decided, err := c.decisions(ctx, id, slot)
	if err != nil {
		return nil, err
	}
	d.Tables = []*table{held, decided}
	return &page{
		Title: id, Nav: "Availability", Body: "resource", Data: d, Private: true,
		Command: command("publisher hold list", "--resource-id", id),
	}, nil
}

// decisions returns the latest decisions about a resource, or with slot about one of its slots.
func (c *Console) decisions(ctx context.Context, resource, slot string) (*table, error) {
	recent, err := c.Inquiry.Recent(ctx, resource, lastHour)
	if err != nil {
		return nil, err
	}
	caption := "Decisions of the last hour"
	if time.Since(recent.Since) < lastHour {
		caption = "Decisions since " + recent.Since.UTC().Format("15:04:05") + " UTC"
	}
	decided := newTable(caption, "none", "stored", "decision", "reason", "slots", "hold")
	for _, o := range slices.Backward(recent.Outcomes) {
		if (slot == "" || slices.Contains(slotsOf(o.Slots), slot)) && len(decided.Rows) < rowsMax {
			hold := cell{}
			if o.HoldID != "" {
				hold = shortID(o.HoldID, address("holds/"+url.PathEscape(o.HoldID)), o.HoldID)
			}
			decided.add(at(holds.Time{Time: o.At}), text(o.Event), text(o.Reason), text(slotsText(o.Slots)), hold)
		}
	}
	return decided, nil
}
