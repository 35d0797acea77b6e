package client

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

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
	s := newSearch(&replayer{DeadLetters: h.deadLetters(), timeout: time.Second})
	if err := s.add(t.Context(), 7, h.inboundStream().CachedInfo().State.LastSeq); err != nil {
		t.Fatal(err)
	}
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
	created := func(stream string) *nats.Subscription {
		t.Helper()
		sub, err := h.nc.SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.CREATED." + stream + ".>")
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	readers := map[string]*nats.Subscription{"outcomes": created(h.ns.OutStream()), "dead letters": created(h.ns.DLQStream())}
	log, left, err := h.client.ResumeRun(t.Context(), log.Run.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Execute(t.Context(), left, d.ReplayWork(log, generous), func(int) {}); err != nil {
		t.Error(err)
	}
	if got := h.results(log.Run.ID); !slices.Equal(sortedBySeq(got), want) {
		t.Errorf("results %+v, want %+v", got, want)
	}
	for of, sub := range readers {
		stacktest.Eventually(t, "a reader of "+of, func() bool { n, _, err := sub.Pending(); return err != nil || n > 0 })
		if n, _, err := sub.Pending(); err != nil || n != 1 {
			t.Errorf("%v: %d readers of %s, want 1", err, n, of)
		}
	}
}

func sortedBySeq(results []RunResult) []RunResult {
	return slices.SortedFunc(slices.Values(results), func(a, b RunResult) int { return cmp.Compare(a.Seq, b.Seq) })
}
