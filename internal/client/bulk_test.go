package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// bulkHarness is a Bulk with what became of its messages, by their ids.
type bulkHarness struct {
	*BulkPublisher
	t       *testing.T
	ns      events.Namespace
	mu      sync.Mutex
	results map[string]BulkResult
	errs    chan error
}

func newBulkHarness(t *testing.T, ctx context.Context, ns events.Namespace, o BulkOptions) *bulkHarness {
	t.Helper()
	b := &bulkHarness{t: t, ns: ns, results: make(map[string]BulkResult), errs: make(chan error, 64)}
	o.OnError = func(err error) { b.errs <- err }
	var err error
	if b.BulkPublisher, err = newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, ns).client.BulkPublisher(ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// send publishes a message whose result is kept under its name.
func (b *bulkHarness) send(name, id, body string, again bool) error {
	m := events.NewStructuredMsg([]byte(body))
	m.Subject = b.ns.In(events.BookingRequested, "room")
	m.Header.Set(jetstream.MsgIDHeader, id)
	return b.Publish(m, again, func(r BulkResult) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, twice := b.results[name]; twice {
			b.t.Errorf("two results of %s", name)
		}
		b.results[name] = r
	})
}

// mustSend sends a good request whose key is its name.
func (b *bulkHarness) mustSend(name string) {
	b.t.Helper()
	if err := b.send(name, name, keyed(name), false); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bulkHarness) mustWait() {
	b.t.Helper()
	if err := b.Wait(); err != nil {
		b.t.Fatal(err)
	}
}

// TestBulkPublisher_AwaitOutcomes_EachGetsItsReply publishes in order, never more than InFlight at a time, and hands each its own
// answer.
func TestBulkPublisher_AwaitOutcomes_EachGetsItsReply(t *testing.T) {
	t.Parallel()
	const count, inFlight = 2000, 32
	h := newHarness(t)
	b := newBulkHarness(t, t.Context(), h.ns, BulkOptions{InFlight: inFlight, AwaitOutcomes: true, Timeout: generous, GiveUpAfter: generous})
	for i := range count {
		b.mustSend(fmt.Sprintf("k%d", i))
		b.mu.Lock()
		under := i + 1 - len(b.results)
		b.mu.Unlock()
		if under > inFlight {
			t.Fatalf("%d messages are on their way, want at most %d", under, inFlight)
		}
	}
	b.mustWait()
	for i := range count {
		key := fmt.Sprintf("k%d", i)
		r := b.results[key]
		if !r.Stored || r.Duplicate || r.Err != nil || r.Reply == nil || !strings.Contains(string(r.Reply.Envelope.Data), `"`+key+`"`) {
			t.Fatalf("%s: %+v", key, r)
		}
	}
	if len(b.pending) > 0 {
		t.Errorf("%d answers are waited for still", len(b.pending))
	}
	stream, err := h.js.Stream(t.Context(), h.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		m, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("k%d", i); m.Header.Get(jetstream.MsgIDHeader) != want {
			t.Fatalf("message %d is %s, want %s", i+1, m.Header.Get(jetstream.MsgIDHeader), want)
		}
	}
}

// TestBulkPublisher_DuplicateID_RepublishedOnRequest publishes ids that were published before. With again the worker decides
// whether it is the same event.
func TestBulkPublisher_DuplicateID_RepublishedOnRequest(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.Duplicates = time.Hour })
	o := BulkOptions{InFlight: 1, AwaitOutcomes: true, Timeout: generous, GiveUpAfter: generous}
	earlier := newBulkHarness(t, t.Context(), h.ns, o)
	earlier.mustSend("k")
	earlier.mustWait()

	b := newBulkHarness(t, t.Context(), h.ns, o)
	for _, err := range []error{
		b.send("the same", "k", keyed("k"), true),
		b.send("another with the id", "k", keyed("other"), true),
		b.send("another", "new", keyed("new"), true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.mustWait()
	for name, want := range map[string]struct {
		duplicate bool
		key       string
	}{"the same": {true, "k"}, "another with the id": {true, "other"}, "another": {false, "new"}} {
		r := b.results[name]
		if r.Duplicate != want.duplicate || r.Reply == nil || !strings.Contains(string(r.Reply.Envelope.Data), `"`+want.key+`"`) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if first, again := earlier.results["k"].Reply.Envelope.ID, b.results["the same"].Reply.Envelope.ID; first != again {
		t.Errorf("the outcome of the same event is %s, and then %s", first, again)
	}

	quiet := newBulkHarness(t, t.Context(), h.ns, BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: generous})
	if err := quiet.send("dropped", "k", keyed("dropped"), false); err != nil {
		t.Fatal(err)
	}
	quiet.mustWait()
	if r := quiet.results["dropped"]; !r.Stored || !r.Duplicate || r.Reply != nil {
		t.Errorf("%+v", r)
	}
	quiet.mustSend("last") // what was dropped would be decided before it
	quiet.mustWait()
	h.await("the last", func() bool { return h.decidedCount("last") == 1 })
	if h.decidedCount("dropped") != 0 {
		t.Error("a duplicate was published again, nobody had asked for it")
	}
}

// TestBulkPublisher_StreamFull_ReportsOnceAndRetries publishes to a stream that is full: it complains once, and goes on when
// there is room.
func TestBulkPublisher_StreamFull_ReportsOnceAndRetries(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	ns, stream := h.ns, h.inboundStream()
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 })
	b := newBulkHarness(t, t.Context(), ns, BulkOptions{InFlight: 64, Timeout: generous, GiveUpAfter: generous})
	for i := range 50 {
		b.mustSend(fmt.Sprint(i))
	}
	if err := <-b.errs; !strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Errorf("it complains of %v", err)
	}
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	b.mustWait()
	if len(b.errs) > 0 {
		t.Errorf("it complains again: %v", <-b.errs)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 50 || len(b.results) != 50 {
		t.Errorf("%d are stored, %d have results, want 50", info.State.Msgs, len(b.results))
	}
	for name, r := range b.results {
		if !r.Stored || r.Duplicate {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestBulkPublisher_NothingStored_GivesUp publishes where nothing will ever be stored.
func TestBulkPublisher_NothingStored_GivesUp(t *testing.T) {
	t.Parallel()
	full := newStreams(t)
	full.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	nowhere := events.Namespace(stacktest.Namespace(t))
	for ns, want := range map[events.Namespace]string{full.ns: "nothing was stored for 50ms", nowhere: jetstream.ErrNoStreamResponse.Error()} {
		b := newBulkHarness(t, t.Context(), ns, BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: 50 * time.Millisecond})
		var err error
		sent := 0
		for ; err == nil; sent++ {
			err = b.send(fmt.Sprint(sent), fmt.Sprint(sent), keyed("k"), false)
		}
		if waited := b.Wait(); !errors.Is(waited, err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, and then %v, want %s", err, waited, want)
		}
		if context.Cause(b.Context()) == nil || len(b.results) != sent-1 {
			t.Errorf("%v; %d results of %d messages", context.Cause(b.Context()), len(b.results), sent-1)
		}
	}
}

// TestBulkPublisher_MessageTooLarge_RefusedOthersStored publishes a message that is too large for its stream, and goes on.
func TestBulkPublisher_MessageTooLarge_RefusedOthersStored(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	ns := h.ns
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1024 })
	b := newBulkHarness(t, t.Context(), ns, BulkOptions{InFlight: 2, Timeout: generous, GiveUpAfter: generous})
	if err := b.send("large", "large", strings.Repeat("x", 2048), false); err != nil {
		t.Fatal(err)
	}
	if err := b.send("huge", "huge", strings.Repeat("x", 2<<20), false); err != nil { // for the server
		t.Fatal(err)
	}
	b.mustSend("small")
	b.mustWait()
	for _, name := range []string{"large", "huge"} {
		if refused, is := errors.AsType[*RefusedError](b.results[name].Err); !is {
			t.Errorf("%s: %v", name, b.results[name].Err)
		} else if errors.Is(refused, nats.ErrMaxPayload) != (name == "huge") {
			t.Errorf("%s: %v", name, refused)
		}
	}
	if r := b.results["small"]; !r.Stored || r.Err != nil {
		t.Errorf("small: %+v", r)
	}
}

// TestBulkPublisher_Cancelled_StopsAwaitingReplies stops a Bulk that waits for answers that nobody gives.
func TestBulkPublisher_Cancelled_StopsAwaitingReplies(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	ns, stream := h.ns, h.inboundStream()
	ctx, cancel := context.WithCancel(t.Context())
	b := newBulkHarness(t, ctx, ns, BulkOptions{InFlight: 2, AwaitOutcomes: true, Timeout: 24 * time.Hour, GiveUpAfter: 24 * time.Hour})
	b.mustSend("a")
	b.mustSend("b")
	stacktest.Eventually(t, "two messages to be stored", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	})
	cancel()
	if err := b.send("c", "c", keyed("c"), false); !errors.Is(err, context.Canceled) {
		t.Errorf("published after the end: %v", err)
	}
	b.mustWait()
	for _, name := range []string{"a", "b"} {
		if r := b.results[name]; !r.Stored || r.Reply != nil || r.Err != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
