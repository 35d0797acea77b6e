package main

import (
	"context"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// pay publishes payment.confirmed.
type pay struct {
	HoldID     holds.HoldID `required:"" placeholder:"H" help:"The hold that was paid."`
	PaymentID  string       `required:"" placeholder:"P" help:"The payment, as the payment service names it."`
	Amount     string       `placeholder:"DECIMAL" help:"What was paid, like 120.50."`
	Currency   string       `placeholder:"CODE" help:"In which currency, like EUR."`
	Publishing publishing   `embed:""`
}

// Help implements kong's detailed help.
func (*pay) Help() string {
	return `Publishes payment.confirmed. The outcome is hold.confirmed, or hold.confirm_rejected: then the payment is to be refunded.

Example:

  publisher pay --hold-id deluxe.0198f0c2a1b47c3d8e4f5a6b7c8d9e0f --payment-id p-1 --amount 120.50 --currency EUR --wait`
}

// Run confirms the payment.
func (v *pay) Run(ctx context.Context, p *program) error {
	return p.publish(ctx, v.Publishing, events.PaymentConfirmed, v.HoldID.Resource, events.PaymentConfirmedData{
		HoldID: v.HoldID.String(), PaymentID: v.PaymentID, Amount: v.Amount, Currency: v.Currency,
	})
}
