package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
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

// deadLetterGroups is a table of dead letters, counted by reason and detail.
type deadLetterGroups struct {
	table *table
	note  string // which dead letters it counts, unless it is all
}

type deadLetterGroup struct {
	newest *events.DeadLetter
	oldest time.Time
	count  int
}

// readGroups groups the newest dead letters.
func (c *Console) readGroups(ctx context.Context) (g deadLetterGroups, err error) {
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return g, err
	}
	began, read := time.Now(), 0
	groups := make(map[[2]string]*deadLetterGroup)
	for l, err := range stored.Before(ctx, client.DeadLetterFilter{}, false, 0) {
		if err != nil {
			return g, err
		}
		if read == groupsRead || time.Since(began) > groupsWithin {
			g.note = " The groups count the newest " + thousands(read) + "."
			break
		}
		read++
		key := [2]string{l.Reason, l.Detail}
		if groups[key] == nil {
			groups[key] = &deadLetterGroup{newest: l}
		}
		groups[key].count++
		groups[key].oldest = l.StoredAt
	}
	largest := slices.SortedFunc(maps.Values(groups), func(a, b *deadLetterGroup) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.newest.Reason+a.newest.Detail, b.newest.Reason+b.newest.Detail))
	})
	g.table = newTable("Groups", "no dead letters", "#count", "reason", "detail", "newest", "oldest", "#sample")
	for _, one := range largest[:min(len(largest), groupsShown)] {
		l := one.newest
		g.table.add(cell{Text: thousands(one.count), Share: float64(one.count) / float64(read)},
			link(l.Reason, address("runbook")+"#HoldfastDeadLetters"),
			link(l.Detail, address("dead-letters/list", "reason", l.Reason, "contains", l.Detail)),
			at(holds.Time{Time: l.StoredAt}), at(holds.Time{Time: one.oldest}), seqCell(l.Seq))
	}
	return g, nil
}

func (c *Console) deadLetters(ctx context.Context, _ *request) (*page, error) {
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	g, err := c.groups.get(ctx, groupsEach, c.readGroups)
	if err != nil {
		return nil, err
	}
	d := listData{
		Tables: []*table{g.table, deadLetterReasons(s.Stats.DeadLetters)},
		Chosen: map[string]string{"List all": address("dead-letters/list")},
		Note: "A dead letter is an event that can never be processed. No other event waits for it, and it stays until it is " +
			"replayed or discarded. Click a detail to list its dead letters." + g.note,
	}
	return &page{Title: "Dead letters", Nav: "Dead letters", Body: "list", Data: d, Command: "publisher dlq stats"}, nil
}

func seqText(seq uint64) string { return strconv.FormatUint(seq, 10) }

func seqCell(seq uint64) cell { return link(seqText(seq), address("dead-letters/"+seqText(seq))) }

// choice is a selection of dead letters: those of Seqs, or all that match the filter.
type choice struct {
	Seqs   []uint64
	Filter client.DeadLetterFilter
	Fields url.Values // as they were given, for forms and addresses
}

// filterFields are the fields of the form that filters dead letters.
var filterFields = []filterField{
	{Name: "reason", Label: "Reason", Options: append([]string{""}, events.DeadLetterReasons()...)},
	{Name: "type", Label: "Event"}, {Name: "resource_id", Label: "Resource"}, {Name: "user_id", Label: "User"},
	{Name: "since", Label: "Since (2h, 1d or a time)"}, {Name: "until", Label: "Until"},
	{Name: "contains", Label: "Detail contains"},
}

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
	for _, f := range filterFields {
		if value := q.Get(f.Name); value != "" {
			ch.Fields.Set(f.Name, value)
		}
	}
	ch.Filter = client.DeadLetterFilter{
		Type: q.Get("type"), ResourceID: q.Get("resource_id"), UserID: q.Get("user_id"), Contains: q.Get("contains"),
	}
	if reason := q.Get("reason"); reason != "" {
		if !slices.Contains(events.DeadLetterReasons(), reason) {
			return ch, badRequest("reason must be one of " + strings.Join(events.DeadLetterReasons(), ", "))
		}
		ch.Filter.Reasons = []string{reason}
	}
	for name, moment := range map[string]*time.Time{"since": &ch.Filter.Since, "until": &ch.Filter.Until} {
		if text := q.Get(name); text != "" {
			if *moment, err = client.ParseMoment(text); err != nil {
				return ch, badRequest(name + ": " + err.Error())
			}
		}
	}
	return ch, nil
}

// flags returns the selection as arguments of publisher dlq.
func (ch choice) flags() string {
	text := ""
	for _, seq := range ch.Seqs {
		text += " " + seqText(seq)
	}
	for _, f := range filterFields {
		text = command(text, "--"+strings.ReplaceAll(f.Name, "_", "-"), ch.Fields.Get(f.Name))
	}
	return text
}

func (c *Console) deadLetterList(ctx context.Context, r *request) (*page, error) {
	q := r.Form
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
	reveal := r.reveals()
	t := newTable("", "no dead letter matches", "", "#seq", "reason", "stored", "event", "resource", "detail")
	t.Select = streamField(stored)
	if reveal {
		t.Columns = append(t.Columns, column{Name: "user"})
	}
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
		t.add(row...)
	}
	d := listData{Tables: []*table{t}, Filter: filled(filterFields, q), Chosen: map[string]string{}}
	if len(t.Rows) > 0 {
		for _, verb := range []string{client.RunReplay, client.RunDiscard} {
			fields := maps.Clone(ch.Fields)
			fields.Set("verb", verb)
			d.Chosen[capital(verb)+" all that match"] = address("dead-letters/confirm") + "?" + fields.Encode()
		}
	}
	return &page{
		Title: "Dead letters", Nav: "Dead letters", Body: "list", Data: d, Private: true,
		Command: "publisher dlq list --newest --limit " + strconv.Itoa(rowsMax) + ch.flags(),
	}, nil
}

// deadLetterData is one dead letter.
type deadLetterData struct {
	*events.DeadLetter
	Stream  string // for the forms
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
	stored, err := c.openDeadLetters(ctx, r.Form)
	if err != nil {
		return nil, nil, err
	}
	l, err := stored.Get(ctx, seq)
	return stored, l, err
}

// openDeadLetters opens the stream of dead letters, unless the form of a request is of a page that showed another one.
func (c *Console) openDeadLetters(ctx context.Context, form url.Values) (*client.DeadLetters, error) {
	stored, err := c.Client.DeadLetters(ctx)
	if shown := form.Get("stream"); err == nil && shown != "" && shown != streamField(stored) {
		return nil, &statusError{http.StatusConflict, "The " + client.ErrRunStream.Error() + "."}
	}
	return stored, err
}

// streamField returns the field of a form that names the stream of dead letters that its page shows.
func streamField(stored *client.DeadLetters) string {
	return stored.CreatedAt().Format(time.RFC3339Nano)
}

func (c *Console) deadLetter(ctx context.Context, r *request) (*page, error) {
	stored, l, err := c.deadLetterBySeq(ctx, r)
	if err != nil {
		return nil, err
	}
	reveal := r.reveals()
	d := deadLetterData{
		DeadLetter: l, Stream: streamField(stored), Stored: holds.Time{Time: l.StoredAt},
		Lines: markedLines(l.Body, l.Detail, reveal), AskDry: with(r.URL, "dry", "run"), Runbook: "HoldfastDeadLetters",
	}
	if l.Reason == events.ReasonPoison {
		d.Runbook = "HoldfastPoison"
	}
	for _, name := range slices.Sorted(maps.Keys(l.Header)) {
		if events.IsDeadLetterHeader(name) {
			continue // shown above
		}
		value := strings.Join(l.Header[name], ", ")
		if !reveal && !queries.IsPublicHeader(name) {
			value = fmt.Sprintf("‹%s›", counted(len(value), "character"))
		}
		d.Headers = append(d.Headers, fact{name, value})
	}
	if r.URL.Query().Get("dry") == "run" {
		results, err := c.dryRuns(ctx, []*events.DeadLetter{l}, client.RunLimits{})
		if err != nil {
			return nil, err
		}
		d.DryRun = &results[0]
	}
	return &page{
		Title: "Dead letter " + seqText(l.Seq), Nav: "Dead letters", Body: "dead-letter", Data: d, Private: true,
		Command: "publisher dlq show " + seqText(l.Seq),
	}, nil
}

// dryRuns returns what a replay of each dead letter within the limits would lead to now.
func (c *Console) dryRuns(ctx context.Context, all []*events.DeadLetter, limits client.RunLimits) ([]events.DryRunResult, error) {
	results := make([]events.DryRunResult, len(all))
	running, ctx := errgroup.WithContext(ctx)
	running.SetLimit(dryRunsMax)
	for i, l := range all {
		running.Go(func() error {
			m, why := limits.ReplayOf(c.Namespace, l)
			if results[i] = why; m == nil {
				return nil
			}
			var err error
			results[i], err = c.DryRun(ctx, m)
			return err
		})
	}
	return results, running.Wait()
}
