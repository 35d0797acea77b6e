package console

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/docs"
	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

const (
	workersEach    = 5 * time.Second
	latenessLimit  = 2 * time.Second // promise 5
	oldestExpected = 30 * time.Second
)

// tile is a number of the overview.
type tile struct {
	Name    string
	Value   string
	Unit    string
	Note    string
	State   string // ok, warn, bad, or "" for a number without one
	Href    string // what explains it
	Runbook string // the entry that says what to do
}

// overviewData is what the overview shows.
type overviewData struct {
	Status Status
	Notes  []string // what is not normal besides the reasons
	Tiles  []tile
	Tables []*table
}

func (c *Console) overview(ctx context.Context, _ *request) (*page, error) {
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	workers, err := c.workers.get(ctx, workersEach, c.Client.Workers)
	if err != nil {
		c.Log.Debug().Err(err).Msg("workers unknown")
	}
	d := overviewData{Status: s, Tiles: tiles(s)}
	for _, name := range slices.Sorted(maps.Keys(s.Details)) {
		switch name {
		case "namespace":
		case "keyspace_notifications":
			if s.Details[name] != "on" {
				d.Notes = append(d.Notes, "keyspace notifications are "+s.Details[name])
			}
		default:
			d.Notes = append(d.Notes, strings.ReplaceAll(name, "_", " ")+": "+s.Details[name])
		}
	}
	d.Tables = []*table{hottest(s.Stats.LiveHolds), deadLetterReasons(s.Stats.DeadLetters), consumers(s.Stats.Consumers),
		workerTable(workers, s), streamTable(s.Stats.Streams)}
	return &page{
		Title: "Overview", Nav: "Overview", Command: "worker top", Body: "overview", Data: d, Live: "live",
	}, nil
}

func tiles(s Status) []tile {
	in, out := "–", "–"
	if r := s.Stats.Rates; r != nil {
		in, out = decimal(r.Events), decimal(r.Outcomes)
	}
	var oldest float64
	waiting := uint64(0)
	for _, consumer := range s.Stats.Consumers {
		oldest, waiting = max(oldest, consumer.OldestAgeSeconds), waiting+consumer.Pending
	}
	live := tile{Name: "Live holds", Value: "–", Href: address("holds"), Note: "unknown while Redis is not used"}
	if l := s.Stats.LiveHolds; l != nil {
		live.Value, live.Note = thousands(l.Total), "each is sold or free again at its deadline"
		if !l.Complete {
			live.Note = "at least: there are too many resources to count all"
		}
	}
	late := tile{Name: "Expiry lateness, p99", Value: "–", Note: "no hold has expired since the start",
		Href: address("lateness"), Runbook: "HoldfastExpiryLate"}
	if s.Expired > 0 {
		late.Value, late.State = "≤ "+s.LateP99.String(), stateOf(s.LateP99 <= latenessLimit, "bad")
		late.Note = "promised: 2 s; " + counted(int(s.Expired), "expired hold")
	}
	dead := tile{Name: "Dead letters", Value: thousands(s.Stats.DeadLetters.Total), Note: "none",
		Href: address("dead-letters"), Runbook: "HoldfastDeadLetters", State: stateOf(s.Stats.DeadLetters.Total == 0, "warn")}
	if s.Stats.DeadLetters.Total > 0 {
		dead.Note = "the oldest is " + events.Humanize(time.Since(s.Stats.DeadLetters.Oldest.Time)) + " old"
	}
	return []tile{
		{Name: "Events in", Value: in, Unit: "/s", Note: "bookings, payments, changes", Runbook: "HoldfastNoOutcomes"},
		{Name: "Answers out", Value: out, Unit: "/s", Note: "outcomes, and holds that expired", Runbook: "HoldfastNoOutcomes"},
		{Name: "Oldest waiting event", Value: events.Humanize(seconds(oldest)), Note: counted(int(waiting), "event") + " waiting",
			State: stateOf(seconds(oldest) < oldestExpected, "warn"), Runbook: "HoldfastEventsOld"},
		live, late, dead,
	}
}

func stateOf(good bool, otherwise string) string {
	if good {
		return "ok"
	}
	return otherwise
}

func hottest(live *holds.LiveCounts) *table {
	t := newTable("Resources with the most live holds", "no live holds", "resource", "#live holds")
	if live == nil {
		return t
	}
	for _, one := range live.Hottest {
		if one.LiveHolds > 0 {
			share := float64(one.LiveHolds) / float64(max(1, live.Hottest[0].LiveHolds))
			t.add(link(one.ResourceID, address("holds", "resource_id", one.ResourceID)), cell{Text: thousands(one.LiveHolds), Share: share})
		}
	}
	return t
}

func deadLetterReasons(s queries.DeadLetterStats) *table {
	t := newTable("Dead letters by reason", "no dead letters", "reason", "#count")
	for _, reason := range terminal.ByCount(s.ByReason) {
		if n := s.ByReason[reason]; n > 0 {
			t.add(link(reason, address("dead-letters/list", "reason", reason)),
				cell{Text: thousands(n), Share: float64(n) / float64(s.Total)})
		}
	}
	return t
}

func consumers(all []queries.ConsumerStats) *table {
	t := newTable("Consumers", "", "consumer", "#waiting", "#in work", "#oldest", "state")
	for _, one := range all {
		state := badge("running", "ok")
		if one.Paused {
			state = badge("paused", "warn")
			if one.Pause != nil {
				state.Text = one.Pause.String()
			}
		}
		t.add(text(one.Name), number(one.Pending), number(one.AckPending), text(events.Humanize(seconds(one.OldestAgeSeconds))), state)
	}
	return t
}

func workerTable(workers []client.WorkerInfo, s Status) *table {
	t := newTable("Workers", "no worker answers", "worker", "version", "started")
	for _, one := range workers {
		name := one.Name
		if name == s.Worker {
			name += " (serves this page)"
		}
		t.add(text(name), text(one.Version), at(holds.Time{Time: one.StartedAt}))
	}
	return t
}

func streamTable(all []queries.StreamStats) *table {
	t := newTable("Streams", "", "stream", "#messages", "#MiB", "oldest")
	for _, one := range all {
		t.add(text(one.Name), number(one.Messages), text(decimal(float64(one.Bytes)/(1<<20))), at(one.Oldest))
	}
	return t
}

const (
	liveEach    = time.Second
	writeWithin = 5 * time.Second
)

// status returns the state of the worker. All pages share one reading a second.
func (c *Console) status(ctx context.Context) (Status, error) {
	return c.live.get(ctx, liveEach-liveEach/10, c.Status)
}

// stream sends the body of the overview again every second, until the client disconnects, its session
// ends or the console closes. It answers HEAD, whose answer has no body, at once.
func (c *Console) stream(r *request) {
	if !c.streams.TryAcquire(1) {
		r.w.Header().Set("Retry-After", "10")
		http.Error(r.w, queries.Busy.Detail, http.StatusServiceUnavailable)
		return
	}
	defer c.streams.Release(1)
	r.w.Header().Set("Content-Type", "text/event-stream")
	r.w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	writer := http.NewResponseController(r.w)
	ticker := time.NewTicker(liveEach)
	defer ticker.Stop()
	for {
		if _, _, err := c.session(r.Request); err != nil {
			return
		}
		frame, err := c.frames.get(r.Context(), liveEach-liveEach/10, c.frame)
		if err != nil {
			return
		}
		// Set when the frame is built, which takes answerWithin while a server hangs.
		if err := writer.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return
		}
		if _, err := r.w.Write(frame); err != nil {
			return
		}
		if writer.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		case <-c.open.Done():
			return
		}
	}
}

// frame returns the body of the overview as a server-sent event. It is the same for every operator,
// so all live pages share one a second.
func (c *Console) frame(ctx context.Context) ([]byte, error) {
	p, err := c.overview(ctx, nil)
	if err != nil {
		_, text := c.statusOf(ctx, err)
		p = &page{Body: "problem", Data: text}
	}
	body, err := p.execute(p.Body)
	if err != nil {
		c.Log.Error().Err(err).Msg("console page failed")
		return []byte(": failed\n\n"), nil
	}
	return serverSentEvent(body), nil
}

// serverSentEvent returns the event that carries a body. A carriage return would end a line of the
// event too, and let a text of the body begin a field: it becomes a space.
func serverSentEvent(body []byte) []byte {
	lines := strings.NewReplacer("\r", " ", "\n", "\ndata: ").Replace(strings.TrimSuffix(string(body), "\n"))
	return []byte("event: body\ndata: " + lines + "\n\n")
}

// runbookEntry is an entry of the runbook.
type runbookEntry struct{ ID, Text string }

// runbook shows the runbook of the version that runs.
func (c *Console) runbook(context.Context, *request) (*page, error) {
	var entries []runbookEntry
	for section := range strings.SplitSeq("\n"+docs.Runbook, "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		if title != "" {
			entries = append(entries, runbookEntry{title, strings.NewReplacer("**", "", "`", "").Replace(strings.TrimSpace(body))})
		}
	}
	return &page{Title: "Runbook", Body: "runbook", Data: entries}, nil
}
