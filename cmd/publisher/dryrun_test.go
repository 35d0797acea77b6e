package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// inData is an event with an id of its own.
func inData(event, id, data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":"holdfast.%s.v1","data":%s}`, id, event, data)
}

// hold books one of a resource's stock and returns the hold's id.
func (m *morgue) hold(resource, user, ttl string) string {
	m.t.Helper()
	r := m.run("request", "--resource-id", resource, "--user-id", user, "--request-key", "k-"+user, "--ttl", ttl, "--wait", "-o", "json").want(m.t, exitOK)
	var e events.Envelope
	if err := json.Unmarshal([]byte(r.out), &e); err != nil {
		m.t.Fatal(err)
	}
	return e.Subject
}

// state is what the streams have, and what can be had of a resource.
func (m *morgue) state(resource string) string {
	m.t.Helper()
	texts := []string{m.run("inventory", "show", "--resource-id", resource, "-o", "json").want(m.t, exitOK).out}
	for _, name := range []string{m.ns.InStream(), m.ns.OutStream(), m.ns.DLQStream()} {
		stream, err := m.js.Stream(m.t.Context(), name)
		if err != nil {
			m.t.Fatal(err)
		}
		texts = append(texts, fmt.Sprint(name, stream.CachedInfo().State.LastSeq))
	}
	return strings.Join(texts, " ")
}

// TestDryRunSaysWhatHappens has a worker say of dead letters of every kind what would happen now: it
// is what happens when they are replayed, and until then nothing is changed.
func TestDryRunSaysWhatHappens(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.startWorker()
	m.run("inventory", "set", "--resource-id", "loft", "--capacity", "3", "--wait").want(t, exitOK)
	m.run("inventory", "set", "--resource-id", "tent", "--capacity", "0", "--wait").want(t, exitOK)
	held, paid := m.hold("loft", "held", "10m"), m.hold("loft", "paid", "10m")
	m.run("pay", "--hold-id", paid, "--payment-id", "p", "--wait").want(t, exitOK)
	lapsed := m.hold("loft", "lapsed", "1s")
	m.awaitOutcome("hold.expired")

	byID := make(map[string]uint64)
	want := make(map[string]string)
	park := func(id, event, resource, data, verdict string) {
		byID[id] = m.park(events.ReasonPoison, "", m.ns.In(event, resource), inData(event, id, data))
		want[id] = verdict
	}
	ofHold := func(hold, more string) string { return fmt.Sprintf(`{"hold_id":%q%s}`, hold, more) }
	ask := func(user, resource, more string) string {
		return fmt.Sprintf(`{"request_key":"k-%s","user_id":%q,"resource_id":%q,"quantity":1%s}`, user, user, resource, more)
	}
	park("grant", events.BookingRequested, "loft", ask("new", "loft", ""), "would hold hold.created")
	park("sold-out", events.BookingRequested, "tent", ask("new", "tent", ""), "sold out hold.rejected")
	park("again", events.BookingRequested, "loft", ask("held", "loft", `,"ttl_seconds":600`), "already answered hold.created")
	park("malformed", events.BookingRequested, "loft", ask("new2", "loft", `,"slots":[]`), "still malformed ")
	park("late", events.PaymentConfirmed, "loft", ofHold(lapsed, `,"payment_id":"p"`), "hold lapsed hold.confirm_rejected")
	park("twice", events.PaymentConfirmed, "loft", ofHold(paid, `,"payment_id":"p"`), "already answered hold.confirmed")
	park("extend", events.BookingExtended, "loft", ofHold(held, `,"ttl_seconds":1800`), "would extend hold.extended")
	park("start", events.PaymentStarted, "loft", ofHold(lapsed, ""), "hold lapsed hold.extension_rejected")
	park("unsell", events.ReservationCancelled, "loft", ofHold(paid, ""), "would cancel the reservation reservation.cancelled")
	park("no-sale", events.ReservationCancelled, "loft", ofHold(held, ""), "would be refused: unknown_reservation reservation.cancel_rejected")
	park("capacity", events.InventorySet, "loft", `{"resource_id":"loft","capacity":9}`, "would set the capacity inventory.updated")
	park("tombstone", events.BookingCancelled, "loft", `{"resource_id":"loft","request_key":"never"}`, "would cancel booking.cancelled")
	park("release", events.BookingCancelled, "loft", ofHold(held, ""), "would release hold.released")

	before := m.state("loft")
	r := m.run("dlq", "replay", "--all", "--dry-run", "-o", "json").want(t, exitOK)
	if after := m.state("loft"); after != before {
		t.Errorf("a dry run has changed\n%s\nto\n%s", before, after)
	}
	var verdicts []struct {
		EventID string `json:"event_id"`
		events.Verdict
	}
	if err := json.Unmarshal([]byte(r.out), &verdicts); err != nil {
		t.Fatal(err)
	}
	would := make(map[string]string)
	for _, v := range verdicts {
		would[v.EventID] = v.Kind() + " " + v.Event
	}
	if !maps.Equal(would, want) {
		for _, id := range slices.Sorted(maps.Keys(want)) {
			if would[id] != want[id] {
				t.Errorf("%s: %q, want %q", id, would[id], want[id])
			}
		}
	}

	// Each letter was judged alone. Replayed in their order, and none is in another's way here.
	m.run("dlq", "replay", "--all", "--yes", "--stop-on-failures", "100%").want(t, exitDeadLettered)
	happened := m.outcomeTypes()
	for id := range byID {
		event := want[id][strings.LastIndex(want[id], " ")+1:]
		if got := happened[id]; got != event {
			t.Errorf("%s was replayed: %q, the dry run said %q", id, got, event)
		}
	}
	m.run("dlq", "replay", "--all", "--dry-run").want(t, exitOK, "still malformed")
}

// awaitOutcome waits until an event is stored in the outbound stream.
func (m *morgue) awaitOutcome(event string) {
	m.t.Helper()
	stream, err := m.js.Stream(m.t.Context(), m.ns.OutStream())
	if err != nil {
		m.t.Fatal(err)
	}
	stacktest.Eventually(m.t, event, func() bool {
		info, err := stream.Info(m.t.Context(), jetstream.WithSubjectFilter(m.ns.Out(event, ">")))
		return err == nil && len(info.State.Subjects) > 0
	})
}

// outcomeTypes are the outbound events that answer each inbound one.
func (m *morgue) outcomeTypes() map[string]string {
	m.t.Helper()
	stream, err := m.js.Stream(m.t.Context(), m.ns.OutStream())
	if err != nil {
		m.t.Fatal(err)
	}
	types := make(map[string]string)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		stored, err := stream.GetMsg(m.t.Context(), seq)
		if err != nil {
			m.t.Fatal(err)
		}
		var e events.Envelope
		if err := json.Unmarshal(stored.Data, &e); err != nil {
			m.t.Fatal(err)
		}
		types[e.CausationID] = eventName(e.Type)
	}
	return types
}
