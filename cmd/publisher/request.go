package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

// request publishes booking.requested.
type request struct {
	ResourceID string       `required:"" placeholder:"R" help:"What to hold: a room type, a performance, a product."`
	UserID     string       `required:"" placeholder:"U" help:"Who holds it."`
	Slots      slotFlags    `embed:""`
	Quantity   int64        `default:"1" help:"How many of each slot."`
	TTL        wholeSeconds `placeholder:"10m" help:"How long the hold lasts, in whole seconds. Default: the worker's."`
	RequestKey string       `placeholder:"K" help:"Idempotency key: asking again with it gets the same answer. Default: a fresh one, which is printed."`
	Metadata   jsonValue    `placeholder:"JSON" help:"A JSON object of at most 4 KiB that every outcome repeats."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*request) Help() string {
	return `Publishes booking.requested. The outcome is hold.created or hold.rejected.

Examples:

  publisher request --resource-id deluxe --user-id ann --check-in 2026-12-01 --check-out 2026-12-03 --ttl 10m --wait
  publisher request --resource-id hamlet --user-id bob --slot A-12 --slot A-13 --wait
  publisher request --resource-id book --user-id eve --quantity 2 --metadata '{"cart": 7}' --explain`
}

// Run asks for the hold.
func (v *request) Run(ctx context.Context, p *program) error {
	if v.RequestKey == "" {
		v.RequestKey = uuid.NewString()
	}
	err := p.publish(ctx, v.Publishing, events.BookingRequested, v.ResourceID, events.BookingRequestedData{
		RequestKey: v.RequestKey, UserID: v.UserID, ResourceID: v.ResourceID, SlotSelection: v.Slots.selection(),
		Quantity: v.Quantity, TTLSeconds: v.TTL.seconds, Metadata: v.Metadata.Value,
	})
	if errors.Is(err, client.ErrReplyTimeout) {
		return fmt.Errorf("%w\nIts request key is %s: ask again with it to see the answer, or give the hold back with\n"+
			"publisher cancel --resource-id %s --request-key %s", err, v.RequestKey, v.ResourceID, shellQuote(v.RequestKey))
	}
	return err
}

// wholeSeconds is a duration that an event can carry, or none.
type wholeSeconds struct{ seconds *int64 }

// UnmarshalText implements encoding.TextUnmarshaler for a flag.
func (s *wholeSeconds) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d%time.Second != 0 {
		return fmt.Errorf("want whole seconds, like 90s or 10m, got %q", text)
	}
	n := int64(d / time.Second)
	s.seconds = &n
	return nil
}

// jsonValue is a JSON value, or none.
type jsonValue struct{ jsontext.Value }

// UnmarshalText implements encoding.TextUnmarshaler for a flag.
func (v *jsonValue) UnmarshalText(text []byte) error {
	v.Value = jsontext.Value(text)
	if !v.IsValid() {
		return errors.New("want JSON")
	}
	return nil
}
