package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	recentEach   = 10 * time.Second // for which recent outcomes are used again
	hottestShown = 15
	quantileHigh = 0.99
)

// latenessData is what the screen of lateness and locks shows.
type latenessData struct {
	Note   string
	Chart  table
	Tables []table
}

// demand counts what became of the requests for a resource, or for one selection of its slots.
type demand struct{ held, denied, expired, paid int }

// lateness shows how late holds expired, by minute, lock waits, and what is in demand.
func (c *Console) lateness(ctx context.Context, _ *request) (*page, error) {
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	recent, err := c.recent.get(ctx, "", recentEach, func(ctx context.Context) (events.RecentOutcomes, error) {
		return c.Inquiry.Recent(ctx, "*", lastHour)
	})
	if err != nil {
		return nil, err
	}
	locks := table{Caption: "Locks of this worker, by number of slots", Columns: columns("slots", "#sections", "#p50", "#p99", "#waits",
		"#wait p50", "#wait p99", "#lost", "#conflicts", "recommended lease")}
	for _, l := range s.Locks {
		locks.Rows = append(locks.Rows, []cell{text(l.Slots), text(l.Sections), text(l.P50), text(l.P99), text(l.Waits), text(l.WaitP50),
			text(l.WaitP99), text(l.Lost), text(l.Conflicts), text(l.Lease)})
	}
	resources, ranges := make(map[string]demand), make(map[string]demand)
	var late []events.RecentOutcome
	for _, o := range recent.Outcomes {
		if o.Event == holds.EventHoldExpired {
			late = append(late, o)
		}
		count(resources, o.ResourceID, o)
		count(ranges, o.ResourceID+" "+slotsText(o.Slots), o)
	}
	d := latenessData{Chart: latenessTable(late), Tables: []table{
		locks, demandTable("Resources in demand", "resource", resources), demandTable("Slots in demand", "resource and slots", ranges),
	}}
	d.Note = fmt.Sprintf("From %s since %s UTC, of all workers; at most the last hour.", counted(len(recent.Outcomes), "outcome"),
		recent.Since.UTC().Format("15:04:05"))
	return &page{
		Title: "Lateness and locks", Nav: "lateness", Body: "lateness", Data: d, Command: "worker locks", Chart: true,
	}, nil
}

func count(all map[string]demand, key string, o events.RecentOutcome) {
	one := all[key]
	switch o.Event {
	case holds.EventHoldCreated:
		one.held++
	case holds.EventHoldRejected:
		if o.Reason != holds.ReasonSoldOut {
			return
		}
		one.denied++
	case holds.EventHoldExpired:
		one.expired++
	case holds.EventHoldConfirmed:
		one.paid++
	default:
		return
	}
	all[key] = one
}

// latenessTable returns the lateness of holds by the minute of their deadlines, in ms.
func latenessTable(late []events.RecentOutcome) table {
	t := table{Caption: "Lateness of expired holds, by minute of their deadlines", Empty: "no hold has expired in this time",
		Columns: columns("minute", "#expired", "#median, ms", "#p99, ms", "#maximum, ms")}
	minutes := make(map[int64][]int64)
	for _, o := range late {
		minute := o.Deadline.Truncate(time.Minute).UnixMilli()
		minutes[minute] = append(minutes[minute], o.Restored.Sub(o.Deadline.Time).Milliseconds())
	}
	var order []int64
	for minute := range minutes {
		order = append(order, minute)
	}
	slices.Sort(order)
	for _, minute := range order {
		ms := minutes[minute]
		slices.Sort(ms)
		t.Rows = append(t.Rows, []cell{at(holds.TimeFromMillis(minute)), number(len(ms)), number(ms[len(ms)/2]),
			number(ms[min(len(ms)-1, int(quantileHigh*float64(len(ms))))]), number(ms[len(ms)-1])})
	}
	return t
}

// demandTable returns what was denied most, then what was held most.
func demandTable(caption, name string, all map[string]demand) table {
	t := table{Caption: caption, Columns: columns(name, "#denied", "#held", "#paid", "#expired unpaid"), Empty: "nothing was requested in this time"}
	score := make(map[string]int)
	for key, one := range all {
		score[key] = one.denied*1_000_000 + one.held
	}
	for _, key := range byValue(score) {
		one := all[key]
		if len(t.Rows) == hottestShown || one.denied+one.held == 0 {
			break
		}
		share := "–"
		if ended := one.expired + one.paid; ended > 0 {
			share = strconv.Itoa(100*one.expired/ended) + " %"
		}
		t.Rows = append(t.Rows, []cell{text(key), number(one.denied), number(one.held), number(one.paid), text(share)})
	}
	return t
}
