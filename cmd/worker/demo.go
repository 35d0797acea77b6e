package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/terminal"
)

const (
	demoWithin     = 60 * time.Second
	demoContenders = 200
	demoSource     = "/holdfast/demo"
	expiryPoll     = 10 * time.Millisecond
)

// demo publishes what customers do, as any publisher would, and prints each outcome.
type demo struct {
	client *client.Client
	ns     events.Namespace
	policy holds.Policy
	suffix string // of resource ids: several demos may run in one namespace
	out    io.Writer
	stream jetstream.Stream // the outbound one

	waits []time.Duration // from publishing an event to its outcome, one event at a time
	err   error           // the first error: after it nothing is published and printed
}

// runDemo runs the demo, for at most demoWithin. It returns an error when an outcome is not the
// expected one.
func runDemo(ctx context.Context, c Config, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoWithin)
	defer cancel()
	ctx, js, disconnect, err := c.openNATS(ctx, "holdfast demo", func(string, ...any) {})
	if err != nil {
		return err
	}
	defer disconnect()
	defer func() {
		if err != nil {
			err = events.Refused(ctx, err)
		}
	}()
	ns := events.Namespace(c.Namespace)
	cl, err := client.New(js.Conn(), ns)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, ns.OutStream())
	if err != nil {
		return err
	}
	d := &demo{client: cl, ns: ns, policy: c.policy(), suffix: uuid.NewString()[:6], out: out, stream: stream}

	d.hotel(ctx)
	d.concert(ctx)
	d.malformed(ctx)
	if d.err != nil {
		return d.err
	}
	slices.Sort(d.waits)
	d.printf("\nTime from publishing an event to its stored outcome: median %.1f ms, maximum %.1f ms\n"+
		"(%d events, one at a time).",
		millis(d.waits[len(d.waits)/2]), millis(d.waits[len(d.waits)-1]), len(d.waits))
	return nil
}

func (d *demo) printf(format string, args ...any) {
	if d.err == nil {
		fmt.Fprintf(d.out, format+"\n", args...)
	}
}

// expect ends the demo with an error unless something is so.
func (d *demo) expect(so bool, format string, args ...any) {
	if d.err == nil && !so {
		d.err = fmt.Errorf(format, args...)
	}
}

// clock formats a time in the local time zone.
func clock(t holds.Time) string { return t.Local().Format("15:04:05 MST") }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// request publishes an event and decodes the data of its outcome into data. The demo ends with an error
// unless the outcome is a want.
func (d *demo) request(ctx context.Context, event, resource string, request any, want string, data any) {
	if d.err != nil {
		return
	}
	began := time.Now()
	answer, err := d.client.RequestEvent(ctx, event, resource, demoSource, request)
	d.waits = append(d.waits, time.Since(began))
	switch {
	case err != nil:
		d.err = fmt.Errorf("%s: %w", event, err)
	case answer.DeadLetter != nil:
		d.err = fmt.Errorf("%s was dead-lettered: %s", event, answer.DeadLetter.Detail)
	case answer.Envelope.Type != events.Type(want):
		d.err = fmt.Errorf("%s was answered with %s, want %s: %s", event, answer.Envelope.Type, want, answer.Body)
	default:
		d.err = json.Unmarshal(answer.Envelope.Data, data)
	}
}

// offer sets the capacity of slots.
func (d *demo) offer(ctx context.Context, resource string, slots holds.SlotSelection, capacity int64) {
	set := events.InventorySetData{ResourceID: resource, SlotSelection: slots, Capacity: capacity}
	d.request(ctx, events.InventorySet, resource, set, holds.EventInventoryUpdated, &holds.InventoryUpdated{})
}

// place requests a hold, whose outcome is to be a want. The TTL is ttl, or less if the policy allows less.
func (d *demo) place(
	ctx context.Context, resource, user string, selection holds.SlotSelection, ttl time.Duration, want string, data any,
) {
	seconds := int64(min(ttl, d.policy.HoldTTLMax) / time.Second)
	d.request(ctx, events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: uuid.NewString(), UserID: user, ResourceID: resource, SlotSelection: selection,
		Quantity: 1, TTLSeconds: &seconds,
	}, want, data)
}

func (d *demo) hotel(ctx context.Context) {
	room := "double-" + d.suffix
	stay, nights := d.stay()
	d.printf("A hotel has two rooms of type %s.", room)
	d.offer(ctx, room, stay, 2)

	var ana, ben holds.HoldCreated
	var cleo holds.HoldRejected
	d.place(ctx, room, "ana", stay, 10*time.Minute, holds.EventHoldCreated, &ana)
	d.printf("  %-44s  hold.created: a room is held for her until %s.",
		fmt.Sprintf("Ana requests %s from %s.", terminal.Counted(nights, "night"), stay.CheckIn), clock(ana.ExpiresAt))
	d.place(ctx, room, "ben", stay, 2*time.Second, holds.EventHoldCreated, &ben)
	d.printf("  Ben requests the same nights.                 hold.created: the other room is held for him for 2 seconds.")
	d.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldRejected, &cleo)
	d.expect(cleo.Reason == holds.ReasonSoldOut && cleo.SoldOut != nil && cleo.RetryAt != nil,
		"cleo was rejected with reason %s, want sold_out with retry_at", cleo.Reason)
	if d.err != nil {
		return
	}
	d.printf("  Cleo requests them too.                       hold.rejected: sold out, she can try again at %s.",
		clock(*cleo.RetryAt))
	d.pay(ctx, room, ana)
	d.abandon(ctx, room, stay, ben)
	d.count(ctx, room, stay, nights)
}

// stay returns three nights in a month, or fewer and sooner if the policy allows no others, and their number.
func (d *demo) stay() (stay holds.SlotSelection, nights int) {
	nights = min(3, d.policy.NightsMax, d.policy.HorizonDays)
	today := time.Now().UTC()
	checkIn := today.AddDate(0, 1, 0)
	if latest := today.AddDate(0, 0, d.policy.HorizonDays-nights+1); checkIn.After(latest) {
		checkIn = latest
	}
	return holds.SlotSelection{
		CheckIn: checkIn.Format(holds.DateFormat), CheckOut: checkIn.AddDate(0, 0, nights).Format(holds.DateFormat),
	}, nights
}

func (d *demo) pay(ctx context.Context, room string, hold holds.HoldCreated) {
	var confirmed, again holds.HoldConfirmed
	request := events.PaymentConfirmedData{
		HoldID: hold.HoldID.String(), PaymentID: "ana-pays", Amount: "420.00", Currency: "EUR",
	}
	d.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &confirmed)
	d.printf("  Ana pays.                                     hold.confirmed: her hold becomes a reservation in Postgres.")
	d.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &again)
	d.expect(again.ConfirmedAt.Equal(confirmed.ConfirmedAt.Time),
		"the payment was confirmed at %s and then at %s", confirmed.ConfirmedAt, again.ConfirmedAt)
	d.printf("  Her payment is published a second time.       hold.confirmed: the same answer, and nothing is sold twice.")
}

func (d *demo) abandon(ctx context.Context, room string, stay holds.SlotSelection, ben holds.HoldCreated) {
	expired := d.expiry(ctx, ben.HoldID)
	d.printf("  Ben does not pay.                             hold.expired: his room is free again, "+
		"%d ms after the deadline.", expired.RestoredAt.Sub(expired.ExpiresAt.Time).Milliseconds())
	var cleo holds.HoldCreated
	d.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldCreated, &cleo)
	d.printf("  Cleo tries again.                             hold.created: the free room is held for her.")

	var refused holds.ConfirmRejected
	want := holds.ReasonExpired
	if d.policy.LatePayment == holds.LateAcceptedIfFree {
		want = holds.ReasonSoldOut
	}
	payment := events.PaymentConfirmedData{HoldID: ben.HoldID.String(), PaymentID: "ben-pays"}
	d.request(ctx, events.PaymentConfirmed, room, payment, holds.EventConfirmRejected, &refused)
	d.expect(refused.Reason == want && refused.RefundRequired,
		"ben's payment was rejected with reason %s, want %s", refused.Reason, want)
	d.printf("  Ben pays too late.                            hold.confirm_rejected: refund_required, so his money is returned.")
}

// expiry waits until the outbound stream has the expiry of a hold as the last one of its resource, and returns it.
func (d *demo) expiry(ctx context.Context, id holds.HoldID) (expired holds.HoldExpired) {
	for d.err == nil && expired.HoldID != id {
		var e events.Envelope
		switch m, err := d.stream.GetLastMsgForSubject(ctx, d.ns.Out(holds.EventHoldExpired, id.Resource)); {
		case errors.Is(err, jetstream.ErrMsgNotFound) && waitFor(ctx, expiryPoll):
		case err != nil:
			d.err = fmt.Errorf("ben's hold did not expire: %w", err)
		default:
			if d.err = json.Unmarshal(m.Data, &e); d.err == nil {
				d.err = json.Unmarshal(e.Data, &expired)
			}
		}
	}
	return expired
}

// count compares the availability that the worker reports with what was sold and is held.
func (d *demo) count(ctx context.Context, room string, stay holds.SlotSelection, nights int) {
	if d.err != nil {
		return
	}
	query := client.AvailabilityQuery{ResourceID: room, SlotSelection: stay}
	found, _, err := client.Ask[queries.KnownAvailability](ctx, d.client, queries.EndpointAvailability, query)
	d.err = err
	d.expect(len(found.Slots) == nights, "availability of %s has %d nights, want %d", room, len(found.Slots), nights)
	for _, slot := range found.Slots {
		d.expect(slot.Capacity == 2 && slot.Reserved == 1 && slot.Held == 1 && slot.Available == 0,
			"availability of %s is %+v, want 1 reserved, 1 held of 2", room, slot)
	}
	d.printf("  Each of the nights now has 2 rooms: 1 reserved, 1 held, 0 available.")
}

// concert sends demoContenders requests for one seat at the same moment.
func (d *demo) concert(ctx context.Context) {
	show := "concert-" + d.suffix
	seat := holds.SlotSelection{Slots: []string{"A-12"}}
	d.printf("\nA concert has one seat A-12, and %d people request it at the same moment.", demoContenders)
	d.offer(ctx, show, seat, 1)
	if d.err != nil {
		return
	}
	answers := make(chan string, demoContenders)
	began := time.Now()
	for i := range demoContenders {
		go func() {
			answer, err := d.client.RequestEvent(ctx, events.BookingRequested, show, demoSource, events.BookingRequestedData{
				RequestKey: uuid.NewString(), UserID: fmt.Sprintf("guest-%d", i), ResourceID: show,
				SlotSelection: seat, Quantity: 1,
			})
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- answer.Envelope.Type
		}()
	}
	counts := make(map[string]int)
	for range demoContenders {
		counts[<-answers]++
	}
	d.expect(counts[events.Type(holds.EventHoldCreated)] == 1 &&
		counts[events.Type(holds.EventHoldRejected)] == demoContenders-1,
		"%d people requested one seat: %v", demoContenders, counts)
	d.printf("  One of them holds it, %d are rejected as sold out. All have their answers after %.0f ms.",
		demoContenders-1, millis(time.Since(began)))
}

// malformed publishes an event whose quantity is not a number.
func (d *demo) malformed(ctx context.Context) {
	if d.err != nil {
		return
	}
	d.printf("\nA new team publishes a malformed booking.")
	room := "double-" + d.suffix
	answer, err := d.client.RequestEvent(ctx, events.BookingRequested, room, demoSource, map[string]any{
		"request_key": "k", "user_id": "dora", "resource_id": room, "quantity": "two",
	})
	switch {
	case err != nil:
		d.err = err
	case answer.DeadLetter == nil || answer.DeadLetter.Error != events.ReasonMalformed:
		d.err = fmt.Errorf("the malformed event was answered with %s, want a dead letter", answer.Body)
	default:
		d.printf("  It becomes a dead letter with its reason: %s; %s.", answer.DeadLetter.Error, answer.DeadLetter.Detail)
	}
}
