package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// cancel publishes booking.cancelled.
type cancel struct {
	HoldID     holds.HoldID `placeholder:"H" help:"The hold to give back."`
	ResourceID string       `placeholder:"R" help:"Without a hold id: the resource that was asked for,"`
	RequestKey string       `placeholder:"K" help:"and the key of the request whose answer was never seen."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*cancel) Help() string {
	return `Publishes booking.cancelled. The outcome is hold.released or hold.release_rejected; by key, when no such request was seen yet, booking.cancelled: then it will be rejected when it comes.

Examples:

  publisher cancel --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --wait
  publisher cancel --resource-id deluxe --request-key order-4711 --wait`
}

// Validate implements kong's check: it is one way of naming the hold or the other.
func (v *cancel) Validate() error {
	byKey := v.ResourceID != "" || v.RequestKey != ""
	switch {
	case v.HoldID != (holds.HoldID{}) && byKey:
		return misused("give --hold-id, or --resource-id and --request-key, not both")
	case v.HoldID == (holds.HoldID{}) && (v.ResourceID == "" || v.RequestKey == ""):
		return misused("give --hold-id, or --resource-id and --request-key")
	}
	return nil
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
