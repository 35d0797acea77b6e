package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	trafficEach   = 100 * time.Millisecond // between two customers
	customersMax  = 2000
	trafficNights = 90
	answerWait    = 10 * time.Second
	usersMax      = 400
)

// traffic simulates the customers of a small town: they book, pay, cancel, or let their holds expire.
type traffic struct {
	client *client.Client
	offers []offer
}

// offer is something that customers book.
type offer struct {
	resource string
	capacity int64
	whole    holds.SlotSelection        // all of it, for its capacity
	choose   func() holds.SlotSelection // what a customer requests
}

// runTraffic sets the capacities of the town and sends a customer every trafficEach, until ctx ends.
func runTraffic(ctx context.Context, c Config) error {
	nc, err := c.connectNATS(ctx, "holdfast traffic", func(string, ...any) {})
	if err != nil {
		return err
	}
	defer nc.Close()
	cl, err := client.New(nc, events.Namespace(c.Namespace))
	if err != nil {
		return err
	}
	t := &traffic{client: cl, offers: town()}
	for _, o := range t.offers {
		data := events.InventorySetData{ResourceID: o.resource, SlotSelection: o.whole, Capacity: o.capacity}
		switch _, err := t.request(ctx, events.InventorySet, o.resource, data); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("traffic: %w", err)
		}
	}
	var customers errgroup.Group
	customers.SetLimit(customersMax)
	every(ctx, trafficEach, func() {
		customers.TryGo(func() error { t.visit(ctx); return nil }) // unless enough are under way
	})
	return customers.Wait()
}

// town returns hotels with several room types, a hall with seats, and a shop.
func town() (all []offer) {
	today := time.Now().UTC()
	night := func(n int) string { return today.AddDate(0, 0, n).Format(holds.DateFormat) }
	nights := holds.SlotSelection{CheckIn: night(0), CheckOut: night(trafficNights)}
	stay := func() holds.SlotSelection {
		first := int(float64(trafficNights-4) * rand.Float64() * rand.Float64()) // most come soon
		return holds.SlotSelection{CheckIn: night(first), CheckOut: night(first + 1 + rand.IntN(4))}
	}
	for _, hotel := range []string{"harbour", "old-mill", "station", "garden", "lighthouse"} {
		for i, room := range []string{"single", "double", "suite"} {
			all = append(all, offer{hotel + "-" + room, int64(8 - 3*i), nights, stay})
		}
	}
	hall := holds.SlotSelection{}
	for row := 'A'; row <= 'E'; row++ {
		for seat := 1; seat <= 10; seat++ {
			hall.Slots = append(hall.Slots, fmt.Sprintf("%c-%02d", row, seat))
		}
	}
	seats := func() holds.SlotSelection {
		first := rand.IntN(len(hall.Slots) - 1)
		return holds.SlotSelection{Slots: hall.Slots[first : first+1+rand.IntN(2)]}
	}
	stock := func() holds.SlotSelection { return holds.SlotSelection{} }
	return append(all, offer{"concert-hall", 1, hall, seats}, offer{"festival-shirt", 150, stock(), stock})
}

// visit is one customer, from the request to the end of the hold or the reservation.
func (t *traffic) visit(ctx context.Context) {
	o := t.offers[rand.IntN(len(t.offers))]
	if rand.IntN(4) == 0 { // the hall and the shop are the busiest
		o = t.offers[len(t.offers)-1-rand.IntN(2)]
	}
	ttl := int64(20 + rand.IntN(100))
	var data any = events.BookingRequestedData{
		RequestKey: uuid.NewString(), UserID: fmt.Sprintf("guest-%d", rand.IntN(usersMax)), ResourceID: o.resource,
		SlotSelection: o.choose(), Quantity: 1, TTLSeconds: &ttl,
	}
	if rand.IntN(200) == 0 { // a team that has not read the contract
		data = map[string]any{"request_key": uuid.NewString(), "user_id": "guest-0", "resource_id": o.resource, "quantity": "one"}
	}
	held, err := t.request(ctx, events.BookingRequested, o.resource, data)
	if err != nil || held.Envelope.Type != events.Type(holds.EventHoldCreated) {
		return
	}
	var created holds.HoldCreated
	if json.Unmarshal(held.Envelope.Data, &created) != nil {
		return
	}
	id, thinking := created.HoldID.String(), time.Duration(rand.Int64N(ttl*700))*time.Millisecond
	switch n := rand.IntN(100); {
	case n < 45:
		t.pay(ctx, o.resource, id, thinking)
	case n < 60 && waitFor(ctx, thinking):
		_, _ = t.request(ctx, events.BookingCancelled, o.resource, events.BookingCancelledData{HoldID: id}) // its outcome is in the stream
	}
}

// pay pays for a hold, and later cancels most reservations, so that the town is never sold out for long.
func (t *traffic) pay(ctx context.Context, resource, id string, thinking time.Duration) {
	if !waitFor(ctx, thinking) {
		return
	}
	paid, err := t.request(ctx, events.PaymentConfirmed, resource, events.PaymentConfirmedData{HoldID: id, PaymentID: uuid.NewString()})
	if err != nil || paid.Envelope.Type != events.Type(holds.EventHoldConfirmed) {
		return
	}
	if rand.IntN(4) > 0 && waitFor(ctx, time.Minute+rand.N(4*time.Minute)) {
		_, _ = t.request(ctx, events.ReservationCancelled, resource, events.ReservationCancelledData{HoldID: id}) // as above
	}
}

// waitFor waits, and reports whether ctx has not ended.
func waitFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// request publishes an event and waits for its outcome.
func (t *traffic) request(ctx context.Context, event, resource string, data any) (client.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	reply, err := t.client.RequestEvent(ctx, event, resource, "/holdfast/traffic", data)
	if errors.Is(err, client.ErrReplyTimeout) {
		err = nil // it is stored, and will have its outcome
	}
	return reply, err
}
