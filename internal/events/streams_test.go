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
		"roll-ups":  func(c *jetstream.StreamConfig) { c.AllowRollup = true },
		"persist":   func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
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

// TestSetup_NewStreams_AreThoseOfTheContract compares new streams with section 3 of the contract, in numbers of
// its own: preflight compares streams with what Setup creates. Holds may live longer here than outcomes are kept by
// default.
func TestSetup_NewStreams_AreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	js := newJetStream(t)
	ns := Namespace(stacktest.Namespace(t))
	const day = 24 * time.Hour
	life := Retention{HoldLifetime: 20 * day, AnswerTTL: 30 * day}
	if err := Setup(t.Context(), js, ns, life, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		subject string
		discard jetstream.DiscardPolicy
		size    int32
		ageMin  time.Duration // 0: kept without end
		ageMax  time.Duration
	}{
		ns.InStream():   {ns.AllIn(), jetstream.DiscardNew, 128 << 10, 0, 0},
		ns.OutStream():  {ns.AllOut(), jetstream.DiscardOld, -1, life.HoldLifetime + life.AnswerTTL, 365 * day},
		ns.DLQStream():  {ns.AllDLQ(), jetstream.DiscardNew, -1, 0, 0},
		ns.RunsStream(): {ns.AllRuns(), jetstream.DiscardOld, -1, 365 * day, 365 * day},
	} {
		got := streamOf(t, js, name).CachedInfo().Config
		if len(got.Subjects) != 1 || got.Subjects[0] != want.subject || got.Discard != want.discard || got.MaxMsgSize != want.size ||
			got.Retention != jetstream.LimitsPolicy || got.Storage != jetstream.FileStorage {
			t.Errorf("%s: %+v", name, got)
		}
		if got.MaxAge < want.ageMin || got.MaxAge > want.ageMax {
			t.Errorf("%s keeps messages for %v, want %v to %v", name, got.MaxAge, want.ageMin, want.ageMax)
		}
		if got.MaxMsgs != -1 || got.MaxBytes != -1 || got.MaxMsgsPerSubject != -1 {
			t.Errorf("%s has a limit: %d messages, %d bytes, %d of a subject", name, got.MaxMsgs, got.MaxBytes, got.MaxMsgsPerSubject)
		}
	}
}
