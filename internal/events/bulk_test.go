package events

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
	"github.com/rs/zerolog"

	"holdfast/internal/stack/stacktest"
)

// bulkBench is a Bulk with what became of its messages, by their ids.
type bulkBench struct {
	*Bulk
	t          *testing.T
	ns         Subjects
	mu         sync.Mutex
	results    map[string]BulkResult
	complaints chan error
}

// generous is a time within which a test's server surely answers.
const generous = time.Minute

func newBulk(t *testing.T, ctx context.Context, ns Subjects, o BulkOptions) *bulkBench {
	t.Helper()
	nc, err := Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	client, err := NewClient(nc, ns)
	if err != nil {
		t.Fatal(err)
	}
	b := &bulkBench{t: t, ns: ns, results: make(map[string]BulkResult), complaints: make(chan error, 64)}
	o.Complain = func(err error) { b.complaints <- err }
	if b.Bulk, err = client.Bulk(ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// inStream creates the streams of a namespace, without anybody who answers.
func inStream(t *testing.T, ns Subjects) jetstream.Stream {
	t.Helper()
	js := newJetStream(t)
	if err := Setup(t.Context(), js, ns, Reach{Life: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// limit changes the inbound stream of a namespace.
func limit(t *testing.T, ns Subjects, change func(c *jetstream.StreamConfig)) {
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

// send publishes a message whose result is kept under its name.
func (b *bulkBench) send(name, id, body string, again bool) error {
	m := Structured([]byte(body))
	m.Subject = b.ns.In(BookingRequested, "room")
	m.Header.Set(headerMsgID, id)
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
func (b *bulkBench) mustSend(name string) {
	b.t.Helper()
	if err := b.send(name, name, keyed(name), false); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bulkBench) mustWait() {
	b.t.Helper()
	if err := b.Wait(); err != nil {
		b.t.Fatal(err)
	}
}

// TestBulkFollows publishes in order, never more than InFlight at a time, and hands each its own
// answer.
func TestBulkFollows(t *testing.T) {
	t.Parallel()
	const count, inFlight = 2000, 32
	bench := newBench(t)
	b := newBulk(t, t.Context(), bench.ns, BulkOptions{InFlight: inFlight, Follow: true, Timeout: generous, GiveUpAfter: generous})
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
		if !r.Stored || r.Duplicate || r.Err != nil || r.Answer == nil || !strings.Contains(string(r.Answer.Envelope.Data), `"`+key+`"`) {
			t.Fatalf("%s: %+v", key, r)
		}
	}
	if len(b.waiting) > 0 {
		t.Errorf("%d answers are waited for still", len(b.waiting))
	}
	stream, err := bench.js.Stream(t.Context(), bench.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		m, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("k%d", i); m.Header.Get(headerMsgID) != want {
			t.Fatalf("message %d is %s, want %s", i+1, m.Header.Get(headerMsgID), want)
		}
	}
}

// TestBulkDuplicates publishes ids that were published before. With again the worker decides
// whether it is the same event.
func TestBulkDuplicates(t *testing.T) {
	t.Parallel()
	bench := newBench(t)
	limit(t, bench.ns, func(c *jetstream.StreamConfig) { c.Duplicates = time.Hour })
	o := BulkOptions{InFlight: 1, Follow: true, Timeout: generous, GiveUpAfter: generous}
	earlier := newBulk(t, t.Context(), bench.ns, o)
	earlier.mustSend("k")
	earlier.mustWait()

	b := newBulk(t, t.Context(), bench.ns, o)
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
		if r.Duplicate != want.duplicate || r.Answer == nil || !strings.Contains(string(r.Answer.Envelope.Data), `"`+want.key+`"`) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if first, again := earlier.results["k"].Answer.Envelope.ID, b.results["the same"].Answer.Envelope.ID; first != again {
		t.Errorf("the outcome of the same event is %s, and then %s", first, again)
	}

	quiet := newBulk(t, t.Context(), bench.ns, BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: generous})
	if err := quiet.send("dropped", "k", keyed("dropped"), false); err != nil {
		t.Fatal(err)
	}
	quiet.mustWait()
	if r := quiet.results["dropped"]; !r.Stored || !r.Duplicate || r.Answer != nil {
		t.Errorf("%+v", r)
	}
	quiet.mustSend("last") // what was dropped would be decided before it
	quiet.mustWait()
	bench.await("the last", func() bool { return bench.asked("last") == 1 })
	if bench.asked("dropped") != 0 {
		t.Error("a duplicate was published again, nobody had asked for it")
	}
}

// TestBulkWaitsForRoom publishes to a stream that is full: it complains once, and goes on when
// there is room.
func TestBulkWaitsForRoom(t *testing.T) {
	t.Parallel()
	ns := Subjects(stacktest.Namespace(t))
	stream := inStream(t, ns)
	limit(t, ns, func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 })
	b := newBulk(t, t.Context(), ns, BulkOptions{InFlight: 64, Timeout: generous, GiveUpAfter: generous})
	for i := range 50 {
		b.mustSend(fmt.Sprint(i))
	}
	if err := <-b.complaints; !strings.Contains(err.Error(), "maximum messages exceeded") {
		t.Errorf("it complains of %v", err)
	}
	limit(t, ns, func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	b.mustWait()
	if len(b.complaints) > 0 {
		t.Errorf("it complains again: %v", <-b.complaints)
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

// TestBulkGivesUp publishes where nothing will ever be stored.
func TestBulkGivesUp(t *testing.T) {
	t.Parallel()
	full := Subjects(stacktest.Namespace(t))
	inStream(t, full)
	limit(t, full, func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	nowhere := Subjects(stacktest.Namespace(t))
	for ns, want := range map[Subjects]string{full: "nothing was stored for 50ms", nowhere: jetstream.ErrNoStreamResponse.Error()} {
		b := newBulk(t, t.Context(), ns, BulkOptions{InFlight: 1, Timeout: generous, GiveUpAfter: 50 * time.Millisecond})
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

// TestBulkRefused publishes a message that is too large for its stream, and goes on.
func TestBulkRefused(t *testing.T) {
	t.Parallel()
	ns := Subjects(stacktest.Namespace(t))
	inStream(t, ns)
	limit(t, ns, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1024 })
	b := newBulk(t, t.Context(), ns, BulkOptions{InFlight: 2, Timeout: generous, GiveUpAfter: generous})
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

// TestBulkStops stops a Bulk that waits for answers that nobody gives.
func TestBulkStops(t *testing.T) {
	t.Parallel()
	ns := Subjects(stacktest.Namespace(t))
	stream := inStream(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	b := newBulk(t, ctx, ns, BulkOptions{InFlight: 2, Follow: true, Timeout: 24 * time.Hour, GiveUpAfter: 24 * time.Hour})
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
		if r := b.results[name]; !r.Stored || r.Answer != nil || r.Err != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestSameMistakeIsTold has an event with several mistakes die of the same one each time, and
// with the detail that its dead letter shows.
func TestSameMistakeIsTold(t *testing.T) {
	t.Parallel()
	withAttribute := func(more string) string { return strings.Replace(request(``), `"id":"e1"`, `"id":"e1",`+more, 1) }
	body := withAttribute(`"zz-z":1,"a-a":1,"ext":{},"time":5`)
	for range 100 {
		if _, err := ns.Decode(onRequest, nil, []byte(body), time.Now()); err == nil || err.Error() != "malformed: a-a: must be within data: attributes have names of lower-case letters and digits" {
			t.Fatal(err)
		}
	}
	for range 100 {
		binary := nats.Header{"ce-specversion": {"1.0"}, "ce-zz-z": {"1"}, "ce-a-a": {"1"}, "Ce-Id": {"1", "2"}, "ce-source": {"1", "2"}}
		if _, err := ns.Decode(onRequest, binary, []byte("{}"), time.Now()); err == nil || err.Error() != "malformed: ce-id: must be given once, found it repeated" {
			t.Fatal(err)
		}
		delete(binary, "Ce-Id")
		delete(binary, "ce-source")
		if _, err := ns.Decode(onRequest, binary, []byte("{}"), time.Now()); err == nil || err.Error() != "malformed: ce-a-a: must have a name of lower-case letters and digits" {
			t.Fatal(err)
		}
	}
	_, err := ns.Decode(onRequest, nil, []byte(withAttribute(`"é\n`+strings.Repeat("x", 600)+`":1`)), time.Now())
	if dead, is := errors.AsType[*UnprocessableError](err); !is || dead.Detail != "??"+strings.Repeat("x", detailMax-2) {
		t.Errorf("%v", err)
	}
}
