package holds

import (
	"context"
	"fmt"
	"strings"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
)

// ConfirmRequest says that a hold was paid.
type ConfirmRequest struct {
	Hold      HoldID
	PaymentID string
	Amount    string // decimal, "" = not told
	Currency  string
}

// Payment is a payment and what Redis says of its hold, for Postgres to decide.
type Payment struct {
	ConfirmRequest
	Claimed bool     // the hold is this payment's: it cannot lapse
	Late    bool     // it had lapsed, and its slots were taken again
	Reason  string   // why it is not claimed, when it is not
	At      Time     // of the claim, or of the look
	Data    HoldData // of the hold, as far as it is known
	Names   []string // its slots, sorted; nil when no hold is known
}

// PaymentDecision is the permanent answer to a payment.
type PaymentDecision struct {
	Err       error // ErrBusy when it could not be decided now, though others could
	Confirmed bool
	Late      bool
	Reason    string // why not
	DecidedAt Time
	Data      HoldData
}

// paymentKey is what a payment is remembered by.
type paymentKey struct {
	hold    HoldID
	payment string
}

// Confirm turns paid holds into reservations, all with one transaction in Postgres: claim in
// Redis (from then on the hold cannot lapse), commit in Postgres, settle in Redis. Between the
// last two a slot is counted twice, which sells too little for a moment and never too much.
// Each step may be repeated, so a crash between any two is mended by the next delivery.
//
// A result is ErrBusy while another payment of the same hold is being decided.
func (s *Service) Confirm(ctx context.Context, requests []ConfirmRequest, emit func(i int, r Result)) {
	s, err := s.forCurrentEpoch()
	if err != nil {
		emitErrors(len(requests), err, emit)
		return
	}
	claims := make([]*lua.Call, len(requests))
	for i, r := range requests {
		claims[i] = s.newCall(scriptClaim, r.Hold.Resource, s.requestKeyTTLMS(), sweepMax, r.Hold.UUID, r.PaymentID)
	}
	s.run(ctx, claims...)
	failpoint.Hit("confirm.claimed")

	payments := make([]Payment, 0, len(requests))
	places := make(map[paymentKey]int) // of each payment in payments
	claimed := make([]int, 0, len(requests))
	for i, r := range requests {
		payment, err := parseClaim(r, claims[i])
		if err != nil {
			emit(i, Result{Err: fmt.Errorf("confirm hold %s: %w", r.Hold, err)})
			continue
		}
		claimed = append(claimed, i)
		key := paymentKey{r.Hold, r.PaymentID}
		if _, repeated := places[key]; !repeated {
			places[key] = len(payments)
			payments = append(payments, payment)
		}
	}
	answers := s.decidePayments(ctx, payments)
	for _, i := range claimed {
		r := requests[i]
		answer := answers[places[paymentKey{r.Hold, r.PaymentID}]]
		if answer.Err != nil {
			emit(i, Result{Err: fmt.Errorf("confirm hold %s: %w", r.Hold, answer.Err)})
			continue
		}
		emit(i, Result{Outcome: answer.outcome(r)})
	}
}

// decidePayments has payments decided and settles them.
func (s *Service) decidePayments(ctx context.Context, payments []Payment) []PaymentDecision {
	answers := make([]PaymentDecision, len(payments))
	s.retakeLate(ctx, payments, answers)
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
	decided, err := s.inventory.Decide(ctx, s.epoch, deciding)
	failpoint.Hit("confirm.committed")
	if err == nil {
		s.settle(ctx, deciding, decided)
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

// retakeLate has late payments take the slots of their holds again, if the policy wants it and they are
// free: through the same door as a new hold, under its lock and against the same counters. One that
// was answered before takes nothing: it would keep others from having it, for as long as Postgres
// cannot say what its answer is.
func (s *Service) retakeLate(ctx context.Context, payments []Payment, answers []PaymentDecision) {
	if s.policy.LatePayment != LateAcceptedIfFree {
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
	answered, err := s.inventory.FindDecisions(ctx, expired)
	var late []*placing
	for j, p := range expired {
		i := indices[j]
		if err != nil {
			answers[i].Err = err
			continue
		}
		if !answered[j].DecidedAt.IsZero() {
			continue // nothing is to be taken for it
		}
		late = append(late, &placing{
			PlaceRequest: &PlaceRequest{
				EventID: p.PaymentID, Resource: p.Hold.Resource, RequestKey: p.Data.RequestKey,
				User: p.Data.UserID, Quantity: *p.Data.Quantity,
			},
			index: i, late: p.Hold.UUID, names: p.Names, fingerprint: "late", selectionJSON: "-",
		})
	}
	s.place(ctx, late, func(p *placing, answer, _ string, err error) {
		if err == nil {
			err = payments[p.index].parseRetake(answer)
		}
		answers[p.index].Err = err
	})
}

// parseRetake reads an answer of place.lua to a late payment.
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

// errPaymentDecided is an ErrBusy.
var errPaymentDecided = fmt.Errorf("another payment is being decided: %w", ErrBusy)

// parseClaim reads an answer of claim.lua.
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

// settle tells Redis how the claims ended. A claim that it could not tell is an error of its answer.
func (s *Service) settle(ctx context.Context, payments []Payment, answers []PaymentDecision) {
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
		calls = append(calls, s.newCall(scriptSettle, p.Hold.Resource, s.requestKeyTTLMS(), id, p.PaymentID, decision))
		indices = append(indices, i)
	}
	s.run(ctx, calls...)
	for j, c := range calls {
		if err := c.Expect(1); err != nil {
			answers[indices[j]].Err = fmt.Errorf("settle: %w", err)
		}
	}
}

func (a PaymentDecision) outcome(r ConfirmRequest) Outcome {
	outcome := Outcome{Resource: r.Hold.Resource, Hold: r.Hold, At: a.DecidedAt}
	if a.Confirmed {
		outcome.Event = EventHoldConfirmed
		outcome.Data = HoldConfirmed{HoldData: a.Data, PaymentID: r.PaymentID, ConfirmedAt: a.DecidedAt, Late: a.Late}
	} else {
		outcome.Event = EventConfirmRejected
		outcome.Data = ConfirmRejected{HoldData: a.Data, PaymentID: r.PaymentID, Reason: a.Reason, RefundRequired: true}
	}
	return outcome
}
