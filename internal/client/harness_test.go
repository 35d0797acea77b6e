package client

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// generous is a limit that a test's server surely keeps.
const generous = time.Minute

// onRequest is the subject of a request in namespace holdfast.
const onRequest = "holdfast.in.booking.requested.room"

const holdID = "room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// envelopeOf wraps data into a CloudEvent in structured mode.
func envelopeOf(event, id, data string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s",` +
		`"type":"holdfast.` + event + `.v1","data":` + data + `}`
}

// keyed is a request whose key is also the event's id.
func keyed(key string) string {
	return envelopeOf(events.BookingRequested, key,
		`{"request_key":"`+key+`","user_id":"u","resource_id":"room","quantity":1}`)
}

// echo is an events.Service that rejects each request with its key as the message. fault makes a
// request fail. The tests publish requests only.
type echo struct {
	events.Service // nil

	mu    sync.Mutex
	fault error
	seen  map[string]int // decisions by request key
}

func (e *echo) Place(_ context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result] {
	return func(yield func(int, holds.Result) bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i, r := range requests {
			e.seen[r.RequestKey]++
			if e.fault != nil {
				yield(i, holds.Result{Err: e.fault})
				continue
			}
			yield(i, holds.Result{Outcome: holds.Outcome{
				Event: holds.EventHoldRejected, Resource: r.Resource,
				Data: holds.HoldRejected{Reason: "echo", Message: r.RequestKey},
			}})
		}
	}
}

func (*echo) TermID(string) string                 { return "always" }
func (*echo) Ready() bool                          { return true }
func (*echo) WaitReady(context.Context) error      { return nil }
func (*echo) Unreachable() error                   { return nil }
func (*echo) Verify(context.Context, string) error { return nil }
func (*echo) Publishing() func(bool)               { return func(bool) {} }

func (e *echo) AnswerTTL(time.Time) time.Duration { return time.Hour }

func (e *echo) decidedCount(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[key]
}

func (e *echo) setFault(fault error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = fault
}

// noPoison is an events.PoisonRegister in which no event is recorded.
type noPoison struct{ events.PoisonRegister }

func (noPoison) Poisoned(context.Context, []string) (map[string]string, error) { return nil, nil }

// harness is a namespace with a client, and the consumers of a worker that decides by an echo.
type harness struct {
	*echo
	t      *testing.T
	ns     events.Namespace
	nc     *nats.Conn
	js     events.JetStream
	client *Client

	mu      sync.Mutex
	out     []jetstream.Msg // outcomes, as they are stored
	dlq     []jetstream.Msg // likewise dead letters
	changed chan struct{}   // closed when out or dlq grows
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessAt(t, stacktest.Shared().NATSURL)
}

// newHarnessAt uses another NATS server than the shared one.
func newHarnessAt(t *testing.T, url string) *harness {
	t.Helper()
	h := newHarnessWithoutStreams(t, url, events.Namespace(stacktest.Namespace(t)))
	h.createStreams()
	for stream, list := range map[string]*[]jetstream.Msg{h.ns.OutStream(): &h.out, h.ns.DLQStream(): &h.dlq} {
		consumer, err := h.js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		consuming, err := consumer.Consume(func(m jetstream.Msg) {
			h.mu.Lock()
			defer h.mu.Unlock()
			*list = append(*list, m)
			close(h.changed)
			h.changed = make(chan struct{})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(consuming.Stop)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	process := events.NewProcess("w1", noPoison{}, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel))
	for _, name := range []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments} {
		c, err := events.NewConsumer(ctx, name, h.ns, h.echo, h.nc, h.js, process)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return h
}

// newHarnessWithoutStreams returns a connected client of a namespace, without streams and
// consumers.
func newHarnessWithoutStreams(t *testing.T, url string, ns events.Namespace, options ...nats.Option) *harness {
	t.Helper()
	h := &harness{echo: &echo{seen: make(map[string]int)}, t: t, ns: ns, changed: make(chan struct{})}
	var err error
	if h.nc, err = events.Connect(url, t.Name(), t.Logf, options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.nc.Close)
	if h.js, err = events.NewJetStream(h.nc, ns); err != nil {
		t.Fatal(err)
	}
	if h.client, err = New(h.nc, ns); err != nil {
		t.Fatal(err)
	}
	h.client.MayLeave = true
	return h
}

// createStreams creates the streams of the namespace.
func (h *harness) createStreams() {
	h.t.Helper()
	retention := events.Retention{HoldLifetime: 2 * time.Hour}
	if err := events.Setup(h.t.Context(), h.js, h.ns, retention, zerolog.Nop()); err != nil {
		h.t.Fatal(err)
	}
}

// stream returns a stream as it is now.
func (h *harness) stream(name string) jetstream.Stream {
	h.t.Helper()
	stream, err := h.js.Stream(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return stream
}

func (h *harness) inboundStream() jetstream.Stream {
	h.t.Helper()
	return h.stream(h.ns.InStream())
}

// updateStream changes a stream.
func (h *harness) updateStream(name string, change func(c *jetstream.StreamConfig)) {
	h.t.Helper()
	config := h.stream(name).CachedInfo().Config
	change(&config)
	if _, err := h.js.UpdateStream(h.t.Context(), config); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) updateInboundStream(change func(c *jetstream.StreamConfig)) {
	h.t.Helper()
	h.updateStream(h.ns.InStream(), change)
}

// newStreams returns a harness whose streams no worker reads.
func newStreams(t *testing.T) *harness {
	t.Helper()
	h := newHarnessWithoutStreams(t, stacktest.Shared().NATSURL, events.Namespace(stacktest.Namespace(t)))
	h.createStreams()
	return h
}

func (h *harness) publish(subject string, header nats.Header, body string) {
	h.t.Helper()
	m := &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}
	if _, err := h.js.PublishMsg(h.t.Context(), m); err != nil {
		h.t.Fatal(err)
	}
}

// await waits until a condition on out, dlq or the decisions holds. It checks again whenever out or
// dlq grows.
func (h *harness) await(what string, condition func() bool) {
	h.t.Helper()
	limit := time.After(generous)
	for {
		h.mu.Lock()
		ok, changed := condition(), h.changed
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			h.t.Fatalf("no %s within %s; %d outcomes, %d dead letters", what, generous, len(h.out), len(h.dlq))
		}
	}
}

// awaitIdle waits until a consumer has no event that waits or is not acknowledged.
func (h *harness) awaitIdle(name string) (info *jetstream.ConsumerInfo) {
	h.t.Helper()
	stacktest.Eventually(h.t, "consumer "+name+" to be idle", func() bool {
		consumer, err := h.js.Consumer(h.t.Context(), h.ns.InStream(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		info = consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	return info
}

// deadLetters returns the dead letters of the namespace.
func (h *harness) deadLetters() *DeadLetters {
	h.t.Helper()
	d, err := h.client.DeadLetters(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

// storeDeadLetter stores a dead letter as a worker does, and returns its sequence.
func (h *harness) storeDeadLetter(reason, detail, subject string, header nats.Header, body string) uint64 {
	h.t.Helper()
	m := nats.NewMsg(h.ns.DLQ(reason))
	m.Data = []byte(body)
	for name, values := range header {
		m.Header[name] = values
	}
	m.Header.Set(events.HeaderDLQReason, reason)
	m.Header.Set(events.HeaderDLQDetail, detail)
	m.Header.Set(events.HeaderDLQSubject, subject)
	ack, err := h.js.PublishMsg(h.t.Context(), m)
	if err != nil {
		h.t.Fatal(err)
	}
	h.await("delivery of the dead letter, before a test removes it", func() bool {
		if len(h.dlq) == 0 {
			return false
		}
		last, err := h.dlq[len(h.dlq)-1].Metadata()
		return err == nil && last.Sequence.Stream >= ack.Sequence
	})
	return ack.Sequence
}

// get returns a dead letter, which must exist.
func (h *harness) get(d *DeadLetters, seq uint64) *events.DeadLetter {
	h.t.Helper()
	l, err := d.Get(h.t.Context(), seq)
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// awaitDuplicateWindowOver waits until JetStream has forgotten the message ids of the inbound stream.
func (h *harness) awaitDuplicateWindowOver() {
	h.t.Helper()
	stacktest.Eventually(h.t, "the end of the duplicate window", func() bool {
		info := h.inboundStream().CachedInfo()
		return info.TimeStamp.Sub(info.State.LastTime) > 2*info.Config.Duplicates
	})
}

// newCutOff starts a cluster of three servers with the streams of a namespace. It returns a harness that is connected to one
// of the others, the URLs of a client that connects to the first server and knows the others too, and a function that cuts the
// first server, which leads no stream, off from the others.
func newCutOff(t *testing.T) (h *harness, urls []string, cutOff func()) {
	t.Helper()
	cluster := stacktest.StartCuttableNATS(t)
	for _, s := range cluster.Servers {
		urls = append(urls, s.ClientURL())
	}
	h = newHarnessWithoutStreams(t, urls[1], "cut")
	retention := events.Retention{HoldLifetime: 2 * time.Hour}
	stacktest.Eventually(t, "servers that accept streams", func() bool {
		return events.Setup(t.Context(), h.js, h.ns, retention, zerolog.Nop()) == nil
	})
	return h, urls, func() {
		t.Helper()
		for _, config := range h.ns.Streams(retention) {
			stacktest.Eventually(t, "another leader of "+config.Name, func() bool {
				stream, err := h.js.Stream(t.Context(), config.Name)
				if err != nil || stream.CachedInfo().Cluster.Leader == "" {
					return false // it elects one
				}
				leads := stream.CachedInfo().Cluster.Leader == cluster.Servers[0].Name()
				if leads {
					_, err = h.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+config.Name, nil, generous)
					stacktest.Must(t, err)
				}
				return !leads
			})
		}
		cluster.CutOff(t)
	}
}
