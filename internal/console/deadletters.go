package console

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	groupsRead   = 20_000          // dead letters, the newest
	groupsWithin = 2 * time.Second // for reading them
	groupsEach   = 5 * time.Second // for which they are used again
	groupsShown  = 100
	dryRunsShown = 50 // of one selection
	dryRunsMax   = 8  // at the same time
	choiceMax    = 200
)

// deadLetterGroups are dead letters, counted by reason and detail.
type deadLetterGroups struct {
	groups []*deadLetterGroup
	read   int
	all    bool // all dead letters were read
}

type deadLetterGroup struct {
	reason, detail string
	count          int
	newest, oldest time.Time
	seq            uint64 // of the newest
}

// readGroups groups the newest dead letters.
func (c *Console) readGroups(ctx context.Context) (g deadLetterGroups, err error) {
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return g, err
	}
	began := time.Now()
	groups := make(map[string]*deadLetterGroup)
	g.all = true
	for l, err := range stored.Before(ctx, client.DeadLetterFilter{}, false, 0) {
		if err != nil {
			return g, err
		}
		if g.read == groupsRead || time.Since(began) > groupsWithin {
			g.all = false
			break
		}
		g.read++
		key := l.Reason + " " + l.Detail
		one := groups[key]
		if one == nil {
			one = &deadLetterGroup{reason: l.Reason, detail: l.Detail, newest: l.StoredAt, seq: l.Seq}
			groups[key] = one
		}
		one.count++
		one.oldest = l.StoredAt
	}
	g.groups = slices.SortedFunc(maps.Values(groups), func(a, b *deadLetterGroup) int {
		if a.count != b.count {
			return b.count - a.count
		}
		return strings.Compare(a.reason+a.detail, b.reason+b.detail)
	})
	return g, nil
}

// deadLetters shows the groups of dead letters.
func (c *Console) deadLetters(ctx context.Context, _ *request) (*page, error) {
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	g, err := c.groups.get(ctx, "", groupsEach, c.readGroups)
	if err != nil {
		return nil, err
	}
	t := table{Caption: "Groups", Columns: columns("#count", "reason", "detail", "newest", "oldest", "#sample"), Empty: "no dead letters"}
	for _, one := range g.groups[:min(len(g.groups), groupsShown)] {
		t.Rows = append(t.Rows, []cell{
			{Text: thousands(int64(one.count)), Share: float64(one.count) / float64(max(1, g.read))},
			link(one.reason, address("runbook")+"#HoldfastDeadLetters"),
			link(one.detail, address("dead-letters/list", "reason", one.reason, "contains", one.detail)),
			at(holds.Time{Time: one.newest}), at(holds.Time{Time: one.oldest}), seqCell(one.seq),
		})
	}
	d := listData{Tables: []table{t, deadLetterReasons(s.Stats.DeadLetters)}, Chosen: map[string]string{}}
	d.Note = "A dead letter is an event that can never be processed. No other event waits for it, and it stays until it is replayed or discarded. " +
		"Click a detail to list its dead letters."
	if !g.all {
		d.Note += " The groups count the newest " + thousands(int64(g.read)) + " of " + thousands(int64(s.Stats.DeadLetters.Total)) + "."
	}
	d.Chosen["List all"] = address("dead-letters/list")
	return &page{Title: "Dead letters", Nav: "dead-letters", Body: "list", Data: d, Command: "publisher dlq stats"}, nil
}

func seqText(seq uint64) string { return strconv.FormatUint(seq, 10) }

func seqCell(seq uint64) cell { return link(seqText(seq), address("dead-letters/"+seqText(seq))) }

// choice is a selection of dead letters: those of Seqs, or all that match the filter.
type choice struct {
	Seqs   []uint64
	Filter client.DeadLetterFilter
	Fields url.Values // as they were given, for forms and addresses
}

var choiceFields = []string{"reason", "type", "resource_id", "user_id", "since", "until", "contains"}

// parseChoice reads a selection from the parameters of a request.
func parseChoice(q url.Values) (ch choice, err error) {
	ch.Fields = url.Values{}
	for _, text := range q["seq"] {
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return ch, badRequest("seq must be a sequence number")
		}
		ch.Seqs = append(ch.Seqs, seq)
		ch.Fields.Add("seq", text)
	}
	slices.Sort(ch.Seqs)
	if ch.Seqs = slices.Compact(ch.Seqs); len(ch.Seqs) > choiceMax {
		return ch, badRequest(fmt.Sprintf("at most %d dead letters can be selected one by one", choiceMax))
	}
	for _, name := range choiceFields {
		if value := q.Get(name); value != "" {
			ch.Fields.Set(name, value)
		}
	}
	f := &ch.Filter
	if reason := q.Get("reason"); reason != "" {
		f.Reasons = []string{reason}
	}
	f.Type, f.ResourceID, f.UserID, f.Contains = q.Get("type"), q.Get("resource_id"), q.Get("user_id"), q.Get("contains")
	if f.Since, err = parseMoment(q.Get("since")); err != nil {
		return ch, err
	}
	f.Until, err = parseMoment(q.Get("until"))
	return ch, err
}

// parseMoment parses a time: RFC 3339, an age such as 90m or 2d, or nothing.
func parseMoment(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC(), nil
	}
	hours := text
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return time.Time{}, badRequest("a time must be RFC 3339, or an age such as 90m or 2d")
		}
		hours = strconv.FormatUint(24*n, 10) + "h"
	}
	ago, err := time.ParseDuration(hours)
	if err != nil || ago < 0 {
		return time.Time{}, badRequest("a time must be RFC 3339, or an age such as 90m or 2d")
	}
	return time.Now().UTC().Add(-ago), nil
}

// flags returns the selection as arguments of publisher dlq.
func (ch choice) flags() string {
	text := ""
	for _, seq := range ch.Seqs {
		text += " " + seqText(seq)
	}
	for _, name := range choiceFields {
		text = command(text, "--"+strings.ReplaceAll(name, "_", "-"), ch.Fields.Get(name))
	}
	return text
}

// deadLetterList lists dead letters, the newest first.
func (c *Console) deadLetterList(ctx context.Context, r *request) (*page, error) {
	q := r.URL.Query()
	ch, err := parseChoice(q)
	if err != nil {
		return nil, err
	}
	before, err := strconv.ParseUint("0"+q.Get("before"), 10, 64)
	if err != nil {
		return nil, badRequest("before must be a sequence number")
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	reveal := c.reveals(r)
	names := []string{"", "#seq", "reason", "stored", "event", "resource", "detail"}
	if reveal {
		names = append(names, "user")
	}
	t := table{Columns: columns(names...), Empty: "no dead letter matches", Select: address("dead-letters/confirm")}
	last := uint64(0)
	for l, err := range stored.Before(ctx, ch.Filter, true, before) {
		if err != nil {
			return nil, err
		}
		if len(t.Rows) == rowsMax {
			t.Next = with(r.URL, "before", seqText(last))
			break
		}
		last = l.Seq
		row := []cell{{Text: seqText(l.Seq), Check: true}, seqCell(l.Seq), text(l.Reason), at(holds.Time{Time: l.StoredAt}),
			text(l.Event.Type), text(l.Event.Resource), text(l.Detail)}
		if reveal {
			row = append(row, text(l.Event.User))
		}
		t.Rows = append(t.Rows, row)
	}
	d := listData{Tables: []table{t}, Filter: []filterField{
		{Name: "reason", Label: "Reason", Value: q.Get("reason"), Options: append([]string{""}, events.DeadLetterReasons()...)},
		{Name: "type", Label: "Event", Value: q.Get("type")}, {Name: "resource_id", Label: "Resource", Value: q.Get("resource_id")},
		{Name: "user_id", Label: "User", Value: q.Get("user_id")}, {Name: "since", Label: "Since (2h, 1d or a time)", Value: q.Get("since")},
		{Name: "until", Label: "Until", Value: q.Get("until")}, {Name: "contains", Label: "Detail contains", Value: q.Get("contains")},
	}, Chosen: map[string]string{}}
	if len(t.Rows) > 0 {
		for _, verb := range []string{client.RunReplay, client.RunDiscard} {
			fields := maps.Clone(ch.Fields)
			fields.Set("verb", verb)
			d.Chosen[strings.ToUpper(verb[:1])+verb[1:]+" all that match"] = Prefix + "dead-letters/confirm?" + fields.Encode()
		}
	}
	return &page{
		Title: "Dead letters", Nav: "dead-letters", Body: "list", Data: d, Private: true,
		Command: "publisher dlq list --newest --limit " + strconv.Itoa(rowsMax) + ch.flags(),
	}, nil
}

// deadLetterData is one dead letter.
type deadLetterData struct {
	*events.DeadLetter
	Stored  holds.Time
	Lines   []line
	Headers []fact
	DryRun  *events.DryRunResult
	AskDry  string
	Runbook string
}

// deadLetterBySeq returns the dead letter that the path of a request names.
func (c *Console) deadLetterBySeq(ctx context.Context, r *request) (*client.DeadLetters, *events.DeadLetter, error) {
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	if err != nil {
		return nil, nil, badRequest("the sequence of a dead letter is a number")
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, nil, err
	}
	l, err := stored.Get(ctx, seq)
	return stored, l, err
}

// deadLetter shows one dead letter with the faulty member marked.
func (c *Console) deadLetter(ctx context.Context, r *request) (*page, error) {
	_, l, err := c.deadLetterBySeq(ctx, r)
	if err != nil {
		return nil, err
	}
	reveal := c.reveals(r)
	d := deadLetterData{
		DeadLetter: l, Stored: holds.Time{Time: l.StoredAt}, Lines: markedLines(l.Body, l.Detail, reveal),
		AskDry: with(r.URL, "dry", "run"), Runbook: "HoldfastDeadLetters",
	}
	if l.Reason == events.ReasonPoison {
		d.Runbook = "HoldfastPoison"
	}
	for _, name := range slices.Sorted(maps.Keys(l.Header)) {
		if events.IsDeadLetterHeader(name) {
			continue // shown above
		}
		value := strings.Join(l.Header[name], ", ")
		if !reveal && !shownHeaders[strings.ToLower(name)] {
			value = fmt.Sprintf("‹%s›", counted(len(value), "character"))
		}
		d.Headers = append(d.Headers, fact{name, value})
	}
	if r.URL.Query().Get("dry") == "run" {
		rows, err := c.dryRuns(ctx, []*events.DeadLetter{l})
		if err != nil {
			return nil, err
		}
		d.DryRun = &rows[0].DryRunResult
	}
	return &page{
		Title: "Dead letter " + seqText(l.Seq), Nav: "dead-letters", Body: "dead-letter", Data: d, Private: true,
		Command: "publisher dlq show " + seqText(l.Seq),
	}, nil
}

// shownHeaders are the headers whose values are no private data, in lower case.
var shownHeaders = map[string]bool{
	"content-type": true, "ce-specversion": true, "ce-id": true, "ce-source": true, "ce-type": true, "ce-time": true, "traceparent": true,
}

// dryRunRow is the dry-run result of one dead letter.
type dryRunRow struct {
	dead *events.DeadLetter
	events.DryRunResult
}

// dryRuns returns what a replay of each dead letter would lead to now.
func (c *Console) dryRuns(ctx context.Context, all []*events.DeadLetter) ([]dryRunRow, error) {
	rows, turns := make([]dryRunRow, len(all)), make(chan struct{}, dryRunsMax)
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	for i, l := range all {
		turns <- struct{}{}
		asking.Go(func() {
			defer func() { <-turns }()
			rows[i].dead = l
			m, err := l.Original(c.Namespace)
			if err != nil {
				rows[i].DryRunResult = events.DryRunResult{Text: "cannot be replayed", Detail: err.Error()}
				return
			}
			rows[i].DryRunResult, errs[i] = c.DryRun(ctx, m)
		})
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}
