package events

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// resourceKeyed is a request for a resource; its key, "<resource>:<number>", is also the event's id.
func resourceKeyed(resource string, number int) string {
	key := fmt.Sprintf("%s:%05d", resource, number)
	return envelopeOf(BookingRequested, key, `{"request_key":"`+key+`","user_id":"u","resource_id":"`+resource+`","quantity":1}`)
}

// publishRequest publishes the request of a number for a resource.
func (b *harness) publishRequest(resource string, number int) {
	b.t.Helper()
	if _, err := b.js.PublishMsgAsync(&nats.Msg{Subject: b.ns.In(BookingRequested, resource), Data: []byte(resourceKeyed(resource, number))}); err != nil {
		b.t.Fatal(err)
	}
}

// awaitPublished waits until what was asked is stored.
func (b *harness) awaitPublished() {
	b.t.Helper()
	select {
	case <-b.js.PublishAsyncComplete():
	case <-time.After(time.Minute):
		b.t.Fatal("events are not stored")
	}
}

// lanesOf returns a resource for each lane that a consumer has here, at least two.
func lanesOf(t *testing.T) (resources []string) {
	t.Helper()
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // a consumer has a lane a processor
	resources = make([]string, min(runtime.GOMAXPROCS(0), lanesMax))
	for i, missing := 0, len(resources); missing > 0; i++ {
		name := fmt.Sprintf("lane-%d", i)
		if l := laneOf("ns.in.booking.requested."+name, len(resources)); resources[l] == "" {
			resources[l] = name
			missing--
		}
	}
	return resources
}

// newGate returns what can be waited for until open is called, or the test has failed.
func newGate(t *testing.T) (opened <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return c, open
}

// decisions notes which requests were decided, in which order.
type decisions struct {
	mu   sync.Mutex
	keys map[string][]string // resource -> keys
}

func (d *decisions) note(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	resource, _, _ := strings.Cut(key, ":")
	d.keys[resource] = append(d.keys[resource], key)
}

func (d *decisions) of(resource string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.keys[resource])
}

// TestLaneOf_SameResource_SameLane chooses lanes: one for all events of a resource, and each lane for some.
func TestLaneOf_SameResource_SameLane(t *testing.T) {
	t.Parallel()
	ns := Namespace("holdfast")
	for lanes := 1; lanes <= lanesMax; lanes++ {
		used := make(map[int]bool)
		for i := range 100 {
			resource := fmt.Sprintf("room-%d", i)
			want := laneOf(ns.In(BookingRequested, resource), lanes)
			used[want] = true
			for _, event := range []string{BookingCancelled, BookingExtended, PaymentConfirmed, InventorySet} {
				if got := laneOf(ns.In(event, resource), lanes); got != want {
					t.Errorf("of %d lanes, %s of %s takes %d, its requests %d", lanes, event, resource, got, want)
				}
			}
		}
		if len(used) != lanes {
			t.Errorf("of %d lanes, 100 resources take %v", lanes, used)
		}
	}
}

// TestLane_ManyBatches_DecidedInOrder has the events of many resources wait, more than are fetched at once, while the
// first of them are being decided: those of each resource are decided in the order in which they were published.
func TestLane_ManyBatches_DecidedInOrder(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	const resources, each = 50, 60
	decided := &decisions{keys: make(map[string][]string)}
	published, publish := newGate(t)
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	batches := make(map[int]int) // how many were decided in batches of a size
	b.setFault(func(key string, batch int) error {
		begin()
		<-published
		decided.note(key)
		decided.mu.Lock()
		defer decided.mu.Unlock()
		batches[batch]++
		return nil
	})
	for number := range each {
		for r := range resources {
			b.publishRequest(fmt.Sprintf("room-%d", r), number)
			if r == 0 && number == 0 {
				<-begun // one batch is this event alone, and the others of its lane come in others
			}
		}
	}
	b.awaitPublished()
	publish()
	b.await("all outcomes", func() bool { return len(b.out) == resources*each })
	for r := range resources {
		resource := fmt.Sprintf("room-%d", r)
		keys := decided.of(resource)
		if len(keys) != each || !slices.IsSorted(keys) {
			t.Errorf("%d of %d events of %s were decided, in the order %q", len(keys), each, resource, keys)
		}
	}
	if info := b.awaitIdle(ConsumerRequests); info.Delivered.Consumer != resources*each {
		t.Errorf("%d deliveries of %d events", info.Delivered.Consumer, resources*each)
	}
	tried := 0
	for size, n := range batches {
		tried += n / size
	}
	if tried < 3 {
		t.Errorf("%d batches, events by the size of theirs %v: too little was tried", tried, batches)
	}
}

// TestLane_ResourceStuck_OtherLanesDecide has one resource stuck, as one is whose lock somebody else has: those in other
// lanes go on, batch after batch, and the later events of this one wait for their turn.
func TestLane_ResourceStuck_OtherLanesDecide(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const rounds, each = 5, 20
	stuck := resources[0]
	decided := &decisions{keys: make(map[string][]string)}
	begun := make(chan struct{})
	goOn, letGo := newGate(t)
	b.setFault(func(key string, _ int) error {
		if key == stuck+":00000" {
			close(begun)
			<-goOn
		}
		decided.note(key)
		return nil
	})
	b.publishRequest(stuck, 0)
	<-begun
	for round := range rounds {
		for i := range each {
			for _, resource := range resources {
				b.publishRequest(resource, 1+round*each+i)
			}
		}
		want := (round + 1) * each * (len(resources) - 1)
		b.await("the outcomes of the others", func() bool { return len(b.out) >= want })
	}
	if keys := decided.of(stuck); len(keys) != 0 {
		t.Errorf("%q were decided while one before them was", keys)
	}
	letGo()
	b.await("all outcomes", func() bool { return len(b.out) == rounds*each*len(resources)+1 })
	if keys := decided.of(stuck); !slices.IsSorted(keys) || len(keys) != rounds*each+1 {
		t.Errorf("decided in the order %q", keys)
	}
}

// TestPoison_EveryLane_EachCountedAlone has events fail by their own fault in all lanes, two in one of them, among
// others: each is decided alone, and counted, and dies after as many tries as one that fails by itself.
func TestPoison_EveryLane_EachCountedAlone(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const each = 20
	published, publish := newGate(t)
	var mu sync.Mutex
	alone := make(map[string]int)
	b.setFault(func(key string, batch int) error {
		<-published
		if strings.HasSuffix(key, "bad") || strings.HasSuffix(key, "worse") {
			mu.Lock()
			defer mu.Unlock()
			if batch == 1 {
				alone[key]++
			}
			panic("a bug")
		}
		return nil
	})
	var bad []string
	for i, resource := range resources {
		for number := range each {
			b.publishRequest(resource, number)
			if name := map[int]string{each / 3: "bad", each / 2: "worse"}[number]; name != "" && (name == "bad" || i == 0) {
				key := resource + ":" + name
				bad = append(bad, key)
				b.publish(b.ns.In(BookingRequested, resource), nil, strings.ReplaceAll(resourceKeyed(resource, 99999), resource+":99999", key))
			}
		}
	}
	b.awaitPublished()
	publish()
	b.await("all ends", func() bool { return len(b.out) == each*len(resources) && len(b.dlq) == len(bad) })
	for _, deadLetter := range b.dlq {
		h := deadLetter.Headers()
		if h.Get(HeaderDLQReason) != ReasonPoison || h.Get(HeaderDLQDeliveries) != fmt.Sprint(failuresMax) {
			t.Errorf("headers %v", h)
		}
	}
	info := b.awaitIdle(ConsumerRequests)
	if again, want := info.Delivered.Consumer-info.Delivered.Stream, uint64((failuresMax-1)*len(bad)); again != want {
		t.Errorf("%d deliveries were repeated, want those of the poison, %d", again, want)
	}
	for _, key := range bad {
		if alone[key] != failuresMax {
			t.Errorf("%s was tried alone %d times, want %d", key, alone[key], failuresMax)
		}
	}
}

// TestConsumerStop_FetchedEvents_AreFinished stops the consumers when all that waits was fetched, and nothing was decided: what was fetched is
// decided, stored and acknowledged before they end, in every lane.
func TestConsumerStop_FetchedEvents_AreFinished(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const each = 400 // more than one batch
	begun := make(chan struct{}, 1)
	stopping, stop := newGate(t)
	b.setFault(func(string, int) error {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-stopping
		return nil
	})
	for number := range each {
		for _, resource := range resources {
			b.publishRequest(resource, number)
		}
	}
	b.awaitPublished()
	<-begun
	pending := func() *jetstream.ConsumerInfo {
		consumer, err := b.js.Consumer(b.t.Context(), b.ns.InStream(), ConsumerRequests)
		if err != nil {
			b.t.Fatal(err)
		}
		return consumer.CachedInfo()
	}
	// Not NumPending: NATS counts there what it has told its consumers of, which it does after the PubAck.
	stacktest.Eventually(t, "all to be fetched", func() bool { return pending().Delivered.Consumer == uint64(each*len(resources)) })
	b.cancel()
	stop()
	b.loops.Wait()
	b.await("the outcomes", func() bool { return len(b.out) == each*len(resources) })
	// The acks are on their way.
	stacktest.Eventually(t, "all to be acknowledged", func() bool { return pending().NumAckPending == 0 })
	if info := pending(); info.Delivered.Consumer != uint64(each*len(resources)) || info.NumRedelivered != 0 {
		t.Errorf("of %d events there were %d deliveries, %d are delivered again", each*len(resources), info.Delivered.Consumer, info.NumRedelivered)
	}
}

// stuckService is a Service that decides no request before it has to give up.
type stuckService struct {
	*echo
	begun chan struct{}
}

func (s *stuckService) Place(ctx context.Context, requests []holds.PlaceRequest, emit func(int, holds.Result)) {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-ctx.Done()
	s.echo.Place(ctx, requests, emit)
}

// TestConsumerStop_UnfinishedEvents_RedeliveredAtOnce stops a consumer while events are being decided and others wait. They are delivered to
// another worker at once: not when their acks are overdue, which here takes an hour.
func TestConsumerStop_UnfinishedEvents_RedeliveredAtOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel()
	b.loops.Wait()
	b.ackWithin(ConsumerRequests, time.Hour)
	run := func(service Service) (stop func()) {
		process := NewProcess("w", &b.poison, zerolog.Nop())
		c, err := NewConsumer(t.Context(), ConsumerRequests, b.ns, service, b.nc, b.js, process)
		if err != nil {
			t.Fatal(err)
		}
		c.decideWithin, c.finishWithin = time.Minute, 0
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { _ = c.Run(ctx) })
		return func() { cancel(); loop.Wait() }
	}
	const number = 50
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	first := &stuckService{b.echo, make(chan struct{}, 1)}
	stop := run(first)
	<-first.begun
	stop()
	if n := b.decidedCount("room:00000"); n != 0 {
		t.Errorf("an event was decided %d times before the stop", n)
	}
	defer run(b.echo)()
	b.await("all outcomes", func() bool { return len(b.out) == number })
}

// ackWithin changes how long the server waits for an ack before it delivers an event again.
func (b *harness) ackWithin(name string, wait time.Duration) {
	b.t.Helper()
	consumer, err := b.js.Consumer(b.t.Context(), b.ns.InStream(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	config := consumer.CachedInfo().Config
	config.AckWait = wait
	if _, err := b.js.UpdateConsumer(b.t.Context(), b.ns.InStream(), config); err != nil {
		b.t.Fatal(err)
	}
}

// fetchAllOf fetches so many events by hand.
func (b *harness) fetchAllOf(c *Consumer, number int) (batch []*delivery) {
	b.t.Helper()
	batches := make(chan []*delivery, number)
	stacktest.Eventually(b.t, "the events to be fetched", func() bool {
		if err := c.fetch(number-len(batch), batches); err != nil {
			b.t.Fatal(err)
		}
		for len(batches) > 0 {
			batch = append(batch, <-batches...)
		}
		return len(batch) == number
	})
	return batch
}

// TestExtendAckWait_SlowEvents_GetInProgress has events on their way for long, in whatever step: the server is told to wait on for those, as
// long as they have not ended, and for no others.
func TestExtendAckWait_SlowEvents_GetInProgress(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel() // nobody else fetches
	b.loops.Wait()
	c := b.workers[0]
	acks, err := b.nc.SubscribeSync("$JS.ACK." + b.ns.InStream() + "." + ConsumerRequests + ".>")
	if err != nil {
		t.Fatal(err)
	}
	const number = 6
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	batch := b.fetchAllOf(c, number)
	late := make(map[string]bool)
	for i, d := range batch {
		if i%2 == 0 {
			d.fetched = d.fetched.Add(-ackWait)
			late[d.msg.Reply()] = true
		} else {
			d.fetched = d.fetched.Add(time.Hour)
		}
	}
	c.ack(batch[0]) // has ended
	c.sendInProgress(c.inFlight.olderThan(extendAckWaitEvery / 2))
	received := make(map[string]string)
	for range late {
		ack, err := acks.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("only %v: %v", received, err)
		}
		received[ack.Subject] += string(ack.Data)
	}
	for i, d := range batch {
		want := map[bool]string{true: "+WPI", false: ""}[late[d.msg.Reply()]]
		if i == 0 {
			want = "+ACK"
		}
		if got := received[d.msg.Reply()]; got != want {
			t.Errorf("of event %d the server was told %q, want %q", i, got, want)
		}
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := acks.Pending(); n != 0 {
		t.Errorf("it was told %d things more", n)
	}
}

// TestInFlightWindow_Full_WaitsForCapacity bounds what is fetched and has not ended, by number and by bytes, and goes on when something has.
func TestInFlightWindow_Full_WaitsForCapacity(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel()
	b.loops.Wait()
	c := b.workers[0]
	b.publishRequest("room", 0)
	b.awaitPublished()
	d := b.fetchAllOf(c, 1)[0]
	size := len(d.msg.Data())
	if c.inFlight.bytes != size || len(c.inFlight.events) != 1 {
		t.Errorf("%d events of %d bytes, want 1 of %d", len(c.inFlight.events), c.inFlight.bytes, size)
	}
	full := make([]*delivery, inFlightMax-1)
	for i := range full {
		full[i] = &delivery{msg: d.msg}
	}
	free := func(want int) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if want == 0 {
			cancel() // it would wait
		}
		defer cancel()
		if got := c.inFlight.waitCapacity(ctx, fetchMax, func() {}); got != want {
			t.Errorf("there is room for %d, want %d", got, want)
		}
	}
	c.inFlight.add(full)
	free(0)
	for _, d := range full[:fetchMax/4] {
		c.inFlight.remove(d)
	}
	free(fetchMax / 4)
	for _, d := range full {
		c.inFlight.remove(d) // of some a second time
	}
	c.inFlight.eventSize = inFlightBytesMax / fetchMax
	c.inFlight.bytes = inFlightBytesMax / 2
	free(fetchMax / 2)
	c.inFlight.bytes = inFlightBytesMax - 1
	free(0)
	c.inFlight.bytes = size
	waits := make(chan int)
	c.inFlight.add(full)
	go func() { waits <- c.inFlight.waitCapacity(t.Context(), fetchMax, func() {}) }()
	for _, d := range full {
		c.inFlight.remove(d)
	}
	if got := <-waits; got < fetchMax/4 {
		t.Errorf("who waited was given room for %d", got)
	}
	c.inFlight.remove(d)
	if c.inFlight.bytes != 0 || len(c.inFlight.events) != 0 {
		t.Errorf("%d events of %d bytes are left", len(c.inFlight.events), c.inFlight.bytes)
	}
	c.inFlight.eventSize = 2 * inFlightBytesMax // an event that is larger than all may be
	free(1)
}

// TestConsumer_UnknownPaymentEvent_DeadLetteredOnce has events that are called payments and that nobody knows come while the consumers have the
// filters of the version before, and others when they have their own: each is dead-lettered once.
func TestConsumer_UnknownPaymentEvent_DeadLetteredOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel()
	b.loops.Wait()
	ctx := t.Context()
	unknown := func(id string) {
		b.publish(b.ns.In("payment.refunded", "room"), nil, envelopeOf("payment.refunded", id, `{}`))
	}
	_, err := b.js.CreateOrUpdateConsumer(ctx, b.ns.InStream(), jetstream.ConsumerConfig{
		Durable: ConsumerPayments, FilterSubjects: b.ns.ofAny(PaymentStarted, PaymentConfirmed),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1, MaxAckPending: ackPendingMax,
	})
	if err != nil {
		t.Fatal(err)
	}
	unknown("e1")
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e2", `{"hold_id":"`+holdID+`","payment_id":"p"}`))
	before, err := b.js.Consumer(ctx, b.ns.InStream(), ConsumerPayments)
	if err != nil {
		t.Fatal(err)
	}
	m, err := before.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(ctx); err != nil { // the worker of the version before has passed e1
		t.Fatal(err)
	}
	if err := Setup(ctx, b.js, b.ns, Retention{HoldLifetime: time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	unknown("e3")
	running, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	for _, name := range []string{ConsumerRequests, ConsumerPayments} {
		process := NewProcess("w", &b.poison, zerolog.Nop())
		c, err := NewConsumer(ctx, name, b.ns, b.workers[0].service, b.nc, b.js, process)
		if err != nil {
			t.Fatal(err)
		}
		loops.Go(func() { _ = c.Run(running) })
	}
	b.await("two dead letters", func() bool { return len(b.dlq) == 2 })
	for _, name := range []string{ConsumerRequests, ConsumerPayments} {
		b.awaitIdle(name)
	}
	if len(b.dlq) != 2 {
		t.Errorf("%d dead letters, want one of each", len(b.dlq))
	}
}
