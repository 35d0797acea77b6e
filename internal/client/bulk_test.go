package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// bulkHarness is a BulkPublisher that keeps the results of its messages by their names.
type bulkHarness struct {
	*BulkPublisher
	t       *testing.T
	ns      events.Namespace
	mu      sync.Mutex
	results map[string]BulkResult
	errs    chan error // calls of OnError
}

func newBulkHarness(t *testing.T, ctx context.Context, ns events.Namespace, o BulkOptions) *bulkHarness {
	t.Helper()
	return newBulkHarnessAt(t, ctx, stacktest.Shared().NATSURL, ns, o)
}

// newBulkHarnessAt is newBulkHarness with the URL of NATS, and options of the connection.
func newBulkHarnessAt(
	t *testing.T, ctx context.Context, url string, ns events.Namespace, o BulkOptions, options ...nats.Option,
) *bulkHarness {
	t.Helper()
	b := &bulkHarness{t: t, ns: ns, results: make(map[string]BulkResult), errs: make(chan error, 64)}
	o.OnError = func(err error) { b.errs <- err }
	b.BulkPublisher = newHarnessWithoutStreams(t, url, ns, options...).client.BulkPublisher(ctx, o)
	t.Cleanup(b.Close)
	return b
}

// send publishes a message under a message id, and keeps its result under a name.
func (b *bulkHarness) send(name, id, body string, republish bool) error {
	m := events.NewStructuredMsg([]byte(body))
	m.Subject = b.ns.In(events.BookingRequested, "room")
	m.Header.Set(jetstream.MsgIDHeader, id)
	return b.Publish(m, republish, func(r BulkResult) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, twice := b.results[name]; twice {
			b.t.Errorf("%s has two results", name)
		}
		b.results[name] = r
	})
}

// mustSend publishes a valid request whose key and message id are its name.
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

// contains reports whether the outcome in a result contains a request key.
func (r BulkResult) contains(key string) bool {
	return r.Reply != nil && strings.Contains(string(r.Reply.Envelope.Data), `"`+key+`"`)
}

// TestBulkPublisher_AwaitOutcomes_EachGetsItsReply publishes many events. They are stored in order,
// at most InFlight are in flight, and each gets its own reply.
func TestBulkPublisher_AwaitOutcomes_EachGetsItsReply(t *testing.T) {
	t.Parallel()
	const count, inFlight = 2000, 32
	h := newHarness(t)
	o := BulkOptions{InFlight: inFlight, AwaitOutcomes: true, Timeout: generous, GiveUpAfter: generous}
	b := newBulkHarness(t, t.Context(), h.ns, o)
	for i := range count {
		b.mustSend(fmt.Sprintf("k%d", i))
		b.mu.Lock()
		unfinished := i + 1 - len(b.results)
		b.mu.Unlock()
		if unfinished > inFlight {
			t.Fatalf("%d messages are in flight, want at most %d", unfinished, inFlight)
		}
	}
	b.mustWait()
	for i := range count {
		key := fmt.Sprintf("k%d", i)
		r := b.results[key]
		if !r.Stored || r.Duplicate || r.Err != nil || !r.contains(key) {
			t.Fatalf("result of %s: %+v", key, r)
		}
	}
	if len(b.c.replies.pending) > 0 {
		t.Errorf("%d replies are still pending", len(b.c.replies.pending))
	}
	stream := h.inboundStream()
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

// TestBulkPublisher_DuplicateID_RepublishedOnRequest publishes message ids that are stored already.
// With republish a worker decides whether it is the same event.
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
		b.send("same event", "k", keyed("k"), true),
		b.send("other event, same id", "k", keyed("other"), true),
		b.send("new event", "new", keyed("new"), true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.mustWait()
	for name, want := range map[string]struct {
		duplicate bool
		key       string
	}{"same event": {true, "k"}, "other event, same id": {true, "other"}, "new event": {false, "new"}} {
		r := b.results[name]
		if r.Duplicate != want.duplicate || !r.contains(want.key) {
			t.Errorf("result of %s: %+v", name, r)
		}
	}
	first, second := earlier.results["k"].Reply.Envelope, b.results["same event"].Reply.Envelope
	if first.ID != second.ID {
		t.Errorf("the same event has the outcomes %s and %s", first.ID, second.ID)
	}

	quiet := newBulkHarness(t, t.Context(), h.ns, BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: generous})
	if err := quiet.send("dropped", "k", keyed("dropped"), false); err != nil {
		t.Fatal(err)
	}
	quiet.mustWait()
	if r := quiet.results["dropped"]; !r.Stored || !r.Duplicate || r.Reply != nil {
		t.Errorf("result of the dropped duplicate: %+v", r)
	}
	quiet.mustSend("last") // the duplicate would be decided before it
	quiet.mustWait()
	h.await("the decision of the last event", func() bool { return h.decidedCount("last") == 1 })
	if h.decidedCount("dropped") != 0 {
		t.Error("a duplicate was published again without republish")
	}
}

// TestBulkPublisher_StreamFull_ReportsOnceAndRetries publishes to a full stream. OnError is called
// once, and the messages are stored when the stream has space.
func TestBulkPublisher_StreamFull_ReportsOnceAndRetries(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 })
	b := newBulkHarness(t, t.Context(), h.ns, BulkOptions{InFlight: 64, Timeout: generous, GiveUpAfter: generous})
	for i := range 50 {
		b.mustSend(fmt.Sprint(i))
	}
	if err := <-b.errs; !strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Errorf("OnError(%v), want the full stream", err)
	}
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	b.mustWait()
	if len(b.errs) > 0 {
		t.Errorf("second OnError(%v)", <-b.errs)
	}
	if stored := h.inboundStream().CachedInfo().State.Msgs; stored != 50 || len(b.results) != 50 {
		t.Errorf("%d messages are stored and %d have results, want 50", stored, len(b.results))
	}
	for name, r := range b.results {
		if !r.Stored || r.Duplicate {
			t.Errorf("result of %s: %+v", name, r)
		}
	}
}

// TestBulkPublisher_NothingStored_GivesUp publishes to a stream that stays full, and to one that
// does not exist.
func TestBulkPublisher_NothingStored_GivesUp(t *testing.T) {
	t.Parallel()
	full := newStreams(t)
	full.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	nowhere := events.Namespace(stacktest.Namespace(t))
	o := BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: 50 * time.Millisecond}
	for ns, want := range map[events.Namespace]string{
		full.ns: "nothing was stored for 50ms", nowhere: jetstream.ErrNoStreamResponse.Error(),
	} {
		b := newBulkHarness(t, t.Context(), ns, o)
		var err error
		sent := 0
		for ; err == nil; sent++ {
			err = b.send(fmt.Sprint(sent), fmt.Sprint(sent), keyed("k"), false)
		}
		if waited := b.Wait(); !errors.Is(waited, err) || !strings.Contains(err.Error(), want) {
			t.Errorf("Publish returned %v and Wait %v, want %s", err, waited, want)
		}
		if context.Cause(b.Context()) == nil || len(b.results) != sent-1 {
			t.Errorf("cause %v; %d results of %d messages", context.Cause(b.Context()), len(b.results), sent-1)
		}
	}
}

// TestBulkPublisher_MessageTooLarge_RefusedOthersStored publishes messages that are too large for
// the stream and for the server, and one that is not.
func TestBulkPublisher_MessageTooLarge_RefusedOthersStored(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	h.updateInboundStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1024 })
	b := newBulkHarness(t, t.Context(), h.ns, BulkOptions{InFlight: 2, Timeout: generous, GiveUpAfter: generous})
	if err := b.send("large", "large", strings.Repeat("x", 2048), false); err != nil {
		t.Fatal(err)
	}
	if err := b.send("huge", "huge", strings.Repeat("x", 2<<20), false); err != nil { // above the server's limit
		t.Fatal(err)
	}
	b.mustSend("small")
	b.mustWait()
	for _, name := range []string{"large", "huge"} {
		if refused := b.results[name].Err; !events.IsTooLarge(refused) {
			t.Errorf("%s: error %v, want that it is too large", name, refused)
		} else if errors.Is(refused, nats.ErrMaxPayload) != (name == "huge") {
			t.Errorf("%s: refused by the wrong limit: %v", name, refused)
		}
	}
	if r := b.results["small"]; !r.Stored || r.Err != nil {
		t.Errorf("result of small: %+v", r)
	}
}

// TestBulkPublisher_Cancelled_StopsAwaitingReplies cancels a publisher whose messages are stored
// and get no replies.
func TestBulkPublisher_Cancelled_StopsAwaitingReplies(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := BulkOptions{InFlight: 2, AwaitOutcomes: true, Timeout: 24 * time.Hour, GiveUpAfter: 24 * time.Hour}
	b := newBulkHarness(t, ctx, h.ns, o)
	b.mustSend("a")
	b.mustSend("b")
	stacktest.Eventually(t, "two messages to be stored", func() bool {
		return h.inboundStream().CachedInfo().State.Msgs == 2
	})
	cancel()
	if err := b.send("c", "c", keyed("c"), false); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish after the cancellation: error %v", err)
	}
	b.mustWait()
	for _, name := range []string{"a", "b"} {
		if r := b.results[name]; !r.Stored || r.Reply != nil || r.Err != nil {
			t.Errorf("result of %s: %+v", name, r)
		}
	}
}

// TestBulkPublisher_Batch_EachIsStored publishes many messages, most of them in atomic batches, while something is
// in the way. Each is stored, and once unless the PubAck of its batch was lost.
func TestBulkPublisher_Batch_EachIsStored(t *testing.T) {
	t.Parallel()
	const number = 64
	for name, c := range map[string]struct {
		before    func(h *harness, b *bulkHarness)
		drop      *stacktest.DropRule
		mayRepeat bool
	}{
		"stored": {},
		"one is stored already": {before: func(h *harness, b *bulkHarness) {
			h.updateInboundStream(func(c *jetstream.StreamConfig) { c.Duplicates = time.Hour })
			b.mustSend("40")
			b.mustWait()
			b.results = make(map[string]BulkResult)
		}},
		"one is too large for the connection": {before: func(_ *harness, b *bulkHarness) {
			if err := b.send("huge", "huge", strings.Repeat("x", 2<<20), false); err != nil {
				t.Error(err)
			}
		}},
		"batches are not allowed": {before: func(h *harness, _ *bulkHarness) {
			h.updateInboundStream(func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
		}},
		"the PubAck is lost": {drop: &stacktest.DropRule{Words: []string{"Nats-Batch-Commit"}}, mayRepeat: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newStreams(t)
			url, proxy := stacktest.ProxyTo(t, stacktest.Shared().NATSURL)
			b := newBulkHarnessAt(t, t.Context(), url, h.ns,
				BulkOptions{InFlight: number, Timeout: time.Second, GiveUpAfter: generous})
			b.pace = &events.Pace{Least: 2}
			if c.before != nil {
				c.before(h, b)
			}
			if c.drop != nil {
				proxy.Drop(*c.drop)
			}
			for i := range number {
				b.mustSend(fmt.Sprint(i))
			}
			b.mustWait()
			var stored []string
			inBatch := 0
			stream := h.inboundStream()
			for seq := range stream.CachedInfo().State.LastSeq {
				m, err := stream.GetMsg(t.Context(), seq+1)
				if err != nil {
					t.Fatal(err)
				}
				stored = append(stored, m.Header.Get(jetstream.MsgIDHeader))
				if m.Header.Get("Nats-Batch-Id") != "" {
					inBatch++
				}
			}
			if c.before == nil && inBatch == 0 {
				t.Error("no batch was stored")
			}
			for i := range number {
				name := fmt.Sprint(i)
				if r := b.results[name]; !r.Stored || r.Err != nil {
					t.Errorf("result of %s: %+v", name, r)
				}
				if !slices.Contains(stored, name) {
					t.Errorf("%s is not stored", name)
				}
			}
			if len(stored) != number && !c.mayRepeat {
				t.Errorf("%d are stored, want %d", len(stored), number)
			}
			if c.drop != nil && proxy.Dropped() != 1 {
				t.Error("no PubAck was lost")
			}
		})
	}
}

// TestBulkPublisher_ServerIsCutOff_UsesAnother publishes on a server that is cut off from its cluster, since before the first
// message or after it. Each message is stored by another server.
func TestBulkPublisher_ServerIsCutOff_UsesAnother(t *testing.T) {
	t.Parallel()
	const number = 64
	h, urls, cutOff := newCutOff(t)
	connect := func() *bulkHarness {
		b := newBulkHarnessAt(t, t.Context(), strings.Join(urls, ","), h.ns,
			BulkOptions{InFlight: number, Timeout: time.Second, GiveUpAfter: generous}, nats.DontRandomize())
		b.leaveAfter = time.Millisecond
		return b
	}
	begun, beginning := connect(), connect()
	begun.mustSend("first")
	begun.mustWait()
	cutOff()
	for i := range number {
		begun.mustSend(fmt.Sprint("begun", i))
		beginning.mustSend(fmt.Sprint("beginning", i))
	}
	for _, b := range []*bulkHarness{begun, beginning} {
		b.mustWait()
		for name, r := range b.results {
			if !r.Stored || r.Err != nil {
				t.Errorf("result of %s: %+v", name, r)
			}
		}
		if url := b.c.nc.ConnectedUrl(); url == urls[0] {
			t.Errorf("still connected to %s", url)
		}
	}
	if stored := h.inboundStream().CachedInfo().State.Msgs; stored < 1+2*number {
		t.Errorf("%d messages are stored, want %d", stored, 1+2*number)
	}
}

// TestBulkPublisher_LeaderKnowsNoBatches_GivesThemUp publishes many messages through a server that knows atomic batches,
// to a stream whose leader stores each message of a batch by itself. Each message is stored, and only those of one batch may be
// stored twice.
func TestBulkPublisher_LeaderKnowsNoBatches_GivesThemUp(t *testing.T) {
	t.Parallel()
	const number, inFlight = 512, 64
	for name, start := range map[string]func(t *testing.T) (h *harness, url, prefix string){
		"headers of batches that it does not know": func(t *testing.T) (*harness, string, string) {
			return newStreams(t), stacktest.WithoutBatches(t, stacktest.Shared().NATSURL), stacktest.UnknownBatchPrefix
		},
		"leader of version 2.10": func(t *testing.T) (*harness, string, string) {
			h := newStreamOnOldServer(t)
			return h, h.nc.ConnectedUrl(), "Nats-Batch-"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, url, prefix := start(t)
			b := newBulkHarnessAt(t, t.Context(), url, h.ns,
				BulkOptions{InFlight: inFlight, Timeout: generous, GiveUpAfter: generous})
			b.pace = &events.Pace{Least: 2}
			for i := range number {
				b.mustSend(fmt.Sprint(i))
			}
			b.mustWait()
			stored, batches := make(map[string]int), make(map[string]int)
			stream := h.inboundStream()
			last := stream.CachedInfo().State.LastSeq
			for seq := range last {
				m, err := stream.GetMsg(t.Context(), seq+1)
				stacktest.Must(t, err)
				stored[m.Header.Get(jetstream.MsgIDHeader)]++
				if id := m.Header.Get(prefix + "Id"); id != "" {
					batches[id]++
				}
			}
			for i := range number {
				name := fmt.Sprint(i)
				if r := b.results[name]; !r.Stored || r.Duplicate || r.Err != nil {
					t.Errorf("result of %s: %+v", name, r)
				}
				if stored[name] == 0 {
					t.Errorf("%s is not stored", name)
				}
			}
			if len(batches) != 1 || last > number+inFlight {
				t.Errorf("%d messages are stored, of %d batches, want %d and at most one batch twice", last, len(batches), number)
			}
		})
	}
}

// newStreamOnOldServer starts a cluster of a server of this version and one of 2.10. It returns a harness that is connected to
// the first, and whose inbound stream is on the other.
func newStreamOnOldServer(t *testing.T) *harness {
	t.Helper()
	stacktest.LongOnly(t) // it builds the old server
	const version = "v2.10.27"
	dir := t.TempDir()
	stacktest.Must(t, os.WriteFile(filepath.Join(dir, "go.mod"),
		[]byte("module old\n\ngo 1.26.0\n\nrequire github.com/nats-io/nats-server/v2 "+version+"\n"), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", "nats-server", "github.com/nats-io/nats-server/v2")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("NATS %s cannot be built, perhaps because the module proxy lacks it: %v: %s", version, err, out)
	}
	ports := stacktest.QuietPorts(t, 3)
	config := filepath.Join(dir, "old.conf")
	stacktest.Must(t, os.WriteFile(config, fmt.Appendf(nil, `
		server_name: old, server_tags: ["old"], listen: "127.0.0.1:%d"
		jetstream { store_dir: %q }
		cluster { name: "mixed", listen: "127.0.0.1:%d", routes: ["nats://127.0.0.1:%d"] }`,
		ports[0], filepath.Join(dir, "js"), ports[1], ports[2]), 0o600))
	old, err := stacktest.StartProgram(exec.CommandContext(t.Context(), filepath.Join(dir, "nats-server"), "-c", config))
	stacktest.Must(t, err)
	t.Cleanup(old.Kill)
	current := stacktest.StartNATS(t, &server.Options{
		ServerName: "new", JetStream: true, StoreDir: t.TempDir(),
		Cluster: server.ClusterOpts{Name: "mixed", Host: "127.0.0.1", Port: ports[2]},
		Routes:  server.RoutesFromStr(fmt.Sprintf("nats://127.0.0.1:%d", ports[1])),
	})
	h := newHarnessWithoutStreams(t, current.ClientURL(), "mixed", nats.IgnoreDiscoveredServers())
	stacktest.Eventually(t, "a stream on the old server", func() bool {
		_, err := h.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: h.ns.InStream(), Subjects: []string{string(h.ns) + ".in.>"}, Duplicates: 100 * time.Millisecond,
			Placement: &jetstream.Placement{Tags: []string{"old"}},
		})
		return err == nil
	})
	return h
}
