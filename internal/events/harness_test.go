package events

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// storedAt is the time when all inputs are stored.
var storedAt = time.Unix(1.8e9, 0)

const (
	ns           = Namespace("holdfast")
	catalogueDir = "testdata/catalogue"
)

// harness is a namespace with its three consumers, which use an echo.
type harness struct {
	*echo
	t       *testing.T
	ns      Namespace
	nc      *nats.Conn
	js      JetStream
	workers []*Consumer

	leaveAfter time.Duration // of the workers

	cancel  context.CancelFunc // stops the consumers
	loops   sync.WaitGroup     // of the consumers
	sent    []*Sending         // of publishRequest, since the last awaitPublished
	mu      sync.Mutex
	out     []jetstream.Msg
	dlq     []jetstream.Msg
	poison  memoryPoisonRegister
	logged  logLines
	changed chan struct{}
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessWithJetStream(t, func(js JetStream) JetStream { return js })
}

// newHarnessWithJetStream returns a harness whose consumers use the JetStream that between returns.
func newHarnessWithJetStream(t *testing.T, between func(JetStream) JetStream) *harness {
	t.Helper()
	return newHarnessAt(t, stacktest.Shared().NATSURL, between)
}

// newHarnessAt returns a harness on the NATS server at url.
func newHarnessAt(t *testing.T, url string, between func(JetStream) JetStream) *harness {
	t.Helper()
	b := &harness{echo: &echo{seen: make(map[string]int)}, t: t, ns: Namespace(stacktest.Namespace(t)), changed: make(chan struct{})}
	b.leaveAfter = time.Hour
	if strings.Contains(url, ",") {
		b.leaveAfter = time.Second
	}
	var err error
	if b.nc, err = Connect(url, t.Name(), t.Logf); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nc.Close)
	if b.js, err = NewJetStream(b.nc, b.ns); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call changes nothing
		setup(t, b.js, b.ns)
	}
	for stream, list := range map[string]*[]jetstream.Msg{b.ns.OutStream(): &b.out, b.ns.DLQStream(): &b.dlq} {
		consumer, err := b.js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		consuming, err := consumer.Consume(func(m jetstream.Msg) {
			b.mu.Lock()
			defer b.mu.Unlock()
			*list = append(*list, m)
			close(b.changed)
			b.changed = make(chan struct{})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(consuming.Stop)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	t.Cleanup(b.stop)
	js := between(b.js)
	shown := zerolog.LevelWriterAdapter{Writer: zerolog.NewTestWriter(t)}
	errors := zerolog.FilteredLevelWriter{Writer: shown, Level: zerolog.ErrorLevel}
	process := NewProcess("w1", &b.poison, zerolog.New(zerolog.MultiLevelWriter(&errors, &b.logged)))
	for _, name := range []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} {
		c, err := NewConsumer(ctx, name, b.ns, b.echo, b.nc, js, process)
		if err != nil {
			t.Fatal(err)
		}
		c.decideWithin, c.finishWithin = time.Minute, time.Minute // enough on a slow machine
		c.searchEach, c.searchWithin = time.Minute, time.Minute
		c.slowAfter, c.leaveAfter = time.Second, b.leaveAfter
		b.workers = append(b.workers, c)
		b.loops.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return b
}

func (b *harness) publish(subject string, header nats.Header, body string) {
	b.t.Helper()
	if _, err := b.js.PublishMsg(stacktest.WaitContext(b.t), &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}); err != nil {
		b.t.Fatal(err)
	}
}

// requestReply publishes an event with headers, given as names and values, and returns the reply to it.
func (b *harness) requestReply(subject, body string, headers ...string) *nats.Msg {
	b.t.Helper()
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		b.t.Fatal(err)
	}
	header := nats.Header{HeaderReplyTo: {inbox}}
	for i := 0; i < len(headers); i += 2 {
		header[headers[i]] = []string{headers[i+1]}
	}
	b.publish(subject, header, body)
	reply, err := sub.NextMsgWithContext(stacktest.WaitContext(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	return reply
}

func (b *harness) await(what string, so func() bool) {
	b.t.Helper()
	ctx := stacktest.WaitContext(b.t)
	for {
		b.mu.Lock()
		done, changed := so(), b.changed
		b.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			b.t.Fatalf("timed out waiting for %s; %d outcomes, %d dead letters", what, len(b.out), len(b.dlq))
		}
	}
}

// awaitIdle waits until a consumer has no pending and no unacknowledged events. A consumer does not count at once as
// pending what the stream has stored.
func (b *harness) awaitIdle(name string) (info *jetstream.ConsumerInfo) {
	b.t.Helper()
	consumer := consumerOf(b.t, b.js, b.ns, name)
	stream, stored := streamOf(b.t, b.js, b.ns.InStream()), uint64(0)
	for _, subject := range append(consumer.CachedInfo().Config.FilterSubjects, consumer.CachedInfo().Config.FilterSubject) {
		last, err := stream.GetLastMsgForSubject(b.t.Context(), subject)
		if err == nil {
			stored = max(stored, last.Sequence)
		} else if !errors.Is(err, jetstream.ErrMsgNotFound) && subject != "" {
			b.t.Fatal(err)
		}
	}
	stacktest.Eventually(b.t, "consumer "+name+" to be idle", func() bool {
		info = consumerOf(b.t, b.js, b.ns, name).CachedInfo()
		return info.Delivered.Stream >= stored && info.NumPending == 0 && info.NumAckPending == 0
	})
	return info
}

// publishRequest publishes a numbered request for a resource.
func (b *harness) publishRequest(resource string, number int) {
	b.t.Helper()
	b.sent = append(b.sent, b.js.Send(&nats.Msg{
		Subject: b.ns.In(BookingRequested, resource), Data: []byte(resourceKeyed(resource, number)),
		Header: nats.Header{jetstream.MsgIDHeader: {resource + "-" + strconv.Itoa(number)}},
	}))
}

// awaitPublished waits until all published events are stored. A busy machine may break the connection: then it publishes
// again what has no PubAck. What was stored nevertheless is an event that comes twice, with one outcome.
func (b *harness) awaitPublished() {
	b.t.Helper()
	ctx := stacktest.WaitContext(b.t)
	for _, sent := range b.sent {
		if _, err := sent.Stored(ctx); err != nil {
			if _, err := b.js.PublishMsg(ctx, sent.message); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	b.sent = nil
}

// stop stops all workers, so that the test does their steps itself.
func (b *harness) stop() {
	b.cancel()
	b.loops.Wait()
}

// unhurried stops all workers, and returns the one of the requests, which runs no more. On a busy machine no ack wait ends
// before the worker extends it, which it does only when it runs, and no PubAck is late.
func (b *harness) unhurried() *Consumer {
	b.t.Helper()
	b.stop()
	b.ackWithin(ConsumerRequests, time.Hour)
	b.workers[0].storeWithin = time.Minute
	return b.workers[0]
}

// fetchAllOf fetches so many events for a consumer that does not run.
func (b *harness) fetchAllOf(c *Consumer, number int) (batch []*delivery) {
	b.t.Helper()
	stacktest.Eventually(b.t, "the events to be fetched", func() bool {
		add := func(fetched []*delivery) { batch = append(batch, fetched...) }
		if err := c.fetch(number-len(batch), false, add); err != nil {
			b.t.Fatal(err)
		}
		return len(batch) == number
	})
	return batch
}

// fetchRequest publishes a request with a key to a stopped worker, which fetches and decodes it.
func (b *harness) fetchRequest(key string) (c *Consumer, d *delivery) {
	b.t.Helper()
	b.stop()
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(key))
	c = b.workers[0]
	batch := b.fetchAllOf(c, 1)
	c.decodeBatch(batch)
	return c, batch[0]
}

// fetchAtLastFailure is fetchRequest, and lets the event fail: with this failure it is poison.
func (b *harness) fetchAtLastFailure(key string) (l *lane, d *delivery) {
	b.t.Helper()
	c, d := b.fetchRequest(key)
	l = c.newLane(1)
	l.failures[d.origin()] = failuresMax - 1
	d.result.Err = &panicError{"bug"}
	return l, d
}

// storeOutcome stores an outcome of an event, as another worker does.
func (b *harness) storeOutcome(d *delivery) {
	b.t.Helper()
	outcome, err := b.workers[0].message(d, largestOutcome(d.in))
	stacktest.Must(b.t, err)
	_, err = b.js.PublishMsg(b.t.Context(), outcome)
	stacktest.Must(b.t, err)
}

// pay publishes a payment. The event has the same id.
func (b *harness) pay(id string) {
	b.t.Helper()
	data := fmt.Sprintf(`{"hold_id":%q,"payment_id":%q}`, holdID, id)
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, id, data))
}

// fetchPoison publishes an event with a key to a stopped worker, which fetches it and records it as poison.
func (b *harness) fetchPoison(key string) (l *lane, d *delivery) {
	b.t.Helper()
	c, d := b.fetchRequest(key)
	l = c.newLane(1)
	if _, err := l.recordPoison(b.t.Context(), d, &panicError{"bug"}); err != nil {
		b.t.Fatal(err)
	}
	return l, d
}

// recreateConsumer deletes the durable consumer of the requests and creates it again.
func (b *harness) recreateConsumer() {
	b.t.Helper()
	if err := b.js.DeleteConsumer(b.t.Context(), b.ns.InStream(), ConsumerRequests); err != nil {
		b.t.Fatal(err)
	}
	setup(b.t, b.js, b.ns)
}

// recreateInboundStream deletes the inbound stream and creates it again.
func (b *harness) recreateInboundStream() {
	b.t.Helper()
	if err := b.js.DeleteStream(b.t.Context(), b.ns.InStream()); err != nil {
		b.t.Fatal(err)
	}
	setup(b.t, b.js, b.ns)
}

// ackWithin changes the ack wait of a durable consumer.
func (b *harness) ackWithin(name string, wait time.Duration) {
	b.t.Helper()
	consumer := consumerOf(b.t, b.js, b.ns, name)
	config := consumer.CachedInfo().Config
	config.AckWait = wait
	if _, err := b.js.UpdateConsumer(stacktest.WaitContext(b.t), b.ns.InStream(), config); err != nil {
		b.t.Fatal(err)
	}
}

// echo is a Service that answers everything at once, or with the error of fault, unless its context
// has ended. The tests of this package are about what a consumer does with answers and errors;
// those of cmd/worker are about the answers.
type echo struct {
	mu          sync.Mutex
	fault       func(key string, batch int) error // returns the error of a request by its key; may panic
	seen        map[string]int                    // how often each request was decided
	sets        []holds.InventoryRequest
	grant       bool     // grants requests instead of rejecting them
	lost        bool     // Redis lacks the data of all partitions
	rebuilding  string   // prefix of the resources whose partitions have no epoch
	unreachable error    // what Unreachable returns
	checks      int      // calls of Unreachable
	withdrawn   []string // the holds that were withdrawn
	answerTTL   time.Duration

	verified     int                   // calls of Verify
	verify       func(calls int) error // returns what Verify returns; nil when it returns nil
	publications publications
}

// decide counts a decision, and returns the error that fault has for it.
func (e *echo) decide(key string, batch int) error {
	e.mu.Lock()
	e.seen[key]++
	fault := e.fault
	e.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(key, batch)
}

func (e *echo) Place(ctx context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result] {
	return func(yield func(int, holds.Result) bool) {
		for i, r := range requests {
			if err := ctx.Err(); err != nil {
				yield(i, holds.Result{Err: err})
				continue
			}
			if err := e.decide(r.RequestKey, len(requests)); err != nil {
				yield(i, holds.Result{Err: err})
				continue
			}
			if e.grant {
				id := holds.HoldID{Resource: r.Resource, UUID: strings.Repeat("a", 32)}
				yield(i, holds.Result{Outcome: holds.Outcome{
					Event: holds.EventHoldCreated, Resource: r.Resource, Hold: id,
					Data: holds.HoldCreated{HoldData: holds.HoldData{
						ResourceID: r.Resource, HoldID: id, RequestKey: r.RequestKey, UserID: r.User, Quantity: &r.Quantity,
					}},
				}})
				continue
			}
			yield(i, holds.Result{Outcome: holds.Outcome{
				Event: holds.EventHoldRejected, Resource: r.Resource, Data: holds.HoldRejected{Reason: "echo", Message: r.RequestKey},
			}})
		}
	}
}

func (e *echo) Release(_ context.Context, requests []holds.ReleaseRequest) []holds.Result {
	results := make([]holds.Result, len(requests))
	for i, r := range requests {
		if err := e.decide(r.RequestKey, len(requests)); err != nil {
			results[i] = holds.Result{Err: err}
			continue
		}
		if r.Withdraw {
			e.mu.Lock()
			e.withdrawn = append(e.withdrawn, r.Hold.String())
			e.mu.Unlock()
		}
		results[i] = holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldReleased, Resource: r.Resource, Data: holds.HoldReleased{}}}
	}
	return results
}

func (e *echo) Confirm(_ context.Context, requests []holds.ConfirmRequest) []holds.Result {
	results := make([]holds.Result, len(requests))
	for i, r := range requests {
		if err := e.decide(r.PaymentID, len(requests)); err != nil {
			results[i] = holds.Result{Err: err}
			continue
		}
		results[i] = holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldConfirmed, Resource: r.Hold.Resource, Data: holds.HoldConfirmed{}}}
	}
	return results
}

func (*echo) Extend(_ context.Context, requests []holds.ExtendRequest) []holds.Result {
	results := make([]holds.Result, len(requests))
	for i, r := range requests {
		results[i] = holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldExtended, Resource: r.Hold.Resource, Data: holds.HoldExtended{}}}
	}
	return results
}

func (*echo) Cancel(_ context.Context, requests []holds.CancelRequest) []holds.Result {
	results := make([]holds.Result, len(requests))
	for i, r := range requests {
		results[i] = holds.Result{Outcome: holds.Outcome{Event: holds.EventReservationCancelled, Resource: r.Hold.Resource, Data: holds.ReservationCancelled{}}}
	}
	return results
}

func (e *echo) SetInventory(_ context.Context, requests []holds.InventoryRequest) (results []holds.Result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range requests {
		e.sets = append(e.sets, r)
		e.seen[r.Resource]++
		results = append(results, holds.Result{Outcome: holds.Outcome{Event: holds.EventInventoryUpdated, Resource: r.Resource, Data: holds.InventoryUpdated{}}})
	}
	return results
}

func (e *echo) AnswerTTL(time.Time) time.Duration { return cmp.Or(e.answerTTL, time.Hour) }

func (e *echo) TermID(resource string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rebuilding != "" && strings.HasPrefix(resource, e.rebuilding) {
		return ""
	}
	return "always"
}

// setRebuilding leaves the partitions of the resources with a prefix without an epoch, "" for none.
func (e *echo) setRebuilding(prefix string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rebuilding = prefix
}

func (e *echo) Ready() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.lost
}

func (*echo) WaitReady(context.Context) error { return nil }

// setUnreachable makes Redis or Postgres seem not to answer, unless err is nil.
func (e *echo) setUnreachable(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unreachable, e.checks = err, 0
}

func (e *echo) Unreachable() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checks++
	return e.unreachable
}

// checkedTimes returns how often Unreachable was called since setUnreachable.
func (e *echo) checkedTimes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checks
}

func (e *echo) Verify(context.Context, string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.publications.open == 0 {
		e.publications.missing++
	}
	if e.verified++; e.verify != nil {
		return e.verify(e.verified)
	}
	return nil
}

func (e *echo) setVerify(verify func(calls int) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.verify = verify
}

func (e *echo) Publishing() func(certain bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.publications.open++
	return func(certain bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.publications.open--
		if !certain {
			e.publications.uncertain++
		}
	}
}

// publications counts calls of Publishing.
type publications struct{ open, uncertain, missing int }

func (e *echo) publicationsNow() publications {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.publications
}

func (e *echo) decidedCount(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[key]
}

func (e *echo) setFault(fault func(string, int) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = fault
}

const holdID = "room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// envelopeOf wraps data in a CloudEvent in structured mode.
func envelopeOf(event, id, data string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"holdfast.` + event + `.v1","data":` + data + `}`
}

const (
	onRequest = "holdfast.in.booking.requested.room"
	onPayment = "holdfast.in.payment.confirmed.room"
)

// request returns a request with additional members.
func request(members string) string {
	return envelopeOf(BookingRequested, "e1", `{"request_key":"k","user_id":"u","resource_id":"room","quantity":1`+members+`}`)
}

// keyed returns a request whose key is also the event's id.
func keyed(key string) string {
	return envelopeOf(BookingRequested, key, `{"request_key":"`+key+`","user_id":"u","resource_id":"room","quantity":1}`)
}

// resourceKeyed returns a request for a resource. Its key, "<resource>:<number>", is also the
// event's id.
func resourceKeyed(resource string, number int) string {
	key := fmt.Sprintf("%s:%05d", resource, number)
	return envelopeOf(BookingRequested, key, `{"request_key":"`+key+`","user_id":"u","resource_id":"`+resource+`","quantity":1}`)
}

// setup creates the streams and consumers of a namespace, or changes nothing.
func setup(t testing.TB, js jetstream.JetStream, ns Namespace) {
	t.Helper()
	if err := Setup(t.Context(), js, ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
}

// streamOf returns a stream as it is now.
func streamOf(t testing.TB, js jetstream.JetStream, name string) jetstream.Stream {
	t.Helper()
	stream, err := js.Stream(stacktest.WaitContext(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// consumerOf returns a durable consumer as it is now.
func consumerOf(t testing.TB, js jetstream.JetStream, ns Namespace, name string) jetstream.Consumer {
	t.Helper()
	consumer, err := js.Consumer(stacktest.WaitContext(t), ns.InStream(), name)
	if err != nil {
		t.Fatal(err)
	}
	return consumer
}

// newJetStream returns the JetStream of the shared server, on a connection of its own.
func newJetStream(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// updateStream changes a stream.
func updateStream(t *testing.T, js jetstream.JetStream, name string, change func(c *jetstream.StreamConfig)) {
	t.Helper()
	config := streamOf(t, js, name).CachedInfo().Config
	change(&config)
	if _, err := js.UpdateStream(stacktest.WaitContext(t), config); err != nil {
		t.Fatal(err)
	}
}

// failingJetStream is a JetStream whose first publications fail: before the message is stored, or
// after it (storesFirst), when only the PubAck is lost.
type failingJetStream struct {
	JetStream
	storesFirst  bool
	err          error // of the PubAck; nil: a timeout
	silent       bool  // nothing comes, on a connection that works
	failuresLeft atomic.Int32
}

func (u *failingJetStream) Send(m *nats.Msg) *Sending {
	if u.failuresLeft.Add(-1) < 0 {
		return u.JetStream.Send(m)
	}
	if u.storesFirst {
		_, _ = u.PublishMsg(context.Background(), m)
	}
	p := &asyncPublisher{waiting: make(map[uint64]*Sending)}
	failed := &Sending{p: p, message: m}
	if p.waiting[failed.number] = failed; u.silent {
		return failed
	}
	time.AfterFunc(20*time.Millisecond, func() { p.resolve(failed.number, nil, cmp.Or(u.err, nats.ErrTimeout)) }) // as late as a real one
	return failed
}

// logLines collects the lines of a log.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// with returns the lines with a message.
func (l *logLines) with(t *testing.T, message string) (lines []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range strings.Lines(l.text.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line["message"] == message {
			lines = append(lines, line)
		}
	}
	return lines
}

// memoryPoisonRegister is a PoisonRegister in memory. Package store tests the one in Postgres.
type memoryPoisonRegister struct {
	mu      sync.Mutex
	details map[string]string
	refuse  error // of RecordPoison while it is unavailable, else nil
	refused int
}

func (p *memoryPoisonRegister) RecordPoison(_ context.Context, id, _, detail string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		p.refused++
		return p.refuse
	}
	if p.details == nil {
		p.details = make(map[string]string)
	}
	if _, known := p.details[id]; !known {
		p.details[id] = detail
	}
	return nil
}

func (p *memoryPoisonRegister) Poisoned(_ context.Context, ids []string) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make(map[string]string)
	for _, id := range ids {
		if detail, known := p.details[id]; known {
			found[id] = detail
		}
	}
	return found, nil
}

// newGate returns a channel that is closed by open, or at the end of the test.
func newGate(t *testing.T) (opened <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return c, open
}

// decisions records the order in which requests are decided.
type decisions struct {
	mu   sync.Mutex
	keys map[string][]string // resource -> keys in the order in which they were decided first
}

func (d *decisions) note(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	resource, _, _ := strings.Cut(key, ":")
	if !slices.Contains(d.keys[resource], key) { // else an ack was late, as when the machine is busy
		d.keys[resource] = append(d.keys[resource], key)
	}
}

func (d *decisions) of(resource string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.keys[resource])
}
