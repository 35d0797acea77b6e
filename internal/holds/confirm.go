package holds

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
)

// ConfirmRequest requests the reservation of a hold that was paid.
type ConfirmRequest struct {
	Hold      HoldID
	PaymentID string
	Amount    string // decimal; "" when unknown
	Currency  string // "" when unknown
}

// Payment is a payment with the state of its hold in Redis. Postgres decides it.
type Payment struct {
	ConfirmRequest
	Claimed bool     // the payment has claimed the hold, which therefore cannot expire
	Late    bool     // the hold had expired, and the payment has taken its slots again
	Reason  string   // why the payment has not claimed the hold; "" when it has
	At      Time     // when the hold was claimed, or read when it was not
	Data    HoldData // of the hold, as far as Redis knows it
	Names   []string // sorted slots of the hold; nil when Redis does not know the hold
	Epoch   string   // of the partition, under which the hold was claimed or read
}

// PaymentDecision is the permanent answer to a payment.
type PaymentDecision struct {
	Err       error // ErrBusy when this payment could not be decided now although others could
	Confirmed bool
	Late      bool
	Reason    string // why the payment was rejected
	DecidedAt Time
	Data      HoldData
}

// paymentKey identifies a payment.
type paymentKey struct {
	hold    HoldID
	payment string
}

// Confirm turns paid holds into reservations, with one transaction in Postgres for all of them.
//
// It claims the holds in Redis, so that they cannot expire, commits in Postgres, and then settles
// the claims in Redis. Between the last two steps a slot is counted twice. For this moment Holdfast
// may sell less than there is, but never more. Each step may be repeated, so after a crash between
// two steps the next delivery completes the work.
//
// Confirm returns one result for each request: ErrBusy while another payment of the same hold is being
// decided.
func (s *Service) Confirm(ctx context.Context, requests []ConfirmRequest) []Result {
	w, err := s.beginWork()
	if err != nil {
		return slices.Repeat([]Result{{Err: err}}, len(requests))
	}
	results := make([]Result, len(requests))
	claims := make([]*lua.Call, len(requests))
	for i, r := range requests {
		claims[i] = w.newCall(scriptClaim, r.Hold.Resource, w.requestKeyTTLMS(), r.Hold.UUID, r.PaymentID)
	}
	w.run(ctx, claims...)
	failpoint.Hit("confirm.claimed")

	payments := make([]Payment, 0, len(requests))
	places := make(map[paymentKey]int) // index of each payment in payments
	claimed := make([]int, 0, len(requests))
	for i, r := range requests {
		payment, err := parseClaim(r, claims[i])
		if err != nil {
			results[i].Err = fmt.Errorf("confirm hold %s: %w", r.Hold, err)
			continue
		}
		payment.Epoch = w.epochName(r.Hold.Resource)
		claimed = append(claimed, i)
		key := paymentKey{r.Hold, r.PaymentID}
		if _, repeated := places[key]; !repeated {
			places[key] = len(payments)
			payments = append(payments, payment)
		}
	}
	answers := w.decidePayments(ctx, payments)
	s.metrics.settled(payments, answers)
	for _, i := range claimed {
		r := requests[i]
		answer := answers[places[paymentKey{r.Hold, r.PaymentID}]]
		if answer.Err != nil {
			results[i].Err = fmt.Errorf("confirm hold %s: %w", r.Hold, answer.Err)
			continue
		}
		results[i].Outcome = answer.outcome(r)
	}
	return results
}

// decidePayments decides payments in Postgres and settles them in Redis.
func (w *work) decidePayments(ctx context.Context, payments []Payment) []PaymentDecision {
	answers := make([]PaymentDecision, len(payments))
	w.retakeLate(ctx, payments, answers)
	failpoint.Hit("confirm.retaken")
	deciding, indices := make([]Payment, 0, len(payments)), make([]int, 0, len(payments))
	for i, p := range payments {
		if answers[i].Err == nil {
			deciding, indices = append(deciding, p), append(indices, i)
		}
	}
	if len(deciding) == 0 {
		return answers
	}
	decided, err := w.service.inventory.Decide(ctx, deciding)
	failpoint.Hit("confirm.committed")
	if err == nil {
		w.settle(ctx, deciding, decided)
		failpoint.Hit("confirm.settled")
	}
	for j, i := range indices {
		if err != nil {
			answers[i].Err = err
		} else {
			answers[i] = decided[j]
		}
	}
	return answers
}

// retakeLate takes the slots of the holds of late payments again, if the policy allows it and the
// slots are free. It uses place, like a new hold: the same lock and the same counters. A payment
// that already has an answer takes nothing. Otherwise it would keep the slots from others for as
// long as Postgres cannot return its answer.
func (w *work) retakeLate(ctx context.Context, payments []Payment, answers []PaymentDecision) {
	if w.policy.LatePayment != LateAcceptedIfFree {
		return
	}
	var expired []Payment
	var indices []int
	for i, p := range payments {
		if p.Reason == ReasonExpired {
			expired, indices = append(expired, p), append(indices, i)
		}
	}
	if len(expired) == 0 {
		return
	}
	answered, err := w.service.inventory.FindDecisions(ctx, expired)
	var late []*placing
	for j, p := range expired {
		i := indices[j]
		if err != nil {
			answers[i].Err = err
			continue
		}
		if !answered[j].DecidedAt.IsZero() {
			continue
		}
		late = append(late, &placing{
			PlaceRequest: &PlaceRequest{
				EventID: p.PaymentID, Resource: p.Hold.Resource, RequestKey: p.Data.RequestKey,
				User: p.Data.UserID, Quantity: *p.Data.Quantity,
			},
			kind: kindLate, index: i, late: p.Hold.UUID, names: p.Names, slots: joinSlots(p.Names),
			fingerprint: "-", selectionJSON: "-",
		})
	}
	w.place(ctx, late, func(p *placing, answer, _ string, err error) {
		if err == nil {
			err = payments[p.index].parseRetake(answer)
		}
		answers[p.index].Err = err
	})
}

// parseRetake parses an answer of place.lua to a late payment.
func (p *Payment) parseRetake(answer string) error {
	word, at, _ := strings.Cut(answer, " ")
	decidedAt, err := parseMillis(at)
	if err != nil {
		return err
	}
	if word == "claimed_by_other" {
		return errPaymentDecided
	}
	p.At = decidedAt
	p.Claimed = word == "claimed" || word == "confirmed"
	p.Late = p.Claimed
	p.Reason = ""
	if !p.Claimed {
		p.Reason = word
	}
	return nil
}

// errPaymentDecided wraps ErrBusy.
var errPaymentDecided = fmt.Errorf("another payment is being decided: %w", ErrBusy)

// parseClaim parses the reply of claim.lua.
func parseClaim(r ConfirmRequest, c *lua.Call) (Payment, error) {
	if err := c.Expect(4); err != nil {
		return Payment{}, err
	}
	word, line, late := c.Reply[0], c.Reply[2], c.Reply[3] == "1"
	if word == "claimed_by_other" {
		return Payment{}, errPaymentDecided
	}
	now, err := parseMillis(c.Reply[1])
	if err != nil {
		return Payment{}, err
	}
	payment := Payment{ConfirmRequest: r, At: now, Data: HoldData{ResourceID: r.Hold.Resource, HoldID: r.Hold}}
	if line != "" {
		hold, err := parseRecord(r.Hold, line)
		if err != nil {
			return Payment{}, err
		}
		payment.Data, payment.Names = hold.data(), hold.Names
		if word == "claimed" || word == "confirmed" {
			payment.Claimed, payment.Late, payment.At = true, late, hold.EndedAt
		}
	}
	if !payment.Claimed {
		payment.Reason = word
	}
	return payment, nil
}

// settle ends the claims in Redis according to the answers of Postgres. A failure becomes the error
// of the answer.
func (w *work) settle(ctx context.Context, payments []Payment, answers []PaymentDecision) {
	calls, indices := make([]*lua.Call, 0, len(payments)), make([]int, 0, len(payments))
	for i, p := range payments {
		if !p.Claimed || answers[i].Err != nil {
			continue
		}
		decision, id := "rejected", p.Hold.UUID
		if answers[i].Confirmed {
			decision = "confirmed"
		}
		if p.Late {
			id = "late:" + id
		}
		calls = append(calls, w.newCall(scriptSettle, p.Hold.Resource, w.requestKeyTTLMS(), id, p.PaymentID, decision))
		indices = append(indices, i)
	}
	w.run(ctx, calls...)
	for j, c := range calls {
		if err := c.Expect(1); err != nil {
			answers[indices[j]].Err = fmt.Errorf("settle: %w", err)
		}
	}
}

func (a PaymentDecision) outcome(r ConfirmRequest) Outcome {
	outcome := Outcome{
		Resource: r.Hold.Resource, Hold: r.Hold, At: a.DecidedAt,
		RebuildMetadata: RebuildMetadata{Amount: r.Amount, Currency: r.Currency},
	}
	if a.Confirmed {
		outcome.Event = EventHoldConfirmed
		outcome.Data = HoldConfirmed{HoldData: a.Data, PaymentID: r.PaymentID, ConfirmedAt: a.DecidedAt, Late: a.Late}
	} else {
		outcome.Event = EventConfirmRejected
		outcome.Data = ConfirmRejected{HoldData: a.Data, PaymentID: r.PaymentID, Reason: a.Reason, RefundRequired: true}
	}
	return outcome
}
