package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

const (
	runsMax      = 4      // that this worker processes at the same time
	runSeqsMax   = 50_000 // dead letters of one run
	resultsShown = 200
	replyWithin  = 4 * time.Second // for one outcome; a stop of the worker waits less than twice as long
	silentAfter  = 5 * time.Second // without a record, a run that is not here is not worked on
	rateMax      = 10_000
	runsListed   = 50
)

// runs are the runs that this worker processes.
type runs struct {
	mu       sync.Mutex
	active   map[string]*activeRun
	stopping bool
	working  sync.WaitGroup
}

type activeRun struct{ cancel context.CancelFunc }

// Run waits until ctx ends. It then ends the live pages, cancels the runs of this worker and waits
// until their results are recorded.
func (c *Console) Run(ctx context.Context) error {
	<-ctx.Done()
	c.Close()
	c.runs.mu.Lock()
	c.runs.stopping = true
	for _, one := range c.runs.active {
		one.cancel()
	}
	c.runs.mu.Unlock()
	c.runs.working.Wait()
	return nil
}

// process processes a run in the background. prepare, unless it is nil, runs first.
func (c *Console) process(
	log *client.RunLog, replayer *client.Replayer, seqs []uint64, prepare func(context.Context) error, work client.RunWork,
) error {
	ctx, cancel := context.WithCancel(context.Background())
	c.runs.mu.Lock()
	defer c.runs.mu.Unlock()
	if c.runs.stopping || len(c.runs.active) >= runsMax {
		cancel()
		return errors.Join(&statusError{http.StatusServiceUnavailable, "This worker stops, or processes as many runs as it may. Resume the run later."},
			log.End(context.Background(), client.RunStopped))
	}
	id := log.Run.ID
	c.runs.active[id] = &activeRun{cancel}
	c.runs.working.Go(func() {
		defer cancel()
		if replayer != nil {
			defer replayer.Close()
		}
		p := &client.RunProcessor{Log: log}
		if log.Run.Limits != nil {
			p.StopWhen = log.Run.Limits.Exceeded
		}
		var err error
		if prepare != nil {
			err = prepare(ctx)
		}
		if err == nil {
			err = p.Process(ctx, seqs, work)
		}
		state := client.RunDone
		if err != nil {
			state = client.RunStopped
		}
		ended := log.End(context.Background(), state)
		c.runs.mu.Lock()
		delete(c.runs.active, id)
		c.runs.mu.Unlock()
		c.Log.Info().AnErr("cause", errors.Join(err, ended)).Str("run", id).Str("state", state).Int("processed", p.Processed()).Msg("console run ended")
	})
	return nil
}

// isActive reports whether this worker processes a run.
func (c *Console) isActive(id string) bool {
	c.runs.mu.Lock()
	defer c.runs.mu.Unlock()
	return c.runs.active[id] != nil
}

// operator returns who acts, for the record.
func operator(r *request) string {
	v := r.visitor
	if v.Name == "" {
		v.Name = printable(r.PostForm.Get("who"))
	}
	return v.String()
}

// logAction logs an action.
func (c *Console) logAction(r *request, verb, note string) {
	c.Log.Info().Str("verb", verb).Str("what", r.URL.Path).Str("who", operator(r)).Str("note", note).Str("via", "console").Msg("operator action")
}

// collect returns the sequences of the chosen dead letters and counts them by reason.
func (c *Console) collect(ctx context.Context, stored *client.DeadLetters, ch choice) (seqs []uint64, counts map[string]int, err error) {
	counts = make(map[string]int)
	if len(ch.Seqs) > 0 {
		return ch.Seqs, counts, nil
	}
	for l, err := range stored.All(ctx, ch.Filter, false) {
		if err != nil {
			return nil, nil, err
		}
		if len(seqs) == runSeqsMax {
			return nil, nil, badRequest(fmt.Sprintf("More than %s dead letters match. Narrow the filters, or use: publisher dlq replay --all",
				thousands(runSeqsMax)))
		}
		seqs = append(seqs, l.Seq)
		counts[l.Reason]++
	}
	return seqs, counts, nil
}

// confirmData is what an operator confirms.
type confirmData struct {
	Verb    string
	Count   int
	Counts  string
	Fields  url.Values
	DryRun  *table
	Kinds   []fact // dry-run results with their numbers
	Problem string
	Note    string
	Rate    float64
	AsksWho bool
}

// confirm shows which dead letters an action concerns and what it would do.
func (c *Console) confirm(ctx context.Context, r *request) (*page, error) {
	return c.confirmWith(ctx, r, r.URL.Query(), r.URL.Query().Get("verb"), "")
}

func (c *Console) confirmWith(ctx context.Context, r *request, q url.Values, verb, problem string) (*page, error) {
	if verb != client.RunReplay && verb != client.RunDiscard {
		return nil, badRequest("verb must be replay or discard")
	}
	ch, err := parseChoice(q)
	if err != nil {
		return nil, err
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	seqs, counts, err := c.collect(ctx, stored, ch)
	if err != nil {
		return nil, err
	}
	d := confirmData{Verb: verb, Count: len(seqs), Fields: ch.Fields, Problem: problem, Note: q.Get("note"),
		Rate: client.DefaultRunLimits.Rate, AsksWho: r.visitor.Name == ""}
	for _, reason := range byValue(counts) {
		d.Counts += fmt.Sprintf(", %s %s", thousands(int64(counts[reason])), reason)
	}
	d.Counts = strings.TrimPrefix(d.Counts, ", ")
	if verb == client.RunReplay {
		if err := c.addDryRun(ctx, stored, seqs, &d); err != nil {
			return nil, err
		}
	}
	flags := ch.flags()
	if len(ch.Seqs) == 0 {
		flags = " --all" + flags
	}
	return &page{
		Title: strings.ToUpper(verb[:1]) + verb[1:] + " " + counted(len(seqs), "dead letter"), Nav: "dead-letters", Body: "confirm", Data: d,
		Command: "publisher dlq " + verb + flags,
	}, nil
}

// addDryRun adds the dry-run results of the first dead letters.
func (c *Console) addDryRun(ctx context.Context, stored *client.DeadLetters, seqs []uint64, d *confirmData) error {
	var first []*events.DeadLetter
	for _, seq := range seqs[:min(len(seqs), dryRunsShown)] {
		l, err := stored.Get(ctx, seq)
		if errors.Is(err, client.ErrDeadLetterNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		first = append(first, l)
	}
	rows, err := c.dryRuns(ctx, first)
	if err != nil {
		return err
	}
	t := table{Caption: "Dry run", Columns: columns("#seq", "event", "resource", "result", "detail"), Empty: "nothing to replay"}
	if len(rows) < len(seqs) {
		t.Caption = "Dry run of the first " + strconv.Itoa(len(rows))
	}
	kinds := make(map[string]int)
	for _, row := range rows {
		kinds[row.Label()]++
		t.Rows = append(t.Rows, []cell{seqCell(row.dead.Seq), text(row.dead.Event.Type), text(row.dead.Event.Resource),
			text(row.Text), text(row.Detail)})
	}
	for _, kind := range byValue(kinds) {
		d.Kinds = append(d.Kinds, fact{kind, thousands(int64(kinds[kind]))})
	}
	d.DryRun = &t
	return nil
}

// startRun starts a replay or discard of the chosen dead letters.
func (c *Console) startRun(ctx context.Context, r *request) (*page, error) {
	verb, form := r.PathValue("verb"), r.PostForm
	ch, err := parseChoice(form)
	if err != nil {
		return nil, err
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	seqs, _, err := c.collect(ctx, stored, ch)
	if err != nil {
		return nil, err
	}
	note, typed := strings.TrimSpace(form.Get("note")), strings.TrimSpace(form.Get("count"))
	limits, limitsErr := replayLimits(form, ch)
	problem := ""
	switch {
	case len(seqs) == 0:
		problem = "No dead letter matches any more."
	case note == "":
		problem = "Give the reason: it is recorded."
	case typed != strconv.Itoa(len(seqs)):
		problem = fmt.Sprintf("Type the number of dead letters, which is now %d. You typed %q.", len(seqs), typed)
	case limitsErr != nil:
		problem = limitsErr.Error()
	}
	if problem != "" {
		return c.confirmWith(ctx, r, form, verb, problem)
	}
	run := client.Run{Verb: verb, Operator: operator(r), Note: note, Keep: verb == client.RunReplay && form.Get("keep") == "true"}
	if len(ch.Seqs) == 0 {
		run.Filter = &ch.Filter
	}
	var replayer *client.Replayer
	switch verb {
	case client.RunReplay:
		run.Limits = limits
		if replayer, err = stored.Replayer(replyWithin); err != nil {
			return nil, err
		}
	case client.RunDiscard:
	default:
		return nil, badRequest("there is no such action")
	}
	c.logAction(r, verb, note)
	log, err := c.Client.StartRun(ctx, run, seqs)
	if err != nil {
		if replayer != nil {
			replayer.Close()
		}
		return nil, err
	}
	work := stored.DiscardWork()
	if replayer != nil {
		work = replayer.ReplayWork(c.Namespace, log.Run)
	}
	return nil, c.begin(r, log, replayer, seqs, nil, work)
}

// begin processes a run and shows it.
func (c *Console) begin(
	r *request, log *client.RunLog, replayer *client.Replayer, seqs []uint64, prepare func(context.Context) error, work client.RunWork,
) error {
	if err := c.process(log, replayer, seqs, prepare, work); err != nil {
		if replayer != nil {
			replayer.Close()
		}
		return err
	}
	http.Redirect(r.w, r.Request, address("runs/"+log.Run.ID), http.StatusSeeOther)
	return nil
}

// replayLimits reads the limits of a replay from a form. Who chooses single dead letters wants their
// replay, however often they were replayed before.
func replayLimits(form url.Values, ch choice) (*client.RunLimits, error) {
	limits := client.DefaultRunLimits
	if len(ch.Seqs) > 0 {
		limits.MaxReplays = 0
	}
	if text := form.Get("rate"); text != "" {
		events, err := strconv.ParseFloat(text, 64)
		if err != nil || !(events > 0 && events <= rateMax) {
			return nil, badRequest("The rate must be from 1 to " + strconv.Itoa(rateMax) + " events a second.")
		}
		limits.Rate = events
	}
	return &limits, nil
}

// runList shows the latest runs.
func (c *Console) runList(ctx context.Context, _ *request) (*page, error) {
	all, err := c.Client.ListRuns(ctx)
	if err != nil {
		return nil, err
	}
	t := table{Columns: columns("run", "verb", "state", "#dead letters", "#processed", "who", "why", "started"), Empty: "no runs yet"}
	for _, run := range slices.Backward(all[max(0, len(all)-runsListed):]) {
		t.Rows = append(t.Rows, []cell{
			shortID(run.ID, address("runs/"+run.ID), run.ID), text(run.Verb), runBadge(run.State), number(run.Total),
			number(run.Processed()), text(run.Operator), text(run.Note), at(run.StartedAt),
		})
	}
	return &page{Title: "Runs", Nav: "runs", Body: "list", Command: "publisher dlq runs", Data: listData{
		Note: "Every replay, edit and discard, from here and from the command line, with who, when and why.", Tables: []table{t},
	}}, nil
}

func runBadge(state string) cell {
	return badge(state, map[string]string{client.RunDone: "ok", client.RunStopped: "bad", client.RunUnfinished: "warn"}[state])
}

// runData is a run with its progress.
type runData struct {
	*client.Run
	Badge     cell
	Done      int
	Here      bool // this worker processes it
	Resumable bool
	Counts    []fact
	Results   table
	AsksWho   bool
}

// run shows a run and its progress.
func (c *Console) run(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	if uuid.Validate(id) != nil {
		return nil, badRequest("This is not the id of a run.")
	}
	here := c.isActive(id) // before its records are read: they have the end of a run that has ended
	run, err := c.Client.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	here = here && run.State == client.RunUnfinished
	silent := time.Since(run.RecordedAt.Time) > silentAfter
	d := runData{Run: run, Badge: runBadge(run.State), Done: run.Processed(), Here: here, AsksWho: r.visitor.Name == ""}
	d.Resumable = !here && run.Verb == client.RunReplay && (run.State == client.RunStopped || run.State == client.RunUnfinished && silent)
	for _, result := range byValue(run.Counts) {
		d.Counts = append(d.Counts, fact{result, thousands(int64(run.Counts[result]))})
	}
	failedFirst := slices.Clone(run.Results)
	slices.SortStableFunc(failedFirst, func(a, b client.RunResult) int { return resultRank(a) - resultRank(b) })
	d.Results = table{Caption: "Results", Columns: columns("#seq", "event id", "result", "reason", "detail"), Empty: "no results yet"}
	if len(failedFirst) > resultsShown {
		d.Results.Caption = fmt.Sprintf("%d of %s results, failures first", resultsShown, thousands(int64(len(failedFirst))))
	}
	for _, result := range failedFirst[:min(len(failedFirst), resultsShown)] {
		d.Results.Rows = append(d.Results.Rows, []cell{seqCell(result.Seq), {Text: result.EventID, Class: "id"}, text(result.Result),
			text(result.Reason), text(result.Detail)})
	}
	return &page{
		Title: "Run " + id, Nav: "runs", Body: "run", Data: d, Command: "publisher dlq runs " + id,
		Poll: run.State == client.RunUnfinished && (here || !silent),
	}, nil
}

// resultRank orders results: what failed comes first.
func resultRank(r client.RunResult) int {
	switch r.Result {
	case client.ReplayFailed, client.ReplayDeadLettered:
		return 0
	case client.ReplayNoOutcome:
		return 1
	}
	return 2
}

// cancelRun cancels a run of this worker. Work that was begun is finished and recorded.
func (c *Console) cancelRun(_ context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	c.runs.mu.Lock()
	one := c.runs.active[id]
	c.runs.mu.Unlock()
	if one == nil {
		return nil, &statusError{http.StatusConflict, "This worker does not process the run: it has ended, or another process works on it."}
	}
	c.logAction(r, "cancel", "")
	one.cancel()
	http.Redirect(r.w, r.Request, address("runs/"+id), http.StatusSeeOther)
	return nil, nil
}

// resumeRun continues a replay that has not finished.
func (c *Console) resumeRun(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	run, err := c.Client.GetRun(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case c.isActive(id):
		return nil, &statusError{http.StatusConflict, "This worker processes the run already."}
	case run.Verb != client.RunReplay:
		return nil, badRequest("Only a replay can be resumed.")
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	limits := run.Limits
	if limits == nil {
		limits = &client.DefaultRunLimits
	}
	c.logAction(r, "resume", "")
	replayer, err := stored.Replayer(replyWithin)
	if err != nil {
		return nil, err
	}
	log, left, err := c.Client.ResumeRun(ctx, id, limits)
	if err != nil {
		replayer.Close()
		return nil, &statusError{http.StatusConflict, err.Error()}
	}
	find := func(ctx context.Context) error { return replayer.Resume(ctx, log) }
	return nil, c.begin(r, log, replayer, left, find, replayer.ReplayWork(c.Namespace, log.Run))
}

// editData is the form of an edited event.
type editData struct {
	Seq                          uint64
	Subject, Body, Note, Problem string
	AsksWho                      bool
}

// editForm shows the event of a dead letter in a form. It shows the body only when it is revealed.
func (c *Console) editForm(ctx context.Context, r *request) (*page, error) {
	_, l, err := c.deadLetterBySeq(ctx, r)
	if err != nil {
		return nil, err
	}
	d := editData{Seq: l.Seq, Subject: l.Subject, AsksWho: r.visitor.Name == ""}
	if c.reveals(r) {
		d.Body = editable(l.Body)
	}
	return editPage(d), nil
}

func editPage(d editData) *page {
	return &page{
		Title: "Edit dead letter " + seqText(d.Seq), Nav: "dead-letters", Body: "edit", Data: d, Private: true,
		Command: "publisher dlq edit " + seqText(d.Seq),
	}
}

// editable returns a body as a form shows it: indented if it is JSON.
func editable(body []byte) string {
	value := jsontext.Value(body).Clone()
	if err := value.Indent(jsontext.WithIndent("  ")); err != nil {
		return string(body)
	}
	return string(value)
}

// startEdit publishes the event of the form, if a worker would accept it.
func (c *Console) startEdit(ctx context.Context, r *request) (*page, error) {
	stored, l, err := c.deadLetterBySeq(ctx, r)
	if err != nil {
		return nil, err
	}
	original, err := l.Original(c.Namespace)
	if err != nil {
		return nil, &statusError{http.StatusConflict, err.Error()}
	}
	form := r.PostForm
	d := editData{Seq: l.Seq, Subject: strings.TrimSpace(form.Get("subject")), Note: strings.TrimSpace(form.Get("note")),
		Body: strings.ReplaceAll(form.Get("body"), "\r\n", "\n"), AsksWho: r.visitor.Name == ""}
	edited := nats.NewMsg(d.Subject)
	edited.Header, edited.Data = maps.Clone(original.Header), []byte(d.Body)
	if d.Body == editable(original.Data) {
		edited.Data = original.Data // only then it is the same event
	}
	_, decoding := c.Namespace.Decode(edited.Subject, edited.Header, edited.Data, time.Now())
	switch {
	case edited.Subject == original.Subject && bytes.Equal(edited.Data, original.Data):
		d.Problem = "The event is unchanged. A replay publishes it unchanged."
	case decoding != nil:
		d.Problem = "The event would be dead-lettered again: " + decoding.Error()
	case d.Note == "":
		d.Problem = "Give the reason: it is recorded."
	}
	if d.Problem != "" {
		c.logReveal(r)
		return editPage(d), nil
	}
	replayer, err := stored.Replayer(replyWithin)
	if err != nil {
		return nil, err
	}
	c.logAction(r, client.RunEdit, d.Note)
	log, err := c.Client.StartRun(ctx, client.Run{Verb: client.RunEdit, Operator: operator(r), Note: d.Note, Keep: true}, []uint64{l.Seq})
	if err != nil {
		replayer.Close()
		return nil, err
	}
	return nil, c.begin(r, log, replayer, []uint64{l.Seq}, nil, replayer.EditWork(l, edited))
}
