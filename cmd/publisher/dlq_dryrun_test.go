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

// placeHold books one of a resource's stock and returns the hold's id.
func (m *harness) placeHold(resource, user, ttl string) string {
	m.t.Helper()
	r := m.run("request", "--resource-id", resource, "--user-id", user, "--request-key", "k-"+user, "--ttl", ttl, "--wait", "-o", "json").want(m.t, exitOK)
	var e events.Envelope
	if err := json.Unmarshal([]byte(r.out), &e); err != nil {
		m.t.Fatal(err)
	}
	return e.Subject
}

// state is what the streams have, and what can be had of a resource.
func (m *harness) state(resource string) string {
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

// TestDryRun_EachKindOfEvent_PredictsReplay has a worker say of dead letters of every kind what would happen now: it
// is what happens when they are replayed, and until then nothing is changed.
func TestDryRun_EachKindOfEvent_PredictsReplay(t *testing.T) {
	t.Parallel()
	m := newHarness(t)
	m.startWorker()
	m.run("inventory", "set", "--resource-id", "loft", "--capacity", "3", "--wait").want(t, exitOK)
	m.run("inventory", "set", "--resource-id", "tent", "--capacity", "0", "--wait").want(t, exitOK)
	held, paid := m.placeHold("loft", "held", "10m"), m.placeHold("loft", "paid", "10m")
	m.run("pay", "--hold-id", paid, "--payment-id", "p", "--wait").want(t, exitOK)
	expired := m.placeHold("loft", "lapsed", "1s")
	m.awaitOutcome("hold.expired")

	byID := make(map[string]uint64)
	want := make(map[string]string)
	addDeadLetter := func(id, event, resource, data, status string) {
		byID[id] = m.storeDeadLetter(events.ReasonPoison, "", m.ns.In(event, resource), inData(event, id, data))
		want[id] = status
	}
	ofHold := func(hold, more string) string { return fmt.Sprintf(`{"hold_id":%q%s}`, hold, more) }
	ask := func(user, resource, more string) string {
		return fmt.Sprintf(`{"request_key":"k-%s","user_id":%q,"resource_id":%q,"quantity":1%s}`, user, user, resource, more)
	}
	addDeadLetter("grant", events.BookingRequested, "loft", ask("new", "loft", ""), "would hold hold.created")
	addDeadLetter("sold-out", events.BookingRequested, "tent", ask("new", "tent", ""), "sold out hold.rejected")
	addDeadLetter("again", events.BookingRequested, "loft", ask("held", "loft", `,"ttl_seconds":600`), "already answered hold.created")
	addDeadLetter("malformed", events.BookingRequested, "loft", ask("new2", "loft", `,"slots":[]`), "still malformed ")
	addDeadLetter("late", events.PaymentConfirmed, "loft", ofHold(expired, `,"payment_id":"p"`), "hold expired hold.confirm_rejected")
	addDeadLetter("twice", events.PaymentConfirmed, "loft", ofHold(paid, `,"payment_id":"p"`), "already answered hold.confirmed")
	addDeadLetter("extend", events.BookingExtended, "loft", ofHold(held, `,"ttl_seconds":1800`), "would extend hold.extended")
	addDeadLetter("start", events.PaymentStarted, "loft", ofHold(expired, ""), "hold expired hold.extension_rejected")
	addDeadLetter("unsell", events.ReservationCancelled, "loft", ofHold(paid, ""), "would cancel the reservation reservation.cancelled")
	addDeadLetter("no-sale", events.ReservationCancelled, "loft", ofHold(held, ""), "would be refused: unknown_reservation reservation.cancel_rejected")
	addDeadLetter("capacity", events.InventorySet, "loft", `{"resource_id":"loft","capacity":9}`, "would set the capacity inventory.updated")
	addDeadLetter("tombstone", events.BookingCancelled, "loft", `{"resource_id":"loft","request_key":"never"}`, "would cancel booking.cancelled")
	addDeadLetter("release", events.BookingCancelled, "loft", ofHold(held, ""), "would release hold.released")

	before := m.state("loft")
	r := m.run("dlq", "replay", "--all", "--dry-run", "-o", "json").want(t, exitOK)
	if after := m.state("loft"); after != before {
		t.Errorf("a dry run has changed\n%s\nto\n%s", before, after)
	}
	var results []struct {
		EventID string `json:"event_id"`
		events.DryRunResult
	}
	if err := json.Unmarshal([]byte(r.out), &results); err != nil {
		t.Fatal(err)
	}
	would := make(map[string]string)
	for _, v := range results {
		would[v.EventID] = v.Label() + " " + v.Event
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
func (m *harness) awaitOutcome(event string) {
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
func (m *harness) outcomeTypes() map[string]string {
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
