package robustness

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// addOutcome records an outcome with an id, the id of the event that it answers, a hold and more data.
func addOutcome(t *testing.T, r *Recorder, event, id, eventID, hold, data string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.addOutcome(events.Envelope{
		ID: id, Type: events.Type(event), CausationID: eventID, Subject: hold, Data: []byte(`{` + data + `}`),
	})
	stacktest.Must(t, err)
}

const (
	lasts   = `"created_at":"2026-11-21T10:00:00.000Z","expires_at":"2026-11-21T10:00:02.000Z"`
	refunds = `"payment_id":"p","refund_required":true,"reason":"expired"`
)

// TestRecorder_EachViolation_IsFound records answers that break one promise each, and answers that
// break none.
func TestRecorder_EachViolation_IsFound(t *testing.T) {
	t.Parallel()
	for want, do := range map[string]func(t *testing.T, r *Recorder){
		"": func(t *testing.T, r *Recorder) { // no violation
			addOutcome(t, r, "hold.created", "o1", "e1", "room.1", lasts)
			addOutcome(t, r, "hold.created", "o1", "e1", "room.1", lasts) // a duplicate
			addOutcome(t, r, "hold.expired", "x1", "", "room.1", "")
			addOutcome(t, r, "hold.confirm_rejected", "o2", "e2", "room.1", refunds)
			addOutcome(t, r, "hold.confirm_rejected", "o3", "e3", "room.2", refunds) // an unknown hold
		},
		"e1 (requested, room) was acknowledged and has no outcome": func(t *testing.T, r *Recorder) {
			addOutcome(t, r, "hold.confirm_rejected", "o2", "e2", "room.1", refunds)
			addOutcome(t, r, "hold.confirm_rejected", "o3", "e3", "room.1", refunds)
		},
		"has 2 outcomes": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.created", "other", "e1", "room.1", lasts)
		},
		"has several ends: [hold.expired hold.released]": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.released", "o4", "e2", "room.1", "")
			addOutcome(t, r, "hold.expired", "x1", "", "room.1", "")
		},
		"was confirmed by 2 payments": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p1"`)
			addOutcome(t, r, "hold.confirmed", "o3", "e3", "room.1", `"payment_id":"p2"`)
		},
		"has several answers: [confirmed expired]": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p"`)
			addOutcome(t, r, "hold.confirm_rejected", "o3", "e3", "room.1", refunds)
		},
		"rejected without refund_required": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.confirm_rejected", "o2", "e2", "room.1", `"payment_id":"p","reason":"expired"`)
		},
		"was confirmed late and has not expired": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.confirmed", "o2", "e2", "room.1", `"payment_id":"p","late":true`)
		},
		"has no hold.created": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.released", "o2", "e2", "room.2", "")
		},
		"outcome of an event that was never published": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.created", "o9", "e9", "room.9", lasts)
		},
		"outcome without an event": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.released", "o9", "", "room.1", "")
		},
		"(malformed) has an outcome": func(t *testing.T, r *Recorder) {
			answerAll(t, r)
			addOutcome(t, r, "hold.created", "o9", "bad", "room.9", lasts)
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := NewRecorder("holdfast")
			for id, kind := range map[string]string{"e1": "requested", "e2": "confirmed", "e3": "confirmed"} {
				s := r.open(id, kind, "room", false)
				r.copy(s)
				r.ack(s)
			}
			r.copy(r.open("bad", "malformed", "room", true))
			do(t, r)
			found := r.violations()
			if (want == "") != (len(found) == 0) || !strings.Contains(strings.Join(found, "\n"), want) {
				t.Errorf("found %q, want %q", found, want)
			}
		})
	}
}

// answerAll answers e1, e2 and e3.
func answerAll(t *testing.T, r *Recorder) {
	t.Helper()
	addOutcome(t, r, "hold.created", "o1", "e1", "room.1", lasts)
	addOutcome(t, r, "hold.confirm_rejected", "o2", "e2", "room.3", refunds)
	addOutcome(t, r, "hold.confirm_rejected", "o3", "e3", "room.4", refunds)
}

// TestRecorder_HoldNotEnded_OverdueFromDeadline checks that a hold is overdue from its deadline, as
// extended, until it ends.
func TestRecorder_HoldNotEnded_OverdueFromDeadline(t *testing.T) {
	t.Parallel()
	r := NewRecorder("holdfast")
	r.open("e1", "requested", "room", false)
	addOutcome(t, r, "hold.created", "o1", "e1", "room.1", lasts)
	deadline := time.Date(2026, 11, 21, 10, 0, 2, 0, time.UTC)
	if n, _ := r.overdue(deadline.Add(-time.Millisecond)); n != 0 {
		t.Error("a hold is overdue before its deadline")
	}
	if n, _ := r.overdue(deadline); n != 1 {
		t.Error("a hold is not overdue at its deadline")
	}
	addOutcome(t, r, "hold.extended", "o2", "e1", "room.1", `"expires_at":"2026-11-21T10:00:05.000Z"`)
	if n, _ := r.overdue(deadline); n != 0 {
		t.Error("an extended hold is overdue before its new deadline")
	}
	addOutcome(t, r, "hold.expired", "x1", "", "room.1", "")
	if n, _ := r.overdue(deadline.Add(time.Hour)); n != 0 {
		t.Error("a hold that has ended is overdue")
	}
}
