package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

const (
	runsMax      = 4      // that this worker processes at the same time
	runSeqsMax   = 50_000 // dead letters of one run
	resultsShown = 200
	runEach      = time.Second     // for which what was read of a run is used again
	viewsMax     = 8               // runs of which it is kept
	replyWithin  = 4 * time.Second // for one outcome; a stop of the worker waits less than twice as long
	silentAfter  = 5 * time.Second // without a record, a run that is not here is not worked on
	rateMax      = 10_000
	runsListed   = 50
)

// runs are the runs that this worker processes.
type runs struct {
	mu       sync.Mutex
	cancels  map[string]context.CancelFunc   // by run id
	views    map[string]*shared[*client.Run] // likewise
	stopping bool
	working  sync.WaitGroup
}

// begin takes a place for a run. ctx ends when the run is cancelled. The caller calls end.
func (s *runs) begin(id string) (ctx context.Context, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cancels[id] != nil:
		return nil, nil, &statusError{http.StatusConflict, "This worker processes the run already."}
	case s.stopping || len(s.cancels) >= runsMax:
		return nil, nil, &statusError{http.StatusServiceUnavailable, "This worker stops, or processes as many runs as it may. Retry later."}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancels[id] = cancel
	delete(s.views, id)
	s.working.Add(1)
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		cancel()
		delete(s.cancels, id)
		delete(s.views, id)
		s.working.Done()
	}, nil
}

// view reports whether this worker processes a run, and returns what all requests read of it. That was read after the
// work of this worker on the run began or ended.
func (s *runs) view(id string) (here bool, v *shared[*client.Run]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v = s.views[id]; v == nil {
		if len(s.views) == viewsMax {
			clear(s.views)
		}
		v = new(shared[*client.Run])
		s.views[id] = v
	}
	return s.cancels[id] != nil, v
}

// Run waits until ctx ends. It then ends the live pages, cancels the runs of this worker and waits
// until their results are recorded.
func (c *Console) Run(ctx context.Context) error {
	<-ctx.Done()
	c.Close()
	c.runs.mu.Lock()
	c.runs.stopping = true
	for _, cancel := range c.runs.cancels {
		cancel()
	}
	c.runs.mu.Unlock()
	c.runs.working.Wait()
	return nil
}

// begin starts a run, processes it in the background and shows it. start records the start of the run, and returns
// its work.
func (c *Console) begin(r *request, id string, start func() (*client.RunLog, client.RunWork, error)) error {
	ctx, end, err := c.runs.begin(id)
	if err != nil {
		return err
	}
	log, work, err := start()
	if err != nil {
		end()
		if errors.Is(err, context.DeadlineExceeded) {
			return &statusError{http.StatusServiceUnavailable, "It is unknown whether the run " + id + " is recorded. It has " +
				"done nothing: see its page before you retry. " + permissionHint}
		}
		return err
	}
	go func() {
		defer end()
		err := log.Execute(ctx, work, func(int) {})
		c.Log.Info().AnErr("cause", err).Str("run", log.Run.ID).Str("state", log.Run.State).
			Int("processed", log.Run.Processed()).Msg("console run ended")
	}()
	http.Redirect(r.w, r.Request, address("runs/"+id), http.StatusSeeOther)
	return nil
}

// permissionHint ends the answer to an action that NATS does not answer: without a permission it does not.
const permissionHint = "If retrying does not help, the user of the workers lacks the permissions that deployments/nats/accounts.conf " +
	"names for HOLDFAST_CONSOLE=act."

// operator returns who acts, for the record.
func operator(r *request) string {
	v := r.visitor
	v.Name = nameOf(v, r.Request)
	return v.String()
}

// nameOf returns the name of a visitor: that of the session, else that of the form.
func nameOf(v visitor, r *http.Request) string {
	return cmp.Or(v.Name, printable(r.PostForm.Get("who")))
}

// logAction logs an action.
func (c *Console) logAction(r *request, verb, note string) {
	c.Log.Info().Str("verb", verb).Str("what", r.URL.Path).Str("who", operator(r)).Str("note", note).
		Str("via", "console").Msg("operator action")
}

// selection is what a choice selects at a moment.
type selection struct {
	choice
	stored *client.DeadLetters
	seqs   []uint64
	counts map[string]int // by reason; empty when they were selected one by one
}

// selected reads which dead letters the parameters of a request select. Its fields have a fingerprint of those that match
// the filter: a form that sends the fingerprint back is about the same dead letters.
func (c *Console) selected(ctx context.Context, q url.Values) (s selection, err error) {
	if s.choice, err = parseChoice(q); err != nil {
		return s, err
	}
	if s.stored, err = c.openDeadLetters(ctx, q); err != nil {
		return s, err
	}
	s.Fields.Set("stream", streamField(s.stored))
	if s.seqs = s.Seqs; len(s.seqs) > 0 {
		return s, nil
	}
	s.counts = make(map[string]int)
	for l, err := range s.stored.All(ctx, s.Filter, false) {
		if err != nil {
			return s, err
		}
		if len(s.seqs) == runSeqsMax {
			return s, badRequest("More than " + thousands(runSeqsMax) +
				" dead letters match. Narrow the filters, or use: publisher dlq replay --all")
		}
		s.seqs = append(s.seqs, l.Seq)
		s.counts[l.Reason]++
	}
	s.Fields.Set("selection", fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, s.seqs))))
	return s, nil
}

// confirmData is what an operator confirms.
type confirmData struct {
	Verb    string
	Count   int
	Reasons []fact // with the numbers of dead letters
	Fields  url.Values
	DryRun  *table
	Results []fact // of the dry run, with their numbers
	Problem string
	Note    string
	Rate    string // as it was typed
	Keep    bool
}

// confirm shows which dead letters an action concerns and what it would do. A POST request starts it.
func (c *Console) confirm(ctx context.Context, r *request) (*page, error) {
	verb := cmp.Or(r.PathValue("verb"), r.Form.Get("verb"))
	if verb != client.RunReplay && verb != client.RunDiscard {
		return nil, badRequest("verb must be replay or discard")
	}
	s, err := c.selected(ctx, r.Form)
	if err != nil {
		return nil, err
	}
	run := client.Run{ID: client.NewRunID(), Verb: verb, Operator: operator(r), Note: strings.TrimSpace(r.Form.Get("note"))}
	problem := ""
	if r.Method == http.MethodPost {
		if problem = s.check(r.Form, &run); problem == "" {
			return nil, c.begin(r, run.ID, func() (*client.RunLog, client.RunWork, error) {
				c.logAction(r, verb, run.Note)
				log, err := s.stored.StartRun(ctx, run, s.seqs)
				if err == nil && verb == client.RunReplay {
					return log, s.stored.ReplayWork(log, replyWithin), nil
				}
				return log, s.stored.DiscardWork(), err
			})
		}
	}
	d := confirmData{
		Verb: verb, Count: len(s.seqs), Fields: s.Fields, Problem: problem, Note: run.Note,
		Rate: cmp.Or(r.PostForm.Get("rate"), fmt.Sprint(client.DefaultRunLimits.Rate)),
		Keep: run.Keep, Reasons: countFacts(s.counts),
	}
	if verb == client.RunReplay {
		if err := c.addDryRun(ctx, s, &d); err != nil {
			return nil, err
		}
	}
	flags := s.flags()
	if len(s.Seqs) == 0 {
		flags = " --all" + flags
	}
	if verb == client.RunDiscard {
		flags += ` --note "REASON"`
	}
	return &page{
		Title: capital(verb) + " " + counted(len(s.seqs), "dead letter"), Nav: "Dead letters", Body: "confirm", Data: d,
		Command: "publisher dlq " + verb + flags,
	}, nil
}

// addDryRun adds the dry-run results of the first dead letters.
func (c *Console) addDryRun(ctx context.Context, s selection, d *confirmData) error {
	var first []*events.DeadLetter
	for _, seq := range s.seqs[:min(len(s.seqs), dryRunsShown)] {
		l, err := s.stored.Get(ctx, seq)
		if errors.Is(err, client.ErrDeadLetterNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		first = append(first, l)
	}
	results, err := c.dryRuns(ctx, first, s.limits())
	if err != nil {
		return err
	}
	d.DryRun = newTable("Dry run", "nothing to replay", "#seq", "event", "resource", "result", "detail")
	if len(first) < len(s.seqs) {
		d.DryRun.Caption = "Dry run of the first " + strconv.Itoa(len(first))
	}
	counts := make(map[string]int)
	for i, l := range first {
		counts[results[i].Label()]++
		d.DryRun.add(seqCell(l.Seq), text(l.Event.Type), text(l.Event.Resource), text(results[i].Text), text(results[i].Detail))
	}
	d.Results = countFacts(counts)
	return nil
}

// limits returns the limits of a replay. Who chooses single dead letters wants their replay, however often there was one.
func (s selection) limits() client.RunLimits {
	limits := client.DefaultRunLimits
	if len(s.Seqs) > 0 {
		limits.MaxReplays = 0
	}
	return limits
}

// check reads the form of an action into a run. It returns what is wrong, "" for nothing.
func (s selection) check(form url.Values, run *client.Run) (problem string) {
	limits, err := s.limits(), error(nil)
	if rate := form.Get("rate"); rate != "" {
		limits.Rate, err = strconv.ParseFloat(rate, 64)
	}
	if len(s.Seqs) == 0 {
		run.Filter = &s.Filter
	}
	if run.Verb == client.RunReplay {
		run.Limits, run.Keep = &limits, form.Get("keep") == "true"
	}
	switch typed := strings.TrimSpace(form.Get("count")); {
	case len(s.seqs) == 0:
		return "No dead letter matches any more."
	case form.Get("selection") != s.Fields.Get("selection"):
		return fmt.Sprintf("The selection has changed. Nothing was done. Now it has %s: check and confirm again.",
			counted(len(s.seqs), "dead letter"))
	case run.Note == "":
		return noReason
	case typed != strconv.Itoa(len(s.seqs)):
		return fmt.Sprintf("Type the number of dead letters, which is now %d. You typed %q.", len(s.seqs), typed)
	case err != nil || !(limits.Rate > 0 && limits.Rate <= rateMax):
		return "The rate must be above 0 and at most " + strconv.Itoa(rateMax) + " events a second."
	}
	return ""
}

// noReason is the problem of a form without a reason.
const noReason = "Give the reason: it is recorded."

func (c *Console) runList(ctx context.Context, _ *request) (*page, error) {
	all, strange, err := c.Client.ListRuns(ctx)
	if err != nil {
		return nil, err
	}
	t := newTable("", "no runs yet", "run", "verb", "state", "#dead letters", "#processed", "who", "why", "started")
	for _, run := range slices.Backward(all[max(0, len(all)-runsListed):]) {
		t.add(shortID(run.ID, address("runs/"+run.ID), run.ID), text(run.Verb), runBadge(run.State), number(run.Total),
			number(run.Processed()), text(run.Operator), text(run.Note), at(run.StartedAt))
	}
	return &page{Title: "Runs", Nav: "Runs", Body: "list", Command: "publisher dlq runs", Data: listData{
		Note:    "Every replay, edit and discard, from here and from the command line, with who, when and why.",
		Strange: strange, Tables: []*table{t},
	}}, nil
}

func runBadge(state string) cell {
	return badge(state, map[string]string{client.RunDone: "ok", client.RunStopped: "bad", client.RunUnfinished: "warn"}[state])
}

// runData is a run with its progress.
type runData struct {
	*client.Run
	Badge     cell
	Here      bool // this worker processes it
	Resumable bool
	Counts    []fact
	Results   *table
}

// runOf returns the run with an id, with at most resultsShown results of each kind: first what failed.
func (c *Console) runOf(ctx context.Context, id string) (*client.Run, error) {
	if uuid.Validate(id) != nil { // it becomes a part of a subject
		return nil, badRequest("This is not the id of a run.")
	}
	run, err := c.Client.GetRunSummary(ctx, id, resultsShown)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(run.Results, func(a, b client.RunResult) int { return resultRank[a.Result] - resultRank[b.Result] })
	return run, nil
}

func (c *Console) run(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	here, view := c.runs.view(id)
	run, err := view.get(ctx, runEach, func(ctx context.Context) (*client.Run, error) { return c.runOf(ctx, id) })
	if err != nil {
		return nil, err
	}
	unfinished, silent := run.State == client.RunUnfinished, time.Since(run.RecordedAt.Time) > silentAfter
	d := runData{Run: run, Badge: runBadge(run.State), Here: here, Counts: countFacts(run.Counts)}
	d.Resumable = !here && run.Verb == client.RunReplay && !run.IsOver() && (!unfinished || silent)
	d.Results = newTable("Results", "no results yet", "#seq", "event id", "result", "reason", "detail")
	if n := max(len(run.Results), run.Processed()); n > resultsShown {
		d.Results.Caption = fmt.Sprintf("%d of %s results, failures first", resultsShown, thousands(n))
	}
	for _, result := range run.Results[:min(len(run.Results), resultsShown)] {
		d.Results.add(seqCell(result.Seq), cell{Text: result.EventID, Class: "id"}, text(result.Result),
			text(result.Reason), text(result.Detail))
	}
	return &page{
		Title: "Run " + id, Nav: "Runs", Body: "run", Data: d, Command: "publisher dlq runs " + id,
		Poll: here || unfinished && !silent,
	}, nil
}

// resultRank orders results: what failed comes first.
var resultRank = map[string]int{client.ReplayFailed: -2, client.ReplayDeadLettered: -2, client.ReplayNoOutcome: -1}

// cancelRun cancels a run of this worker. Work that was begun is finished and recorded.
func (c *Console) cancelRun(_ context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	c.runs.mu.Lock()
	cancel := c.runs.cancels[id]
	c.runs.mu.Unlock()
	if cancel == nil {
		return nil, &statusError{http.StatusConflict, "This worker does not process the run: it has ended, or another process works on it."}
	}
	c.logAction(r, "cancel", "")
	cancel()
	http.Redirect(r.w, r.Request, address("runs/"+id), http.StatusSeeOther)
	return nil, nil
}

// resumeRun continues a replay that has not finished.
func (c *Console) resumeRun(ctx context.Context, r *request) (*page, error) {
	id := r.PathValue("id")
	run, err := c.runOf(ctx, id)
	if err != nil {
		return nil, err
	}
	switch {
	case run.Verb != client.RunReplay:
		return nil, badRequest("Only a replay can be resumed.")
	case r.PostForm.Get("note") != "":
		return nil, badRequest("A resumed run keeps who started it and why: give no reason.")
	case run.IsOver():
		return nil, &statusError{http.StatusConflict, "The run is " + client.ErrRunOver.Error() + "."}
	case run.Total > runSeqsMax:
		return nil, badRequest("The run has more than " + thousands(runSeqsMax) + " dead letters. Use: publisher dlq replay --run " + id)
	}
	stored, err := c.Client.DeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	return nil, c.begin(r, id, func() (*client.RunLog, client.RunWork, error) {
		c.logAction(r, "resume", "")
		log, err := c.Client.ResumeRun(ctx, id, cmp.Or(run.Limits, &client.DefaultRunLimits))
		if err != nil {
			return nil, nil, &statusError{http.StatusConflict, err.Error()}
		}
		return log, stored.ReplayWork(log, replyWithin), nil
	})
}

// editData is the form of an edited event.
type editData struct {
	Seq                                  uint64
	Stream, Subject, Body, Note, Problem string
}

// editForm shows the event of a dead letter in a form. It shows the body only when it is revealed.
func (c *Console) editForm(ctx context.Context, r *request) (*page, error) {
	stored, l, original, err := c.editable(ctx, r)
	if err != nil {
		return nil, err
	}
	d := editData{Seq: l.Seq, Stream: streamField(stored), Subject: l.Subject}
	switch {
	case !r.reveals():
	case utf8.Valid(original.Data):
		d.Body = string(client.EditableBody(original.Data))
	default:
		d.Problem = "The body is not UTF-8, and a browser would change it. Write a new one, or give one to publisher dlq edit --body."
	}
	return editPage(d), nil
}

// editable returns the dead letter that the path of a request names, and its event.
func (c *Console) editable(
	ctx context.Context, r *request,
) (stored *client.DeadLetters, l *events.DeadLetter, original *nats.Msg, err error) {
	if stored, l, err = c.deadLetterBySeq(ctx, r); err != nil {
		return nil, nil, nil, err
	}
	if original, err = l.Content(); err != nil {
		return nil, nil, nil, &statusError{http.StatusConflict, err.Error()}
	}
	return stored, l, original, nil
}

func editPage(d editData) *page {
	return &page{
		Title: "Edit dead letter " + seqText(d.Seq), Nav: "Dead letters", Body: "edit", Data: d, Private: true,
		Command: "publisher dlq edit " + seqText(d.Seq),
	}
}

// startEdit publishes the event of the form, if a worker would accept it.
func (c *Console) startEdit(ctx context.Context, r *request) (*page, error) {
	stored, l, original, err := c.editable(ctx, r)
	if err != nil {
		return nil, err
	}
	form := r.PostForm
	d := editData{Seq: l.Seq, Stream: streamField(stored), Subject: strings.TrimSpace(form.Get("subject")),
		Note: strings.TrimSpace(form.Get("note")), Body: strings.ReplaceAll(form.Get("body"), "\r\n", "\n")}
	edited := nats.NewMsg(d.Subject)
	edited.Header, edited.Data = maps.Clone(original.Header), []byte(d.Body)
	if d.Body == string(client.EditableBody(original.Data)) {
		edited.Data = original.Data // only then it is the same event
	}
	_, decoding := c.Namespace.Decode(edited.Subject, edited.Header, edited.Data, time.Now())
	switch {
	case edited.Subject == original.Subject && bytes.Equal(edited.Data, original.Data):
		d.Problem = "The event is unchanged. A replay publishes it unchanged."
	case decoding != nil:
		d.Problem = "The event would be dead-lettered again: " + decoding.Error()
	case d.Note == "":
		d.Problem = noReason
	}
	if d.Problem != "" {
		p := editPage(d)
		p.Revealed = true
		return p, nil
	}
	run := client.Run{ID: client.NewRunID(), Verb: client.RunEdit, Operator: operator(r), Note: d.Note, Keep: true}
	return nil, c.begin(r, run.ID, func() (*client.RunLog, client.RunWork, error) {
		c.logAction(r, client.RunEdit, d.Note)
		log, err := stored.StartRun(ctx, run, []uint64{l.Seq})
		return log, stored.EditWork(run.ID, l, edited, replyWithin), err
	})
}
