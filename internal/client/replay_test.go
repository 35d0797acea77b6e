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

// replay replays a letter and returns what became of it.
func (b *harness) replay(r *Replayer, seq uint64, variant string, keep bool) RunResult {
	b.t.Helper()
	l := b.get(r.d, seq)
	m, err := l.Original(b.ns)
	if err != nil {
		b.t.Fatal(err)
	}
	sent, err := r.Publish(l, m, r.MessageID(seq, variant))
	if err != nil {
		b.t.Fatal(err)
	}
	return sent.Wait(b.t.Context(), keep)
}

// TestReplay_SameDeadLetterTwice_PublishedOnce replays letters: each is published once however often that is tried, its
// outcome is followed, and it is removed when its event is stored.
func TestReplay_SameDeadLetterTwice_PublishedOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	d := b.deadLetters()
	r, err := d.Replayer(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	subject := b.ns.In(events.BookingRequested, "room")
	good := b.storeDeadLetter(events.ReasonPoison, "", subject, nats.Header{"Holdfast-Reply-To": {"_INBOX.gone"}, "Nats-Msg-Id": {"old"}}, keyed("good"))
	bad := b.storeDeadLetter(events.ReasonPoison, "", subject, nil, "no JSON")
	begun := b.get(d, bad).StoredAt

	for i, c := range []struct {
		seq     uint64
		variant string
		keep    bool
		want    RunResult
	}{
		{good, "", true, RunResult{Seq: good, EventID: "good", Result: holds.EventHoldRejected, Reason: "echo"}},
		{good, "", true, RunResult{Seq: good, EventID: "good", Result: ReplayDuplicate}},                            // as after a kill
		{good, "run", true, RunResult{Seq: good, EventID: "good", Result: holds.EventHoldRejected, Reason: "echo"}}, // another run that keeps it
		{good, "", false, RunResult{Seq: good, EventID: "good", Result: ReplayDuplicate}},
		{bad, "", false, RunResult{Seq: bad, Result: ReplayDeadLettered, Reason: events.ReasonMalformed, Detail: "body: not one JSON text in UTF-8, at byte 1"}},
	} {
		if c.want.Result == ReplayDuplicate {
			if err := r.Resume(t.Context(), &RunLog{startedAt: begun}); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.replay(r, c.seq, c.variant, c.keep); got != c.want {
			t.Errorf("replay %d: %+v, want %+v", i, got, c.want)
		}
	}
	b.await("the outcomes", func() bool { return len(b.out) == 1 && len(b.dlq) == 3 })
	if b.decidedCount("good") != 2 {
		t.Errorf("the event was decided %d times, want 2", b.decidedCount("good"))
	}
	if _, err := d.Get(t.Context(), good); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("the letter that was replayed: %v", err)
	}
	// The event that died again is another letter, and is replayed under another message id.
	again := d.seqs(t, DeadLetterFilter{}, true)
	if len(again) != 1 || again[0] == bad {
		t.Fatalf("letters %v", again)
	}
	if got := b.replay(r, again[0], "", false); got.Result != ReplayDeadLettered {
		t.Errorf("replayed once more: %+v", got)
	}
}

// TestReplay_Cancelled_ReportsNoOutcome replays where nobody answers, and is told to hurry.
func TestReplay_Cancelled_ReportsNoOutcome(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(context.DeadlineExceeded)
	seq := b.storeDeadLetter(events.ReasonPoison, "", b.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	d := b.deadLetters()
	r, err := d.Replayer(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := b.get(d, seq)
	m, err := l.Original(b.ns)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := r.Publish(l, m, r.MessageID(seq, ""))
	if err != nil {
		t.Fatal(err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if got := sent.Wait(interrupted, false); got.Result != ReplayNoOutcome {
		t.Errorf("%+v", got)
	}
	if _, err := d.Get(t.Context(), seq); !errors.Is(err, ErrDeadLetterNotFound) {
		t.Errorf("its event is stored, and the letter is there: %v", err)
	}
}

// TestReplay_InboundStreamFull_KeepsDeadLetter replays a letter while the inbound stream is full: its event is not stored, and the letter stays.
func TestReplay_InboundStreamFull_KeepsDeadLetter(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	seq := b.storeDeadLetter(events.ReasonPoison, "", b.ns.In(events.BookingRequested, "room"), nil, keyed("k"))
	b.publish(b.ns.In(events.BookingRequested, "room"), nil, keyed("other"))
	inbound, err := b.js.Stream(t.Context(), b.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	full := inbound.CachedInfo().Config
	full.MaxMsgs = 1
	if _, err := b.js.UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	d := b.deadLetters()
	r, err := d.Replayer(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := b.replay(r, seq, "", false); got.Result != ReplayFailed {
		t.Errorf("%+v", got)
	}
	if _, err := d.Get(t.Context(), seq); err != nil {
		t.Errorf("its event is not stored, and the letter is gone: %v", err)
	}
}

// TestReplay_MessageAtSizeLimit_DropsReplayHeaders replays events that leave no room for the headers of a replay.
func TestReplay_MessageAtSizeLimit_DropsReplayHeaders(t *testing.T) {
	t.Parallel()
	const limit = 4096
	b := newHarnessAt(t, stacktest.NATSWithMaxPayload(t, limit))
	subject := b.ns.In(events.BookingRequested, "room")
	for i, size := range []int{limit, limit - 120, limit - 400} {
		b.publish(subject, nil, strings.Repeat("x", size))
		b.await("the letter", func() bool { return len(b.dlq) == i+1 }) // they need not be parked in their order
	}
	d := b.deadLetters()
	r, err := d.Replayer(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, want := range []string{ReplayNoOutcome, ReplayNoOutcome, ReplayDeadLettered} {
		if got := b.replay(r, uint64(i+1), "", false); got.Result != want {
			t.Errorf("letter %d: %+v, want %s", i+1, got, want)
		}
	}
	b.await("the letters of the replays", func() bool { return len(b.dlq) == 6 })
	for i, id := range []bool{false, true, true} {
		m, err := d.inbound.GetMsg(t.Context(), uint64(i+4))
		if err != nil || m.Header.Get(events.HeaderReplyTo) != "" != (i == 2) || m.Header.Get(jetstream.MsgIDHeader) != "" != id {
			t.Errorf("%v: event %d was stored with %v", err, i+4, m.Header)
		}
	}
}
