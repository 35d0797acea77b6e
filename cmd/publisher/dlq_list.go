package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// dlqList lists dead letters.
type dlqList struct {
	Filters deadLetterFlags `embed:""`
	Newest  bool            `help:"List the newest first."`
	After   uint64          `placeholder:"SEQ" help:"List the page after this dead letter: the last one of the previous page."`
}

// Help implements kong's detailed help.
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

func (*dlqList) outputs() []string { return everyOutput }

// Run lists them.
func (c *dlqList) Run(ctx context.Context, p *program) error {
	_, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	out := p.newList([]string{"seq", "reason", "age", "event", "resource", "detail"}, []string{
		"seq", "reason", "stored_at", "subject", "event_id", "user", "stream_seq", "deliveries", "size", "worker", "detail",
	})
	all := deadLetters.After
	if c.Newest {
		all = deadLetters.Before
	}
	listed, last := 0, uint64(0)
	for l, err := range limited(all(ctx, c.Filters.filter(), true, c.After), c.Filters.Limit) {
		if err != nil {
			return err
		}
		if err := c.add(p, out, l); err != nil {
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

func (c *dlqList) add(p *program, out *list, l *events.DeadLetter) error {
	if out.isJSON() {
		text, err := l.JSON()
		if err != nil {
			return err
		}
		return out.addJSON(text)
	}
	seq := strconv.FormatUint(l.Seq, 10)
	if p.Output == outputWide {
		out.addRow(seq, l.Reason, l.StoredAt.UTC().Format(holds.TimeFormat), l.Subject, l.EventID, l.Event.User,
			strconv.FormatUint(l.StreamSeq, 10), strconv.FormatUint(l.Deliveries, 10), bytesText(l.Size), l.Worker, l.Detail)
	} else {
		out.addRow(seq, l.Reason, since(l.StoredAt), l.Event.Type, l.Event.Resource, l.Detail)
	}
	return nil
}

// dlqStats counts dead letters.
type dlqStats struct {
	Filters deadLetterFlags `embed:""`
}

// Help implements kong's detailed help.
func (*dlqStats) Help() string {
	return `Counts dead letters by reason, the most frequent first, each with its oldest dead letter as a
sample. -o json prints an array of {reason, count, oldest, newest, first: {seq, detail}}.

Examples:

  publisher dlq stats
  publisher dlq stats --resource-id deluxe --since 1d -o json`
}

func (*dlqStats) outputs() []string { return everyOutput }

// reasonStats is the statistics of the dead letters with one reason.
type reasonStats struct {
	Reason string     `json:"reason"`
	Count  int        `json:"count"`
	Oldest holds.Time `json:"oldest"` // time of storage
	Newest holds.Time `json:"newest"`
	First  struct {
		Seq    uint64 `json:"seq"`
		Detail string `json:"detail"`
	} `json:"first"`
}

// Run counts them.
func (c *dlqStats) Run(ctx context.Context, p *program) error {
	_, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	counts, stats := make(map[string]int), make(map[string]*reasonStats)
	n := 0
	for l, err := range limited(deadLetters.All(ctx, c.Filters.filter(), false), c.Filters.Limit) {
		if err != nil {
			return err
		}
		s := stats[l.Reason]
		if s == nil {
			s = &reasonStats{Reason: l.Reason, Oldest: holds.Time{Time: l.StoredAt}}
			s.First.Seq, s.First.Detail = l.Seq, l.Detail
			stats[l.Reason] = s
		}
		s.Count++
		s.Newest = holds.Time{Time: l.StoredAt}
		counts[l.Reason]++
		n++
	}
	columns := []string{"reason", "count", "oldest", "newest", "first", "sample detail"}
	out := p.newList(columns, columns)
	for _, reason := range byCount(counts) {
		s := stats[reason]
		if out.isJSON() {
			if err := out.addValue(s); err != nil {
				return err
			}
			continue
		}
		oldest, newest := since(s.Oldest.Time), since(s.Newest.Time)
		if p.Output == outputWide {
			oldest, newest = s.Oldest.Format(time.RFC3339), s.Newest.Format(time.RFC3339)
		}
		out.addRow(s.Reason, strconv.Itoa(s.Count), oldest, newest, strconv.FormatUint(s.First.Seq, 10), s.First.Detail)
	}
	if err := out.end("no dead letters"); err != nil {
		return err
	}
	if !out.isJSON() && len(stats) > 1 {
		return p.print(fmt.Sprintf("\n%s in total\n", counted(n, "dead letter")))
	}
	return nil
}
