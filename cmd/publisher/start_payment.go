package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// startPayment publishes payment.started.
type startPayment struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold that is being paid."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*startPayment) Help() string {
	return `Publishes payment.started, so that the hold does not lapse while it is paid: from now on it lasts at least as long as the worker's payment window (5 minutes by default). A hold can have that once. The outcome is hold.extended or hold.extension_rejected.

Example:

  publisher start-payment --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --wait`
}

// Run says that a payment was started.
func (v *startPayment) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, v.Publishing, events.PaymentStarted, v.HoldID.Resource, events.PaymentStartedData{
		HoldID: v.HoldID.String(),
	})
}
