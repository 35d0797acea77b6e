package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// echo is a Service that answers everything at once, or as fault says, unless its time is over. These tests are about
// what a consumer does with answers and errors; cmd/worker's are about the answers.
type echo struct {
	mu    sync.Mutex
	fault func(key string, batch int) error // of a request, by its key; may panic
	seen  map[string]int                    // how often each request was asked
	sets  []holds.InventoryRequest
	grant bool     // requests, else they are rejected
	freed []string // the resources of releases
}

func (e *echo) Place(ctx context.Context, requests []holds.PlaceRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		if err := ctx.Err(); err != nil {
			emit(i, holds.Result{Err: err})
			continue
		}
		e.mu.Lock()
		e.seen[r.RequestKey]++
		fault := e.fault
		e.mu.Unlock()
		if fault != nil {
			if err := fault(r.RequestKey, len(requests)); err != nil {
				emit(i, holds.Result{Err: err})
				continue
			}
		}
		if e.grant {
			id := holds.HoldID{Resource: r.Resource, UUID: strings.Repeat("a", 32)}
			emit(i, holds.Result{Outcome: holds.Outcome{
				Event: holds.EventHoldCreated, Resource: r.Resource, Hold: id,
				Data: holds.HoldCreated{HoldData: holds.HoldData{
					ResourceID: r.Resource, HoldID: id, RequestKey: r.RequestKey, UserID: r.User, Quantity: &r.Quantity,
				}},
			}})
			continue
		}
		emit(i, holds.Result{Outcome: holds.Outcome{
			Event: holds.EventHoldRejected, Resource: r.Resource, Data: holds.HoldRejected{Reason: "echo", Message: r.RequestKey},
		}})
	}
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

func (e *echo) Release(_ context.Context, requests []holds.ReleaseRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		e.mu.Lock()
		fault := e.fault
		e.mu.Unlock()
		if fault != nil {
			if err := fault(r.RequestKey, len(requests)); err != nil {
				emit(i, holds.Result{Err: err})
				continue
			}
		}
		e.mu.Lock()
		e.freed = append(e.freed, r.Hold.String())
		e.mu.Unlock()
		emit(i, holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldReleased, Resource: r.Resource, Data: holds.HoldReleased{}}})
	}
}

func (e *echo) Confirm(_ context.Context, requests []holds.ConfirmRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		e.mu.Lock()
		e.seen[r.PaymentID]++
		fault := e.fault
		e.mu.Unlock()
		if fault != nil {
			if err := fault(r.PaymentID, len(requests)); err != nil {
				emit(i, holds.Result{Err: err})
				continue
			}
		}
		emit(i, holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldConfirmed, Resource: r.Hold.Resource, Data: holds.HoldConfirmed{}}})
	}
}

func (*echo) Extend(_ context.Context, requests []holds.ExtendRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		emit(i, holds.Result{Outcome: holds.Outcome{Event: holds.EventHoldExtended, Resource: r.Hold.Resource, Data: holds.HoldExtended{}}})
	}
}

func (*echo) Cancel(_ context.Context, requests []holds.CancelRequest, emit func(int, holds.Result)) {
	for i, r := range requests {
		emit(i, holds.Result{Outcome: holds.Outcome{Event: holds.EventReservationCancelled, Resource: r.Hold.Resource, Data: holds.ReservationCancelled{}}})
	}
}

func (e *echo) SetInventory(_ context.Context, r holds.InventoryRequest) holds.Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sets = append(e.sets, r)
	e.seen[r.Resource]++
	return holds.Result{Outcome: holds.Outcome{Event: holds.EventInventoryUpdated, Resource: r.Resource, Data: holds.InventoryUpdated{}}}
}

func (*echo) Epoch() string                        { return "always" }
func (*echo) WaitReady(context.Context) error      { return nil }
func (*echo) Verify(context.Context, string) error { return nil }

// harness is a namespace with its three consumers running on an echo.
type harness struct {
	*echo
	t       *testing.T
	ns      Namespace
	nc      *nats.Conn
	js      jetstream.JetStream
	workers []*Consumer
	cancel  context.CancelFunc // has the consumers stop
	loops   sync.WaitGroup     // until they have
	mu      sync.Mutex
	out     []jetstream.Msg
	dlq     []jetstream.Msg
	poison  memoryPoisonRegister
	logged  logLines
	changed chan struct{}
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessWithJetStream(t, func(js jetstream.JetStream) jetstream.JetStream { return js })
}

// newHarnessWithJetStream lets a test stand between the consumers and JetStream.
func newHarnessWithJetStream(t *testing.T, between func(jetstream.JetStream) jetstream.JetStream) *harness {
	t.Helper()
	return newHarnessAt(t, stacktest.Shared().NATSURL, between)
}

// newHarnessAt uses another NATS than the shared one.
func newHarnessAt(t *testing.T, url string, between func(jetstream.JetStream) jetstream.JetStream) *harness {
	t.Helper()
	b := &harness{echo: &echo{seen: make(map[string]int)}, t: t, ns: Namespace(stacktest.Namespace(t)), changed: make(chan struct{})}
	var err error
	if b.nc, err = Connect(url, t.Name(), t.Logf); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nc.Close)
	if b.js, err = NewJetStream(b.nc); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds all there
		if err := Setup(t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
			t.Fatal(err)
		}
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
	t.Cleanup(func() { cancel(); b.loops.Wait() })
	js := between(b.js)
	shown := zerolog.LevelWriterAdapter{Writer: zerolog.NewTestWriter(t)}
	errors := zerolog.FilteredLevelWriter{Writer: shown, Level: zerolog.ErrorLevel}
	process := NewProcess("w1", &b.poison, zerolog.New(zerolog.MultiLevelWriter(&errors, &b.logged)))
	for _, name := range []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} {
		c, err := NewConsumer(ctx, name, b.ns, b.echo, b.nc, js, process)
		if err != nil {
			t.Fatal(err)
		}
		c.decideWithin, c.finishWithin = time.Minute, time.Minute // however slow the machine is
		c.slowAfter = time.Second
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
	if _, err := b.js.PublishMsg(context.Background(), &nats.Msg{Subject: subject, Header: header, Data: []byte(body)}); err != nil {
		b.t.Fatal(err)
	}
}

// requestReply publishes an event and returns the reply to it.
func (b *harness) requestReply(subject, body string) *nats.Msg {
	b.t.Helper()
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		b.t.Fatal(err)
	}
	b.publish(subject, nats.Header{HeaderReplyTo: {inbox}}, body)
	reply, err := sub.NextMsgWithContext(stacktest.WaitContext(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	return reply
}

func (b *harness) await(what string, so func() bool) {
	b.t.Helper()
	bound := time.After(time.Minute)
	for {
		b.mu.Lock()
		done, changed := so(), b.changed
		b.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-bound:
			b.t.Fatalf("waited in vain for %s; %d outcomes, %d dead letters", what, len(b.out), len(b.dlq))
		}
	}
}

const holdID = "room.0192f5c4d0b07cc3a5d0f2f5a1b2c3d4"

// envelopeOf wraps data into a CloudEvent in structured mode.
func envelopeOf(event, id, data string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"holdfast.` + event + `.v1","data":` + data + `}`
}

const (
	onRequest = "holdfast.in.booking.requested.room"
	onPayment = "holdfast.in.payment.confirmed.room"
)

// request is a request with more members.
func request(members string) string {
	return envelopeOf(BookingRequested, "e1", `{"request_key":"k","user_id":"u","resource_id":"room","quantity":1`+members+`}`)
}

// keyed is a request whose key is also the event's id.
func keyed(key string) string {
	return envelopeOf(BookingRequested, key, `{"request_key":"`+key+`","user_id":"u","resource_id":"room","quantity":1}`)
}

// awaitIdle waits until a consumer has neither anything waiting nor unacknowledged.
func (b *harness) awaitIdle(name string) (info *jetstream.ConsumerInfo) {
	b.t.Helper()
	stacktest.Eventually(b.t, "consumer "+name+" to come to rest", func() bool {
		consumer, err := b.js.Consumer(b.t.Context(), b.ns.InStream(), name)
		if err != nil {
			b.t.Fatal(err)
		}
		info = consumer.CachedInfo()
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	return info
}

// TestConsumer_SameEventTwice_StoresOneOutcome publishes an event twice, without a message id: one outcome is stored.
func TestConsumer_SameEventTwice_StoresOneOutcome(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	for range 2 {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("twice"))
	}
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("once"))
	b.awaitIdle(ConsumerRequests)
	b.await("both", func() bool { return len(b.out) >= 2 })
	var causes []string
	for _, m := range b.out {
		var e Envelope
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			t.Fatal(err)
		}
		causes = append(causes, e.CausationID)
		if e.ID == "" || m.Headers().Get("Nats-Msg-Id") != e.ID || e.SpecVersion != "1.0" || e.DataContentType != "application/json" {
			t.Errorf("outcome %+v with headers %v", e, m.Headers())
		}
	}
	if slices.Sort(causes); !slices.Equal(causes, []string{"once", "twice"}) || b.decidedCount("twice") != 2 {
		t.Errorf("outcomes of %v; decided %d times", causes, b.decidedCount("twice"))
	}
}

// TestConsumer_Outage_PausesAndDeadLettersNothing has every decision fail for nobody's fault: no event dies, all are answered later.
func TestConsumer_Outage_PausesAndDeadLettersNothing(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	outage := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	b.setFault(func(string, int) error { return outage })
	const number = 50
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	stacktest.Eventually(t, "the consumer to pause", func() bool { return b.workers[0].Paused() })
	for range 3 {
		before := b.decidedCount("k0")
		stacktest.Eventually(t, "another try", func() bool { return b.decidedCount("k0") > before })
	}
	b.setFault(nil)
	b.await("an outcome of each", func() bool { return len(b.out) == number })
	stacktest.Eventually(t, "the pause to end", func() bool { return !b.workers[0].Paused() })
	if len(b.dlq) != 0 {
		t.Errorf("%d events died of an outage", len(b.dlq))
	}
}

// TestReply_OutcomeOrDeadLetter_SentToInboxOnly asks as a publisher does that waits.
func TestReply_OutcomeOrDeadLetter_SentToInboxOnly(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	reply := b.requestReply(b.ns.In(BookingRequested, "room"), keyed("good"))
	var outcome Envelope
	if err := json.Unmarshal(reply.Data, &outcome); err != nil || outcome.CausationID != "good" || reply.Header.Get(HeaderContentType) != ContentTypeEvent {
		t.Errorf("%v: the reply to a request is %s", err, reply.Data)
	}
	reply = b.requestReply(b.ns.In(BookingRequested, "room"), "{")
	var dead DeadLetterReply
	if err := json.Unmarshal(reply.Data, &dead); err != nil || dead.Error != ReasonMalformed || dead.Detail == "" || reply.Header.Get(HeaderContentType) != ContentTypeJSON {
		t.Errorf("%v: the reply to a malformed request is %s", err, reply.Data)
	}
	for inbox, want := range map[string]string{
		"_INBOX.x.y": "_INBOX.x.y", "_INBOX.>": "", "holdfast.in.x": "", "$JS.API.STREAM.DELETE.X": "", "_INBOX.a b": "", "": "",
	} {
		if got := replyTo(nats.Header{HeaderReplyTo: {inbox}}); got != want {
			t.Errorf("reply to %q goes to %q, want %q", inbox, got, want)
		}
	}
}

// TestDispositionOf_EachError is the table of what is done with an event that has no outcome yet.
func TestDispositionOf_EachError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want disposition
	}{
		"malformed":          {&UnprocessableError{ReasonMalformed, "x"}, dispositionDeadLetter},
		"locked":             {fmt.Errorf("wait: %w", holds.ErrBusy), dispositionRetrySoon},
		"being stored":       {fmt.Errorf("publish: %w", &jetstream.APIError{Code: 409, ErrorCode: 10158}), dispositionRetrySoon},
		"full":               {&jetstream.APIError{Code: 503, ErrorCode: 10077}, dispositionPause},
		"data lost":          {fmt.Errorf("place: %w", holds.ErrDataLost), dispositionPause},
		"damaged":            {fmt.Errorf("place: %w", holds.ErrCorrupt), dispositionDefer},
		"timeout":            {context.DeadlineExceeded, dispositionPause},
		"stopping":           {context.Canceled, dispositionPause},
		"connection refused": {&net.OpError{Op: "dial", Err: errors.New("refused")}, dispositionPause},
		"postgres stops":     {&pgconn.PgError{Code: "57P01"}, dispositionPause},
		"disk full":          {&pgconn.PgError{Code: "53100"}, dispositionPause},
		"deadlock":           {&pgconn.PgError{Code: "40P01"}, dispositionPause},
		"no such table":      {&pgconn.PgError{Code: "42P01"}, dispositionPause},
		"null character":     {&pgconn.PgError{Code: "22021"}, dispositionRetryCounted},
		"constraint":         {fmt.Errorf("x: %w", &pgconn.PgError{Code: "23502"}), dispositionRetryCounted},
		"panic":              {&panicError{"x"}, dispositionRetryCounted},
		"unknown":            {errors.New("something new"), dispositionPause},
	} {
		if got := dispositionOf(c.err); got != c.want {
			t.Errorf("%s: fate %d, want %d", name, got, c.want)
		}
	}
}

// TestSetup_StreamBreaksPromise_IsError finds streams that would break a promise.
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
