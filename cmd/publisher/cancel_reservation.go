package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// cancelReservation publishes reservation.cancelled.
type cancelReservation struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold that became the reservation."`
	Reason     string       `placeholder:"TEXT" help:"Why, in a few words."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*cancelReservation) Help() string {
	return `Publishes reservation.cancelled, which gives back what a paid reservation took. A hold that is not paid yet is given back by cancel. The outcome is reservation.cancelled or reservation.cancel_rejected.

Example:

  publisher cancel-reservation --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --reason "flight was cancelled" --wait`
}

// Run cancels the reservation.
func (v *cancelReservation) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, v.Publishing, events.ReservationCancelled, v.HoldID.Resource, events.ReservationCancelledData{
		HoldID: v.HoldID.String(), Reason: v.Reason,
	})
}
