package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// This file has the commands that publish one event each, but for `inventory set`.

// request publishes booking.requested.
type request struct {
	ResourceID string       `required:"" placeholder:"R" help:"What to hold: a room type, a performance, a product."`
	UserID     string       `required:"" placeholder:"U" help:"The user who gets the hold."`
	Slots      slotFlags    `embed:""`
	Quantity   int64        `default:"1" help:"Quantity of each slot."`
	TTL        wholeSeconds `placeholder:"10m" help:"How long the hold lasts, in whole seconds. Default: set by the worker."`
	RequestKey string       `nonzero:"must be 1 to 128 printable ASCII characters without space, found an empty string" placeholder:"K" help:"Idempotency key: a second request with this key gets the same answer. Default: a new key, which is printed."`
	Metadata   jsonValue    `placeholder:"JSON" help:"A JSON object of at most 4 KiB. Every outcome of the hold repeats it."`
	Publish    publishFlags `embed:""`
}

func (*request) Help() string {
	return `Publishes booking.requested. The outcome is hold.created or hold.rejected.

Examples:

  publisher request --resource-id deluxe --user-id ann --check-in 2028-12-01 --check-out 2028-12-03 --ttl 10m --wait
  publisher request --resource-id hamlet --user-id bob --slot A-12 --slot A-13 --wait
  publisher request --resource-id book --user-id eve --quantity 2 --metadata '{"cart": 7}' --explain`
}

func (c *request) Run(ctx context.Context, p *program) error {
	if c.RequestKey == "" {
		c.RequestKey = uuid.NewString()
	}
	err := p.publish(ctx, c.Publish, events.BookingRequested, c.ResourceID, events.BookingRequestedData{
		RequestKey: c.RequestKey, UserID: c.UserID, ResourceID: c.ResourceID, SlotSelection: c.Slots.selection(),
		Quantity: c.Quantity, TTLSeconds: c.TTL.seconds, Metadata: c.Metadata.Value,
	})
	if errors.Is(err, client.ErrReplyTimeout) || errors.Is(err, errInterrupted) || errors.Is(err, errUnacknowledged) {
		return fmt.Errorf("%w\nThe request key is %s: request with it again to see the answer, or release the hold with\n"+
			"publisher cancel --resource-id %s %s", err, c.RequestKey, c.ResourceID, terminal.Flag("--request-key", c.RequestKey))
	}
	return err
}

// extend publishes booking.extended.
type extend struct {
	HoldID  holds.HoldID `required:"" placeholder:"H" help:"The hold to extend."`
	TTL     wholeSeconds `required:"" placeholder:"10m" help:"How long the hold lasts from now on, in whole seconds."`
	Publish publishFlags `embed:""`
}

func (*extend) Help() string {
	return `Publishes booking.extended. The new deadline is now plus --ttl, if that is later than the old
deadline. The worker limits the total lifetime of a hold (2 hours by default). The outcome is
hold.extended or hold.extension_rejected.

Example:

  publisher extend --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --ttl 10m --wait`
}

func (c *extend) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.BookingExtended, c.HoldID.Resource, events.BookingExtendedData{
		HoldID: c.HoldID.String(), TTLSeconds: *c.TTL.seconds,
	})
}

// startPayment publishes payment.started.
type startPayment struct {
	HoldID  holds.HoldID `required:"" placeholder:"H" help:"The hold whose payment starts."`
	Publish publishFlags `embed:""`
}

func (*startPayment) Help() string {
	return `Publishes payment.started, so that the hold does not expire during the payment: its deadline becomes
at least now plus the payment window of the worker (5 minutes by default). This works once per hold.
The outcome is hold.extended or hold.extension_rejected.

Example:

  publisher start-payment --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --wait`
}

func (c *startPayment) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.PaymentStarted, c.HoldID.Resource, events.PaymentStartedData{
		HoldID: c.HoldID.String(),
	})
}

// pay publishes payment.confirmed.
type pay struct {
	HoldID    holds.HoldID `required:"" placeholder:"H" help:"The hold that was paid."`
	PaymentID string       `required:"" placeholder:"P" help:"The id of the payment in the payment service."`
	Amount    string       `nonzero:"is empty; leave the flag out if there is no amount" placeholder:"DECIMAL" help:"The amount, like 120.50."`
	Currency  string       `nonzero:"is empty; leave the flag out if there is no currency" placeholder:"CODE" help:"The currency of the amount, like EUR."`
	Publish   publishFlags `embed:""`
}

func (*pay) Help() string {
	return `Publishes payment.confirmed. The outcome is hold.confirmed: the hold becomes a reservation. Or it is
hold.confirm_rejected: the payment must be refunded.

Example:

  publisher pay --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --payment-id p-1 --amount 120.50 --currency EUR --wait`
}

func (c *pay) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.PaymentConfirmed, c.HoldID.Resource, events.PaymentConfirmedData{
		HoldID: c.HoldID.String(), PaymentID: c.PaymentID, Amount: c.Amount, Currency: c.Currency,
	})
}

// cancel publishes booking.cancelled.
type cancel struct {
	HoldID     holds.HoldID `placeholder:"H" help:"The hold to release."`
	ResourceID string       `nonzero:"is empty; leave the flag out with --hold-id" placeholder:"R" help:"With --request-key: the resource of the request."`
	RequestKey string       `nonzero:"must be 1 to 128 printable ASCII characters without space, found an empty string" placeholder:"K" help:"With --resource-id: the key of a request whose answer was never received."`
	Publish    publishFlags `embed:""`
}

func (*cancel) Help() string {
	return `Publishes booking.cancelled. The outcome is hold.released or hold.release_rejected. By request key
it is booking.cancelled if the worker has not seen such a request yet: a later request with this key
is then rejected.

Examples:

  publisher cancel --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --wait
  publisher cancel --resource-id deluxe --request-key order-4711 --wait`
}

// Validate implements kong's check. It accepts a hold id, or a resource with a request key.
func (c *cancel) Validate() error {
	byKey := c.ResourceID != "" || c.RequestKey != ""
	switch {
	case c.HoldID != (holds.HoldID{}) && byKey:
		return misused("give --hold-id, or --resource-id and --request-key, not both")
	case c.HoldID == (holds.HoldID{}) && (c.ResourceID == "" || c.RequestKey == ""):
		return misused("give --hold-id, or --resource-id and --request-key")
	}
	return nil
}

func (c *cancel) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.BookingCancelled, cmp.Or(c.ResourceID, c.HoldID.Resource), events.BookingCancelledData{
		HoldID: c.HoldID.String(), ResourceID: c.ResourceID, RequestKey: c.RequestKey,
	})
}

// cancelReservation publishes reservation.cancelled.
type cancelReservation struct {
	HoldID  holds.HoldID `required:"" placeholder:"H" help:"The hold that became the reservation."`
	Reason  string       `nonzero:"is empty; leave the flag out if there is no reason" placeholder:"TEXT" help:"The reason, in a few words."`
	Publish publishFlags `embed:""`
}

func (*cancelReservation) Help() string {
	return `Publishes reservation.cancelled, which cancels a paid reservation and makes its slots available
again. To release a hold that is not paid yet, use publisher cancel. The outcome is
reservation.cancelled or reservation.cancel_rejected.

Example:

  publisher cancel-reservation --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --reason "flight was cancelled" --wait`
}

func (c *cancelReservation) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, c.Publish, events.ReservationCancelled, c.HoldID.Resource, events.ReservationCancelledData{
		HoldID: c.HoldID.String(), Reason: c.Reason,
	})
}

// slotFlags select slots of a resource: nights, or named slots, or neither for the slot stock.
type slotFlags struct {
	CheckIn  string   `nonzero:"is empty; for the slot stock leave --check-in and --check-out out" and:"nights" xor:"slots" placeholder:"DATE" help:"First night, YYYY-MM-DD."`
	CheckOut string   `nonzero:"is empty; for the slot stock leave --check-in and --check-out out" and:"nights" placeholder:"DATE" help:"Day of departure, the day after the last night."`
	Slot     []string `nonzero:"is empty; leave the flag out for the slot stock" xor:"slots" placeholder:"SLOT" help:"Named slots, like seats. Repeat the flag or separate the slots by commas. Default, without nights: the slot stock."`
}

// selection returns the slots in the form of an event.
func (f slotFlags) selection() holds.SlotSelection {
	return holds.SlotSelection{CheckIn: f.CheckIn, CheckOut: f.CheckOut, Slots: f.Slot}
}

// wholeSeconds is an optional duration that an event can carry.
type wholeSeconds struct{ seconds *int64 }

func (s *wholeSeconds) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d%time.Second != 0 {
		return fmt.Errorf("want whole seconds, like 90s or 10m, got %q", text)
	}
	n := int64(d / time.Second)
	s.seconds = &n
	return nil
}

// jsonValue is an optional JSON value.
type jsonValue struct{ jsontext.Value }

func (v *jsonValue) UnmarshalText(text []byte) error {
	v.Value = jsontext.Value(text)
	switch {
	case v.IsValid():
		return nil
	case v.IsValid(jsontext.AllowDuplicateNames(true)):
		return errors.New("want JSON without repeated members")
	default: // not the error of the library, which quotes what may be private
		return errors.New("want JSON")
	}
}
