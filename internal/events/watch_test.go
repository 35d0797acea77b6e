package events

import (
	"math"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// TestFill_EachLimit_LargestPartUsed measures a stream without a limit, and then with limits of the account and of
// the stream.
func TestFill_EachLimit_LargestPartUsed(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	b := newHarnessAt(t, s.ClientURL(), func(js jetstream.JetStream) jetstream.JetStream { return js })
	set := telemetry.NewSet()
	w := NewWatch(b.js, b.ns, set, new(telemetry.Gauge))
	fill := func() (in, runs float64) {
		t.Helper()
		if err := w.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.fill.With(streamIn).Value(), w.fill.With(streamRuns).Value()
	}
	if in, runs := fill(); !math.IsNaN(in) || !math.IsNaN(runs) {
		t.Errorf("without a limit %v and %v of it are used, want NaN", in, runs)
	}
	inbound := func(change func(*jetstream.StreamConfig)) (bytes uint64) {
		t.Helper()
		stream := streamOf(t, b.js, b.ns.InStream())
		config := stream.CachedInfo().Config
		change(&config)
		if _, err := b.js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Bytes
	}
	const limit = 1 << 20
	if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{
		"": {MaxMemory: -1, MaxStore: limit, MaxStreams: -1, MaxConsumers: -1},
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // with their dead letters half of the limit
		b.publish(b.ns.In("none", "room"), nil, strings.Repeat("x", limit/8-1024))
	}
	b.await("two dead letters", func() bool { return len(b.dlq) == 2 })
	if in, runs := fill(); in < 0.4 || in > 0.6 || runs != in {
		t.Errorf("%v and %v of the storage of the account are used, want about 0.5", in, runs)
	}
	bytes := inbound(func(c *jetstream.StreamConfig) { c.MaxBytes = limit / 2 })
	if in, runs := fill(); in != float64(bytes)/(limit/2) || runs < 0.4 {
		t.Errorf("%v of the stream's and %v of the account's limit are used", in, runs)
	}
	inbound(func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 })
	if in, _ := fill(); in != 1 {
		t.Errorf("%v of the messages are stored, want 1", in)
	}
}
