package events

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/stack/stacktest"
)

// TestDuplicateWindow_BelowMinimum_IsRefused checks which duplicate windows the server allows.
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

// TestSetup_StreamBreaksPromise_IsError checks that Setup refuses streams that break a promise.
func TestSetup_StreamBreaksPromise_IsError(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	for name, spoil := range map[string]func(*jetstream.StreamConfig){
		"retention": func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"storage":   func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"discards":  func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
	} {
		ns := Namespace(stacktest.Namespace(t))
		config := jetstream.StreamConfig{Name: ns.InStream(), Subjects: []string{ns.AllIn()}, Discard: jetstream.DiscardNew}
		spoil(&config)
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if err := Setup(t.Context(), js, ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSetup_PausedConsumer_StaysPaused checks that a worker that starts does not resume a consumer
// that an operator has paused.
func TestSetup_PausedConsumer_StaysPaused(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	stream := streamOf(t, h.js, h.ns.InStream())
	if _, err := stream.PauseConsumer(t.Context(), ConsumerRequests, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	setup(t, h.js, h.ns)
	consumer, err := stream.Consumer(t.Context(), ConsumerRequests)
	if err != nil {
		t.Fatal(err)
	}
	if !consumer.CachedInfo().Paused {
		t.Error("the consumer is no longer paused")
	}
}
