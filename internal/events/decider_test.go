package events

import (
	"slices"
	"testing"

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
