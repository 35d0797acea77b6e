package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestResumeRun_ProcessLost_ContinuesRun records a part of a run, and resumes it in another
// process.
func TestResumeRun_ProcessLost_ContinuesRun(t *testing.T) {
	t.Parallel()
	c := newHarness(t).deadLetters()
	seqs := make([]uint64, 2*runSeqsMax+3)
	for i := range seqs {
		seqs[i] = uint64(10 + 3*i)
	}
	log, err := c.StartRun(t.Context(), Run{
		Verb: RunReplay, Operator: "ann@desk", Note: "fixed", Filter: &DeadLetterFilter{UserID: "u"}, Keep: true,
	}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	results := func(seqs []uint64, result string) (results []RunResult) {
		for _, seq := range seqs {
			results = append(results, RunResult{Seq: seq, EventID: fmt.Sprint(seq), Result: result})
		}
		return results
	}
	first := results(seqs[:RunResultsMax], "hold.created")
	if err := log.Record(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	run, err := c.GetRun(t.Context(), log.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	if run.State != RunUnfinished || run.Total != len(seqs) || run.Processed() != RunResultsMax ||
		run.Operator != "ann@desk" || run.Note != "fixed" || run.Filter.UserID != "u" || !run.Keep ||
		!slices.Equal(run.Seqs, seqs) || !reflect.DeepEqual(run.Results, first) || run.StartedAt.IsZero() {
		t.Errorf("unfinished run %+v", run)
	}

	// A dead letter that failed is processed again, and its later result counts.
	if err := log.Record(t.Context(), results(seqs[RunResultsMax:RunResultsMax+1], ReplayFailed)); err != nil {
		t.Fatal(err)
	}
	later, err := c.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil || !slices.Equal(later.Left, seqs[RunResultsMax:]) {
		t.Fatalf("%v: %d dead letters are left, want %d", err, len(later.Left), len(seqs)-RunResultsMax)
	}
	// The first process is alive after all: its next record fails.
	if err := log.Record(t.Context(), first); !errors.Is(err, ErrRunLocked) {
		t.Errorf("record of the first process: error %v, want ErrRunLocked", err)
	}
	if err := later.Record(t.Context(), results(later.Left[:2], ReplayDeadLettered)); err != nil {
		t.Error(err)
	}
	if err := later.End(t.Context(), RunDone); err != nil {
		t.Error(err)
	}
	run, err = c.GetRun(t.Context(), log.Run.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(first, results(later.Left[:2], ReplayDeadLettered))
	if run.State != RunDone || run.Processed() != len(want) || !reflect.DeepEqual(run.Results, want) {
		t.Errorf("finished run %s with %v: %+v", run.State, run.Counts, run.Results)
	}
	if _, err := c.ResumeRun(t.Context(), log.Run.ID, nil); !errors.Is(err, ErrRunOver) {
		t.Errorf("resume of a finished run: error %v, want ErrRunOver", err)
	}
	other, err := c.StartRun(t.Context(), Run{Verb: RunDiscard}, seqs[:1])
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"!bad", `{"stream":"S","seq":1}`} { // the second one is a PubAck
		if _, err := c.js.Publish(t.Context(), c.ns.Run("stranger"+body[:1]), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	listed, strange, err := c.ListRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(strange) != 2 || !strings.Contains(strange[1].Error(), "remove it with nats stream rmm "+c.ns.RunsStream()) {
		t.Errorf("what is no record of a run: %v", strange)
	}
	if len(listed) != 2 || listed[0].ID != log.Run.ID || listed[0].State != RunDone ||
		listed[0].Processed() != RunResultsMax+2 || listed[0].Counts[ReplayDeadLettered] != 2 ||
		listed[1].ID != other.Run.ID || listed[1].State != RunUnfinished {
		t.Errorf("listed runs %+v", listed)
	}
	if _, err := c.GetRun(t.Context(), "none"); !errors.Is(err, ErrRunNotFound) {
		t.Errorf("unknown run: error %v, want ErrRunNotFound", err)
	}
}

// TestGetRunSummary_ResumedRun_LaterResultsReplace reads a run with at most two results of each kind, before and after it was
// resumed. A result of the resumed run replaces the earlier one of its dead letter.
func TestGetRunSummary_ResumedRun_LaterResultsReplace(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	log, err := h.deadLetters().StartRun(t.Context(), Run{Verb: RunReplay, Note: "why"}, []uint64{1, 2, 3, 4, 5, 6, 7})
	if err != nil {
		t.Fatal(err)
	}
	record := func(results ...RunResult) {
		t.Helper()
		if err := log.Record(t.Context(), results); err != nil {
			t.Fatal(err)
		}
	}
	of := func(seq uint64, result string) RunResult { return RunResult{Seq: seq, Result: result} }
	want := func(counts map[string]int, results ...RunResult) {
		t.Helper()
		run, err := h.client.GetRunSummary(t.Context(), log.Run.ID, 2)
		if err != nil || run.Note != "why" || run.Total != 7 || run.Seqs != nil || !maps.Equal(run.Counts, counts) ||
			!slices.Equal(run.Results, results) {
			t.Errorf("%v: run %+v, want %v and %v", err, run, counts, results)
		}
	}
	const created = holds.EventHoldCreated
	record(of(1, created), of(2, ReplayFailed), of(3, ReplayFailed), of(4, ReplayFailed))
	record(of(5, ReplayDeadLettered))
	want(map[string]int{created: 1, ReplayFailed: 3, ReplayDeadLettered: 1},
		of(1, created), of(2, ReplayFailed), of(3, ReplayFailed), of(5, ReplayDeadLettered))
	if log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil); err != nil {
		t.Fatal(err)
	}
	record(of(2, created), of(4, ReplayFailed), of(6, created))
	want(map[string]int{created: 3, ReplayFailed: 1, ReplayDeadLettered: 1},
		of(1, created), of(2, created), of(3, ReplayFailed), of(5, ReplayDeadLettered), of(4, ReplayFailed))
	if run, err := h.client.GetRunSummary(t.Context(), "none", 2); !errors.Is(err, ErrRunNotFound) {
		t.Errorf("unknown run: %v, %v", run, err)
	}
}

// TestListRuns_SeveralRecordsOfRuns_LastOnesInOrder lists runs of which several records come, one between those of others.
// On different subjects, because NATS sends only the last of each.
func TestListRuns_SeveralRecordsOfRuns_LastOnesInOrder(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	for i, id := range []string{"a", "b", "a", "c", "b", "d", "a"} {
		h.publish(h.ns.Run(fmt.Sprint(i)), nil, fmt.Sprintf(`{"run_id":%q,"verb":"edit","letters":%d,"seqs":[1]}`, id, i))
	}
	runs, strange, err := h.client.ListRuns(t.Context())
	if err != nil || len(strange) > 0 {
		t.Fatal(err, strange)
	}
	var got []string
	for _, run := range runs {
		got = append(got, fmt.Sprint(run.ID, run.Total, run.Seqs))
	}
	if want := []string{"c3 []", "b4 []", "d5 []", "a6 []"}; !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}

// TestResumeRun_InterruptedBeforeOutcome_IsFound interrupts a replay whose event is stored and not decided. Resumed, the
// run finds the outcome; of an event that is no longer stored it keeps the result. No event is published twice.
func TestResumeRun_InterruptedBeforeOutcome_IsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ keep, removed bool }{
		"outcome after the interruption": {}, "dead letter kept": {keep: true},
		"event removed": {removed: true}, "event removed, dead letter kept": {keep: true, removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.setFault(context.DeadlineExceeded)
			seq := h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
			d := h.deadLetters()
			run := Run{Verb: RunReplay, Keep: c.keep, Limits: &RunLimits{StopOnFailures: 100}}
			log, err := d.StartRun(t.Context(), run, []uint64{seq})
			if err != nil {
				t.Fatal(err)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			var executing sync.WaitGroup
			executing.Go(func() {
				if err := log.Execute(ctx, d.ReplayWork(log, generous), func(int) {}); err != nil {
					t.Error(err)
				}
			})
			stacktest.Eventually(t, "the event to be processed", func() bool { return h.decidedCount("k") > 0 })
			interrupt()
			executing.Wait()
			want := RunResult{Seq: seq, EventID: "k", Result: ReplayNoOutcome}
			if got := h.results(log.Run.ID); !slices.Equal(got, []RunResult{want}) {
				t.Fatalf("interrupted: %+v, want %+v", got, want)
			}
			if c.removed {
				if err := h.inboundStream().Purge(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				want.Result, want.Reason = holds.EventHoldRejected, "echo"
			}
			h.setFault(nil)
			log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil)
			if err != nil || !slices.Equal(log.Left, []uint64{seq}) {
				t.Fatalf("resumed: error %v, dead letters %v, want %d", err, log.Left, seq)
			}
			if err := log.Execute(t.Context(), d.ReplayWork(log, generous), func(int) {}); err != nil {
				t.Error(err)
			}
			if got := h.results(log.Run.ID); !slices.Equal(got, []RunResult{want}) || log.Run.IsOver() == c.removed {
				t.Errorf("resumed: %+v, want %+v; it is over: %t", got, want, log.Run.IsOver())
			}
			if last := h.inboundStream().CachedInfo().State.LastSeq; last != 1 {
				t.Errorf("%d events were published, want 1", last)
			}
		})
	}
}

// TestResumeRun_EarlierProcessAlive_FindsItsResults resumes a run whose process is alive: it replays one more dead letter
// after the resumed run has begun. Another operator removes one too: that one is gone.
func TestResumeRun_EarlierProcessAlive_FindsItsResults(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
	var seqs []uint64
	for _, key := range []string{"k1", "k2", "k3", "k4"} {
		seqs = append(seqs, h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed(key)))
	}
	log, err := d.StartRun(t.Context(), Run{Verb: RunReplay, Limits: &RunLimits{StopOnFailures: 100}}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	alive := &replayer{DeadLetters: d, timeout: generous}
	h.replay(alive, seqs[0], "", false)
	log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	log.earlierEnds = time.Now().Add(generous)
	work := d.ReplayWork(log, generous)
	answered := func(id string) RunResult {
		return RunResult{EventID: id, Result: holds.EventHoldRejected, Reason: "echo"}
	}
	for i, c := range []struct {
		meanwhile func()
		want      RunResult
	}{
		{func() {}, answered("k1")},
		{func() { h.replay(alive, seqs[1], "", false) }, answered("k2")},
		{func() { err = d.Remove(t.Context(), seqs[2]) }, RunResult{Result: ReplayNotFound}},
		{func() { h.replay(alive, seqs[3], "", false) }, answered("k4")},
	} {
		c.meanwhile()
		finish, starting := work(t.Context(), seqs[i])
		if err := errors.Join(err, starting); err != nil {
			t.Fatal(err)
		}
		c.want.Seq = seqs[i]
		if got := finish(t.Context()); got != c.want {
			t.Errorf("dead letter %d: %+v, want %+v", i+1, got, c.want)
		}
	}
	if last := h.inboundStream().CachedInfo().State.LastSeq; last != 3 {
		t.Errorf("%d events were published, want 3", last)
	}
}

// TestResumeRun_EarlierProcessAliveDeadLetterStays_PublishedOnce resumes a run whose process is alive: that one stores the
// event of a dead letter, which stays, after the resumed run has begun. JetStream no longer knows the message id.
func TestResumeRun_EarlierProcessAliveDeadLetterStays_PublishedOnce(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"kept": true, "not removed yet": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			d := h.deadLetters()
			var seqs []uint64
			for _, key := range []string{"k1", "k2"} {
				seqs = append(seqs, h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed(key)))
			}
			log, err := d.StartRun(t.Context(), Run{Verb: RunReplay, Keep: keep, Limits: &RunLimits{StopOnFailures: 100}}, seqs)
			if err != nil {
				t.Fatal(err)
			}
			variant := ""
			if keep {
				variant = log.Run.ID
			}
			log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			log.earlierEnds = time.Now().Add(generous)
			alive, work := &replayer{DeadLetters: d, timeout: generous}, d.ReplayWork(log, generous)
			for i, seq := range seqs {
				if i > 0 { // the resumed run has read the inbound stream before
					h.replay(alive, seq, variant, true)
					h.awaitDuplicateWindowOver()
				}
				finish, err := work(t.Context(), seq)
				if err != nil {
					t.Fatal(err)
				}
				want := RunResult{Seq: seq, EventID: fmt.Sprint("k", i+1), Result: holds.EventHoldRejected, Reason: "echo"}
				if got := finish(t.Context()); got != want {
					t.Errorf("dead letter %d: %+v, want %+v", i+1, got, want)
				}
				if _, err := d.Get(t.Context(), seq); errors.Is(err, ErrDeadLetterNotFound) == keep {
					t.Errorf("read dead letter %d: error %v", i+1, err)
				}
			}
			if last := h.inboundStream().CachedInfo().State.LastSeq; last != 2 {
				t.Errorf("%d events were published, want 2", last)
			}
		})
	}
}

// TestResumeRun_EarlierProcessEnded_ReadsInboundStreamOnce resumes a run whose process cannot be alive any longer. Its dead
// letters are gone: it does not read the inbound stream on for each.
func TestResumeRun_EarlierProcessEnded_ReadsInboundStreamOnce(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	d := h.deadLetters()
	log, err := d.StartRun(t.Context(), Run{Verb: RunReplay, Limits: &RunLimits{StopOnFailures: 100}}, []uint64{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil); err != nil {
		t.Fatal(err)
	}
	log.earlierEnds = time.Now()
	wantOneReader := h.countReaders(h.ns.InStream())
	work := d.ReplayWork(log, generous)
	for seq := range uint64(3) {
		h.publish(h.ns.In(events.BookingRequested, "room"), nil, keyed("other"))
		finish, err := work(t.Context(), seq+1)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := finish(t.Context()), (RunResult{Seq: seq + 1, Result: ReplayNotFound}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	wantOneReader()
}

// results returns the recorded results of a run.
func (h *harness) results(id string) []RunResult {
	h.t.Helper()
	run, err := h.client.GetRun(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return run.Results
}

// TestResumeRun_StreamCreatedAgain_IsRefused deletes the stream of dead letters and creates it again after a run was
// interrupted. The sequences of the run are those of other dead letters now.
func TestResumeRun_StreamCreatedAgain_IsRefused(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	log, err := h.deadLetters().StartRun(t.Context(), Run{Verb: RunReplay}, []uint64{1})
	if err != nil {
		t.Fatal(err)
	}
	stacktest.RecreateStream(t, h.js, h.ns.DLQStream())
	resumed, err := h.client.ResumeRun(t.Context(), log.Run.ID, nil)
	if !errors.Is(err, ErrRunStream) || resumed != nil {
		t.Errorf("%v, %v, want %v", resumed, err, ErrRunStream)
	}
}

// TestStartRun_StreamCreatedAgain_IsRefused deletes the stream of dead letters and creates it again after an operator has
// chosen one of them, and before the confirmation. Nothing is recorded, and the new dead letter stays.
func TestStartRun_StreamCreatedAgain_IsRefused(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	d := h.deadLetters()
	h.publish(h.ns.DLQ(events.ReasonMalformed), nil, "chosen")
	chosen := seqsOf(t, d, DeadLetterFilter{}, false)
	stacktest.RecreateStream(t, h.js, h.ns.DLQStream())
	h.publish(h.ns.DLQ(events.ReasonMalformed), nil, "never seen")
	log, err := d.StartRun(t.Context(), Run{Verb: RunDiscard}, chosen)
	if !errors.Is(err, ErrRunStream) || log != nil {
		t.Errorf("run %v, error %v, want %v", log, err, ErrRunStream)
	}
	if runs, _, err := h.client.ListRuns(t.Context()); err != nil || len(runs) != 0 {
		t.Errorf("%v: recorded runs %v", err, runs)
	}
}

// TestResumeRun_KilledBeforeStart_IsError resumes a run whose dead letters were not all recorded.
func TestResumeRun_KilledBeforeStart_IsError(t *testing.T) {
	t.Parallel()
	c := newHarness(t).client
	log := &RunLog{c: c, Run: Run{ID: "half", Verb: RunReplay, Total: 2}}
	if err := log.write(t.Context(), []uint64{1}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResumeRun(t.Context(), "half", nil); !errors.Is(err, ErrRunNotStarted) {
		t.Errorf("error %v, want ErrRunNotStarted", err)
	}
}

// TestResumeRun_RecordRefused_ReturnsNoRun resumes a run while NATS stores no more records. The caller gets no run that
// it could process without a record.
func TestResumeRun_RecordRefused_ReturnsNoRun(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	log, err := h.deadLetters().StartRun(t.Context(), Run{Verb: RunReplay}, []uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	h.updateStream(h.ns.RunsStream(), func(c *jetstream.StreamConfig) {
		c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew // the record of the start
	})
	if resumed, err := h.client.ResumeRun(t.Context(), log.Run.ID, nil); err == nil || resumed != nil {
		t.Errorf("error %v, and the run %v", err, resumed)
	}
}

// TestRunLog_ReplyLost_RecordedOnce loses the reply to a record that is stored. The run continues, with each result
// once.
func TestRunLog_ReplyLost_RecordedOnce(t *testing.T) {
	t.Parallel()
	direct := newStreams(t)
	url, proxy := stacktest.ProxyTo(t, stacktest.Shared().NATSURL)
	c := newHarnessWithoutStreams(t, url, direct.ns).deadLetters()
	log, err := c.StartRun(t.Context(), Run{Verb: RunDiscard}, []uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Drop(stacktest.DropRule{Words: []string{direct.ns.Run(log.Run.ID)}})
	if err := log.Record(t.Context(), []RunResult{{Seq: 1, Result: Discarded}}); err != nil || proxy.Dropped() != 1 {
		t.Errorf("record: error %v, %d replies were dropped", err, proxy.Dropped())
	}
	if err := log.Record(t.Context(), []RunResult{{Seq: 2, Result: Discarded}}); err != nil {
		t.Error(err)
	}
	if err := log.End(t.Context(), RunDone); err != nil {
		t.Error(err)
	}
	run, err := direct.client.GetRun(t.Context(), log.Run.ID)
	if err != nil || run.State != RunDone || run.Processed() != 2 || len(run.Results) != 2 {
		t.Errorf("%v: run %+v", err, run)
	}
}

// TestRunLog_StreamWithoutLeader_WaitsForOne records a result while the stream of runs does not answer, as when its
// leader has just ended.
func TestRunLog_StreamWithoutLeader_WaitsForOne(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	c := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, h.ns)
	log, err := c.deadLetters().StartRun(t.Context(), Run{Verb: RunDiscard}, []uint64{1})
	if err != nil {
		t.Fatal(err)
	}
	subject := func(name string) {
		t.Helper()
		h.updateStream(h.ns.RunsStream(), func(c *jetstream.StreamConfig) { c.Subjects = []string{name} })
	}
	subject("elsewhere." + string(h.ns))
	before := c.nc.Stats().OutMsgs
	recorded := make(chan error, 1)
	go func() { recorded <- log.Record(t.Context(), []RunResult{{Seq: 1, Result: Discarded}}) }()
	stacktest.Eventually(t, "more attempts than nats.go makes", func() bool {
		return c.nc.Stats().OutMsgs > before+jetstream.DefaultPubRetryAttempts+1 || len(recorded) > 0
	})
	subject(h.ns.AllRuns())
	if err := <-recorded; err != nil {
		t.Error(err)
	}
	if run, err := h.client.GetRun(t.Context(), log.Run.ID); err != nil || run.Processed() != 1 {
		t.Errorf("%v: run %+v", err, run)
	}
}

// TestRunLog_LongEventIDs_AreRecorded records results that are together larger than a message may be: the ids of events
// come from their publishers.
func TestRunLog_LongEventIDs_AreRecorded(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	log, err := h.deadLetters().StartRun(t.Context(), Run{Verb: RunReplay}, make([]uint64, RunResultsMax))
	if err != nil {
		t.Fatal(err)
	}
	results := make([]RunResult, RunResultsMax)
	for i := range results {
		results[i] = RunResult{Seq: uint64(i + 1), EventID: strings.Repeat("i", 60<<10), Result: ReplayDeadLettered}
	}
	if err := log.Record(t.Context(), results); err != nil {
		t.Error(err)
	}
	run, err := h.client.GetRun(t.Context(), log.Run.ID)
	if err != nil || run.Processed() != RunResultsMax || !slices.Equal(run.Results, results) {
		t.Errorf("%v: %d results, counts %v", err, len(run.Results), run.Counts)
	}
}
