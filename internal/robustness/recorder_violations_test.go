package robustness

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/events"
)

// addOutcome tells a Book an outcome: event, its id, what caused it, the hold, and more data.
func addOutcome(t *testing.T, b *Recorder, event, id, cause, hold, data string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.addOutcome(events.Envelope{ID: id, Type: events.Type(event), CausationID: cause, Subject: hold, Data: []byte(`{` + data + `}`)}); err != nil {
		t.Fatal(err)
	}
}

const (
	lasts   = `"created_at":"2026-11-21T10:00:00.000Z","expires_at":"2026-11-21T10:00:02.000Z"`
	refunds = `"payment_id":"p","refund_required":true,"reason":"expired"`
)

// TestRecorder_EachViolation_IsFound has a Book judge what may be told, and what may not.
func TestRecorder_EachViolation_IsFound(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func(t *testing.T, b *Recorder){
		"": func(t *testing.T, b *Recorder) { // all is well
			addOutcome(t, b, "hold.created", "o1", "e1", "room.1", lasts)
			addOutcome(t, b, "hold.created", "o1", "e1", "room.1", lasts) // a repeat
			addOutcome(t, b, "hold.expired", "x1", "", "room.1", "")
			addOutcome(t, b, "hold.confirm_rejected", "o2", "e2", "room.1", refunds)
			addOutcome(t, b, "hold.confirm_rejected", "o3", "e3", "room.2", refunds) // nobody knows it
		},
		"e1 (requested, room) was acknowledged and has no outcome": func(t *testing.T, b *Recorder) {
			addOutcome(t, b, "hold.confirm_rejected", "o2", "e2", "room.1", refunds)
			addOutcome(t, b, "hold.confirm_rejected", "o3", "e3", "room.1", refunds)
		},
		"has 2 outcomes": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.created", "other", "e1", "room.1", lasts)
		},
		"has ended as [hold.expired hold.released]": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.released", "o4", "e2", "room.1", "")
			addOutcome(t, b, "hold.expired", "x1", "", "room.1", "")
		},
		"was confirmed by 2 payments": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p1"`)
			addOutcome(t, b, "hold.confirmed", "o3", "e3", "room.1", `"payment_id":"p2"`)
		},
		"has answers [confirmed expired]": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p"`)
			addOutcome(t, b, "hold.confirm_rejected", "o3", "e3", "room.1", refunds)
		},
		"refused without refund_required": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.confirm_rejected", "o2", "e2", "room.1", `"payment_id":"p","reason":"expired"`)
		},
		"was confirmed late and has not expired": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p","late":true`)
		},
		"that it began was never told": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.released", "o2", "e2", "room.2", "")
		},
		"of an event that was never published": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.created", "o9", "e9", "room.9", lasts)
		},
		"an outcome of nothing": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.released", "o9", "", "room.1", "")
		},
		"(malformed) has an outcome": func(t *testing.T, b *Recorder) {
			answerAll(t, b)
			addOutcome(t, b, "hold.created", "o9", "bad", "room.9", lasts)
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			b := NewRecorder("holdfast")
			for id, kind := range map[string]string{"e1": "requested", "e2": "confirmed", "e3": "confirmed"} {
				s := b.open(id, kind, "room", false)
				b.copy(s)
				b.ack(s)
			}
			b.copy(b.open("bad", "malformed", "room", true))
			do(t, b)
			wrong := b.violations()
			if want == "" && len(wrong) > 0 || want != "" && (len(wrong) == 0 || !strings.Contains(strings.Join(wrong, "\n"), want)) {
				t.Errorf("found %q, want %q", wrong, want)
			}
		})
	}
}

// answerAll answers e1, e2 and e3.
func answerAll(t *testing.T, b *Recorder) {
	t.Helper()
	addOutcome(t, b, "hold.created", "o1", "e1", "room.1", lasts)
	addOutcome(t, b, "hold.confirm_rejected", "o2", "e2", "room.3", refunds)
	addOutcome(t, b, "hold.confirm_rejected", "o3", "e3", "room.4", refunds)
}

// TestRecorder_HoldNotEnded_OverdueFromDeadline has a hold that should have ended.
func TestRecorder_HoldNotEnded_OverdueFromDeadline(t *testing.T) {
	t.Parallel()
	b := NewRecorder("holdfast")
	b.open("e1", "requested", "room", false)
	addOutcome(t, b, "hold.created", "o1", "e1", "room.1", lasts)
	deadline := time.Date(2026, 11, 21, 10, 0, 2, 0, time.UTC)
	if n, _ := b.overdue(deadline.Add(-time.Millisecond)); n != 0 {
		t.Error("a hold is overdue before its deadline")
	}
	if n, _ := b.overdue(deadline); n != 1 {
		t.Error("a hold is not overdue at its deadline")
	}
	addOutcome(t, b, "hold.extended", "o2", "e1", "room.1", `"expires_at":"2026-11-21T10:00:05.000Z"`)
	if n, _ := b.overdue(deadline); n != 0 {
		t.Error("a hold is overdue that was extended")
	}
	addOutcome(t, b, "hold.expired", "x1", "", "room.1", "")
	if n, _ := b.overdue(deadline.Add(time.Hour)); n != 0 {
		t.Error("a hold is overdue that has ended")
	}
}
