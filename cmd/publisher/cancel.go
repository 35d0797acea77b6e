package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// cancel publishes booking.cancelled.
type cancel struct {
	HoldID     holds.HoldID `required:"" xor:"which" placeholder:"H" help:"The hold to give back."`
	ResourceID string       `required:"" xor:"which" and:"key" placeholder:"R" help:"Without a hold id: the resource that was asked for,"`
	RequestKey string       `and:"key" placeholder:"K" help:"and the key of the request whose answer was never seen."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*cancel) Help() string {
	return `Publishes booking.cancelled. The outcome is hold.released or hold.release_rejected; by key, when no such request was seen yet, booking.cancelled: then it will be rejected when it comes.

Examples:

  publisher cancel --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --wait
  publisher cancel --resource-id deluxe --request-key order-4711 --wait`
}

// Run gives the hold back.
func (v *cancel) Run(ctx context.Context, p *program) error {
	resource := v.ResourceID
	if resource == "" {
		resource = v.HoldID.Resource
	}
	return p.publish(ctx, v.Publishing, events.BookingCancelled, resource, events.BookingCancelledData{
		HoldID: v.HoldID.String(), ResourceID: v.ResourceID, RequestKey: v.RequestKey,
	})
}
