package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	demoWithin     = 60 * time.Second
	demoContenders = 200
)

// demo publishes what customers do, as any publisher would, and prints each outcome.
type demo struct {
	client *client.Client
	ns     events.Namespace
	http   string
	out    io.Writer
	suffix string // of resource ids: several demos may run in one namespace

	waits   []time.Duration // from publishing an event to its outcome, one event at a time
	expired chan holds.HoldExpired
}

// runDemo runs the demo, for at most demoWithin. It returns an error when an outcome is not the
// expected one.
func runDemo(ctx context.Context, c Config, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoWithin)
	defer cancel()
	nc, err := c.connectNATS("holdfast demo", func(string, ...any) {})
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, restore := events.UntilRefused(ctx, nc)
	defer restore()
	defer func() {
		if err != nil {
			err = events.Refused(ctx, err)
		}
	}()
	ns := events.Namespace(c.Namespace)
	cl, err := client.New(nc, ns)
	if err != nil {
		return err
	}
	d := &demo{
		client: cl, ns: ns, http: "http://" + c.HTTPAddr, out: out,
		suffix: uuid.NewString()[:6], expired: make(chan holds.HoldExpired, 16),
	}

	following, ready := make(chan error, 1), make(chan struct{})
	followCtx, stop := context.WithCancel(ctx)
	go func() { following <- cl.Follow(followCtx, time.Time{}, func() { close(ready) }, d.onOutcome) }()
	select {
	case <-ready:
	case err := <-following:
		stop()
		return err
	}
	defer func() {
		stop()
		err = errors.Join(err, <-following)
	}()
	for _, scene := range []func(context.Context) error{d.hotel, d.concert, d.malformed} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	slices.Sort(d.waits)
	d.printf("\nTime from publishing an event to its stored outcome: median %.1f ms, maximum %.1f ms\n"+
		"(%d events, one at a time).",
		millis(d.waits[len(d.waits)/2]), millis(d.waits[len(d.waits)-1]), len(d.waits))
	return nil
}

// onOutcome sends each hold that has expired to d.expired. No request waits for such an outcome.
func (d *demo) onOutcome(m jetstream.Msg) {
	var e events.Envelope
	if json.Unmarshal(m.Data(), &e) != nil || e.Type != events.Type(holds.EventHoldExpired) {
		return
	}
	var expired holds.HoldExpired
	if json.Unmarshal(e.Data, &expired) == nil {
		d.expired <- expired
	}
}

func (d *demo) printf(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// clock formats a time in the local time zone.
func clock(t holds.Time) string { return t.Local().Format("15:04:05 MST") }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// request publishes an event and decodes the data of its outcome into data. It returns an error
// unless the outcome is a want.
func (d *demo) request(ctx context.Context, event, resource string, request any, want string, data any) error {
	r, err := client.NewEvent(d.ns, event, resource, "/holdfast/demo", request)
	if err != nil {
		return err
	}
	message, err := r.Message()
	if err != nil {
		return err
	}
	began := time.Now()
	answer, err := d.client.Request(ctx, message)
	if err != nil {
		return fmt.Errorf("%s: %w", event, err)
	}
	d.waits = append(d.waits, time.Since(began))
	if answer.DeadLetter != nil {
		return fmt.Errorf("%s was dead-lettered: %s", event, answer.DeadLetter.Detail)
	}
	if answer.Envelope.Type != events.Type(want) {
		return fmt.Errorf("%s was answered with %s, want %s: %s", event, answer.Envelope.Type, want, answer.Body)
	}
	return json.Unmarshal(answer.Envelope.Data, data)
}

// place requests a hold. It returns an error unless the outcome is a want.
func (d *demo) place(
	ctx context.Context, resource, user string, selection holds.SlotSelection, ttl time.Duration, want string, data any,
) error {
	seconds := int64(ttl / time.Second)
	return d.request(ctx, events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: uuid.NewString(), UserID: user, ResourceID: resource, SlotSelection: selection,
		Quantity: 1, TTLSeconds: &seconds,
	}, want, data)
}

func (d *demo) hotel(ctx context.Context) error {
	room := "double-" + d.suffix
	day := time.Now().UTC().AddDate(0, 1, 0)
	stay := holds.SlotSelection{
		CheckIn: day.Format(holds.DateFormat), CheckOut: day.AddDate(0, 0, 3).Format(holds.DateFormat),
	}
	d.printf("A hotel has two rooms of type %s.", room)
	var inventory holds.InventoryUpdated
	set := events.InventorySetData{ResourceID: room, SlotSelection: stay, Capacity: 2}
	if err := d.request(ctx, events.InventorySet, room, set, holds.EventInventoryUpdated, &inventory); err != nil {
		return err
	}

	var ana, ben holds.HoldCreated
	var cleo holds.HoldRejected
	if err := d.place(ctx, room, "ana", stay, 10*time.Minute, holds.EventHoldCreated, &ana); err != nil {
		return err
	}
	d.printf("  Ana requests three nights from %s.    hold.created: a room is held for her until %s.",
		stay.CheckIn, clock(ana.ExpiresAt))
	if err := d.place(ctx, room, "ben", stay, 2*time.Second, holds.EventHoldCreated, &ben); err != nil {
		return err
	}
	d.printf("  Ben requests the same nights.                 hold.created: the other room is held for him for 2 seconds.")
	if err := d.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldRejected, &cleo); err != nil {
		return err
	}
	if cleo.Reason != holds.ReasonSoldOut || cleo.RetryAt == nil {
		return fmt.Errorf("cleo was rejected with reason %s and retry_at %v, want sold_out with retry_at",
			cleo.Reason, cleo.RetryAt)
	}
	d.printf("  Cleo requests them too.                       hold.rejected: sold out, she can try again at %s.",
		clock(*cleo.RetryAt))
	if err := d.pay(ctx, room, ana, "ana-pays"); err != nil {
		return err
	}
	return d.abandon(ctx, room, stay, ben)
}

func (d *demo) pay(ctx context.Context, room string, hold holds.HoldCreated, payment string) error {
	var confirmed, again holds.HoldConfirmed
	request := events.PaymentConfirmedData{
		HoldID: hold.HoldID.String(), PaymentID: payment, Amount: "420.00", Currency: "EUR",
	}
	if err := d.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &confirmed); err != nil {
		return err
	}
	d.printf("  Ana pays.                                     hold.confirmed: her hold becomes a reservation in Postgres.")
	if err := d.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &again); err != nil {
		return err
	}
	if !again.ConfirmedAt.Equal(confirmed.ConfirmedAt.Time) {
		return fmt.Errorf("the payment was confirmed at %s and then at %s", confirmed.ConfirmedAt, again.ConfirmedAt)
	}
	d.printf("  Her payment is published a second time.       hold.confirmed: the same answer, and nothing is sold twice.")
	return nil
}

func (d *demo) abandon(ctx context.Context, room string, stay holds.SlotSelection, ben holds.HoldCreated) error {
	for waiting := true; waiting; {
		select {
		case expired := <-d.expired:
			if expired.HoldID != ben.HoldID {
				continue
			}
			late := expired.RestoredAt.Sub(expired.ExpiresAt.Time)
			d.printf("  Ben does not pay.                             hold.expired: his room is free again, "+
				"%d ms after the deadline.", late.Milliseconds())
			waiting = false
		case <-ctx.Done():
			return fmt.Errorf("ben's hold did not expire: %w", context.Cause(ctx))
		}
	}
	var refused holds.ConfirmRejected
	payment := events.PaymentConfirmedData{HoldID: ben.HoldID.String(), PaymentID: "ben-pays"}
	err := d.request(ctx, events.PaymentConfirmed, room, payment, holds.EventConfirmRejected, &refused)
	if err != nil {
		return err
	}
	if refused.Reason != holds.ReasonExpired || !refused.RefundRequired {
		return fmt.Errorf("ben's payment was rejected with reason %s, want expired", refused.Reason)
	}
	d.printf("  Ben pays too late.                            hold.confirm_rejected: refund_required, so his money is returned.")
	var cleo holds.HoldCreated
	if err := d.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldCreated, &cleo); err != nil {
		return err
	}
	d.printf("  Cleo tries again.                             hold.created: the free room is held for her.")
	return d.count(ctx, room, stay)
}

// count compares the availability that the worker reports with what was sold and is held.
func (d *demo) count(ctx context.Context, room string, stay holds.SlotSelection) error {
	url := fmt.Sprintf("%s/v1/availability?resource_id=%s&check_in=%s&check_out=%s",
		d.http, room, stay.CheckIn, stay.CheckOut)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read
	defer http.DefaultClient.CloseIdleConnections()
	var answer struct {
		ResourceID string                   `json:"resource_id"`
		Slots      []holds.SlotAvailability `json:"slots"`
	}
	if err := json.UnmarshalRead(response.Body, &answer); err != nil {
		return err
	}
	for _, slot := range answer.Slots {
		if slot.Capacity != 2 || slot.Reserved != 1 || slot.Held != 1 || slot.Available != 0 {
			return fmt.Errorf("availability of %s is %+v, want 1 reserved, 1 held of 2", room, slot)
		}
	}
	d.printf("  Each of the nights now has 2 rooms: 1 reserved, 1 held, 0 available.")
	return nil
}

// concert sends demoContenders requests for one seat at the same moment.
func (d *demo) concert(ctx context.Context) error {
	show := "concert-" + d.suffix
	seat := holds.SlotSelection{Slots: []string{"A-12"}}
	d.printf("\nA concert has one seat A-12, and %d people request it at the same moment.", demoContenders)
	var inventory holds.InventoryUpdated
	set := events.InventorySetData{ResourceID: show, SlotSelection: seat, Capacity: 1}
	if err := d.request(ctx, events.InventorySet, show, set, holds.EventInventoryUpdated, &inventory); err != nil {
		return err
	}
	answers := make(chan string, demoContenders)
	began := time.Now()
	for i := range demoContenders {
		go func() {
			r, err := client.NewEvent(d.ns, events.BookingRequested, show, "/holdfast/demo", events.BookingRequestedData{
				RequestKey: uuid.NewString(), UserID: fmt.Sprintf("guest-%d", i), ResourceID: show,
				SlotSelection: seat, Quantity: 1,
			})
			if err != nil {
				answers <- err.Error()
				return
			}
			message, err := r.Message()
			if err != nil {
				answers <- err.Error()
				return
			}
			answer, err := d.client.Request(ctx, message)
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
	if counts[events.Type(holds.EventHoldCreated)] != 1 ||
		counts[events.Type(holds.EventHoldRejected)] != demoContenders-1 {
		return fmt.Errorf("%d people requested one seat: %v", demoContenders, counts)
	}
	d.printf("  One of them holds it, %d are rejected as sold out. All have their answers after %.0f ms.",
		demoContenders-1, millis(time.Since(began)))
	return nil
}

// malformed publishes an event whose quantity is not a number.
func (d *demo) malformed(ctx context.Context) error {
	d.printf("\nA new team publishes a malformed booking.")
	message := nats.NewMsg(d.ns.In(events.BookingRequested, "double-"+d.suffix))
	message.Data = []byte(`{"specversion":"1.0","id":"1","source":"/new-team","type":"holdfast.booking.requested.v1",` +
		`"data":{"request_key":"k","user_id":"dora","resource_id":"double-` + d.suffix + `","quantity":"two"}}`)
	answer, err := d.client.Request(ctx, message)
	if err != nil {
		return err
	}
	if answer.DeadLetter == nil || answer.DeadLetter.Error != events.ReasonMalformed {
		return fmt.Errorf("the malformed event was answered with %s, want a dead letter", answer.Body)
	}
	d.printf("  It becomes a dead letter with its reason: %s; %s.", answer.DeadLetter.Error, answer.DeadLetter.Detail)
	return nil
}
