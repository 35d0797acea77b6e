package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// extend publishes booking.extended.
type extend struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold that should last longer."`
	TTL        wholeSeconds `required:"" placeholder:"10m" help:"How long it should last from now on, in whole seconds."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*extend) Help() string {
	return `Publishes booking.extended. The new deadline is the ttl from now, if that is later than the old one. The worker limits the whole life of a hold (to 2 hours by default). The outcome is hold.extended or hold.extension_rejected.

Example:

  publisher extend --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --ttl 10m --wait`
}

// Run extends the hold.
func (v *extend) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, v.Publishing, events.BookingExtended, v.HoldID.Resource, events.BookingExtendedData{
		HoldID: v.HoldID.String(), TTLSeconds: *v.TTL.seconds,
	})
}
