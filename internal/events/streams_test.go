package events

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/stack/stacktest"
)

// TestDuplicateWindow_BelowMinimum_IsRefused has the server say which duplicate windows it takes.
func TestDuplicateWindow_BelowMinimum_IsRefused(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	ns := Namespace(stacktest.Namespace(t))
	for window, want := range map[time.Duration]time.Duration{
		inDuplicates - time.Millisecond: 0, // refused
		inDuplicates:                    inDuplicates,
		0:                               2 * time.Minute,
	} {
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: ns.InStream(), Subjects: []string{ns.AllIn()}, Duplicates: window})
		if (err == nil) != (want > 0) {
			t.Fatalf("a window of %s: %v", window, err)
		}
		if err != nil {
			continue
		}
		if got := stream.CachedInfo().Config.Duplicates; got != want {
			t.Errorf("a window of %s is %s, want %s", window, got, want)
		}
		if err := js.DeleteStream(t.Context(), ns.InStream()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConsumer_SameIDFromTwoSources_BothAnswered has two sources use the same event id, also as Nats-Msg-Id, on a stream that was
// made with the server's default duplicate window. Both have an outcome.
func TestConsumer_SameIDFromTwoSources_BothAnswered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	updateInboundStream(t, b.ns, func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute })
	if err := Setup(t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	event := func(source string) *nats.Msg {
		m := nats.NewMsg(b.ns.In(BookingRequested, "room"))
		m.Data = []byte(`{"specversion":"1.0","id":"1","source":"` + source + `","type":"holdfast.booking.requested.v1",` +
			`"data":{"request_key":"` + source + `","user_id":"u","resource_id":"room","quantity":1}}`)
		m.Header.Set(headerMsgID, "1")
		return m
	}
	if _, err := b.js.PublishMsg(t.Context(), event("/one")); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the duplicate window to end", func() bool {
		ack, err := b.js.PublishMsg(t.Context(), event("/other"))
		if err != nil {
			t.Fatal(err)
		}
		return !ack.Duplicate
	})
	b.await("an outcome of each", func() bool { return len(b.out) == 2 })
	if b.decidedCount("/one") == 0 || b.decidedCount("/other") == 0 {
		t.Errorf("decided: %d of one source, %d of the other", b.decidedCount("/one"), b.decidedCount("/other"))
	}
}

// updateInboundStream changes the inbound stream of a namespace.
func updateInboundStream(t *testing.T, ns Namespace, change func(c *jetstream.StreamConfig)) {
	t.Helper()
	js := newJetStream(t)
	stream, err := js.Stream(t.Context(), ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	change(&config)
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}
