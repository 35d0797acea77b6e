package events

import (
	"slices"
	"testing"

	"holdfast/internal/holds"

	"github.com/rs/zerolog"
)

// TestDispatch_PaymentStartsAfterItIsConfirmed_InTheirOrder decides both events of a hold in one batch.
func TestDispatch_PaymentStartsAfterItIsConfirmed_InTheirOrder(t *testing.T) {
	t.Parallel()
	d := decider{&echo{seen: make(map[string]int)}, ns, zerolog.Nop()}
	confirmed := envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`","payment_id":"p"}`)
	started := envelopeOf(PaymentStarted, "e2", `{"hold_id":"`+holdID+`"}`)
	for _, order := range [][]string{{confirmed, started}, {started, confirmed}} {
		var batch, decided []*delivery
		for _, body := range order {
			in, err := DecodeEvent(nil, []byte(body), storedAt)
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, &delivery{in: in})
		}
		d.dispatch(t.Context(), batch, func(event *delivery) { decided = append(decided, event) })
		if !slices.Equal(decided, batch) {
			t.Errorf("%s is decided before %s", decided[0].in.Event, decided[1].in.Event)
		}
	}
}

// TestDispatch_InventorySetInBatch_DecidedLast decides an extension that came after an inventory.set of another resource,
// whose rows may be locked.
func TestDispatch_InventorySetInBatch_DecidedLast(t *testing.T) {
	t.Parallel()
	d := decider{&echo{seen: make(map[string]int)}, ns, zerolog.Nop()}
	set := &delivery{in: &Inbound{Event: InventorySet, Resource: "hall", Request: &holds.InventoryRequest{Resource: "hall"}}}
	extended := &delivery{in: &Inbound{Event: BookingExtended, Resource: "room", Request: &holds.ExtendRequest{Hold: holds.HoldID{Resource: "room", UUID: "1"}}}}
	var decided []*delivery
	d.dispatch(t.Context(), []*delivery{set, extended}, func(event *delivery) { decided = append(decided, event) })
	if !slices.Equal(decided, []*delivery{extended, set}) {
		t.Errorf("%s is decided first", decided[0].in.Event)
	}
}

// TestDispatch_ExtendAfterReleaseByKey_InTheirOrder decides an extension after a release by the request key of its hold.
func TestDispatch_ExtendAfterReleaseByKey_InTheirOrder(t *testing.T) {
	t.Parallel()
	d := decider{&echo{seen: make(map[string]int)}, ns, zerolog.Nop()}
	released := &delivery{in: &Inbound{Event: BookingCancelled, Resource: "room", Request: &holds.ReleaseRequest{Resource: "room", RequestKey: "k"}}}
	extended := &delivery{in: &Inbound{Event: BookingExtended, Resource: "room", Request: &holds.ExtendRequest{Hold: holds.HoldID{Resource: "room", UUID: "1"}}}}
	for _, batch := range [][]*delivery{{released, extended}, {extended, released}} {
		var decided []*delivery
		d.dispatch(t.Context(), batch, func(event *delivery) { decided = append(decided, event) })
		if !slices.Equal(decided, batch) {
			t.Errorf("%s is decided first", decided[0].in.Event)
		}
	}
}
