package events

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// TestAnnounce_OneCannotBeStored_OthersAre announces holds of which one has metadata that cannot be encoded, and one is
// larger than the outbound stream accepts since its limit was lowered.
func TestAnnounce_OneCannotBeStored_OthersAre(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	updateStream(t, b.js, b.ns.OutStream(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4 << 10 })
	for name, metadata := range map[string]string{
		"corrupt":   "{\"a\":\"\xff\"}",
		"too large": `{"a":"` + strings.Repeat("a", 4<<10) + `"}`,
	} {
		outcomes := make([]holds.Outcome, 3)
		for i := range outcomes {
			id := holds.NewHoldID("room")
			outcomes[i] = holds.Outcome{Event: holds.EventHoldExpired, Resource: "room", Hold: id, Data: holds.HoldExpired{}}
		}
		outcomes[1].Data = holds.HoldExpired{HoldData: holds.HoldData{Metadata: jsontext.Value(metadata)}}
		stored, err := NewAnnouncer(b.js, b.ns).Announce(t.Context(), outcomes)
		if err == nil || len(stored) != 2 || stored[0].Hold != outcomes[0].Hold || stored[1].Hold != outcomes[2].Hold {
			t.Errorf("%s: %d stored, %v", name, len(stored), err)
		}
	}
	if n := streamOf(t, b.js, b.ns.OutStream()).CachedInfo().State.Msgs; n != 4 {
		t.Errorf("%d events are stored, want 4", n)
	}
}

// TestAnnounce_PubAckLost_FailsAndRetryStoresOnce loses the PubAck of one of several hold.expired
// events, stored or not. Announce returns an error. A second call stores the missing event, and no
// event twice.
func TestAnnounce_PubAckLost_FailsAndRetryStoresOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
			js.failuresLeft.Store(1)
			const number = 3
			outcomes := make([]holds.Outcome, number)
			for i := range outcomes {
				id := holds.NewHoldID("room")
				outcomes[i] = holds.Outcome{Event: holds.EventHoldExpired, Resource: "room", Hold: id, Data: holds.HoldExpired{}}
			}
			announcer := NewAnnouncer(js, b.ns)
			stored, err := announcer.Announce(t.Context(), outcomes)
			if !errors.Is(err, nats.ErrTimeout) || len(stored) != number-1 {
				t.Errorf("after a lost PubAck: %d stored, %v", len(stored), err)
			}
			if stored, err = announcer.Announce(t.Context(), outcomes); err != nil || len(stored) != number {
				t.Errorf("%d stored, %v", len(stored), err)
			}
			stream := streamOf(t, b.js, b.ns.OutStream())
			if n := stream.CachedInfo().State.Msgs; n != number {
				t.Errorf("%d events are stored, want %d", n, number)
			}
		})
	}
}
