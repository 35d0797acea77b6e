package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	ratePerSecond = 300
	unansweredMax = 2000                   // the load waits while more events have no answer
	customersMax  = 400                    // at a time
	answerWithin  = 4 * time.Second        // a customer waits for an answer
	publishWithin = 2 * time.Second        // for one PubAck
	publishRetry  = 200 * time.Millisecond // between two attempts
	longTTL       = 600                    // seconds; longer than a round
)

// resourceSpec is a resource that customers book: by nights, by seats or, with neither, by stock.
type resourceSpec struct {
	name     string
	nights   int
	seats    int
	capacity int64 // of each slot
}

// Load plays customers who request, pay and cancel at random.
type Load struct {
	recorder  *Recorder
	js        jetstream.JetStream
	subjects  events.Namespace
	limit     *rate.Limiter
	seed      uint64
	resources []resourceSpec
	first     time.Time // the first night

	next    atomic.Uint64 // number of the last customer
	unknown atomic.Int64  // publications without an ack

	mu      sync.Mutex
	kinds   map[string]int // publications by event
	staying []string       // holds with a long TTL
	paid    []string       // reservations
}

// NewLoad returns a Load that publishes over js. The seed determines what each customer intends.
func NewLoad(recorder *Recorder, js jetstream.JetStream, subjects events.Namespace, seed uint64) *Load {
	l := &Load{
		recorder: recorder, js: js, subjects: subjects, seed: seed,
		limit: rate.NewLimiter(ratePerSecond, ratePerSecond/10),
		first: time.Now().UTC().AddDate(0, 0, 14), kinds: make(map[string]int),
	}
	add := func(r resourceSpec) { l.resources = append(l.resources, r) }
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range 4 {
		add(resourceSpec{name: fmt.Sprintf("hotel-%d", i), nights: 6 + random.IntN(10), capacity: 1 + random.Int64N(4)})
	}
	for i := range 3 {
		add(resourceSpec{name: fmt.Sprintf("hall-%d", i), seats: 3 + random.IntN(6), capacity: 1})
	}
	for i := range 2 {
		add(resourceSpec{name: fmt.Sprintf("shop-%d", i), capacity: 5 + random.Int64N(20)})
	}
	return l
}

// allSlots selects all slots of the resource.
func (r *resourceSpec) allSlots(first time.Time) holds.SlotSelection {
	switch {
	case r.nights > 0:
		return nights(first, r.nights)
	case r.seats > 0:
		return holds.SlotSelection{Slots: seats(0, r.seats)}
	default:
		return holds.SlotSelection{}
	}
}

// someSlots selects some consecutive slots of the resource.
func (r *resourceSpec) someSlots(first time.Time, random *rand.Rand) holds.SlotSelection {
	switch {
	case r.nights > 0:
		n := 1 + random.IntN(min(4, r.nights))
		return nights(first.AddDate(0, 0, random.IntN(r.nights-n+1)), n)
	case r.seats > 0:
		n := 1 + random.IntN(2)
		return holds.SlotSelection{Slots: seats(random.IntN(r.seats-n+1), n)}
	default:
		return holds.SlotSelection{}
	}
}

func nights(first time.Time, n int) holds.SlotSelection {
	return holds.SlotSelection{
		CheckIn: first.Format(holds.DateFormat), CheckOut: first.AddDate(0, 0, n).Format(holds.DateFormat),
	}
}

func seats(from, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("A-%d", from+i))
	}
	return names
}

// Open sets the capacities and waits for the outcomes.
func (l *Load) Open(ctx context.Context) error {
	var published []*sent
	for _, r := range l.resources {
		published = append(published, l.publish(ctx, events.InventorySet, r.name, events.InventorySetData{
			ResourceID: r.name, SlotSelection: r.allSlots(l.first), Capacity: r.capacity,
		}))
	}
	for _, s := range published {
		if o, ok := l.recorder.await(ctx, s, hardBound); !ok || o.event != holds.EventInventoryUpdated {
			return fmt.Errorf("set capacity of %s: %q %s", s.resource, o.event, o.Reason)
		}
	}
	return nil
}

// Run starts customers until ctx is done, and then waits until they have finished.
func (l *Load) Run(ctx context.Context) {
	var customers sync.WaitGroup
	running := make(chan struct{}, customersMax)
	for ctx.Err() == nil {
		if n, _ := l.recorder.unanswered(); n > unansweredMax {
			wait(ctx, 50*time.Millisecond)
			continue
		}
		select {
		case running <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		n := l.next.Add(1)
		customers.Go(func() {
			defer func() { <-running }()
			l.customer(context.WithoutCancel(ctx), ctx.Done(), n)
		})
		// This bounds new customers; send bounds the two or three events that each publishes.
		if l.limit.WaitN(ctx, 1) != nil {
			break
		}
	}
	customers.Wait()
}

// wait waits for d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// publish publishes a new event. It returns when JetStream has stored it, or when send gives up.
func (l *Load) publish(ctx context.Context, event, resource string, data any) *sent {
	s, m, err := l.event(event, resource, data)
	if err != nil {
		panic(err) // the load publishes only data that can be encoded
	}
	l.send(ctx, s, m, true)
	return s
}

// event returns a new event, recorded and not published yet.
func (l *Load) event(event, resource string, data any) (*sent, *nats.Msg, error) {
	m, e, err := client.NewEvent(l.subjects, event, resource, "/robustness", data)
	if err != nil {
		return nil, nil, err
	}
	m.Header.Set(idHeader, e.ID)
	return l.recorder.open(e.ID, event, resource, false), m, nil
}

// send publishes a message and, if persistent, retries for up to hardBound until JetStream has stored
// it. Without an ack the message may be stored or not.
func (l *Load) send(ctx context.Context, s *sent, m *nats.Msg, persistent bool) {
	_ = l.limit.Wait(ctx) // fails only when ctx is done, and then the publication fails as well
	l.mu.Lock()
	l.kinds[s.kind]++
	l.mu.Unlock()
	for deadline := time.Now().Add(hardBound); ; wait(ctx, publishRetry) {
		l.recorder.copy(s) // a retry later than the duplicate window is stored once more
		within, cancel := context.WithTimeout(ctx, publishWithin)
		_, err := l.js.PublishMsg(within, m)
		cancel()
		if err == nil {
			l.recorder.ack(s)
			return
		}
		if !persistent || ctx.Err() != nil || time.Now().After(deadline) {
			l.unknown.Add(1)
			return
		}
	}
}

// republish publishes an event once more under another Nats-Msg-Id, like a publisher that has lost its
// state.
func (l *Load) republish(ctx context.Context, s *sent, m *nats.Msg, random *rand.Rand) {
	second := nats.NewMsg(m.Subject)
	second.Data = m.Data
	for name, values := range m.Header {
		second.Header[name] = values
	}
	second.Header.Set("Nats-Msg-Id", fmt.Sprintf("again-%s-%d", s.id, random.Int64()))
	l.send(ctx, s, second, true)
}

// customer plays one customer. The seed and the number determine what it intends. When loadEnded is
// closed it no longer waits for deadlines.
func (l *Load) customer(ctx context.Context, loadEnded <-chan struct{}, number uint64) {
	random := rand.New(rand.NewPCG(l.seed, number+1000))
	switch random.IntN(40) {
	case 0:
		l.malformed(ctx, random)
		return
	case 1:
		l.changeCapacity(ctx, random)
		return
	case 2:
		l.publishUnknown(ctx, random)
		return
	}
	r := l.resources[random.IntN(len(l.resources))]
	ttl := 1 + random.Int64N(3)
	request := events.BookingRequestedData{
		RequestKey: fmt.Sprintf("k%d", number), UserID: fmt.Sprintf("u%d", random.IntN(300)), ResourceID: r.name,
		SlotSelection: r.someSlots(l.first, random), Quantity: 1, TTLSeconds: &ttl,
	}
	switch random.IntN(20) {
	case 0:
		request.TTLSeconds = nil
	case 1:
		ttl = longTTL
	case 2:
		request.Quantity = 2
	case 3:
		request.Metadata = []byte(`{"note":"robustness"}`)
	}
	byKey := events.BookingCancelledData{ResourceID: r.name, RequestKey: request.RequestKey}
	if random.IntN(30) == 0 {
		go l.publish(ctx, events.BookingCancelled, r.name, byKey) // stored before or after the request
	}
	requested, m, err := l.event(events.BookingRequested, r.name, request)
	if err != nil {
		panic(err) // see publish
	}
	l.send(ctx, requested, m, random.IntN(20) > 0)
	if random.IntN(12) == 0 {
		l.republish(ctx, requested, m, random)
	}
	if random.IntN(12) == 0 {
		repeated := request
		if random.IntN(2) == 0 {
			repeated.Quantity += 1 + random.Int64N(3)
		}
		l.publish(ctx, events.BookingRequested, r.name, repeated)
	}
	o, ok := l.recorder.await(ctx, requested, answerWithin)
	if !ok {
		if random.IntN(2) == 0 {
			l.publish(ctx, events.BookingCancelled, r.name, byKey)
		}
		return
	}
	if o.event != holds.EventHoldCreated {
		return
	}
	l.decide(ctx, loadEnded, random, number, o, byKey)
}

// decide pays, extends, cancels or abandons a hold at random.
func (l *Load) decide(ctx context.Context, loadEnded <-chan struct{}, random *rand.Rand, number uint64, o outcome,
	byKey events.BookingCancelledData,
) {
	resource := byKey.ResourceID
	pay := func(suffix string) *sent {
		return l.publish(ctx, events.PaymentConfirmed, resource, events.PaymentConfirmedData{
			HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d%s", number, suffix), Amount: "12.50", Currency: "EUR",
		})
	}
	waitForDeadline := func(offset time.Duration) {
		timer := time.NewTimer(min(time.Until(o.ExpiresAt.Add(offset)), 5*time.Second))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-loadEnded:
		}
	}
	if random.IntN(8) == 0 {
		l.publish(ctx, events.BookingExtended, resource, events.BookingExtendedData{
			HoldID: o.HoldID, TTLSeconds: 1 + random.Int64N(5),
		})
	}
	if random.IntN(6) == 0 {
		l.publish(ctx, events.PaymentStarted, resource, events.PaymentStartedData{HoldID: o.HoldID})
	}
	var payment *sent
	switch random.IntN(12) {
	case 0, 1:
		l.publish(ctx, events.BookingCancelled, resource, events.BookingCancelledData{HoldID: o.HoldID})
		if random.IntN(4) == 0 {
			pay("") // although cancelled
		}
	case 2:
		l.publish(ctx, events.BookingCancelled, resource, byKey)
	case 3, 4, 5:
		payment = pay("")
	case 6:
		waitForDeadline(time.Duration(random.IntN(60)-30) * time.Millisecond)
		payment = pay("")
	case 7:
		waitForDeadline(time.Duration(random.IntN(1500)) * time.Millisecond)
		payment = pay("")
	case 8:
		var both sync.WaitGroup
		both.Go(func() { pay("b") })
		payment = pay("a")
		both.Wait()
	case 9:
		s, m, err := l.event(events.PaymentConfirmed, resource, events.PaymentConfirmedData{
			HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d", number),
		})
		if err != nil {
			panic(err) // see publish
		}
		l.send(ctx, s, m, true)
		l.republish(ctx, s, m, random)
		payment = pay("") // a third event with other content
	default: // abandons the hold
		if time.Until(o.ExpiresAt.Time) > time.Minute {
			l.mu.Lock()
			l.staying = append(l.staying, o.HoldID)
			l.mu.Unlock()
		}
	}
	if payment == nil {
		return
	}
	answer, ok := l.recorder.await(ctx, payment, answerWithin)
	if !ok || answer.event != holds.EventHoldConfirmed {
		return
	}
	if random.IntN(2) == 0 {
		l.publish(ctx, events.ReservationCancelled, resource, events.ReservationCancelledData{
			HoldID: o.HoldID, Reason: "robustness",
		})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paid = append(l.paid, o.HoldID)
}

// changeCapacity sets the capacity of some or all slots of a resource to about its usual value.
func (l *Load) changeCapacity(ctx context.Context, random *rand.Rand) {
	r := l.resources[random.IntN(len(l.resources))]
	selection := r.someSlots(l.first, random)
	if random.IntN(3) == 0 {
		selection = r.allSlots(l.first)
	}
	l.publish(ctx, events.InventorySet, r.name, events.InventorySetData{
		ResourceID: r.name, SlotSelection: selection, Capacity: max(0, r.capacity+random.Int64N(5)-2),
	})
}

// publishUnknown publishes an event about an unknown hold or resource, or with an invalid quantity.
func (l *Load) publishUnknown(ctx context.Context, random *rand.Rand) {
	resource := l.resources[random.IntN(len(l.resources))].name
	id := holds.NewHoldID(resource)
	request := func(resource string, quantity int64) {
		ttl := int64(1)
		l.publish(ctx, events.BookingRequested, resource, events.BookingRequestedData{
			RequestKey: id.String(), UserID: "u", ResourceID: resource, Quantity: quantity, TTLSeconds: &ttl,
		})
	}
	hold := id.String()
	switch random.IntN(6) {
	case 0:
		l.publish(ctx, events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: hold, PaymentID: "p"})
	case 1:
		l.publish(ctx, events.BookingCancelled, resource, events.BookingCancelledData{HoldID: hold})
	case 2:
		l.publish(ctx, events.ReservationCancelled, resource, events.ReservationCancelledData{HoldID: hold})
	case 3:
		l.publish(ctx, events.PaymentStarted, resource, events.PaymentStartedData{HoldID: hold})
	case 4:
		request("unknown", 1)
	case 5:
		request(resource, -1)
	}
}

// malformed publishes a malformed event.
func (l *Load) malformed(ctx context.Context, random *rand.Rand) {
	s, m, err := l.event(events.BookingRequested, "hotel-0", events.BookingRequestedData{
		RequestKey: "k", UserID: "u", ResourceID: "hotel-0", Quantity: 1,
	})
	if err != nil {
		panic(err) // see publish
	}
	l.recorder.mu.Lock()
	s.dead = true
	l.recorder.mu.Unlock()
	switch random.IntN(5) {
	case 0:
		m.Data = m.Data[:len(m.Data)/2]
	case 1:
		m.Data = []byte{0xff, 0xfe, '{'}
	case 2:
		m.Subject = l.subjects.In(events.BookingRequested, "hotel-1")
	case 3:
		m.Subject = l.subjects.In("booking.unknown", "hotel-1")
		m.Data = slices.Concat(m.Data[:len(m.Data)-1], []byte(`,"data":{}}`))
	case 4:
		m.Data = slices.Concat(m.Data, make([]byte, 70<<10))
	}
	l.send(ctx, s, m, true)
	if random.IntN(3) == 0 {
		l.republish(ctx, s, m, random)
	}
}

// Cleanup cancels most reservations and holds with a long TTL, so that the next burst can sell their
// slots.
func (l *Load) Cleanup(ctx context.Context) {
	l.mu.Lock()
	staying, paid := l.staying, l.paid
	l.staying, l.paid = nil, nil
	l.mu.Unlock()
	var all sync.WaitGroup
	for i, hold := range staying {
		if i%3 > 0 {
			all.Go(func() {
				l.publish(ctx, events.BookingCancelled, resourceOf(hold), events.BookingCancelledData{HoldID: hold})
			})
		}
	}
	for i, hold := range paid {
		if i%10 > 0 {
			all.Go(func() {
				l.publish(ctx, events.ReservationCancelled, resourceOf(hold), events.ReservationCancelledData{HoldID: hold})
			})
		}
	}
	all.Wait()
}

func resourceOf(hold string) string {
	id, err := holds.ParseHoldID(hold)
	if err != nil {
		panic(fmt.Errorf("outcome with an invalid hold id: %w", err))
	}
	return id.Resource
}
