package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestSearch_OutcomeOfEarlierCopy_IsFound searches for the outcome of an event of which a copy had the same outcome
// before: the outbound stream has dropped the second one.
func TestSearch_OutcomeOfEarlierCopy_IsFound(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	in := h.ns.In(events.BookingRequested, "room")
	h.publish(in, nats.Header{"Nats-Msg-Id": {"first"}}, keyed("k"))
	h.await("outcome", func() bool { return len(h.out) == 1 })
	h.publish(in, nats.Header{"Nats-Msg-Id": {"second"}}, keyed("k"))
	s := newSearch(&replayer{DeadLetters: h.deadLetters(), timeout: generous})
	s.addAll(t.Context(), map[uint64]uint64{7: h.inboundStream().CachedInfo().State.LastSeq})
	s.since = s.since.Add(5 * time.Minute) // as if the second copy were stored so much later
	if err := s.read(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	want := map[uint64]RunResult{7: {Seq: 7, EventID: "k", Result: holds.EventHoldRejected, Reason: "echo"}}
	if !maps.Equal(s.found, want) {
		t.Errorf("found %+v, want %+v", s.found, want)
	}
}

// TestResumeRun_ManyEventsStored_ReadsEachStreamOnce resumes a run that has stored many events and recorded no result.
// Each has its result, and one reader of each stream has found them all.
func TestResumeRun_ManyEventsStored_ReadsEachStreamOnce(t *testing.T) {
	t.Parallel()
	const number = 40
	h := newHarness(t)
	d := h.deadLetters()
	var seqs []uint64
	var want []RunResult
	for i := range number {
		key := fmt.Sprint("k", i/2) // two dead letters of each event
		result := RunResult{EventID: key, Result: holds.EventHoldRejected, Reason: "echo"}
		body := keyed(key)
		if i%4 == 3 {
			body = "no JSON"
			result = RunResult{Result: ReplayDeadLettered, Reason: events.ReasonMalformed,
				Detail: "body: not one JSON text in UTF-8, at byte 1"}
		}
		result.Seq = h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, body)
		seqs, want = append(seqs, result.Seq), append(want, result)
	}
	log, err := d.StartRun(t.Context(), Run{Verb: RunReplay, Limits: &RunLimits{StopOnFailures: 100}}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	killed := &replayer{DeadLetters: d, timeout: generous}
	for _, seq := range seqs {
		h.replay(killed, seq, "", false)
	}
	wantOneOfOutcomes, wantOneOfDeadLetters := h.countReaders(h.ns.OutStream()), h.countReaders(h.ns.DLQStream())
	log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Execute(t.Context(), d.ReplayWork(log, generous), func(int) {}); err != nil {
		t.Error(err)
	}
	if got := h.results(log.Run.ID); !slices.Equal(sortedBySeq(got), want) {
		t.Errorf("results %+v, want %+v", got, want)
	}
	wantOneOfOutcomes()
	wantOneOfDeadLetters()
}

// countReaders counts the consumers of a stream that are created from now on. wantOne fails the test unless it was one.
func (h *harness) countReaders(stream string) (wantOne func()) {
	h.t.Helper()
	created, err := h.nc.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.CREATED." + stream + ".>")
	if err != nil {
		h.t.Fatal(err)
	}
	return func() {
		h.t.Helper()
		stacktest.Eventually(h.t, "a reader of "+stream, func() bool { n, _, err := created.Pending(); return err != nil || n > 0 })
		if n, _, err := created.Pending(); err != nil || n != 1 {
			h.t.Errorf("%v: %d readers of %s, want 1", err, n, stream)
		}
	}
}

// TestResumeRun_InterruptedDuringSearch_RecordsWhatItFound resumes a run that has stored three events, that of its first
// dead letter without an outcome, and interrupts it when it has found an outcome. That one is recorded, and the first dead
// letter is left to the next process.
func TestResumeRun_InterruptedDuringSearch_RecordsWhatItFound(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
	in := h.ns.In(events.BookingRequested, "room")
	var seqs []uint64
	for _, key := range []string{"k0", "k1", "k2"} {
		seqs = append(seqs, h.storeDeadLetter(events.ReasonPoison, "", in, nil, keyed(key)))
	}
	log, err := d.StartRun(t.Context(), Run{Verb: RunReplay, Limits: &RunLimits{StopOnFailures: 100}}, seqs)
	if err != nil {
		t.Fatal(err)
	}
	killed := &replayer{DeadLetters: d, timeout: generous}
	h.replay(killed, seqs[1], "", false)
	h.replay(killed, seqs[2], "", false)
	h.setFault(context.DeadlineExceeded)
	h.publish(in, nats.Header{"Nats-Msg-Id": {killed.messageID(seqs[0], "")}}, keyed("k0"))

	// The second outcome is fetched when the first one is found.
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var fetched atomic.Int64
	sub, err := h.nc.Subscribe("$JS.API.>", func(m *nats.Msg) {
		fetches := strings.Contains(m.Subject, ".DIRECT.GET.") || strings.Contains(m.Subject, ".MSG.GET.")
		if fetches && strings.Contains(m.Subject, h.ns.OutStream()) && fetched.Add(1) == 2 {
			interrupt()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	log, err = h.client.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = log.Execute(ctx, d.ReplayWork(log, generous), func(int) {})
	if err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v, want interrupted", err)
	}
	want := RunResult{Seq: seqs[1], EventID: "k1", Result: holds.EventHoldRejected, Reason: "echo"}
	got := h.results(log.Run.ID)
	if !slices.Contains(got, want) || slices.ContainsFunc(got, func(r RunResult) bool { return r.Seq == seqs[0] }) {
		t.Errorf("results %+v, want %+v, and none of dead letter %d", got, want, seqs[0])
	}
}

// failingOnce is a stream whose first GetMsg fails.
type failingOnce struct {
	jetstream.Stream
	failed bool
}

func (s *failingOnce) GetMsg(
	ctx context.Context, seq uint64, options ...jetstream.GetMsgOpt,
) (*jetstream.RawStreamMsg, error) {
	if !s.failed {
		s.failed = true
		return nil, nats.ErrNoResponders
	}
	return s.Stream.GetMsg(ctx, seq, options...)
}

func TestReadMsg_RequestFails_IsRetried(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	h.publish(h.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	stream := &failingOnce{Stream: h.inboundStream()}
	if m, err := readMsg(t.Context(), stream, 1); err != nil || string(m.Data) != keyed("k") {
		t.Errorf("message %v, error %v", m, err)
	}
	if _, err := readMsg(t.Context(), stream, 2); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("read of a message that does not exist: error %v, want ErrMsgNotFound", err)
	}
}

func sortedBySeq(results []RunResult) []RunResult {
	return slices.SortedFunc(slices.Values(results), func(a, b RunResult) int { return cmp.Compare(a.Seq, b.Seq) })
}
