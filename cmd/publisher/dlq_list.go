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
	After   uint64          `placeholder:"SEQ" help:"List what comes after this one: the next page after the one that ended with it."`
}

// Help implements kong's detailed help.
func (*dlqList) Help() string {
	return `Lists dead letters, oldest first, or with --newest newest first. --limit ends a page, and --after with the last sequence of it begins the next one, also when that one was removed meanwhile. -o wide shows more of each, and details whole. -o json prints an array of {seq, reason, detail, subject, event_id, stream_seq, deliveries, time}; -o ndjson prints one such object a line, and begins at once.

Examples:

  publisher dlq list
  publisher dlq list --reason malformed --since 2h -o wide
  publisher dlq list --newest --limit 20
  publisher dlq list --newest --limit 20 --after 4711
  publisher dlq list --type booking.requested --user-id ann -o ndjson | jq .detail`
}

func (*dlqList) outputs() []string { return everyOutput }

// Run lists them.
func (v *dlqList) Run(ctx context.Context, p *program) error {
	_, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	out := p.newList([]string{"seq", "reason", "age", "event", "resource", "detail"},
		[]string{"seq", "reason", "stored_at", "subject", "event_id", "user", "stream_seq", "deliveries", "size", "worker", "detail"})
	all := deadLetters.After
	if v.Newest {
		all = deadLetters.Before
	}
	listed, last := 0, uint64(0)
	for l, err := range limited(all(ctx, v.Filters.filter(), true, v.After), v.Filters.Limit) {
		if err != nil {
			return err
		}
		if err := v.add(p, out, l); err != nil {
			return err
		}
		listed, last = listed+1, l.Seq
	}
	if err := out.end("no dead letters"); err != nil {
		return err
	}
	if listed > 0 && listed == v.Filters.Limit && !out.isJSON() {
		p.reportf("there may be more: --after %d", last)
	}
	return nil
}

func (v *dlqList) add(p *program, out *list, l *events.DeadLetter) error {
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
	return `Counts dead letters by reason, the most frequent first, each with the oldest as an example. -o json prints an array of {reason, count, oldest, newest, first: {seq, detail}}.

Examples:

  publisher dlq stats
  publisher dlq stats --resource-id deluxe --since 1d -o json`
}

func (*dlqStats) outputs() []string { return everyOutput }

// reasonStats is what is told of the letters with one reason.
type reasonStats struct {
	Reason string     `json:"reason"`
	Count  int        `json:"count"`
	Oldest holds.Time `json:"oldest"` // when it was stored
	Newest holds.Time `json:"newest"`
	First  struct {
		Seq    uint64 `json:"seq"`
		Detail string `json:"detail"`
	} `json:"first"`
}

// Run counts them.
func (v *dlqStats) Run(ctx context.Context, p *program) error {
	_, deadLetters, disconnect, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	counts, stats := make(map[string]int), make(map[string]*reasonStats)
	n := 0
	for l, err := range limited(deadLetters.All(ctx, v.Filters.filter(), false), v.Filters.Limit) {
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
	out := p.newList([]string{"reason", "count", "oldest", "newest", "first", "its detail"},
		[]string{"reason", "count", "oldest", "newest", "first", "its detail"})
	for _, reason := range byCount(counts) {
		s := stats[reason]
		if out.isJSON() {
			if err := out.addValue(s); err != nil {
				return err
			}
			continue
		}
		oldest, newest, detail := since(s.Oldest.Time), since(s.Newest.Time), s.First.Detail
		if p.Output == outputWide {
			oldest, newest, detail = s.Oldest.Format(time.RFC3339), s.Newest.Format(time.RFC3339), s.First.Detail
		}
		out.addRow(s.Reason, strconv.Itoa(s.Count), oldest, newest, strconv.FormatUint(s.First.Seq, 10), detail)
	}
	if err := out.end("no dead letters"); err != nil {
		return err
	}
	if !out.isJSON() && len(stats) > 1 {
		return p.print(fmt.Sprintf("\n%s in all\n", counted(n, "dead letter")))
	}
	return nil
}
