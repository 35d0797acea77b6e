package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// sale sells nights of some resources by events of every kind, and checks what came of it.
type sale struct {
	*harness
	resources       []string
	nights, longest int   // of each resource, and of a stay
	capacity        int64 // of each night
	first           time.Time

	requested sync.Map       // ids of all events
	answered  []atomic.Int64 // by resource
	reserved  []atomic.Int64 // by resource
}

// keptMax is how many reservations of a resource are not cancelled: with more, nothing would be left to sell.
const keptMax = 3

// newSale returns a sale of 20 nights of each resource. The caller may change its numbers before it starts it.
func newSale(s *harness, resources ...string) *sale {
	return &sale{
		harness: s, resources: resources, nights: 20, longest: 4, capacity: 4, first: time.Now().UTC().AddDate(0, 0, 7),
		answered: make([]atomic.Int64, len(resources)), reserved: make([]atomic.Int64, len(resources)),
	}
}

func (s *sale) stay(from, nights int) holds.SlotSelection {
	in := s.first.AddDate(0, 0, from)
	return holds.SlotSelection{
		CheckIn: in.Format(holds.DateFormat), CheckOut: in.AddDate(0, 0, nights).Format(holds.DateFormat),
	}
}

// start starts sellers, each of one resource. end ends the sale: it waits for all answers.
func (s *sale) start(sellers int) (end func()) {
	s.t.Helper()
	for i, resource := range s.resources {
		s.setInventory(resource, s.stay(0, s.nights), s.capacity)
		s.ask(i, events.BookingRequested, bookingData(resource, "first", "first", s.stay(0, s.nights), 1)) // the others draw nights
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	var selling sync.WaitGroup
	for seller := range sellers {
		selling.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s.sell(seller%len(s.resources), fmt.Sprintf("u%d", seller), fmt.Sprintf("%d-%d", seller, n))
			}
		})
	}
	end = func() { cancel(); selling.Wait() }
	s.t.Cleanup(end)
	return end
}

// sell requests a hold and, if it is granted, ends it in one of all ways.
func (s *sale) sell(resource int, user, name string) {
	nights := 1 + rand.N(s.longest)
	selection := s.stay(rand.N(s.nights-nights+1), nights)
	wanted := bookingData(s.resources[resource], user, "k"+name, selection, 1+rand.Int64N(3))
	wanted.Quantity = 1 + rand.Int64N(2)
	o := s.ask(resource, events.BookingRequested, wanted)
	if o.Type != events.Type(holds.EventHoldCreated) {
		return
	}
	cancel := func() { s.ask(resource, events.BookingCancelled, events.BookingCancelledData{HoldID: o.Subject}) }
	start := func() { s.ask(resource, events.PaymentStarted, events.PaymentStartedData{HoldID: o.Subject}) }
	extend := func() {
		s.ask(resource, events.BookingExtended, events.BookingExtendedData{HoldID: o.Subject, TTLSeconds: 2})
	}
	switch rand.N(12) {
	case 0:
		start()
		fallthrough
	case 1, 2:
		paid := s.ask(resource, events.PaymentConfirmed, events.PaymentConfirmedData{HoldID: o.Subject, PaymentID: "p" + name})
		if paid.Type == events.Type(holds.EventHoldConfirmed) && s.reserved[resource].Add(1) > keptMax {
			s.ask(resource, events.ReservationCancelled, events.ReservationCancelledData{HoldID: o.Subject})
		}
	case 3:
		start()
		cancel()
	case 4:
		extend()
	case 5:
		extend()
		cancel()
	case 6, 7:
		cancel()
	case 8:
		s.ask(resource, events.BookingCancelled,
			events.BookingCancelledData{ResourceID: s.resources[resource], RequestKey: "k" + name})
	case 9:
		s.ask(resource, events.InventorySet, s.capacityOf(resource, selection))
	}
}

// capacityOf returns the data of an event that sets the capacity that nights have.
func (s *sale) capacityOf(resource int, nights holds.SlotSelection) events.InventorySetData {
	return events.InventorySetData{ResourceID: s.resources[resource], SlotSelection: nights, Capacity: s.capacity}
}

// enter publishes an event that the sale counts, and returns its id.
func (s *sale) enter(resource int, event string, data any) (id string) {
	id = s.publish(event, s.resources[resource], data)
	s.requested.Store(id, event)
	return id
}

// ask publishes an event and waits for its outcome.
func (s *sale) ask(resource int, event string, data any) events.Envelope {
	o := s.answer(s.enter(resource, event, data))
	s.answered[resource].Add(1)
	return o
}

// check waits until every hold has ended. It recomputes from the outcomes that nothing was sold twice and that each event
// has one outcome, and audits what is stored.
func (s *sale) check() {
	s.t.Helper()
	s.await("the end of every hold", func(all []events.Envelope, _ []nats.Header) bool { return open(all) == 0 })
	s.mu.Lock()
	outcomes := slices.Clone(s.outcomes)
	s.mu.Unlock()
	s.wantNoDeadLetters()
	times := make(map[string]int)
	for _, o := range outcomes {
		times[o.CausationID]++
	}
	s.requested.Range(func(id, event any) bool {
		if n := times[id.(string)]; n != 1 {
			s.t.Errorf("a %s has %d outcomes", event, n)
		}
		return true
	})
	for _, resource := range s.resources {
		its := slices.DeleteFunc(slices.Clone(outcomes), func(o events.Envelope) bool {
			return !strings.HasPrefix(o.Subject, resource+".")
		})
		taken := recomputeTaken(s.t, its)
		if len(taken) != s.nights {
			s.t.Errorf("%d of %d nights of %s were ever taken", len(taken), s.nights, resource)
		}
		for night, most := range taken {
			if int64(most) > s.capacity {
				s.t.Errorf("%d of %s were taken in the night %s, capacity is %d", most, resource, night, s.capacity)
			}
		}
	}
	s.auditFindsNothing(s.t)
	s.t.Logf("%d outcomes: %d holds, %d requests rejected, %d confirmed", len(outcomes), len(s.ofType(holds.EventHoldCreated)),
		len(s.ofType(holds.EventHoldRejected)), len(s.ofType(holds.EventHoldConfirmed)))
}

// open counts the holds that have not ended.
func open(outcomes []events.Envelope) (n int) {
	for _, o := range outcomes {
		switch o.Type {
		case events.Type(holds.EventHoldCreated):
			n++
		case events.Type(holds.EventHoldReleased), events.Type(holds.EventHoldExpired):
			n--
		case events.Type(holds.EventHoldConfirmed):
			if !strings.Contains(string(o.Data), `"late":true`) {
				n--
			}
		}
	}
	return n
}
