package events

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// TestAnnounce_PubAckLost_FailsAndRetryStoresOnce loses the PubAck of one of several hold.expired
// events, stored or not. Announce returns an error. A second call stores the missing event, and no
// event twice.
func TestAnnounce_PubAckLost_FailsAndRetryStoresOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			b := newHarnessWithJetStream(t, func(inner jetstream.JetStream) jetstream.JetStream { js.JetStream = inner; return js })
			js.failuresLeft.Store(1)
			const number = 3
			outcomes := make([]holds.Outcome, number)
			for i := range outcomes {
				id := holds.NewHoldID("room")
				outcomes[i] = holds.Outcome{Event: holds.EventHoldExpired, Resource: "room", Hold: id, Data: holds.HoldExpired{}}
			}
			announcer := NewAnnouncer(js, b.ns)
			if err := announcer.Announce(t.Context(), outcomes); !errors.Is(err, nats.ErrTimeout) {
				t.Errorf("after a lost PubAck: %v", err)
			}
			if err := announcer.Announce(t.Context(), outcomes); err != nil {
				t.Error(err)
			}
			stream := streamOf(t, b.js, b.ns.OutStream())
			if n := stream.CachedInfo().State.Msgs; n != number {
				t.Errorf("%d events are stored, want %d", n, number)
			}
		})
	}
}
