package events

import (
	"slices"
	"testing"

	"holdfast/internal/holds"

	"github.com/rs/zerolog"
)

// TestDispatch_TwoEventsOfABatch_InTheirOrder decides events in their order that depend on each other: the payment of a
// hold and its start, or an extension and a release by the request key of the hold. An inventory.set of another resource,
// whose rows may be locked, is decided last.
func TestDispatch_TwoEventsOfABatch_InTheirOrder(t *testing.T) {
	t.Parallel()
	event := func(name, resource string, request any) *delivery {
		return &delivery{in: &Inbound{Event: name, Resource: resource, Request: request}}
	}
	hold := holds.HoldID{Resource: "room", UUID: "1"}
	confirmed := event(PaymentConfirmed, "room", &holds.ConfirmRequest{Hold: hold, PaymentID: "p"})
	started := event(PaymentStarted, "room", &holds.ExtendRequest{Hold: hold, PaymentStarted: true})
	extended := event(BookingExtended, "room", &holds.ExtendRequest{Hold: hold})
	released := event(BookingCancelled, "room", &holds.ReleaseRequest{Resource: "room", RequestKey: "k"})
	set := event(InventorySet, "hall", &holds.InventoryRequest{Resource: "hall"})
	d := decider{&echo{seen: make(map[string]int)}, ns, zerolog.Nop()}
	for _, c := range []struct{ batch, want [2]*delivery }{
		{[2]*delivery{confirmed, started}, [2]*delivery{confirmed, started}},
		{[2]*delivery{started, confirmed}, [2]*delivery{started, confirmed}},
		{[2]*delivery{released, extended}, [2]*delivery{released, extended}},
		{[2]*delivery{extended, released}, [2]*delivery{extended, released}},
		{[2]*delivery{set, extended}, [2]*delivery{extended, set}},
	} {
		var decided []*delivery
		d.dispatch(t.Context(), c.batch[:], func(event *delivery) { decided = append(decided, event) })
		if !slices.Equal(decided, c.want[:]) {
			t.Errorf("of %s and %s, %s is decided first", c.batch[0].in.Event, c.batch[1].in.Event, decided[0].in.Event)
		}
	}
}
