package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// replay replays a dead letter and returns its result.
func (h *harness) replay(r *replayer, seq uint64, variant string, keep bool) RunResult {
	h.t.Helper()
	if finish := r.earlierWork(seq, keep); finish != nil {
		return finish(h.t.Context())
	}
	l := h.get(r.DeadLetters, seq)
	m, err := l.Again(h.ns)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.publish(l, m, r.messageID(seq, variant)).wait(h.t.Context(), keep)
}

// TestReplay_SameDeadLetterTwice_PublishedOnce replays dead letters several times. Each message id
// is published once, the outcome is returned, and the dead letter is removed when its event is
// stored.
func TestReplay_SameDeadLetterTwice_PublishedOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := h.deadLetters()
	r := &replayer{DeadLetters: d, timeout: time.Minute}
	subject := h.ns.In(events.BookingRequested, "room")
	publishedWith := nats.Header{"Holdfast-Reply-To": {"_INBOX.gone"}, "Nats-Msg-Id": {"old"}}
	good := h.storeDeadLetter(events.ReasonPoison, "", subject, publishedWith, keyed("good"))
	bad := h.storeDeadLetter(events.ReasonPoison, "", subject, nil, "no JSON")
	begun := h.get(d, bad).StoredAt

	rejected := RunResult{Seq: good, EventID: "good", Result: holds.EventHoldRejected, Reason: "echo"}
	deadLettered := RunResult{
		Seq: bad, Result: ReplayDeadLettered, Reason: events.ReasonMalformed,
		Detail: "body: not one JSON text in UTF-8, at byte 1",
	}
	for i, c := range []struct {
		seq     uint64
		variant string
		keep    bool
		resumed bool // after a run that was killed when the event was stored
		want    RunResult
	}{
		{good, "", true, false, rejected},
		{good, "", true, true, rejected},
		{good, "run", true, false, rejected}, // another run with --keep
		{good, "", false, true, rejected},
		{bad, "", true, false, deadLettered},
		{bad, "", false, true, deadLettered},
	} {
		if c.resumed {
			h.awaitDuplicateWindowOver() // JetStream no longer knows the message id
			if err := r.resume(t.Context(), &RunLog{startedAt: begun, Left: []uint64{c.seq}}, c.variant); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.replay(r, c.seq, c.variant, c.keep); got != c.want {
			t.Errorf("replay %d: %+v, want %+v", i, got, c.want)
		}
		r.earlier, r.scanned = nil, 0
	}
	h.await("one outcome and three dead letters", func() bool { return len(h.out) == 1 && len(h.dlq) == 3 })
	if h.decidedCount("good") != 2 {
		t.Errorf("the event was decided %d times, want 2", h.decidedCount("good"))
	}
	if _, err := d.Get(t.Context(), good); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("read the replayed dead letter: error %v, want ErrDeadLetterNotFound", err)
	}
	// The second dead letter of the event is replayed under another message id.
	again := seqsOf(t, d, DeadLetterFilter{}, true)
	if len(again) != 1 || again[0] == bad {
		t.Fatalf("dead letters %v, want one new one", again)
	}
	if got := h.replay(r, again[0], "", false); got.Result != ReplayDeadLettered {
		t.Errorf("replay of the second dead letter: %+v", got)
	}
}

// TestReplay_StoredEventRemoved_KeepsEventID replays a dead letter twice. JetStream drops the second event, and the first
// one is removed: its outcome is unknown.
func TestReplay_StoredEventRemoved_KeepsEventID(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.Duplicates = time.Hour })
	seq := h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	r := &replayer{DeadLetters: h.deadLetters(), timeout: generous}
	h.replay(r, seq, "", true)
	if err := h.inboundStream().Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := RunResult{Seq: seq, EventID: "k"}.withoutOutcome(jetstream.ErrMsgNotFound)
	if got := h.replay(r, seq, "", true); got != want {
		t.Errorf("result %+v, want %+v", got, want)
	}
}

// TestReplay_Cancelled_ReportsNoOutcome replays an event that is not decided, and cancels the wait.
func TestReplay_Cancelled_ReportsNoOutcome(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.setFault(context.DeadlineExceeded)
	seq := h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	d := h.deadLetters()
	r := &replayer{DeadLetters: d, timeout: time.Hour}
	l := h.get(d, seq)
	m, err := l.Content()
	if err != nil {
		t.Fatal(err)
	}
	sent := r.publish(l, m, r.messageID(seq, ""))
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if got := sent.wait(interrupted, false); got.Result != ReplayNoOutcome {
		t.Errorf("result %+v, want no outcome", got)
	}
	if _, err := d.Get(t.Context(), seq); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("the event is stored, read its dead letter: error %v, want ErrDeadLetterNotFound", err)
	}
}

// TestReplay_InboundStreamFull_KeepsDeadLetter replays a dead letter while the inbound stream is
// full. The event is not stored, and the dead letter is not removed.
func TestReplay_InboundStreamFull_KeepsDeadLetter(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	seq := h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	h.publish(h.ns.In(events.BookingRequested, "room"), nil, keyed("other"))
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	d := h.deadLetters()
	r := &replayer{DeadLetters: d, timeout: time.Minute}
	if got := h.replay(r, seq, "", false); got.Result != ReplayFailed {
		t.Errorf("result %+v, want a failure", got)
	}
	if _, err := d.Get(t.Context(), seq); err != nil {
		t.Errorf("the event is not stored, and its dead letter was removed: %v", err)
	}
}

// TestReplay_MessageAtSizeLimit_DropsReplayHeaders replays events that are too large with the
// headers of a replay.
func TestReplay_MessageAtSizeLimit_DropsReplayHeaders(t *testing.T) {
	t.Parallel()
	const limit = 4096
	h := newHarnessAt(t, stacktest.NATSWithMaxPayload(t, limit))
	subject := h.ns.In(events.BookingRequested, "room")
	for i, size := range []int{limit, limit - 120, limit - 400} {
		h.publish(subject, nil, strings.Repeat("x", size))
		h.await("dead letter", func() bool { return len(h.dlq) == i+1 }) // claim checks can be stored out of order
	}
	d := h.deadLetters()
	r := &replayer{DeadLetters: d, timeout: time.Minute}
	for i := range 3 {
		if got := h.replay(r, uint64(i+1), "", false); got.Result != ReplayDeadLettered || got.Reason != events.ReasonMalformed {
			t.Errorf("dead letter %d: %+v, want %s %s", i+1, got, ReplayDeadLettered, events.ReasonMalformed)
		}
	}
	h.await("dead letters of the replayed events", func() bool { return len(h.dlq) == 6 })
	for i, hasID := range []bool{false, true, true} {
		m, err := h.inboundStream().GetMsg(t.Context(), uint64(i+4))
		if err != nil {
			t.Fatal(err)
		}
		counted := m.Header.Get(events.HeaderDLQReplays) != ""
		if l := h.get(d, uint64(i+4)); counted != (l.Replays == 1) || counted != (i > 0) {
			t.Errorf("dead letter %d counts %d replays, its event has the headers %v", l.Seq, l.Replays, m.Header)
		}
		if m.Header.Get(events.HeaderReplyTo) != "" != (i == 2) || m.Header.Get(jetstream.MsgIDHeader) != "" != hasID {
			t.Errorf("event %d was stored with the headers %v", i+4, m.Header)
		}
	}
}
