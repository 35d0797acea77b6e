package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// dlqList lists dead letters.
type dlqList struct {
	Filters deadLetterFlags `embed:""`
	Newest  bool            `help:"List the newest first."`
	After   uint64          `placeholder:"SEQ" help:"List the page after this dead letter: the last one of the previous page."`
	Reveal  bool            `help:"With -o wide, show the users too."`
}

func (*dlqList) Help() string {
	return `Lists dead letters, oldest first, or with --newest newest first. For pages, give --limit, and for
the next page also --after with the last sequence of the page, even if that dead letter was removed.
-o wide shows more columns and full details. -o json prints an array of {seq, reason, detail,
subject, event_id, stream_seq, deliveries, time}; -o ndjson prints one such object a line, each as
soon as it is read.

Examples:

  publisher dlq list
  publisher dlq list --reason malformed --since 2h -o wide
  publisher dlq list --newest --limit 20
  publisher dlq list --newest --limit 20 --after 4711
  publisher dlq list --type booking.requested --user-id ann -o ndjson | jq .detail`
}

// userColumn is the column of the user in the wide list.
const userColumn = 5

func (c *dlqList) Run(ctx context.Context, p *program) error {
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	wide := []string{
		"seq", "reason", "stored_at", "subject", "event_id", "stream_seq", "deliveries", "size", "worker", "detail",
	}
	if c.Reveal {
		wide = slices.Insert(wide, userColumn, "user")
	}
	out := p.newList([]string{"seq", "reason", "age", "event", "resource", "detail"}, wide)
	all := deadLetters.After
	if c.Newest {
		all = deadLetters.Before
	}
	listed, last := 0, uint64(0)
	for l, err := range limited(all(ctx, c.Filters.filter(), true, c.After), c.Filters.Limit) {
		if err != nil {
			return err
		}
		wide := []any{
			l.Seq, l.Reason, p.timeText(l.StoredAt), l.Subject, l.EventID, l.StreamSeq, l.Deliveries, bytesText(l.Size),
			l.Worker, l.Detail,
		}
		if c.Reveal {
			wide = slices.Insert(wide, userColumn, any(l.Event.User))
		}
		row := []any{l.Seq, l.Reason, since(l.StoredAt), l.Event.Type, l.Event.Resource, l.Detail}
		if err := out.add(l, row, wide); err != nil {
			return err
		}
		listed, last = listed+1, l.Seq
	}
	if err := out.end("no dead letters"); err != nil {
		return err
	}
	if listed > 0 && listed == c.Filters.Limit && !out.isJSON() {
		p.reportf("there may be more, see --after %d", last)
	}
	return nil
}

// dlqStats counts dead letters.
type dlqStats struct {
	By      string          `enum:"reason,type,resource,user,subject,detail" default:"reason" help:"Count by: ${enum}."`
	Filters deadLetterFlags `embed:""`
}

func (*dlqStats) Help() string {
	return `Counts dead letters by reason or by another property, the most frequent first, each with its oldest
dead letter as a sample. -o json prints an array of {reason, count, oldest, newest, first: {seq,
detail}}, or with --by of {group, count, ...}.

Examples:

  publisher dlq stats
  publisher dlq stats --by resource --reason malformed
  publisher dlq stats --resource-id deluxe --since 1d -o json`
}

// groupBy has the properties by which dead letters are counted. A property that cannot be read is "".
var groupBy = map[string]func(*events.DeadLetter) string{
	"reason":   func(l *events.DeadLetter) string { return l.Reason },
	"type":     func(l *events.DeadLetter) string { return l.Event.Type },
	"resource": func(l *events.DeadLetter) string { return l.Event.Resource },
	"user":     func(l *events.DeadLetter) string { return l.Event.User },
	"subject":  func(l *events.DeadLetter) string { return l.Subject },
	"detail":   func(l *events.DeadLetter) string { return l.Detail },
}

// groupStats is the statistics of the dead letters of one group.
type groupStats struct {
	Reason string     `json:"reason,omitzero"` // when they are counted by reason
	Group  *string    `json:"group,omitzero"`  // otherwise
	Count  int        `json:"count"`
	Oldest holds.Time `json:"oldest"` // time of storage
	Newest holds.Time `json:"newest"`
	First  struct {
		Seq    uint64 `json:"seq"`
		Detail string `json:"detail"`
	} `json:"first"`
}

func (c *dlqStats) Run(ctx context.Context, p *program) error {
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	counts, stats := make(map[string]int), make(map[string]*groupStats)
	n, inBody := 0, c.By == "type" || c.By == "resource" || c.By == "user"
	for l, err := range limited(deadLetters.All(ctx, c.Filters.filter(), inBody), c.Filters.Limit) {
		if err != nil {
			return err
		}
		group := groupBy[c.By](l)
		s := stats[group]
		if s == nil {
			s = &groupStats{Oldest: holds.Time{Time: l.StoredAt}}
			if c.By == "reason" {
				s.Reason = group
			} else {
				s.Group = &group
			}
			s.First.Seq, s.First.Detail = l.Seq, l.Detail
			stats[group] = s
		}
		s.Count++
		s.Newest = holds.Time{Time: l.StoredAt}
		counts[group]++
		n++
	}
	columns := []string{c.By, "count", "oldest", "newest", "first", "sample detail"}
	if c.By == "detail" {
		columns = append(columns[1:len(columns)-1], "detail") // the sample is the group, and last, where a terminal shortens it
	}
	out := p.newList(columns, nil)
	for _, group := range terminal.ByCount(counts) {
		s := stats[group]
		row := func(oldest, newest string) []any {
			row := []any{cmp.Or(group, "-"), s.Count, oldest, newest, s.First.Seq, s.First.Detail}
			return row[len(row)-len(columns):]
		}
		if err := out.add(s, row(since(s.Oldest.Time), since(s.Newest.Time)),
			row(p.timeText(s.Oldest.Time), p.timeText(s.Newest.Time))); err != nil {
			return err
		}
	}
	if err := out.end("no dead letters"); err != nil {
		return err
	}
	if !out.isJSON() && len(stats) > 1 {
		return p.print(fmt.Sprintf("\n%s in total\n", terminal.Counted(n, "dead letter")))
	}
	return nil
}
