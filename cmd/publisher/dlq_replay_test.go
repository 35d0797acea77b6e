package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
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
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// mixed is a set of stored dead letters.
type mixed struct {
	good    map[string]struct{} // ids of events that a replay grants
	failing []uint64            // dead letters whose events fail again
	total   int
}

// storeMixedDeadLetters stores dead letters of all kinds. A replay grants three of five; the others fail again.
func (h *harness) storeMixedDeadLetters(number int) mixed {
	h.t.Helper()
	all := mixed{good: make(map[string]struct{}), total: number}
	in := h.ns.In(events.BookingRequested, "loft")
	futures := make([]jetstream.PubAckFuture, number)
	for i := range number {
		user := "u" + strconv.Itoa(i)
		deadLetter := nats.NewMsg(h.ns.DLQ(events.ReasonPoison))
		deadLetter.Data = []byte(booking("loft", user))
		deadLetter.Header.Set(events.HeaderDLQSubject, in)
		switch i % 5 {
		case 1:
			deadLetter.Subject, deadLetter.Data = h.ns.DLQ(events.ReasonMalformed), []byte("no JSON "+user)
			all.failing = append(all.failing, uint64(i+1))
		case 3:
			deadLetter.Subject = h.ns.DLQ(events.ReasonSubjectMismatch)
			deadLetter.Header.Set(events.HeaderDLQSubject, h.ns.In(events.BookingRequested, "attic"))
			all.failing = append(all.failing, uint64(i+1))
		default:
			all.good["e-"+user] = struct{}{}
		}
		var err error
		if futures[i], err = h.js.PublishMsgAsync(deadLetter); err != nil {
			h.t.Fatal(err)
		}
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			h.t.Fatal(err)
		}
	}
	return all
}

// program starts this program as a process in the namespace.
func (h *harness) program(env string, args ...string) (cmd *exec.Cmd, wait func() (out string, err error)) {
	h.t.Helper()
	cmd = exec.Command(publisherBinary, h.command(args)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(cmd.Environ(), env)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	wait = sync.OnceValues(func() (string, error) {
		err := cmd.Wait()
		return out.String(), err
	})
	h.t.Cleanup(func() {
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

// deadLetterCount returns the number of dead letters.
func (h *harness) deadLetterCount() uint64 {
	h.t.Helper()
	stream, err := h.js.Stream(h.t.Context(), h.ns.DLQStream())
	if err != nil {
		h.t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

var deadLettersKilled = flag.Int("dead-letters", 2000,
	"how many dead letters TestReplay_Killed_ResumedOneOutcomeEach replays, a multiple of 5")

// TestReplay_Killed_ResumedOneOutcomeEach kills a replay of many dead letters half-way and resumes it. Every good
// event has one outcome and one hold, every other event is a dead letter again, and the run has a result for each.
func TestReplay_Killed_ResumedOneOutcomeEach(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	h := newHarness(t)
	number := *deadLettersKilled
	all := h.storeMixedDeadLetters(number)
	h.startWorker()
	h.run("inventory", "set", "--resource-id", "loft", "--capacity", strconv.Itoa(number), "--wait").want(t, exitOK)

	if got := len(h.deadLetters()); got != number {
		t.Fatalf("%d dead letters are listed, want %d", got, number)
	}
	h.run("dlq", "stats").want(t, exitOK, fmt.Sprintf("poison %16d", number*3/5), fmt.Sprintf("malformed %13d", number/5),
		fmt.Sprintf("subject_mismatch %6d", number/5))

	replay, wait := h.program("", "dlq", "replay", "--all", "--rate", strconv.Itoa(number/4), "--stop-on-failures", "100%",
		"--note", "fixed", "--yes")
	stacktest.Eventually(t, "some results to be recorded", func() bool {
		r := h.run("dlq", "runs", "-o", "json")
		var list []client.Run
		return json.Unmarshal([]byte(r.out), &list) == nil && len(list) == 1 && list[0].Processed() > number/10
	})
	if err := replay.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if out, err := wait(); !killed(err) {
		t.Fatalf("the replay ended before it was killed: %v\n%s", err, out)
	}
	h.run("dlq", "runs").want(t, exitOK, "unfinished")
	before := h.lastRun()
	if before.State != client.RunUnfinished || before.Total != number || before.Processed() == number ||
		len(before.Results) != before.Processed() {
		t.Errorf("the killed run: %s, %d of %d", before.State, before.Processed(), before.Total)
	}

	h.run("dlq", "replay", "--run", before.ID, "--rate", "0", "--stop-on-failures", "100%",
		"--yes").want(t, exitDeadLettered, fmt.Sprintf("replay of %d dead letters: done, %[1]d processed", number))
	run := h.lastRun()
	recorded := make(map[uint64]string)
	for _, r := range run.Results {
		if earlier, twice := recorded[r.Seq]; twice {
			t.Errorf("dead letter %d has two results, %s and %s", r.Seq, earlier, r.Result)
		}
		recorded[r.Seq] = r.Result
	}
	if run.ID != before.ID || run.State != client.RunDone || len(recorded) != number || run.Note != "fixed" {
		t.Errorf("run %s: %s, results of %d dead letters", run.ID, run.State, len(recorded))
	}
	// The dead letters in processing at the kill have no recorded result. Their outcomes are found in the streams.
	if run.Counts[holds.EventHoldCreated] != number*3/5 || run.Counts[client.ReplayDeadLettered] != number*2/5 {
		t.Errorf("results %v", run.Counts)
	}

	h.awaitIdle()
	outcomes := h.outcomes()
	for id := range all.good {
		if outcomes[id] != 1 {
			t.Errorf("event %s has %d outcomes", id, outcomes[id])
		}
	}
	if want := len(all.good) + 1; len(outcomes) != want { // and the one of inventory.set
		t.Errorf("%d events have outcomes, want %d", len(outcomes), want)
	}
	if got := h.heldQuantity("loft"); got != int64(len(all.good)) {
		t.Errorf("%d are held, want %d", got, len(all.good))
	}
	if got := h.deadLetterCount(); got != uint64(len(all.failing)) {
		t.Errorf("%d dead letters, want the %d whose events failed again", got, len(all.failing))
	}
}

// awaitIdle waits until the worker has processed all events.
func (h *harness) awaitIdle() {
	h.t.Helper()
	stacktest.Eventually(h.t, "the worker to be idle", func() bool {
		consumer, err := h.js.Consumer(h.t.Context(), h.ns.InStream(), events.ConsumerRequests)
		if err != nil {
			h.t.Fatal(err)
		}
		info := consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
}

// heldQuantity returns the held quantity of a resource's stock.
func (h *harness) heldQuantity(resource string) int64 {
	h.t.Helper()
	return h.run(words("inventory show -o json --resource-id " + resource)...).held(h.t)
}

// TestReplay_KilledBetweenSteps_NothingTwice kills a replay after an event is stored and before its dead letter is
// removed, and after that and before the result is recorded. Resuming does nothing twice, and reports what became of
// the event.
func TestReplay_KilledBetweenSteps_NothingTwice(t *testing.T) {
	t.Parallel()
	const want = holds.EventHoldCreated
	for _, place := range []string{"replay.stored", "replay.removed"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.startWorker()
			h.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
			h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
			_, wait := h.program("HOLDFAST_FAILPOINT="+place, "dlq", "replay", "1", "--yes")
			if out, err := wait(); !killed(err) {
				t.Fatalf("the failpoint was not reached: %v\n%s", err, out)
			}
			run := h.lastRun()
			h.run("dlq", "replay", "--run", run.ID, "--yes").want(t, exitOK, want)
			done := h.lastRun()
			h.run("dlq", "replay", "--run", run.ID, "--yes").want(t, exitOK, want, "run "+run.ID+" is done, nothing to resume")
			if again := h.lastRun(); !again.RecordedAt.Equal(done.RecordedAt.Time) {
				t.Errorf("the run was recorded at %s, and again at %s", done.RecordedAt, again.RecordedAt)
			}
			for _, flag := range []string{"--note=again", "--who=eve"} {
				h.run("dlq", "replay", "--run", run.ID, "--yes", flag).want(t, exitUsage, "who started it and why stay recorded")
			}
			h.awaitIdle()
			if got := h.outcomes()["e-ann"]; got != 1 || h.heldQuantity("loft") != 1 || h.deadLetterCount() != 0 {
				t.Errorf("%d outcomes, %d held, %d dead letters", got, h.heldQuantity("loft"), h.deadLetterCount())
			}
			stream, err := h.js.Stream(t.Context(), h.ns.InStream())
			if err != nil {
				t.Fatal(err)
			}
			if got := stream.CachedInfo().State.Msgs; got != 2 {
				t.Errorf("%d events are stored, want inventory.set and the replayed event", got)
			}
		})
	}
}

// TestReplay_KilledBetweenSteps_ExitCodeOfOutcome resumes killed replays of events that the worker does not grant. The
// exit code is that of the outcome, which the killed process never received.
func TestReplay_KilledBetweenSteps_ExitCodeOfOutcome(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 0 --wait")...).want(t, exitOK)
	in := h.ns.In(events.BookingRequested, "loft")
	for body, code := range map[string]int{booking("loft", "ann"): exitRejected, "no JSON": exitDeadLettered} {
		for _, place := range []string{"replay.stored", "replay.removed"} {
			seq := h.storeDeadLetter(events.ReasonPoison, "", in, body)
			_, wait := h.program("HOLDFAST_FAILPOINT="+place, "dlq", "replay", strconv.FormatUint(seq, 10), "--yes")
			if out, err := wait(); !killed(err) {
				t.Fatalf("the failpoint was not reached: %v\n%s", err, out)
			}
			h.run("dlq", "replay", "--run", h.lastRun().ID, "--yes").want(t, code, "done, 1 processed")
		}
	}
}

// fullDisk is an output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFullDisk_EachOutput_Fails prints to a full disk. The exit code says that the result is missing, also when the
// result has another code.
func TestFullDisk_EachOutput_Fails(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 0 --wait")...).want(t, exitOK)
	in := h.ns.In(events.BookingRequested, "loft")
	h.storeDeadLetter(events.ReasonPoison, "", in, booking("loft", "ann"))
	h.run("dlq", "replay", "1", "--keep", "--yes").want(t, exitRejected)
	for _, line := range []string{
		"dlq list", "dlq stats", "dlq show 1", "dlq runs", "dlq runs " + h.lastRun().ID, "dlq export",
		"dlq replay 1 --dry-run", "dlq replay 1 --keep --yes", "dlq replay --yes --run " + h.lastRun().ID,
		"inventory list", "inventory show --resource-id loft", "request --resource-id loft --user-id u --wait",
	} {
		for _, format := range []string{"table", "json"} {
			if line == "dlq export" {
				format = "ndjson"
			}
			var errOut bytes.Buffer
			code := run(t.Context(), h.command(append(words(line), "-o", format)), fullDisk{}, &errOut)
			if code != exitFailed || !strings.Contains(errOut.String(), syscall.ENOSPC.Error()) {
				t.Errorf("%s -o %s: exit code %d, want %d\n%s", line, format, code, exitFailed, errOut.String())
			}
		}
	}
}

// TestReplay_KeptDeadLetterTwice_OneHold replays a dead letter with --keep several times. Each time a worker
// processes the event, and its request key makes one hold.
func TestReplay_KeptDeadLetterTwice_OneHold(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 5 --wait")...).want(t, exitOK)
	h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
	for range 3 {
		h.run("dlq", "replay", "1", "--keep", "--yes").want(t, exitOK, "hold.created")
	}
	h.run("dlq", "replay", "1", "--yes").want(t, exitOK, "hold.created")
	if got := h.outcomes()["e-ann"]; got != 1 || h.heldQuantity("loft") != 1 || h.deadLetterCount() != 0 {
		t.Errorf("%d outcomes, %d held, %d dead letters", got, h.heldQuantity("loft"), h.deadLetterCount())
	}
}

// TestReplay_EventRejected_ExitCode replays and edits dead letters whose events are rejected. A dead
// letter whose event fails again has the stronger exit code.
func TestReplay_EventRejected_ExitCode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 0 --wait")...).want(t, exitOK)
	in := h.ns.In(events.BookingRequested, "loft")
	for _, user := range []string{"ann", "ben"} {
		h.storeDeadLetter(events.ReasonPoison, "", in, booking("loft", user))
	}
	h.run("dlq", "edit", "1", "--set-header", "X-Fixed=yes", "--yes").want(t, exitRejected, "hold.rejected")
	h.run("dlq", "replay", "2", "--yes").want(t, exitRejected, "hold.rejected")
	h.storeDeadLetter(events.ReasonPoison, "", in, booking("loft", "eve"))
	h.storeDeadLetter(events.ReasonMalformed, "", in, "no JSON")
	h.run("dlq", "replay", "3", "4", "--yes").want(t, exitDeadLettered, "hold.rejected", "dead_lettered: malformed")
}

// TestReplay_EventNotUTF8_IsRecorded replays a dead letter whose id is not UTF-8 together with another. The run
// has both results.
func TestReplay_EventNotUTF8_IsRecorded(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	in := h.ns.In(events.BookingRequested, "loft")
	h.send(in, nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"e\xff"}, "ce-source": {"/s"}, "ce-type": {events.Type(events.BookingRequested)}}, "{}")
	h.send(in, nil, "no JSON")
	stacktest.Eventually(t, "two dead letters", func() bool { return len(h.deadLetters()) == 2 })
	h.run("dlq", "replay", "--all", "--yes").want(t, exitDeadLettered, "done, 2 processed")
	h.run("dlq", "runs", h.lastRun().ID, "-o", "json").want(t, exitOK, `"event_id":"e`+"\uFFFD")
}

// TestReplay_TooManyFailures_Stops stops when too many events fail again, and resumes with another limit.
func TestReplay_TooManyFailures_Stops(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const number = 300
	for range number {
		h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	h.startWorker()
	r := h.run("dlq", "replay", "--all", "--rate", "500", "--yes").want(t, exitFailed, "stopped, because", "more than 20%",
		"to resume: publisher dlq replay --run ")
	run := h.lastRun()
	if run.State != client.RunStopped || run.Processed() < client.FailuresMin || run.Processed() == number ||
		!strings.Contains(r.errOut, run.ID) {
		t.Errorf("%s after %d of %d\n%s", run.State, run.Processed(), number, r.errOut)
	}
	if got := h.deadLetterCount(); got != number { // each failed again or was not processed
		t.Errorf("%d dead letters, want %d", got, number)
	}
	h.run("dlq", "replay", "--run", run.ID, "--rate", "0", "--stop-on-failures", "100%", "--yes").want(t, exitDeadLettered,
		"done, 300 processed")
}

// TestReplay_RunResumed_KeepsLimits interrupts a replay with a rate of one event in hours, and resumes it without
// limits: it has the same rate and stops at the same share.
func TestReplay_RunResumed_KeepsLimits(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	h := newHarness(t)
	const number = 400 // far more than client.RunInFlightMax
	for range number {
		h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	published := func() uint64 {
		t.Helper()
		stream, err := h.js.Stream(t.Context(), h.ns.InStream())
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.LastSeq
	}
	before := published()
	ends := func(want uint64, args ...string) {
		t.Helper()
		replay, wait := h.program("", append([]string{"dlq", "replay", "--yes"}, args...)...)
		stacktest.Eventually(t, "an event to be published again", func() bool { return published()-before >= want })
		h.run("dlq", "runs").want(t, exitOK) // time to publish more
		if err := replay.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if out, err := wait(); err == nil || !strings.Contains(out, "interrupted") ||
			!strings.Contains(out, "0.0001 per second, stops above 5% failures") {
			t.Errorf("it ended with %v\n%s", err, out)
		}
		if got := published() - before; got != want {
			t.Errorf("%d events were published, want %d", got, want)
		}
	}
	ends(1, "--all", "--rate", "0.0001", "--stop-on-failures", "5%", "--timeout", "1s")
	ends(2, "--run", h.lastRun().ID, "--timeout", "1s")
	// A given limit replaces the one of the run.
	h.startWorker()
	h.run("dlq", "replay", "--run", h.lastRun().ID, "--rate", "0", "--yes").want(t, exitFailed, "more than 5%",
		"no rate limit, stops above 5% failures")
	h.run("dlq", "replay", "--run", h.lastRun().ID, "--yes").want(t, exitFailed, "more than 5%",
		"no rate limit, stops above 5% failures")
	h.run("dlq", "replay", "--run", h.lastRun().ID, "--yes", "--stop-on-failures", "100%").want(t, exitDeadLettered,
		"done, 400 processed")
}

// TestReplay_Interrupted_ResumeDoesRest interrupts a slow replay as Ctrl-C does, and resumes it.
func TestReplay_Interrupted_ResumeDoesRest(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run(words("inventory set --resource-id loft --capacity 500 --wait")...).want(t, exitOK)
	all := h.storeMixedDeadLetters(100)
	replay, wait := h.program("", "dlq", "replay", "--all", "--reason", "poison", "--rate", "10", "--yes")
	stacktest.Eventually(t, "the first to be replayed", func() bool { return h.deadLetterCount() < 100 })
	if err := replay.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if out, err := wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailed ||
		!strings.Contains(out, "interrupted, after") || !strings.Contains(out, "to resume: publisher dlq replay --run ") {
		t.Errorf("it ended with %v, want %d\n%s", err, exitFailed, out)
	}
	run := h.lastRun()
	if run.State != client.RunStopped || run.Total != len(all.good) ||
		run.Counts[holds.EventHoldCreated] != run.Processed() || run.Processed() == run.Total {
		t.Errorf("run %s, %d of %d: %v", run.State, run.Processed(), run.Total, run.Counts)
	}
	h.run("dlq", "replay", "--run", run.ID, "--rate", "0", "--yes", "-o", "ndjson").want(t, exitOK)
	if run := h.lastRun(); run.Counts[holds.EventHoldCreated] != len(all.good) || run.State != client.RunDone {
		t.Errorf("run %s: %v", run.State, run.Counts)
	}
	if seqs := h.seqs(); !slices.Equal(seqs, all.failing) {
		t.Errorf("dead letters %v, want those that the filter excludes, %v", seqs, all.failing)
	}
}

// TestReplay_DeadLetteredAgain_IsSkippedAfterLimit replays all dead letters until the event that always fails is
// skipped. A new dead letter beside it is still replayed, and so is the event itself when its sequence is given.
func TestReplay_DeadLetteredAgain_IsSkippedAfterLimit(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	only := func() string { // the sequence of the one dead letter
		t.Helper()
		seqs := h.seqs()
		if len(seqs) != 1 {
			t.Fatalf("dead letters %v, want one", seqs)
		}
		return strconv.FormatUint(seqs[0], 10)
	}
	for range 3 {
		h.run("dlq", "replay", "--all", "--yes").want(t, exitDeadLettered, "dead_lettered: malformed", "skips after 3 replays")
	}
	h.run("dlq", "show", only()).want(t, exitOK, "replays        3")
	h.run("dlq", "show", only(), "-o", "json").want(t, exitOK, `"replays":3`)
	exhausted := "dead-lettered again after 3 replays; to replay it nevertheless: publisher dlq replay " + only()
	h.run("dlq", "replay", "--all", "--dry-run").want(t, exitOK, "skipped", exhausted)
	h.run("dlq", "replay", only(), "--dry-run").want(t, exitOK, "still malformed")
	exhaustedSeq := only()
	h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON either")
	h.run("dlq", "replay", "--all", "--yes").want(t, exitDeadLettered, "1  skipped", exhausted, "1  dead_lettered: malformed")
	run := h.lastRun()
	h.run("dlq", "replay", "--run", run.ID, "--max-replays", "0", "--yes").want(t, exitDeadLettered) // it is processed
	if got := h.seqs(); len(got) != 2 || strconv.FormatUint(got[0], 10) != exhaustedSeq {
		t.Fatalf("dead letters %v, want %s as it was and a new one", got, exhaustedSeq)
	}
	h.run("dlq", "discard", strconv.FormatUint(h.seqs()[1], 10), "--note", "seen", "--yes").want(t, exitOK)

	h.run("dlq", "replay", exhaustedSeq, "--yes").want(t, exitDeadLettered, "dead_lettered: malformed")
	h.run("dlq", "show", only()).want(t, exitOK, "replays        4")
	h.run("dlq", "replay", "--all", "--max-replays", "0", "--yes").want(t, exitDeadLettered, "dead_lettered: malformed")
	h.run("dlq", "replay", only(), "--max-replays", "5", "--yes").want(t, exitDeadLettered, "1  skipped")
}

func TestReplay_Rate_IsNotExceeded(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for range 11 {
		h.storeDeadLetter(events.ReasonMalformed, "", h.ns.In(events.BookingRequested, "loft"), "no JSON")
	}
	h.startWorker()
	h.run("dlq", "replay", "--all", "--rate", "50", "--yes").want(t, exitDeadLettered)
	run := h.lastRun()
	if took := run.RecordedAt.Sub(run.StartedAt.Time); took < 200*time.Millisecond {
		t.Errorf("11 dead letters at 50/s took %v", took)
	}
}

func TestReplay_NoWorker_ReportsNoOutcome(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", "ann"))
	h.run("dlq", "replay", "1", "--yes", "--timeout", "5s", "-o", "json").want(t, exitReplyTimeout, `"result":"no_answer"`,
		"Is a worker running?", "to search for them again: publisher dlq replay --run ")
	if h.deadLetterCount() != 0 {
		t.Error("the event is stored, but the dead letter is not removed")
	}
	h.storeDeadLetter(events.ReasonPoison, "", "elsewhere.in.x.y", booking("loft", "ann"))
	h.run("dlq", "replay", "2", "--yes").want(t, exitFailed, "1 dead letter failed", "is not below ",
		"to retry: publisher dlq replay --run ")
	h.run("dlq", "replay", "--run", h.lastRun().ID, "--yes").want(t, exitFailed, "done, 1 processed",
		"1 dead letter failed")
	if h.deadLetterCount() != 1 {
		t.Error("a dead letter whose replay failed is removed")
	}
	h.run("dlq", "replay", "2", "--dry-run").want(t, exitOK, "cannot be replayed", "is not below")
	h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", "ben"))
	h.run("dlq", "replay", "--all", "--dry-run").want(t, exitFailed, "no worker answers", string(h.ns))
}

// fakeDryRunner is an events.DryRunner whose results depend on the request keys.
type fakeDryRunner struct{ events.Service }

var fakeNow = holds.TimeFromMillis(1_800_000_000_000)

func (fakeDryRunner) Now(context.Context) (holds.Time, error) { return fakeNow, nil }

func (fakeDryRunner) GetHold(context.Context, holds.HoldID) (holds.HoldView, bool, error) {
	return holds.HoldView{}, false, nil
}

func (fakeDryRunner) Place(_ context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result] {
	return func(yield func(int, holds.Result) bool) {
		for i, r := range requests {
			var n int
			if _, err := fmt.Sscanf(r.RequestKey, "k-u%d", &n); err != nil {
				yield(i, holds.Result{Err: context.DeadlineExceeded})
				continue
			}
			o := holds.Outcome{Event: holds.EventHoldCreated, Resource: r.Resource, At: fakeNow,
				Data: holds.HoldCreated{ExpiresAt: fakeNow}}
			if n%2 == 0 {
				o = holds.Outcome{Event: holds.EventHoldRejected, Resource: r.Resource, At: fakeNow,
					Data: holds.HoldRejected{Reason: holds.ReasonSoldOut}}
			}
			yield(i, holds.Result{Outcome: o})
		}
	}
}

// serveDryRuns answers dry runs until the test ends.
func (h *harness) serveDryRuns() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := queries.NewService(h.nc, h.ns, nil, fakeDryRunner{}, "w1", zerolog.Nop()).Run(ctx); err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(func() { cancel(); serving.Wait() })
	stacktest.Eventually(h.t, "the service to be found", func() bool {
		_, err := h.nc.Request("$SRV.PING."+string(h.ns), nil, time.Minute)
		return !errors.Is(err, nats.ErrNoResponders)
	})
}

func TestDryRun_ManyDeadLetters_ChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const number = 2000
	all := h.storeMixedDeadLetters(number)
	h.serveDryRuns()
	const counts = `
COUNT  RESULT                      OUTCOME
────────────────────────────────────────────────
  600  sold out                    hold.rejected
  600  would hold                  hold.created
  400  still malformed
  400  still on the wrong subject
`
	r := h.run("dlq", "replay", "--all", "--dry-run")
	if r.code != exitOK || strings.Count(r.out, "\n") != number+9 || !strings.HasSuffix(r.out, counts) ||
		!strings.HasPrefix(r.out, " SEQ  EVENT ") {
		t.Errorf("%d: %s\n%.2000s\n%s", r.code, r.errOut, r.out, r.out[max(0, len(r.out)-1000):])
	}
	h.run("dlq", "replay", "--all", "--dry-run", "--user-id", "u4", "-o", "wide").want(t, exitOK, "e-u4", "sold_out")
	r = h.run("dlq", "replay", "5", "--dry-run", "-o", "json").want(t, exitOK)
	if want := `[{"seq":5,"event_id":"e-u4","verdict":"sold out","event":"hold.rejected","reason":"sold_out","detail":""}]` + "\n"; r.out != want {
		t.Errorf("got %s, want %s", r.out, want)
	}
	h.run("dlq", "replay", "--all", "--dry-run", "--limit", "3", "-o", "ndjson").want(t, exitOK,
		`{"seq":2,"event_id":"","verdict":"still malformed"`)
	if got := h.deadLetterCount(); got != number || len(all.good) == 0 {
		t.Errorf("%d dead letters remain of %d", got, number)
	}
	stream, err := h.js.Stream(t.Context(), h.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.Msgs; got != 0 {
		t.Errorf("a dry run published %d events", got)
	}
	h.run("dlq", "runs").want(t, exitOK, "no runs")

	// A failed dry run has the result "not known"; the others have their results.
	h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", "odd"))
	h.run("dlq", "replay", "4", "5", "2001", "--dry-run").want(t, exitFailed, "not known", "503 unavailable", "sold out",
		"dead letter 2001")
}

// BenchmarkDLQ_TenThousand lists, counts, dry-runs and replays 10,000 dead letters of all kinds.
func BenchmarkDLQ_TenThousand(b *testing.B) {
	const number = 10_000
	for b.Loop() {
		h := newHarness(b)
		h.storeMixedDeadLetters(number)
		step := func(name string, code int, args ...string) {
			began := time.Now()
			h.run(args...).want(b, code)
			b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-ms")
		}
		step("list", exitOK, "dlq", "list")
		step("list-of-one-user", exitOK, "dlq", "list", "--user-id", "u9999")
		step("stats", exitOK, "dlq", "stats")
		step("export", exitOK, "dlq", "export")
		h.startWorker()
		h.run("inventory", "set", "--resource-id", "loft", "--capacity", strconv.Itoa(number), "--wait").want(b, exitOK)
		step("dry-run", exitOK, "dlq", "replay", "--all", "--dry-run")
		step("replay", exitDeadLettered, "dlq", "replay", "--all", "--rate", "0", "--stop-on-failures", "100%", "--yes",
			"--timeout", "1m")
		step("discard", exitOK, "dlq", "discard", "--all", "--note", "n", "--yes")
	}
}
