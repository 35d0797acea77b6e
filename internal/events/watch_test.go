package events

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// TestFill_EachLimit_LargestPartUsed measures a stream without a limit, and then with limits of the account and of
// the stream.
func TestFill_EachLimit_LargestPartUsed(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	b := newHarnessAt(t, s.ClientURL(), func(js JetStream) JetStream { return js })
	set := telemetry.NewSet()
	w := NewWatch(b.js, b.ns, set, new(telemetry.Gauge))
	fill := func() (in, runs float64) {
		t.Helper()
		if err := w.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.fill.With("in").Value(), w.fill.With("runs").Value()
	}
	if in, runs := fill(); !math.IsNaN(in) || !math.IsNaN(runs) {
		t.Errorf("without a limit %v and %v of it are used, want NaN", in, runs)
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
	updateStream(t, b.js, b.ns.InStream(), func(c *jetstream.StreamConfig) { c.MaxBytes = limit / 2 })
	bytes := streamOf(t, b.js, b.ns.InStream()).CachedInfo().State.Bytes
	if in, runs := fill(); in != float64(bytes)/(limit/2) || runs < 0.4 {
		t.Errorf("%v of the stream's and %v of the account's limit are used", in, runs)
	}
	updateStream(t, b.js, b.ns.InStream(), func(c *jetstream.StreamConfig) { c.MaxMsgs = 2 })
	if in, _ := fill(); in != 1 {
		t.Errorf("%v of the messages are stored, want 1", in)
	}
}

// newWatch returns a Watch of the namespace of a harness whose consumers have stopped. Each of two consumers has an
// event that was not delivered. The Watch has a connection of its own, to url.
func newWatch(t *testing.T, b *harness, url string, options ...nats.Option) *Watch {
	t.Helper()
	b.stop()
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k1"))
	b.publish(b.ns.In("payment.confirmed", "room"), nil, "{}")
	nc, err := Connect(url, t.Name(), t.Logf, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := NewJetStream(nc, b.ns)
	if err != nil {
		t.Fatal(err)
	}
	return NewWatch(js, b.ns, telemetry.NewSet(), new(telemetry.Gauge))
}

// observeFor observes once, within a time. It is enough for the reads that are answered.
func observeFor(t *testing.T, w *Watch, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return w.Observe(ctx)
}

// startLimitedNATS starts a server on which the account has a limit of storage, with a proxy at url.
func startLimitedNATS(t *testing.T) (s *server.Server, url string, proxy *stacktest.Proxy) {
	t.Helper()
	s = stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{
		"": {MaxMemory: -1, MaxStore: 1 << 30, MaxStreams: -1, MaxConsumers: -1},
	}); err != nil {
		t.Fatal(err)
	}
	url, proxy = stacktest.ProxyTo(t, s.ClientURL())
	return s, url, proxy
}

// TestObserve_EventsAndDeadLettersWait_AreCountedWithTheirAges has events that no worker has, one that a worker has and
// does not acknowledge, and dead letters. The age is that of the oldest.
func TestObserve_EventsAndDeadLettersWait_AreCountedWithTheirAges(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	w := newWatch(t, b, stacktest.Shared().NATSURL)
	const more = 500 // stored between the oldest and the newest
	for range more {
		b.publish(b.ns.In("payment.confirmed", "room"), nil, "{}")
		b.publish(b.ns.DLQ(ReasonMalformed), nil, "{}")
	}
	b.publish(b.ns.DLQ("of-another-version"), nil, "{}")
	if _, err := consumerOf(t, b.js, b.ns, ConsumerPayments).Next(); err != nil { // it is not acknowledged
		t.Fatal(err)
	}
	first := func(stream string) time.Time { return streamOf(t, b.js, stream).CachedInfo().State.FirstTime }
	stacktest.Eventually(t, "the consumers to count what is stored", func() bool {
		waiting := func(name string) uint64 { return consumerOf(t, b.js, b.ns, name).CachedInfo().NumPending }
		return waiting(ConsumerRequests) == more+2 && waiting(ConsumerPayments) == more
	})
	before := time.Now()
	if err := w.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	for what, c := range map[string]struct{ got, want float64 }{
		"pending requests":        {w.pending.With(ConsumerRequests).Value(), more + 2}, // with the payments, which it has not passed over
		"pending payments":        {w.pending.With(ConsumerPayments).Value(), more},
		"unacknowledged payments": {w.unacknowledged.With(ConsumerPayments).Value(), 1},
		"unacknowledged requests": {w.unacknowledged.With(ConsumerRequests).Value(), 0},
		"dead letters":            {w.deadLetters.With(ReasonMalformed).Value(), more},
		"other dead letters":      {w.deadLetters.With(otherReason).Value(), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	for what, c := range map[string]struct {
		got    float64
		oldest time.Time
	}{
		"oldest request":     {w.oldest.With(ConsumerRequests).Value(), first(b.ns.InStream())},
		"oldest event":       {w.oldestMessages.With("in").Value(), first(b.ns.InStream())},
		"oldest dead letter": {w.oldestMessages.With("dlq").Value(), first(b.ns.DLQStream())},
	} {
		if least, most := before.Sub(c.oldest).Seconds(), after.Sub(c.oldest).Seconds(); c.got < least || c.got > most {
			t.Errorf("%s: %v s old, want %v to %v", what, c.got, least, most)
		}
	}
}

// TestObserve_NATSWasDown_ReadsAllAgain observes while no byte of NATS arrives, and after that: nothing is left out,
// and the fill is known all the time.
func TestObserve_NATSWasDown_ReadsAllAgain(t *testing.T) {
	t.Parallel()
	s, url, proxy := startLimitedNATS(t)
	b := newHarnessAt(t, s.ClientURL(), func(js JetStream) JetStream { return js })
	w := newWatch(t, b, url)
	if err := w.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	if err := observeFor(t, w, accountReadLimit+time.Second/2); err == nil {
		t.Error("no error while NATS does not answer")
	}
	proxy.Reset()
	stacktest.Eventually(t, "all to be read after the outage", func() bool { return w.Observe(t.Context()) == nil })
	if fill := w.fill.With("in").Value(); math.IsNaN(fill) {
		t.Error("the fill is not known after the outage")
	}
}

// TestObserve_ConnectionLostDuringRead_ReadsAgain loses the connection with the request for a message, and with
// the one for the limits of the account. The fill stays known while the latter are not.
func TestObserve_ConnectionLostDuringRead_ReadsAgain(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]string{"message": ".STREAM.MSG.GET.", "account": "$JS.API.INFO"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url, proxy := startLimitedNATS(t)
			b := newHarnessAt(t, s.ClientURL(), func(js JetStream) JetStream { return js })
			w := newWatch(t, b, url, nats.ReconnectWait(time.Millisecond))
			if err := w.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			clear(w.oldestKnown)
			proxy.Drop(stacktest.DropRule{Words: []string{subject}, Request: true})
			observing, giveUp := context.WithCancel(t.Context())
			observed := make(chan error, 1)
			go func() { observed <- w.Observe(observing) }()
			stacktest.Eventually(t, "the request to be lost", func() bool { return proxy.Dropped() > 0 })
			giveUp()
			if err := <-observed; err == nil || proxy.Dropped() != 1 {
				t.Errorf("%v after %d lost requests, want an error after 1", err, proxy.Dropped())
			}
			if fill := w.fill.With("in").Value(); math.IsNaN(fill) {
				t.Error("the fill is not known while the limits of the account are not read")
			}
			stacktest.Eventually(t, "all to be read after the outage", func() bool { return w.Observe(t.Context()) == nil })
		})
	}
}

// TestObserve_MessagesNotRead_AgeGrows observes an event that no worker acknowledges while no message can be read, as when a
// request takes too long under load: its age grows. When all are acknowledged it is 0.
func TestObserve_MessagesNotRead_AgeGrows(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	w := newWatch(t, b, stacktest.Shared().NATSURL)
	age := func() float64 {
		t.Helper()
		if err := w.Observe(t.Context()); err != nil && !errors.Is(err, errNotRead) {
			t.Fatal(err)
		}
		return w.oldest.With(ConsumerPayments).Value()
	}
	first := age()
	for name, known := range w.oldestKnown {
		known.readAt = known.readAt.Add(-readOldestEvery)
		w.oldestKnown[name] = known
	}
	w.readAfter = time.Now().Add(time.Hour)
	stacktest.Eventually(t, "an event that is older", func() bool { return age() > first })
	m, err := consumerOf(t, b.js, b.ns, ConsumerPayments).Next()
	stacktest.Must(t, err)
	stacktest.Must(t, m.DoubleAck(t.Context()))
	stacktest.Eventually(t, "no age when nothing waits", func() bool { return age() == 0 })
}

// TestObserve_ReadNotPermitted_IsNotRetriedAtOnce observes twice as a user who may read neither messages nor the
// limits of the account: each is requested once.
func TestObserve_ReadNotPermitted_IsNotRetriedAtOnce(t *testing.T) {
	t.Parallel()
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), Users: []*server.User{
		{Username: "all", Password: "p"},
		{Username: "some", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
			Deny: []string{"$JS.API.INFO", "$JS.API.STREAM.MSG.GET.>"},
		}}},
	}})
	b := newHarnessAt(t, "nats://all:p@"+s.Addr().String(), func(js JetStream) JetStream { return js })
	var mu sync.Mutex
	denied := 0
	count := func(_ *nats.Conn, _ *nats.Subscription, err error) {
		mu.Lock()
		defer mu.Unlock()
		if errors.Is(err, nats.ErrPermissionViolation) {
			denied++
		}
	}
	w := newWatch(t, b, "nats://some:p@"+s.Addr().String(), nats.ErrorHandler(count))
	for range 2 {
		if err := observeFor(t, w, 3*time.Second); err == nil {
			t.Error("no error without permissions")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if denied != 2 {
		t.Errorf("%d requests were denied, want 2", denied)
	}
}

// TestCertainSkew_SlowAnswer_NoSkew compares clocks that were read at each end of a slow round trip and beyond it.
func TestCertainSkew_SlowAnswer_NoSkew(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	received := sent.Add(time.Second)
	for read, want := range map[time.Duration]time.Duration{
		0: 0, 500 * time.Millisecond: 0, time.Second: 0, -time.Minute: -time.Minute, time.Minute: 59 * time.Second,
	} {
		if got := CertainSkew(sent, received, sent.Add(read)); got != want {
			t.Errorf("a clock that is read after %s has the skew %s, want %s", read, got, want)
		}
	}
}
