package torture

import (
	"context"
	"errors"
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
	unansweredMax = 2000 // events without an answer, at which the load waits
	sessionsMax   = 400
	answerWithin  = 4 * time.Second // of a customer
	publishWithin = 2 * time.Second // for one PubAck
	publishRetry  = 200 * time.Millisecond
	longTTL       = 600 // seconds; such holds stay, or are cancelled
)

// place is a resource that is booked.
type place struct {
	name     string
	nights   int // 0 = seats
	seats    int // 0 = the one slot stock
	capacity int64
}

// Load books, pays and cancels at random.
type Load struct {
	recorder *Recorder
	js       jetstream.JetStream
	subjects events.Namespace
	limit    *rate.Limiter
	seed     uint64
	places   []place
	first    time.Time // night

	next    atomic.Uint64
	unknown atomic.Int64

	mu      sync.Mutex
	kinds   map[string]int // events by kind
	staying []string       // holds with a long ttl
	paid    []string       // reservations
}

// NewLoad returns a Load that publishes over js.
func NewLoad(recorder *Recorder, js jetstream.JetStream, subjects events.Namespace, seed uint64) *Load {
	l := &Load{
		recorder: recorder, js: js, subjects: subjects, seed: seed, limit: rate.NewLimiter(ratePerSecond, ratePerSecond/10),
		first: time.Now().UTC().AddDate(0, 0, 14), kinds: make(map[string]int),
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range 4 {
		l.places = append(l.places, place{name: fmt.Sprintf("hotel-%d", i), nights: 6 + random.IntN(10), capacity: 1 + random.Int64N(4)})
	}
	for i := range 3 {
		l.places = append(l.places, place{name: fmt.Sprintf("hall-%d", i), seats: 3 + random.IntN(6), capacity: 1})
	}
	for i := range 2 {
		l.places = append(l.places, place{name: fmt.Sprintf("shop-%d", i), capacity: 5 + random.Int64N(20)})
	}
	return l
}

// all are all slots of a place.
func (p *place) all(first time.Time) holds.SlotSelection {
	switch {
	case p.nights > 0:
		return holds.SlotSelection{CheckIn: first.Format(holds.DateFormat), CheckOut: first.AddDate(0, 0, p.nights).Format(holds.DateFormat)}
	case p.seats > 0:
		return holds.SlotSelection{Slots: seats(0, p.seats)}
	default:
		return holds.SlotSelection{}
	}
}

// some are some slots of a place.
func (p *place) some(first time.Time, random *rand.Rand) holds.SlotSelection {
	switch {
	case p.nights > 0:
		n := 1 + random.IntN(min(4, p.nights))
		in := first.AddDate(0, 0, random.IntN(p.nights-n+1))
		return holds.SlotSelection{CheckIn: in.Format(holds.DateFormat), CheckOut: in.AddDate(0, 0, n).Format(holds.DateFormat)}
	case p.seats > 0:
		n := 1 + random.IntN(2)
		return holds.SlotSelection{Slots: seats(random.IntN(p.seats-n+1), n)}
	default:
		return holds.SlotSelection{}
	}
}

func seats(from, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("A-%d", from+i))
	}
	return names
}

// Open sets the capacities and waits until all are set.
func (l *Load) Open(ctx context.Context) error {
	var waiting []*sent
	for i := range l.places {
		p := &l.places[i]
		waiting = append(waiting, l.publish(ctx, events.InventorySet, p.name, events.InventorySetData{ResourceID: p.name, SlotSelection: p.all(l.first), Capacity: p.capacity}))
	}
	for _, s := range waiting {
		if o, ok := l.recorder.await(ctx, s, hardBound); !ok || o.event != holds.EventInventoryUpdated {
			return fmt.Errorf("inventory of %s was not set: %q %s", s.resource, o.event, o.Reason)
		}
	}
	return nil
}

// Run books until ctx is over, and then waits for all customers to have had their say.
func (l *Load) Run(ctx context.Context) {
	var customers sync.WaitGroup
	free := make(chan struct{}, sessionsMax)
	for ctx.Err() == nil {
		if n, _ := l.recorder.unanswered(); n > unansweredMax {
			wait(ctx, 50*time.Millisecond)
			continue
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		n := l.next.Add(1)
		customers.Go(func() {
			defer func() { <-free }()
			l.customer(context.WithoutCancel(ctx), ctx.Done(), n)
		})
		// A customer publishes some two or three events.
		if l.limit.WaitN(ctx, 1) != nil {
			break
		}
	}
	customers.Wait()
}

// wait waits, or until ctx is over.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// publish publishes a new event and returns when JetStream has it, or it is given up.
func (l *Load) publish(ctx context.Context, event, resource string, data any) *sent {
	s, m, err := l.event(event, resource, data)
	if err != nil {
		panic(err) // the load makes only what can be encoded
	}
	l.send(ctx, s, m, true)
	return s
}

// event makes an event with an id of its own.
func (l *Load) event(event, resource string, data any) (*sent, *nats.Msg, error) {
	r, err := client.NewEvent(l.subjects, event, resource, "/torture", data)
	if err != nil {
		return nil, nil, err
	}
	m, err := r.Message()
	if err != nil {
		return nil, nil, err
	}
	m.Header.Set(idHeader, r.Envelope.ID)
	return l.recorder.open(r.Envelope.ID, event, resource, false), m, nil
}

// send publishes a message, again and again until JetStream has it if persistent, for a bounded
// time. What is not acknowledged then may be stored or not.
func (l *Load) send(ctx context.Context, s *sent, m *nats.Msg, persistent bool) {
	_ = l.limit.Wait(ctx) // over: then the publication fails as well
	l.mu.Lock()
	l.kinds[s.kind]++
	l.mu.Unlock()
	for deadline := time.Now().Add(hardBound); ; wait(ctx, publishRetry) {
		l.recorder.copy(s) // what is published once more, later than the duplicate window, is stored once more
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

// republish publishes an event another time, as a publisher does who has forgotten that it did.
func (l *Load) republish(ctx context.Context, s *sent, m *nats.Msg, random *rand.Rand) {
	second := nats.NewMsg(m.Subject)
	second.Data = m.Data
	for name, values := range m.Header {
		second.Header[name] = values
	}
	second.Header.Set("Nats-Msg-Id", fmt.Sprintf("again-%s-%d", s.id, random.Int64()))
	l.send(ctx, s, second, true)
}

// customer is what one customer does. It is chosen by the seed and its number; what comes of it is
// not. hurry is closed when the load ends: then it waits no more.
func (l *Load) customer(ctx context.Context, hurry <-chan struct{}, number uint64) {
	random := rand.New(rand.NewPCG(l.seed, number+1000))
	switch random.IntN(40) {
	case 0:
		l.malformed(ctx, random)
		return
	case 1:
		l.inventory(ctx, random)
		return
	case 2:
		l.publishUnknown(ctx, random)
		return
	}
	p := l.places[random.IntN(len(l.places))]
	ttl := 1 + random.Int64N(3)
	request := events.BookingRequestedData{
		RequestKey: fmt.Sprintf("k%d", number), UserID: fmt.Sprintf("u%d", random.IntN(300)), ResourceID: p.name,
		SlotSelection: p.some(l.first, random), Quantity: 1, TTLSeconds: &ttl,
	}
	switch random.IntN(20) {
	case 0:
		request.TTLSeconds = nil
	case 1:
		ttl = longTTL
	case 2:
		request.Quantity = 2
	case 3:
		request.Metadata = []byte(`{"note":"torture"}`)
	}
	byKey := events.BookingCancelledData{ResourceID: p.name, RequestKey: request.RequestKey}
	if random.IntN(30) == 0 {
		go l.publish(ctx, events.BookingCancelled, p.name, byKey) // before, or after
	}
	asked, m, err := l.event(events.BookingRequested, p.name, request)
	if err != nil {
		panic(err) // see publish
	}
	l.send(ctx, asked, m, random.IntN(20) > 0)
	if random.IntN(12) == 0 {
		l.republish(ctx, asked, m, random)
	}
	if random.IntN(12) == 0 {
		repeated := request
		if random.IntN(2) == 0 {
			repeated.Quantity += 1 + random.Int64N(3)
		}
		l.publish(ctx, events.BookingRequested, p.name, repeated)
	}
	o, ok := l.recorder.await(ctx, asked, answerWithin)
	if !ok {
		if random.IntN(2) == 0 {
			l.publish(ctx, events.BookingCancelled, p.name, byKey)
		}
		return
	}
	if o.event != holds.EventHoldCreated {
		return
	}
	l.decide(ctx, hurry, random, p.name, number, o, byKey)
}

// decide is what a customer does who has a hold.
func (l *Load) decide(ctx context.Context, hurry <-chan struct{}, random *rand.Rand, resource string, number uint64, o outcome, byKey events.BookingCancelledData) {
	pay := func(suffix string) *sent {
		return l.publish(ctx, events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d%s", number, suffix), Amount: "12.50", Currency: "EUR"})
	}
	at := func(offset time.Duration) { // so long after the deadline
		timer := time.NewTimer(min(time.Until(o.ExpiresAt.Add(offset)), 5*time.Second))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-hurry:
		}
	}
	if random.IntN(8) == 0 {
		l.publish(ctx, events.BookingExtended, resource, events.BookingExtendedData{HoldID: o.HoldID, TTLSeconds: 1 + random.Int64N(5)})
	}
	if random.IntN(6) == 0 {
		l.publish(ctx, events.PaymentStarted, resource, events.PaymentStartedData{HoldID: o.HoldID})
	}
	var payment *sent
	switch random.IntN(12) {
	case 0, 1:
		l.publish(ctx, events.BookingCancelled, resource, events.BookingCancelledData{HoldID: o.HoldID})
		if random.IntN(4) == 0 {
			pay("") // all the same
		}
	case 2:
		l.publish(ctx, events.BookingCancelled, resource, byKey)
	case 3, 4, 5:
		payment = pay("")
	case 6:
		at(time.Duration(random.IntN(60)-30) * time.Millisecond)
		payment = pay("")
	case 7:
		at(time.Duration(random.IntN(1500)) * time.Millisecond)
		payment = pay("")
	case 8:
		var both sync.WaitGroup
		both.Go(func() { pay("b") })
		payment = pay("a")
		both.Wait()
	case 9:
		s, m, err := l.event(events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: o.HoldID, PaymentID: fmt.Sprintf("p%d", number)})
		if err != nil {
			panic(err) // see publish
		}
		l.send(ctx, s, m, true)
		l.republish(ctx, s, m, random)
		payment = pay("") // a third time, in other words
	default: // walks away
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
		l.publish(ctx, events.ReservationCancelled, resource, events.ReservationCancelledData{HoldID: o.HoldID, Reason: "torture"})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paid = append(l.paid, o.HoldID)
}

// inventory changes a capacity, up or down.
func (l *Load) inventory(ctx context.Context, random *rand.Rand) {
	p := l.places[random.IntN(len(l.places))]
	asked := p.some(l.first, random)
	if random.IntN(3) == 0 {
		asked = p.all(l.first)
	}
	l.publish(ctx, events.InventorySet, p.name, events.InventorySetData{ResourceID: p.name, SlotSelection: asked, Capacity: max(0, p.capacity+random.Int64N(5)-2)})
}

// publishUnknown asks about what there is not.
func (l *Load) publishUnknown(ctx context.Context, random *rand.Rand) {
	resource := l.places[random.IntN(len(l.places))].name
	id, err := holds.NewHoldID(resource)
	if err != nil {
		panic(err) // no random numbers: nothing would work
	}
	hold, ttl := id.String(), int64(1)
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
		l.publish(ctx, events.BookingRequested, "nowhere", events.BookingRequestedData{RequestKey: hold, UserID: "u", ResourceID: "nowhere", Quantity: 1, TTLSeconds: &ttl})
	case 5:
		l.publish(ctx, events.BookingRequested, resource, events.BookingRequestedData{RequestKey: hold, UserID: "u", ResourceID: resource, Quantity: -1, TTLSeconds: &ttl})
	}
}

// malformed publishes what can never be processed.
func (l *Load) malformed(ctx context.Context, random *rand.Rand) {
	s, m, err := l.event(events.BookingRequested, "hotel-0", events.BookingRequestedData{RequestKey: "k", UserID: "u", ResourceID: "hotel-0", Quantity: 1})
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
		m.Subject = l.subjects.In("booking.dreamt", "hotel-1")
		m.Data = slices.Concat(m.Data[:len(m.Data)-1], []byte(`,"data":{}}`))
	case 4:
		m.Data = slices.Concat(m.Data, make([]byte, 70<<10))
	}
	l.send(ctx, s, m, true)
	if random.IntN(3) == 0 {
		l.republish(ctx, s, m, random)
	}
}

// Cleanup cancels what stays and most of what was paid, so that there is something to sell.
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
		panic(errors.Join(errors.New("a worker told of a hold without a right id"), err))
	}
	return id.Resource
}
