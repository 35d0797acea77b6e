package console

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

const (
	recentEach   = 10 * time.Second // for which recent outcomes are used again
	hottestShown = 15
	quantileHigh = 0.99
)

// demand counts the outcomes of requests by event: for a resource, or for one selection of its slots.
type demand map[string]int

// lateness shows how late holds expired, by minute, lock waits, and what is in demand.
func (c *Console) lateness(ctx context.Context, _ *request) (*page, error) {
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	recent, err := c.recent.get(ctx, recentEach, func(ctx context.Context) (queries.RecentOutcomes, error) {
		return c.Inquiry.Recent(ctx, "*", lastHour)
	})
	if err != nil {
		return nil, err
	}
	locks := newTable("Locks of this worker, by number of slots", "", "slots", "#sections", "#p50", "#p95", "#p99", "#waits",
		"#wait p50", "#wait p99", "#lost", "#conflicts", "recommended lease")
	for _, texts := range s.Locks {
		var row []cell
		for _, one := range texts {
			row = append(row, text(one))
		}
		locks.add(row...)
	}
	resources, selections := make(map[string]demand), make(map[string]demand)
	for _, o := range recent.Outcomes {
		count(resources, o.ResourceID, o)
		count(selections, o.ResourceID+" "+slotsText(o.Slots), o)
	}
	d := listData{Tables: []*table{
		latenessTable(recent.Outcomes), locks, demandTable("Resources in demand", "resource", resources),
		demandTable("Slots in demand", "resource and slots", selections),
	}}
	d.Note = fmt.Sprintf("From %s since %s UTC, of all workers; at most the last hour.", counted(len(recent.Outcomes), "outcome"),
		recent.Since.UTC().Format("15:04:05"))
	return &page{
		Title: "Lateness and locks", Nav: "Lateness", Body: "list", Data: d, Command: "worker locks", Chart: true,
	}, nil
}

func count(all map[string]demand, key string, o queries.RecentOutcome) {
	if o.Event == holds.EventHoldRejected && o.Reason != holds.ReasonSoldOut {
		return
	}
	if all[key] == nil {
		all[key] = make(demand)
	}
	all[key][o.Event]++
}

// latenessTable returns the lateness of holds by the minute of their deadlines, in ms.
func latenessTable(outcomes []queries.RecentOutcome) *table {
	t := newTable("Lateness of expired holds, by minute of their deadlines", "no hold has expired in this time",
		"minute", "#expired", "#median, ms", "#p99, ms", "#maximum, ms")
	minutes := make(map[int64][]int64)
	for _, o := range outcomes {
		if o.Event == holds.EventHoldExpired {
			minute := o.Deadline.Truncate(time.Minute).UnixMilli()
			minutes[minute] = append(minutes[minute], o.Restored.Sub(o.Deadline.Time).Milliseconds())
		}
	}
	for _, minute := range slices.Sorted(maps.Keys(minutes)) {
		ms := minutes[minute]
		slices.Sort(ms)
		p99 := ms[min(len(ms)-1, int(quantileHigh*float64(len(ms))))]
		t.add(at(holds.TimeFromMillis(minute)), number(len(ms)), number(ms[len(ms)/2]), number(p99), number(ms[len(ms)-1]))
	}
	return t
}

// demandTable returns what was denied most, then what was held most.
func demandTable(caption, name string, all map[string]demand) *table {
	t := newTable(caption, "nothing was requested in this time", name, "#denied", "#held", "#paid", "#expired unpaid")
	score := make(map[string]int)
	for key, one := range all {
		score[key] = one[holds.EventHoldRejected]*1_000_000 + one[holds.EventHoldCreated]
	}
	for _, key := range terminal.ByCount(score) {
		if len(t.Rows) == hottestShown || score[key] == 0 {
			break
		}
		denied, held := all[key][holds.EventHoldRejected], all[key][holds.EventHoldCreated]
		expired, paid := all[key][holds.EventHoldExpired], all[key][holds.EventHoldConfirmed]
		share := "–"
		if ended := expired + paid; ended > 0 {
			share = strconv.Itoa(100*expired/ended) + " %"
		}
		t.add(text(key), number(denied), number(held), number(paid), text(share))
	}
	return t
}
