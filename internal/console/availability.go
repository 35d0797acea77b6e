package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	chunkRows   = 20   // resources whose days are read by one request
	mapRowsMax  = 1000 // of one page
	daysDefault = 35
	daysMax     = 90
	slotsMax    = 400 // of one resource on one page
	holdsOfMap  = 100 // of one resource, for the deadlines of its cells
	lastHour    = time.Hour
)

// mapData is a heat map: resources by day, or the slots of one resource.
type mapData struct {
	Filter []filterField
	Days   []string
	Rows   []mapRow
	Gaps   []gap // rows that are read when they are scrolled to
	Next   string
	Slots  []mapCell
	Tables []table
	Slot   string
	Retry  holds.Time
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

// deadlinesOf returns the earliest deadline of the live holds on each slot, as far as holdsOfMap
// holds show it, and the holds.
func (c *Console) deadlinesOf(ctx context.Context, resource string, reveal bool) (map[string]holds.Time, []holds.HoldView, error) {
	listed, err := c.Inquiry.Holds(ctx, events.HoldsQuery{ResourceID: resource, Limit: holdsOfMap, Reveal: reveal})
	until := make(map[string]holds.Time)
	for _, hold := range slices.Backward(listed.Holds) {
		for _, slot := range slotsOf(hold.SlotSelection) {
			until[slot] = hold.ExpiresAt
		}
	}
	return until, listed.Holds, err
}

// slotsOf returns the names of the slots of a selection.
func slotsOf(s holds.SlotSelection) []string {
	if s.CheckIn == "" {
		if len(s.Slots) == 0 {
			return []string{"stock"}
		}
		return s.Slots
	}
	return daysBetween(s.CheckIn, s.CheckOut)
}

func daysBetween(from, to string) (days []string) {
	at, err := time.Parse(holds.DateFormat, from)
	for ; err == nil && at.Format(holds.DateFormat) < to && len(days) < holds.InventorySlotsMax; at = at.AddDate(0, 0, 1) {
		days = append(days, at.Format(holds.DateFormat))
	}
	return days
}

// availability shows resources by day. With part=rows it answers with some rows alone.
func (c *Console) availability(ctx context.Context, r *request) (*page, error) {
	q := r.URL.Query()
	days, err := strconv.Atoi("0" + q.Get("days"))
	if days == 0 {
		days = daysDefault
	}
	from, fromErr := time.Parse(holds.DateFormat, q.Get("from"))
	if q.Get("from") == "" {
		from, fromErr = time.Now().UTC(), nil
	}
	if err != nil || days > daysMax || fromErr != nil {
		return nil, badRequest(fmt.Sprintf("from must be a date, and days at most %d", daysMax))
	}
	prefix, part := q.Get("prefix"), q.Get("part") == "rows"
	d := mapData{Days: daysBetween(from.Format(holds.DateFormat), from.AddDate(0, 0, days).Format(holds.DateFormat)), Filter: []filterField{
		{Name: "prefix", Label: "Resource begins with", Value: prefix}, {Name: "from", Label: "From", Value: from.Format(holds.DateFormat), Type: "date"},
		{Name: "days", Label: "Days", Value: strconv.Itoa(days), Options: []string{"14", "35", "60", "90"}},
	}}
	limit := mapRowsMax
	if part {
		limit = chunkRows
	}
	all, err := c.resources(ctx, prefix, q.Get("after"), limit)
	if err != nil {
		return nil, err
	}
	for n := chunkRows; n < len(all); n += chunkRows {
		d.Gaps = append(d.Gaps, gap{with(r.URL, "part", "rows", "after", all[n-1].ResourceID), min(chunkRows, len(all)-n)})
	}
	if len(all) > chunkRows {
		d.Next = with(r.URL, "after", all[chunkRows-1].ResourceID)
	}
	for _, one := range all[:min(len(all), chunkRows)] {
		row, err := c.mapRow(ctx, one, d.Days)
		if err != nil {
			return nil, err
		}
		d.Rows = append(d.Rows, row)
	}
	p := &page{Title: "Availability", Nav: "availability", Body: "availability", Data: d, Command: command("publisher inventory list", "--prefix", prefix)}
	if part {
		p.Body = "map-rows"
		return nil, c.sendPart(r, p)
	}
	return p, nil
}

// resources reads the resources behind one, at least so many if there are.
func (c *Console) resources(ctx context.Context, prefix, after string, number int) (all []events.Resource, err error) {
	for len(all) < number {
		values := url.Values{"prefix": {prefix}, "limit": {strconv.Itoa(min(number, events.PageMax))}}
		if after != "" {
			values.Set("after", after)
		}
		query, err := events.ParseResourcesQuery(values.Encode())
		if err != nil {
			return nil, err
		}
		listed, err := c.Inquiry.Resources(ctx, query)
		if err != nil {
			return nil, err
		}
		if all, after = append(all, listed.Resources...), listed.Next; after == "" {
			break
		}
	}
	return all, nil
}

// mapRow reads the days of a resource.
func (c *Console) mapRow(ctx context.Context, one events.Resource, days []string) (row mapRow, err error) {
	row.Resource = one.ResourceID
	slots, err := c.Slots.Availability(ctx, one.ResourceID, holds.SlotSelection{Slots: days})
	if err != nil {
		return row, err
	}
	var until map[string]holds.Time
	if slices.ContainsFunc(slots, func(s holds.SlotAvailability) bool { return s.Held > 0 }) {
		if until, _, err = c.deadlinesOf(ctx, one.ResourceID, false); err != nil {
			return row, err
		}
	}
	known := false
	for _, slot := range slots {
		row.Cells, known = append(row.Cells, newMapCell(slot, until)), known || slot.Known
	}
	if !known {
		row.Note = fmt.Sprintf("%s, %s of %s sold, %s", counted(int(one.Slots), "slot"), thousands(one.Reserved), thousands(one.Capacity),
			counted(int(one.LiveHolds), "live hold"))
	}
	return row, nil
}

// resource shows the slots of a resource and, with slot, what holds one of them.
func (c *Console) resource(ctx context.Context, r *request) (*page, error) {
	id, slot := r.PathValue("resource"), r.URL.Query().Get("slot")
	if !holds.ValidResource(id) {
		return nil, badRequest("this is no resource id")
	}
	names, err := c.Inquiry.Slots(ctx, id, r.URL.Query().Get("after"), slotsMax)
	if err != nil {
		return nil, err
	}
	d := mapData{Slot: slot}
	if len(names) == slotsMax {
		d.Next = with(r.URL, "after", names[slotsMax-1])
	}
	reveal := c.reveals(r)
	until, live, err := c.deadlinesOf(ctx, id, reveal)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		slots, err := c.Slots.Availability(ctx, id, holds.SlotSelection{Slots: names})
		if err != nil {
			return nil, err
		}
		for _, one := range slots {
			cell := newMapCell(one, until)
			cell.Href = with(r.URL, "slot", one.Slot)
			d.Slots = append(d.Slots, cell)
			if one.Slot == slot && one.Available == 0 {
				d.Retry = until[slot]
			}
		}
	}
	onSlot := func(s holds.SlotSelection) bool { return slot == "" || slices.Contains(slotsOf(s), slot) }
	held := table{Caption: "Live holds", Columns: holdColumns(reveal), Empty: "no live hold"}
	for _, hold := range live {
		if onSlot(hold.SlotSelection) {
			held.Rows = append(held.Rows, holdRow(hold, reveal))
		}
	}
	recent, err := c.Inquiry.Recent(ctx, id, lastHour)
	if err != nil {
		return nil, err
	}
	decided := table{Caption: "Decisions of the last hour", Columns: columns("stored", "decision", "reason", "slots", "hold"), Empty: "none"}
	for _, o := range slices.Backward(recent.Outcomes) {
		if onSlot(o.Slots) && len(decided.Rows) < rowsMax {
			row := []cell{at(holds.Time{Time: o.At}), text(o.Event), text(o.Reason), text(slotsText(o.Slots)), {}}
			if o.HoldID != "" {
				row[4] = shortID(o.HoldID, address("holds/"+url.PathEscape(o.HoldID)), o.HoldID)
			}
			decided.Rows = append(decided.Rows, row)
		}
	}
	d.Tables = []table{held, decided}
	return &page{
		Title: id, Nav: "availability", Body: "resource", Data: d, Private: true,
		Command: command("publisher hold list", "--resource-id", id),
	}, nil
}
