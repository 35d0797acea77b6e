package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// newRunsConsole returns a console that acts, its handler, and a function that stores a record of a run.
func newRunsConsole(t *testing.T) (c *Console, handler http.Handler, store func(run client.Run)) {
	t.Helper()
	ns := events.Namespace(stacktest.Namespace(t))
	c, handler = newTestConsole(t, Options{Mode: Act, Namespace: ns})
	js := stacktest.ConnectNATS(t, stacktest.NATSWithMaxPayload(t, 1<<20))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: ns.RunsStream(), Subjects: []string{ns.AllRuns()}})
	stacktest.Must(t, err)
	c.Client, err = client.New(js.Conn(), ns)
	stacktest.Must(t, err)
	return c, handler, func(run client.Run) {
		t.Helper()
		body, err := json.Marshal(run)
		stacktest.Must(t, err)
		_, err = js.Publish(t.Context(), ns.Run(run.ID), body)
		stacktest.Must(t, err)
	}
}

// runPage returns the page of a run.
func runPage(t *testing.T, handler http.Handler, id string) string {
	t.Helper()
	w := answerTo(handler, asBearer(newRequest(t, http.MethodGet, "runs/"+id, nil)))
	if w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	return w.Body.String()
}

// TestRun_SeveralPages_ShareReading shows the page of a run that another page has read just now. The run is read again when
// this worker has begun or ended its work on it: that page would show the state before, and not refresh.
func TestRun_SeveralPages_ShareReading(t *testing.T) {
	t.Parallel()
	c, handler, store := newRunsConsole(t)
	run := client.Run{ID: client.NewRunID(), Verb: client.RunReplay, State: client.RunStopped, Note: "as stored"}
	store(run)
	shared, other := run, client.NewRunID()
	shared.Note = "as shared"
	want := func(what, id, text string, polls bool) {
		t.Helper()
		page := runPage(t, handler, id)
		if !strings.Contains(page, text) || strings.Contains(page, "data-poll") != polls || strings.Contains(page, "Cancel") != polls {
			t.Errorf("%s: without %q, or it refreshes itself and may be cancelled, want %t:\n%s", what, text, polls, page)
		}
	}
	share := func() {
		_, view := c.runs.view(run.ID)
		view.last.Store(&reading[*client.Run]{time.Now().Add(time.Hour), &shared})
	}
	want("first page", run.ID, "as stored", false)
	share()
	want("second page", run.ID, "as shared", false)
	_, end, err := c.runs.begin(run.ID)
	stacktest.Must(t, err)
	want("begun", run.ID, "as stored", true)
	share()
	want("in work", run.ID, "as shared", true)
	end()
	want("ended", run.ID, "as stored", false)
	share()
	run.ID = other
	store(run)
	want("another run", other, "as stored", false)
	for range 2 * viewsMax {
		if c.runs.view(client.NewRunID()); len(c.runs.views) > viewsMax {
			t.Fatalf("%d runs are kept", len(c.runs.views))
		}
	}
}

// TestRun_ManyResults_FailuresFirst shows a run with more results than a page has.
func TestRun_ManyResults_FailuresFirst(t *testing.T) {
	t.Parallel()
	_, handler, store := newRunsConsole(t)
	run := client.Run{
		ID: client.NewRunID(), Verb: client.RunReplay, State: client.RunDone, Total: 452,
		Counts: map[string]int{holds.EventHoldCreated: 450, client.ReplayNoOutcome: 1, client.ReplayFailed: 1},
	}
	for seq := range uint64(450) {
		run.Results = append(run.Results, client.RunResult{Seq: seq + 1, EventID: "good", Result: holds.EventHoldCreated})
	}
	run.Results = append(run.Results, client.RunResult{Seq: 451, EventID: "later", Result: client.ReplayNoOutcome},
		client.RunResult{Seq: 452, EventID: "bad", Result: client.ReplayFailed})
	store(run)
	page := runPage(t, handler, run.ID)
	bad, later, good := strings.Index(page, ">bad<"), strings.Index(page, ">later<"), strings.Index(page, ">good<")
	if !strings.Contains(page, "200 of 452 results, failures first") || bad < 0 || bad > later || later > good ||
		strings.Count(page, ">good<") != resultsShown-2 {
		t.Errorf("%s", page)
	}
}

// TestResumeRun_TooManyDeadLetters_NamesCommand resumes a run with as many dead letters as a run of the console may have, and
// one with one more. A worker would read them all. The first one fails later: there is no stream of dead letters.
func TestResumeRun_TooManyDeadLetters_NamesCommand(t *testing.T) {
	t.Parallel()
	c, handler, store := newRunsConsole(t)
	key, err := c.key()
	stacktest.Must(t, err)
	for total, status := range map[int]int{runSeqsMax: http.StatusServiceUnavailable, runSeqsMax + 1: http.StatusBadRequest} {
		run := client.Run{ID: client.NewRunID(), Verb: client.RunReplay, State: client.RunStopped, Total: total}
		store(run)
		s := newSession("ana")
		r := newRequest(t, http.MethodPost, "runs/"+run.ID+"/resume", url.Values{"csrf": {sign(key, formPrefix+s.Nonce)}})
		r.AddCookie(cookieOf(t, c, s))
		w := answerTo(handler, r)
		if hint := strings.Contains(w.Body.String(), "publisher dlq replay --run "+run.ID); w.Code != status ||
			hint != (status == http.StatusBadRequest) {
			t.Errorf("%d dead letters: status %d\n%s", total, w.Code, w.Body)
		}
	}
}
