package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// mixed is what a morgue is filled with.
type mixed struct {
	good    map[string]struct{} // ids of events that are fine now
	failing []uint64            // letters whose events die again
	total   int
}

// storeMixedDeadLetters parks letters of all kinds: three of five would be granted now, the others die again.
func (m *harness) storeMixedDeadLetters(number int) mixed {
	m.t.Helper()
	all := mixed{good: make(map[string]struct{}), total: number}
	in := m.ns.In(events.BookingRequested, "loft")
	futures := make([]jetstream.PubAckFuture, number)
	for i := range number {
		user := "u" + strconv.Itoa(i)
		deadLetter := nats.NewMsg(m.ns.DLQ(events.ReasonPoison))
		deadLetter.Data = []byte(booking("loft", user))
		deadLetter.Header.Set(events.HeaderDLQSubject, in)
		switch i % 5 {
		case 1:
			deadLetter.Subject, deadLetter.Data = m.ns.DLQ(events.ReasonMalformed), []byte("no JSON "+user)
			all.failing = append(all.failing, uint64(i+1))
		case 3:
			deadLetter.Subject = m.ns.DLQ(events.ReasonSubjectMismatch)
			deadLetter.Header.Set(events.HeaderDLQSubject, m.ns.In(events.BookingRequested, "attic"))
			all.failing = append(all.failing, uint64(i+1))
		default:
			all.good["e-"+user] = struct{}{}
		}
		var err error
		if futures[i], err = m.js.PublishMsgAsync(deadLetter); err != nil {
			m.t.Fatal(err)
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			m.t.Fatal(err)
		}
	}
	return all
}

// program starts this program as a process of its own in the namespace.
func (m *harness) program(env string, args ...string) (cmd *exec.Cmd, wait func() (out string, err error)) {
	m.t.Helper()
	cmd = exec.Command(publisherBinary, m.command(args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(cmd.Environ(), env)
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	wait = sync.OnceValues(func() (string, error) {
		err := cmd.Wait()
		return out.String(), err
	})
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_, _ = wait()          // killed
	})
	return cmd, wait
}

// killed reports whether a process was killed.
func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// deadLetterCount is how many dead letters there are.
func (m *harness) deadLetterCount() uint64 {
	m.t.Helper()
	stream, err := m.js.Stream(m.t.Context(), m.ns.DLQStream())
	if err != nil {
		m.t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

var deadLettersKilled = flag.Int("letters", 2000, "how many dead letters TestReplay_Killed_ResumedOneOutcomeEach replays, a multiple of 5")

// TestReplay_Killed_ResumedOneOutcomeEach replays many letters of all kinds, kills the replay half-way, and goes on with
// it: every event that is fine now has one outcome and takes one hold, every other one is a
// letter again, and the run tells of each.
func TestReplay_Killed_ResumedOneOutcomeEach(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	m := newHarness(t)
	number := *deadLettersKilled
	all := m.storeMixedDeadLetters(number)
	m.startWorker()
	m.run("inventory", "set", "--resource-id", "loft", "--capacity", strconv.Itoa(number), "--wait").want(t, exitOK)

	if got := len(m.deadLetters()); got != number {
		t.Fatalf("%d letters are listed, want %d", got, number)
	}
	m.run("dlq", "stats").want(t, exitOK, fmt.Sprintf("poison %16d", number*3/5), fmt.Sprintf("malformed %13d", number/5), fmt.Sprintf("subject_mismatch %6d", number/5))

	replay, wait := m.program("", "dlq", "replay", "--all", "--rate", strconv.Itoa(number/4), "--stop-on-failures", "100%", "--note", "mended", "--yes")
	stacktest.Eventually(t, "some to be recorded", func() bool {
		r := m.run("dlq", "runs", "-o", "json")
		var list []client.Run
		return json.Unmarshal([]byte(r.out), &list) == nil && len(list) == 1 && list[0].Processed() > number/10
	})
	if err := replay.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if out, err := wait(); !killed(err) {
		t.Fatalf("the replay ended before it was killed: %v\n%s", err, out)
	}
	m.run("dlq", "runs").want(t, exitOK, "unfinished")
	before := m.lastRun()
	if before.State != client.RunUnfinished || before.Total != number || before.Processed() == number || len(before.Results) != before.Processed() {
		t.Errorf("the killed run: %s, %d of %d", before.State, before.Processed(), before.Total)
	}

	m.run("dlq", "replay", "--run", before.ID, "--rate", "0", "--stop-on-failures", "100%", "--yes").want(t, exitDeadLettered, fmt.Sprintf("replay of %d dead letters: done, %[1]d ended", number))
	run := m.lastRun()
	recorded := make(map[uint64]string)
	for _, r := range run.Results {
		if earlier, twice := recorded[r.Seq]; twice {
			t.Errorf("letter %d has two results, %s and %s", r.Seq, earlier, r.Result)
		}
		recorded[r.Seq] = r.Result
	}
	if run.ID != before.ID || run.State != client.RunDone || len(recorded) != number || run.Note != "mended" {
		t.Errorf("run %s: %s, results of %d letters", run.ID, run.State, len(recorded))
	}
	// What was under way when the replay was killed is not known, but done: it is gone, or the
	// stream had it already.
	unknown := run.Counts[client.ReplayNotFound] + run.Counts[client.ReplayDuplicate]
	if known := run.Counts[holds.EventHoldCreated] + run.Counts[client.ReplayDeadLettered]; known+unknown != number || unknown > deadLettersInFlightMax+client.RunResultsMax {
		t.Errorf("results %v", run.Counts)
	}

	m.awaitIdle()
	outcomes := m.outcomes()
	for id := range all.good {
		if outcomes[id] != 1 {
			t.Errorf("event %s has %d outcomes", id, outcomes[id])
		}
	}
	if want := len(all.good) + 1; len(outcomes) != want { // and that of inventory.set
		t.Errorf("%d events have outcomes, want %d", len(outcomes), want)
	}
	if got := m.heldQuantity("loft"); got != int64(len(all.good)) {
		t.Errorf("%d are held, want %d", got, len(all.good))
	}
	if got := m.deadLetterCount(); got != uint64(len(all.failing)) {
		t.Errorf("%d letters are left, want those that died again, %d", got, len(all.failing))
	}
}

// awaitIdle waits until the worker has nothing left to do.
func (m *harness) awaitIdle() {
	m.t.Helper()
	stacktest.Eventually(m.t, "the worker to come to rest", func() bool {
		consumer, err := m.js.Consumer(m.t.Context(), m.ns.InStream(), events.ConsumerRequests)
		if err != nil {
			m.t.Fatal(err)
		}
		info := consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
}

// heldQuantity is what live holds take of a resource's stock.
func (m *harness) heldQuantity(resource string) int64 {
	m.t.Helper()
	answer, err := m.nc.Request(m.ns.Service(events.EndpointAvailability), []byte(`{"resource_id":"`+resource+`"}`), time.Minute)
	if err != nil {
		m.t.Fatal(err)
	}
	var a events.Availability
	if err := json.Unmarshal(answer.Data, &a); err != nil || len(a.Slots) != 1 {
		m.t.Fatalf("%v: %s", err, answer.Data)
	}
	return a.Slots[0].Held
}

// TestReplay_KilledBetweenSteps_NothingTwice kills a replay when an event is stored and its letter is still
// there, and when the letter is removed and nothing is recorded. Going on does nothing twice.
func TestReplay_KilledBetweenSteps_NothingTwice(t *testing.T) {
	t.Parallel()
	for place, want := range map[string]string{"replay.stored": client.ReplayDuplicate, "replay.removed": client.ReplayNotFound} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			m := newHarness(t)
			m.startWorker()
			m.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
			m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
			_, wait := m.program("HOLDFAST_FAILPOINT="+place, "dlq", "replay", "1", "--yes")
			if out, err := wait(); !killed(err) {
				t.Fatalf("it came not to its failpoint: %v\n%s", err, out)
			}
			run := m.lastRun()
			m.run("dlq", "replay", "--run", run.ID, "--yes").want(t, exitOK, want)
			m.run("dlq", "replay", "--run", run.ID, "--yes").want(t, exitOK, want) // nothing is left
			m.awaitIdle()
			if got := m.outcomes()["e-ann"]; got != 1 || m.heldQuantity("loft") != 1 || m.deadLetterCount() != 0 {
				t.Errorf("%d outcomes, %d held, %d letters", got, m.heldQuantity("loft"), m.deadLetterCount())
			}
			stream, err := m.js.Stream(t.Context(), m.ns.InStream())
			if err != nil {
				t.Fatal(err)
			}
			if got := stream.CachedInfo().State.Msgs; got != 2 {
				t.Errorf("%d events were stored, want the inventory and the one that was replayed", got)
			}
		})
	}
}

// TestReplay_KeptDeadLetterTwice_OneHold replays a letter that is kept, again and again: each time the event
// is decided, and the request key has it answered once.
func TestReplay_KeptDeadLetterTwice_OneHold(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	m.startWorker()
	m.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
	for range 3 {
		m.run("dlq", "replay", "1", "--keep", "--yes").want(t, exitOK, "hold.created")
	}
	m.run("dlq", "replay", "1", "--yes").want(t, exitOK, "hold.created")
	if got := m.outcomes()["e-ann"]; got != 1 || m.heldQuantity("loft") != 1 || m.deadLetterCount() != 0 {
		t.Errorf("%d outcomes, %d held, %d letters", got, m.heldQuantity("loft"), m.deadLetterCount())
	}
}

// TestReplay_TooManyFailures_Stops stops when too many die again, and goes on when told to.
func TestReplay_TooManyFailures_Stops(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	const number = 300
	for range number {
		m.storeDeadLetter(events.ReasonMalformed, "", m.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	m.startWorker()
	r := m.run("dlq", "replay", "--all", "--rate", "500", "--yes").want(t, exitFailed, "stopped, because", "more than 20%", "to go on: publisher dlq replay --run ")
	run := m.lastRun()
	if run.State != client.RunStopped || run.Processed() < failuresMin || run.Processed() == number || !strings.Contains(r.errOut, run.ID) {
		t.Errorf("%s after %d of %d\n%s", run.State, run.Processed(), number, r.errOut)
	}
	if got := m.deadLetterCount(); got != number { // each died again or was not touched
		t.Errorf("%d letters, want %d", got, number)
	}
	m.run("dlq", "replay", "--run", run.ID, "--rate", "0", "--stop-on-failures", "100%", "--yes").want(t, exitDeadLettered, "done, 300 ended")
}

// TestReplay_RunResumed_KeepsLimits interrupts a replay that does one event in hours, and goes on with it: without
// a word about limits that is as slow, and stops at the same share.
func TestReplay_RunResumed_KeepsLimits(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	m := newHarness(t)
	const number = 400 // far more than are worked on at a time
	for range number {
		m.storeDeadLetter(events.ReasonMalformed, "", m.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	published := func() uint64 {
		t.Helper()
		stream, err := m.js.Stream(t.Context(), m.ns.InStream())
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.LastSeq
	}
	before := published()
	ends := func(want uint64, args ...string) {
		t.Helper()
		replay, wait := m.program("", append([]string{"dlq", "replay", "--yes"}, args...)...)
		stacktest.Eventually(t, "an event to be published again", func() bool { return published()-before >= want })
		m.run("dlq", "runs").want(t, exitOK) // time for more to be published
		if err := replay.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if out, err := wait(); err == nil || !strings.Contains(out, "interrupted") || !strings.Contains(out, "0.0001 a second, stops above 5% failures") {
			t.Errorf("it ended with %v\n%s", err, out)
		}
		if got := published() - before; got != want {
			t.Errorf("%d events were published, want %d", got, want)
		}
	}
	ends(1, "--all", "--rate", "0.0001", "--stop-on-failures", "5%", "--timeout", "1s")
	ends(2, "--run", m.lastRun().ID, "--timeout", "1s")
	// A limit that is given replaces the one of the run.
	m.startWorker()
	m.run("dlq", "replay", "--run", m.lastRun().ID, "--rate", "0", "--yes").want(t, exitFailed, "more than 5%", "no rate, stops above 5% failures")
	m.run("dlq", "replay", "--run", m.lastRun().ID, "--yes").want(t, exitFailed, "more than 5%", "no rate, stops above 5% failures")
	m.run("dlq", "replay", "--run", m.lastRun().ID, "--yes", "--stop-on-failures", "100%").want(t, exitDeadLettered, "done, 400 ended")
}

// TestReplay_Interrupted_ResumeDoesRest ends a slow replay as Ctrl-C does, and does the rest.
func TestReplay_Interrupted_ResumeDoesRest(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	m.startWorker()
	m.run(words("inventory set --resource-id loft --capacity 500 --wait")...).want(t, exitOK)
	all := m.storeMixedDeadLetters(100)
	replay, wait := m.program("", "dlq", "replay", "--all", "--reason", "poison", "--rate", "10", "--yes")
	stacktest.Eventually(t, "the first to be replayed", func() bool { return m.deadLetterCount() < 100 })
	if err := replay.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if out, err := wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(out, "interrupted, after") || !strings.Contains(out, "to go on: publisher dlq replay --run ") {
		t.Errorf("it ended with %v, want %d\n%s", err, exitFailed, out)
	}
	run := m.lastRun()
	if run.State != client.RunStopped || run.Total != len(all.good) || run.Counts[holds.EventHoldCreated] != run.Processed() || run.Processed() == run.Total {
		t.Errorf("run %s, %d of %d: %v", run.State, run.Processed(), run.Total, run.Counts)
	}
	m.run("dlq", "replay", "--run", run.ID, "--rate", "0", "--yes", "-o", "ndjson").want(t, exitOK)
	if run := m.lastRun(); run.Counts[holds.EventHoldCreated] != len(all.good) || run.State != client.RunDone {
		t.Errorf("run %s: %v", run.State, run.Counts)
	}
	if seqs := m.seqs(); !slices.Equal(seqs, all.failing) {
		t.Errorf("letters %v, want those that were not meant, %v", seqs, all.failing)
	}
}

// TestReplay_Rate_IsNotExceeded is not faster than it was told to be.
func TestReplay_Rate_IsNotExceeded(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	for range 11 {
		m.storeDeadLetter(events.ReasonMalformed, "", m.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	m.startWorker()
	m.run("dlq", "replay", "--all", "--rate", "50", "--yes").want(t, exitDeadLettered)
	run := m.lastRun()
	if took := run.RecordedAt.Sub(run.StartedAt.Time); took < 200*time.Millisecond {
		t.Errorf("11 letters at 50/s took %v", took)
	}
}

// TestReplay_NoWorker_ReportsNoOutcome publishes, and no outcome comes.
func TestReplay_NoWorker_ReportsNoOutcome(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
	m.run("dlq", "replay", "1", "--yes", "--timeout", "5s", "-o", "json").want(t, exitReplyTimeout, `"result":"no_answer"`, "Does a worker run?")
	if m.deadLetterCount() != 0 {
		t.Error("the event is stored, and the letter is there")
	}
	m.storeDeadLetter(events.ReasonPoison, "", "elsewhere.in.x.y", booking("loft", "ann"))
	m.run("dlq", "replay", "2", "--yes").want(t, exitFailed, "1 dead letter failed", "is not below ", "to try again: publisher dlq replay --run ")
	m.run("dlq", "replay", "--run", m.lastRun().ID, "--yes").want(t, exitFailed, "done, 1 ended", "1 dead letter failed")
	if m.deadLetterCount() != 1 {
		t.Error("a letter that could not be replayed is gone")
	}
	m.run("dlq", "replay", "2", "--dry-run").want(t, exitOK, "cannot be replayed", "is not below")
	m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(events.BookingRequested, "loft"), booking("loft", "ben"))
	m.run("dlq", "replay", "--all", "--dry-run").want(t, exitFailed, "no worker answers", string(m.ns))
}

// fakeDryRunner is an Evaluator whose answers are told by the request keys.
type fakeDryRunner struct{ events.Service }

var fakeNow = holds.TimeFromMillis(1_800_000_000_000)

func (fakeDryRunner) Now(context.Context) (holds.Time, error) { return fakeNow, nil }

func (fakeDryRunner) GetHold(context.Context, holds.HoldID) (holds.HoldView, bool, error) {
	return holds.HoldView{}, false, nil
}

func (fakeDryRunner) Place(_ context.Context, requests []holds.PlaceRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		var n int
		if _, err := fmt.Sscanf(r.RequestKey, "k-u%d", &n); err != nil {
			emit(i, holds.Result{Err: context.DeadlineExceeded})
			continue
		}
		o := holds.Outcome{Event: holds.EventHoldCreated, Resource: r.Resource, At: fakeNow, Data: holds.HoldCreated{ExpiresAt: fakeNow}}
		if n%2 == 0 {
			o = holds.Outcome{Event: holds.EventHoldRejected, Resource: r.Resource, At: fakeNow, Data: holds.HoldRejected{Reason: holds.ReasonSoldOut}}
		}
		emit(i, holds.Result{Outcome: o})
	}
}

// serveDryRuns has evaluations answered until the test ends.
func (m *harness) serveDryRuns() {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := events.NewQueryService(m.nc, m.ns, nil, fakeDryRunner{}, "w1", zerolog.Nop()).Run(ctx); err != nil {
			m.t.Error(err)
		}
	})
	m.t.Cleanup(func() { cancel(); serving.Wait() })
	stacktest.Eventually(m.t, "the service to be found", func() bool {
		_, err := m.nc.Request("$SRV.PING."+string(m.ns), nil, time.Minute)
		return !errors.Is(err, nats.ErrNoResponders)
	})
}

// TestDryRun_ManyDeadLetters_ChangesNothing asks what would happen to many letters, and does nothing.
func TestDryRun_ManyDeadLetters_ChangesNothing(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	const number = 2000
	all := m.storeMixedDeadLetters(number)
	m.serveDryRuns()
	const counts = `
LETTERS  VERDICT                     OUTCOME
──────────────────────────────────────────────────
    600  sold out                    hold.rejected
    600  would hold                  hold.created
    400  still malformed
    400  still on the wrong subject
`
	r := m.run("dlq", "replay", "--all", "--dry-run")
	if r.code != exitOK || strings.Count(r.out, "\n") != number+9 || !strings.HasSuffix(r.out, counts) || !strings.HasPrefix(r.out, " SEQ  EVENT ") {
		t.Errorf("%d: %s\n%.2000s\n%s", r.code, r.errOut, r.out, r.out[max(0, len(r.out)-1000):])
	}
	m.run("dlq", "replay", "--all", "--dry-run", "--user-id", "u4", "-o", "wide").want(t, exitOK, "e-u4", "sold_out")
	r = m.run("dlq", "replay", "5", "--dry-run", "-o", "json").want(t, exitOK)
	if want := `[{"seq":5,"event_id":"e-u4","verdict":"sold out","event":"hold.rejected","reason":"sold_out","detail":""}]` + "\n"; r.out != want {
		t.Errorf("got %s, want %s", r.out, want)
	}
	m.run("dlq", "replay", "--all", "--dry-run", "--limit", "3", "-o", "ndjson").want(t, exitOK, `{"seq":2,"event_id":"","verdict":"still malformed"`)
	if got := m.deadLetterCount(); got != number || len(all.good) == 0 {
		t.Errorf("%d letters are left of %d", got, number)
	}
	stream, err := m.js.Stream(t.Context(), m.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != 0 {
		t.Errorf("a dry run has published %d events", got)
	}
	m.run("dlq", "runs").want(t, exitOK, "no runs")

	// What cannot be said is told as such, and the others are said nevertheless.
	m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(events.BookingRequested, "loft"), booking("loft", "odd"))
	m.run("dlq", "replay", "4", "5", "2001", "--dry-run").want(t, exitFailed, "not known", "503 unavailable", "sold out", "letter 2001")
}

// BenchmarkDLQ_TenThousand lists, counts, tries and replays 10,000 dead letters of all kinds.
func BenchmarkDLQ_TenThousand(b *testing.B) {
	const number = 10_000
	for b.Loop() {
		m := newHarness(b)
		m.storeMixedDeadLetters(number)
		step := func(name string, code int, args ...string) {
			began := time.Now()
			m.run(args...).want(b, code)
			b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-ms")
		}
		step("list", exitOK, "dlq", "list")
		step("list-of-one-user", exitOK, "dlq", "list", "--user-id", "u9999")
		step("stats", exitOK, "dlq", "stats")
		step("export", exitOK, "dlq", "export")
		m.startWorker()
		m.run("inventory", "set", "--resource-id", "loft", "--capacity", strconv.Itoa(number), "--wait").want(b, exitOK)
		step("dry-run", exitOK, "dlq", "replay", "--all", "--dry-run")
		step("replay", exitDeadLettered, "dlq", "replay", "--all", "--rate", "0", "--stop-on-failures", "100%", "--yes", "--timeout", "1m")
		step("discard", exitOK, "dlq", "discard", "--all", "--note", "n", "--yes")
	}
}
