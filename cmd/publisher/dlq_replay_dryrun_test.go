package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// inData returns an event with the given id and data.
func inData(event, id, data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":"holdfast.%s.v1","data":%s}`, id, event, data)
}

// placeHold requests a hold on the stock of a resource and returns the hold id.
func (h *harness) placeHold(resource, user, ttl string) string {
	h.t.Helper()
	r := h.run("request", "--resource-id", resource, "--user-id", user, "--request-key", "k-"+user, "--ttl", ttl, "--wait",
		"-o", "json").want(h.t, exitOK)
	var e events.Envelope
	if err := json.Unmarshal([]byte(r.out), &e); err != nil {
		h.t.Fatal(err)
	}
	return e.Subject
}

// state returns the contents of the streams and the availability of a resource.
func (h *harness) state(resource string) string {
	h.t.Helper()
	texts := []string{h.run("inventory", "show", "--resource-id", resource, "-o", "json").want(h.t, exitOK).out}
	for _, name := range []string{h.ns.InStream(), h.ns.OutStream(), h.ns.DLQStream()} {
		stream, err := h.js.Stream(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		texts = append(texts, fmt.Sprint(name, stream.CachedInfo().State.LastSeq))
	}
	return strings.Join(texts, " ")
}

// TestDryRun_EachKindOfEvent_PredictsReplay compares the dry-run results of dead letters of every kind with their
// replay. The dry run changes nothing.
func TestDryRun_EachKindOfEvent_PredictsReplay(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.startWorker()
	h.run("inventory", "set", "--resource-id", "loft", "--capacity", "3", "--wait").want(t, exitOK)
	h.run("inventory", "set", "--resource-id", "tent", "--capacity", "0", "--wait").want(t, exitOK)
	held, paid := h.placeHold("loft", "held", "10m"), h.placeHold("loft", "paid", "10m")
	h.run("pay", "--hold-id", paid, "--payment-id", "p", "--wait").want(t, exitOK)
	expired := h.placeHold("loft", "expired", "1s")
	h.awaitOutcome("hold.expired")

	byID := make(map[string]uint64)
	want := make(map[string]string)
	addDeadLetter := func(id, event, resource, data, status string) {
		byID[id] = h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(event, resource), inData(event, id, data))
		want[id] = status
	}
	ofHold := func(hold, more string) string { return fmt.Sprintf(`{"hold_id":%q%s}`, hold, more) }
	ask := func(user, resource, more string) string {
		return fmt.Sprintf(`{"request_key":"k-%s","user_id":%q,"resource_id":%q,"quantity":1%s}`, user, user, resource, more)
	}
	addDeadLetter("grant", events.BookingRequested, "loft", ask("new", "loft", ""), "would hold hold.created")
	addDeadLetter("sold-out", events.BookingRequested, "tent", ask("new", "tent", ""), "sold out hold.rejected")
	addDeadLetter("again", events.BookingRequested, "loft", ask("held", "loft", `,"ttl_seconds":600`),
		"already answered hold.created")
	addDeadLetter("malformed", events.BookingRequested, "loft", ask("new2", "loft", `,"slots":[]`), "still malformed ")
	addDeadLetter("late", events.PaymentConfirmed, "loft", ofHold(expired, `,"payment_id":"p"`),
		"hold expired hold.confirm_rejected")
	addDeadLetter("twice", events.PaymentConfirmed, "loft", ofHold(paid, `,"payment_id":"p"`),
		"already answered hold.confirmed")
	addDeadLetter("extend", events.BookingExtended, "loft", ofHold(held, `,"ttl_seconds":1800`),
		"would extend hold.extended")
	addDeadLetter("start", events.PaymentStarted, "loft", ofHold(expired, ""), "hold expired hold.extension_rejected")
	addDeadLetter("unsell", events.ReservationCancelled, "loft", ofHold(paid, ""),
		"would cancel the reservation reservation.cancelled")
	addDeadLetter("no-sale", events.ReservationCancelled, "loft", ofHold(held, ""),
		"would be refused: unknown_reservation reservation.cancel_rejected")
	addDeadLetter("capacity", events.InventorySet, "loft", `{"resource_id":"loft","capacity":9}`,
		"would set the capacity inventory.updated")
	addDeadLetter("tombstone", events.BookingCancelled, "loft", `{"resource_id":"loft","request_key":"never"}`,
		"would cancel booking.cancelled")
	addDeadLetter("release", events.BookingCancelled, "loft", ofHold(held, ""), "would release hold.released")

	before := h.state("loft")
	r := h.run("dlq", "replay", "--all", "--dry-run", "-o", "json").want(t, exitOK)
	if after := h.state("loft"); after != before {
		t.Errorf("the dry run changed\n%s\nto\n%s", before, after)
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

	// The dry run decides each event alone; here no event affects another.
	h.run("dlq", "replay", "--all", "--yes", "--stop-on-failures", "100%").want(t, exitDeadLettered)
	happened := h.outcomeTypes()
	for id := range byID {
		event := want[id][strings.LastIndex(want[id], " ")+1:]
		if got := happened[id]; got != event {
			t.Errorf("%s was replayed: %q, dry-run result %q", id, got, event)
		}
	}
	h.run("dlq", "replay", "--all", "--dry-run").want(t, exitOK, "still malformed")
}

// awaitOutcome waits until an event is stored in the outbound stream.
func (h *harness) awaitOutcome(event string) {
	h.t.Helper()
	stream, err := h.js.Stream(h.t.Context(), h.ns.OutStream())
	if err != nil {
		h.t.Fatal(err)
	}
	stacktest.Eventually(h.t, event, func() bool {
		info, err := stream.Info(h.t.Context(), jetstream.WithSubjectFilter(h.ns.Out(event, ">")))
		return err == nil && len(info.State.Subjects) > 0
	})
}

// outcomeTypes returns the outcomes of each inbound event.
func (h *harness) outcomeTypes() map[string]string {
	h.t.Helper()
	types := make(map[string]string)
	for _, e := range h.storedOutcomes() {
		types[e.CausationID] = eventName(e.Type)
	}
	return types
}

// TestDryRun_WorkerHangs_StopsAndPrintsWhatIsKnown has a worker that answers the first dry runs and then hangs.
func TestDryRun_WorkerHangs_StopsAndPrintsWhatIsKnown(t *testing.T) {
	t.Parallel()
	const count, answered = 6 * dryRunsMax, 3
	h := newHarness(t)
	for i := range count {
		h.storeDeadLetter(events.ReasonPoison, "", h.ns.In(events.BookingRequested, "loft"), booking("loft", fmt.Sprint("u", i)))
	}
	var asked atomic.Int64
	_, err := h.nc.Subscribe(h.ns.Service(queries.EndpointDryRun), func(m *nats.Msg) {
		if asked.Add(1) <= answered {
			stacktest.Must(t, m.Respond([]byte(`{"verdict":"would hold"}`)))
		}
	})
	stacktest.Must(t, err)
	stacktest.Must(t, h.nc.Flush())
	r := h.run("dlq", "replay", "--all", "--dry-run", "--timeout", "1s", "-o", "json").want(t, exitFailed,
		"no answer to 32 dry runs in a row", "--timeout")
	var known []dryRunRow
	if err := json.Unmarshal([]byte(r.out), &known); err != nil || len(known) != answered {
		t.Errorf("%v: %d rows, want %d\n%s", err, len(known), answered, r.out)
	}
	if n := asked.Load(); n > 3*dryRunsMax {
		t.Errorf("%d dry runs were asked for", n)
	}
	h.run("dlq", "replay", "1", "--dry-run", "--timeout", "1s").want(t, exitFailed, "not known", "dead letter 1: no answer to the dry run within 1s",
		"--timeout")
}
