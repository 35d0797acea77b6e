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
	storyWithin     = 60 * time.Second
	storyContenders = 200
)

// story plays what customers do, through the same door as every publisher, and tells it.
type story struct {
	client *client.Client
	ns     events.Namespace
	http   string
	out    io.Writer
	suffix string // makes the resources of each run its own, on servers that are given

	waits   []time.Duration // from publishing an event to its outcome, one event at a time
	expired chan holds.HoldExpired
}

// playStory plays the story. It returns an error when something is not as it is told.
func playStory(ctx context.Context, c Config, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, storyWithin)
	defer cancel()
	nc, err := events.Connect(c.NATSURL, "holdfast story", func(string, ...any) {})
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
	s := &story{client: cl, ns: ns, http: "http://" + c.HTTPAddr, out: out, suffix: uuid.NewString()[:6], expired: make(chan holds.HoldExpired, 16)}

	following, ready := make(chan error, 1), make(chan struct{})
	followCtx, stop := context.WithCancel(ctx)
	go func() { following <- cl.Follow(followCtx, func() { close(ready) }, s.onOutcome) }()
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
	for _, chapter := range []func(context.Context) error{s.hotel, s.concert, s.malformed} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	slices.Sort(s.waits)
	s.printf("\nMeasured here and now: from publishing an event to its stored outcome %.1f ms in the middle, %.1f ms at most,\nover the %d events that were asked one at a time.",
		millis(s.waits[len(s.waits)/2]), millis(s.waits[len(s.waits)-1]), len(s.waits))
	return nil
}

// onOutcome keeps the holds that expire; nobody asked for those outcomes.
func (s *story) onOutcome(m jetstream.Msg) {
	var e events.Envelope
	if json.Unmarshal(m.Data(), &e) != nil || e.Type != events.Type(holds.EventHoldExpired) {
		return
	}
	var expired holds.HoldExpired
	if json.Unmarshal(e.Data, &expired) == nil {
		s.expired <- expired
	}
}

func (s *story) printf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// clock is a time as a person here reads it.
func clock(t holds.Time) string { return t.Local().Format("15:04:05 MST") }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// request publishes an event and reads its outcome, which must be of a kind, into data.
func (s *story) request(ctx context.Context, event, resource string, request any, want string, data any) error {
	r, err := client.NewEvent(s.ns, event, resource, "/holdfast/story", request)
	if err != nil {
		return err
	}
	message, err := r.Message()
	if err != nil {
		return err
	}
	began := time.Now()
	answer, err := s.client.Request(ctx, message)
	if err != nil {
		return fmt.Errorf("%s: %w", event, err)
	}
	s.waits = append(s.waits, time.Since(began))
	if answer.DeadLetter != nil {
		return fmt.Errorf("%s was dead-lettered: %s", event, answer.DeadLetter.Detail)
	}
	if answer.Envelope.Type != events.Type(want) {
		return fmt.Errorf("%s was answered with %s, want %s: %s", event, answer.Envelope.Type, want, answer.Body)
	}
	return json.Unmarshal(answer.Envelope.Data, data)
}

// place asks for a hold. The outcome must be of the kind that data is for.
func (s *story) place(ctx context.Context, resource, user string, selection holds.SlotSelection, ttl time.Duration, want string, data any) error {
	seconds := int64(ttl / time.Second)
	return s.request(ctx, events.BookingRequested, resource, events.BookingRequestedData{
		RequestKey: uuid.NewString(), UserID: user, ResourceID: resource, SlotSelection: selection, Quantity: 1, TTLSeconds: &seconds,
	}, want, data)
}

func (s *story) hotel(ctx context.Context) error {
	room := "double-" + s.suffix
	day := time.Now().UTC().AddDate(0, 1, 0)
	stay := holds.SlotSelection{CheckIn: day.Format(holds.DateFormat), CheckOut: day.AddDate(0, 0, 3).Format(holds.DateFormat)}
	s.printf("A hotel has two rooms of the type %s.", room)
	var inventory holds.InventoryUpdated
	err := s.request(ctx, events.InventorySet, room, events.InventorySetData{ResourceID: room, SlotSelection: stay, Capacity: 2}, holds.EventInventoryUpdated, &inventory)
	if err != nil {
		return err
	}

	var ana, ben holds.HoldCreated
	var cleo holds.HoldRejected
	if err := s.place(ctx, room, "ana", stay, 10*time.Minute, holds.EventHoldCreated, &ana); err != nil {
		return err
	}
	s.printf("  Ana picks three nights from %s.  One room is kept for her until %s.", stay.CheckIn, clock(ana.ExpiresAt))
	if err := s.place(ctx, room, "ben", stay, 2*time.Second, holds.EventHoldCreated, &ben); err != nil {
		return err
	}
	s.printf("  Ben picks the same nights.                 The other room is kept for him, for 2 seconds.")
	if err := s.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldRejected, &cleo); err != nil {
		return err
	}
	if cleo.Reason != holds.ReasonSoldOut || cleo.RetryAt == nil {
		return fmt.Errorf("cleo was refused for %s without retry_at, want sold_out", cleo.Reason)
	}
	s.printf("  Cleo wants them too.                       Refused, sold out; she may try again at %s.", clock(*cleo.RetryAt))
	if err := s.pay(ctx, room, ana, "ana-pays"); err != nil {
		return err
	}
	return s.abandon(ctx, room, stay, ben)
}

func (s *story) pay(ctx context.Context, room string, hold holds.HoldCreated, payment string) error {
	var confirmed, again holds.HoldConfirmed
	request := events.PaymentConfirmedData{HoldID: hold.HoldID.String(), PaymentID: payment, Amount: "420.00", Currency: "EUR"}
	if err := s.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &confirmed); err != nil {
		return err
	}
	s.printf("  Ana pays.                                  Her hold is a reservation in Postgres now.")
	if err := s.request(ctx, events.PaymentConfirmed, room, request, holds.EventHoldConfirmed, &again); err != nil {
		return err
	}
	if !again.ConfirmedAt.Equal(confirmed.ConfirmedAt.Time) {
		return fmt.Errorf("the payment was confirmed at %s and then at %s", confirmed.ConfirmedAt, again.ConfirmedAt)
	}
	s.printf("  Her payment is reported a second time.     The same answer; nothing is sold twice.")
	return nil
}

func (s *story) abandon(ctx context.Context, room string, stay holds.SlotSelection, ben holds.HoldCreated) error {
	for waiting := true; waiting; {
		select {
		case expired := <-s.expired:
			if expired.HoldID != ben.HoldID {
				continue
			}
			late := expired.RestoredAt.Sub(expired.ExpiresAt.Time)
			s.printf("  Ben walks away.                            His room came back by itself, %d ms after its time.", late.Milliseconds())
			waiting = false
		case <-ctx.Done():
			return fmt.Errorf("ben's hold did not expire: %w", context.Cause(ctx))
		}
	}
	var refused holds.ConfirmRejected
	err := s.request(ctx, events.PaymentConfirmed, room, events.PaymentConfirmedData{HoldID: ben.HoldID.String(), PaymentID: "ben-pays"}, holds.EventConfirmRejected, &refused)
	if err != nil {
		return err
	}
	if refused.Reason != holds.ReasonExpired || !refused.RefundRequired {
		return fmt.Errorf("ben's payment was refused for %s, want expired", refused.Reason)
	}
	s.printf("  Ben pays after all, too late.              Refused, with refund_required: the money goes back, nobody loses a room.")
	var cleo holds.HoldCreated
	if err := s.place(ctx, room, "cleo", stay, time.Minute, holds.EventHoldCreated, &cleo); err != nil {
		return err
	}
	s.printf("  Cleo tries again.                          The room is hers.")
	return s.count(ctx, room, stay)
}

// count compares what the worker says is left with what was sold and held.
func (s *story) count(ctx context.Context, room string, stay holds.SlotSelection) error {
	url := fmt.Sprintf("%s/v1/availability?resource_id=%s&check_in=%s&check_out=%s", s.http, room, stay.CheckIn, stay.CheckOut)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read to its end or given up
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
	s.printf("  Each night now: 2 rooms, 1 reserved, 1 held, 0 available.")
	return nil
}

// concert has a crowd ask for one seat at the same moment.
func (s *story) concert(ctx context.Context) error {
	show := "concert-" + s.suffix
	seat := holds.SlotSelection{Slots: []string{"A-12"}}
	s.printf("\nA concert has one seat A-12, and %d people click on it at the same moment.", storyContenders)
	var inventory holds.InventoryUpdated
	err := s.request(ctx, events.InventorySet, show, events.InventorySetData{ResourceID: show, SlotSelection: seat, Capacity: 1}, holds.EventInventoryUpdated, &inventory)
	if err != nil {
		return err
	}
	answers := make(chan string, storyContenders)
	began := time.Now()
	for i := range storyContenders {
		go func() {
			r, err := client.NewEvent(s.ns, events.BookingRequested, show, "/holdfast/story", events.BookingRequestedData{
				RequestKey: uuid.NewString(), UserID: fmt.Sprintf("guest-%d", i), ResourceID: show, SlotSelection: seat, Quantity: 1,
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
			answer, err := s.client.Request(ctx, message)
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- answer.Envelope.Type
		}()
	}
	counts := make(map[string]int)
	for range storyContenders {
		counts[<-answers]++
	}
	if counts[events.Type(holds.EventHoldCreated)] != 1 || counts[events.Type(holds.EventHoldRejected)] != storyContenders-1 {
		return fmt.Errorf("%d people asked for one seat: %v", storyContenders, counts)
	}
	s.printf("  One of them has it, %d are told that it is sold out, after %.0f ms for all.", storyContenders-1, millis(time.Since(began)))
	return nil
}

// malformed publishes something that is no booking.
func (s *story) malformed(ctx context.Context) error {
	s.printf("\nA new team publishes a booking that has a mistake in it.")
	message := nats.NewMsg(s.ns.In(events.BookingRequested, "double-"+s.suffix))
	message.Data = []byte(`{"specversion":"1.0","id":"1","source":"/new-team","type":"holdfast.booking.requested.v1",` +
		`"data":{"request_key":"k","user_id":"dora","resource_id":"double-` + s.suffix + `","quantity":"two"}}`)
	answer, err := s.client.Request(ctx, message)
	if err != nil {
		return err
	}
	if answer.DeadLetter == nil || answer.DeadLetter.Error != events.ReasonMalformed {
		return fmt.Errorf("the mistake was answered with %s, want a dead letter", answer.Body)
	}
	s.printf("  It is kept as a dead letter, with the reason: %s; %s.", answer.DeadLetter.Error, answer.DeadLetter.Detail)
	return nil
}
