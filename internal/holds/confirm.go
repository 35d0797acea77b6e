package holds

import (
	"context"
	"fmt"

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
	Reason  string   // why it is not, when it is not claimed
	At      Time     // of the claim, or of the look
	Data    HoldData // of the hold, as far as it is known
	Names   []string // its slots, sorted; nil when no hold is known
}

// PaymentAnswer is the permanent answer to a payment.
type PaymentAnswer struct {
	Err       error // ErrBusy when it could not be decided now, though others could
	Confirmed bool
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
	claims := make([]*lua.Call, len(requests))
	for i, r := range requests {
		claims[i] = s.newCall(scriptClaim, r.Hold.Resource, s.memory(), sweepMax, r.Hold.UUID, r.PaymentID)
	}
	s.run(ctx, claims...)
	failpoint.Hit("confirm.claimed")

	payments := make([]Payment, 0, len(requests))
	places := make(map[paymentKey]int) // of each payment in payments
	asking := make([]int, 0, len(requests))
	for i, r := range requests {
		payment, err := readClaim(r, claims[i])
		if err != nil {
			emit(i, Result{Err: fmt.Errorf("confirm hold %s: %w", r.Hold, err)})
			continue
		}
		asking = append(asking, i)
		key := paymentKey{r.Hold, r.PaymentID}
		if _, repeated := places[key]; !repeated {
			places[key] = len(payments)
			payments = append(payments, payment)
		}
	}
	if len(payments) == 0 {
		return
	}

	answers, err := s.inventory.Decide(ctx, payments)
	failpoint.Hit("confirm.committed")
	var settled []error
	if err == nil {
		settled = s.settle(ctx, payments, answers)
		failpoint.Hit("confirm.settled")
	}
	for _, i := range asking {
		r := requests[i]
		place := places[paymentKey{r.Hold, r.PaymentID}]
		switch {
		case err != nil:
			emit(i, Result{Err: fmt.Errorf("confirm hold %s: %w", r.Hold, err)})
		case answers[place].Err != nil:
			emit(i, Result{Err: fmt.Errorf("confirm hold %s: %w", r.Hold, answers[place].Err)})
		case settled[place] != nil:
			emit(i, Result{Err: fmt.Errorf("settle hold %s: %w", r.Hold, settled[place])})
		default:
			emit(i, Result{Outcome: answers[place].outcome(r)})
		}
	}
}

// readClaim reads an answer of claim.lua.
func readClaim(r ConfirmRequest, c *lua.Call) (Payment, error) {
	if err := c.Expect(3); err != nil {
		return Payment{}, err
	}
	word, line := c.Reply[0], c.Reply[2]
	if word == "claimed_by_other" {
		return Payment{}, fmt.Errorf("another payment is being decided: %w", ErrBusy)
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
			payment.Claimed, payment.At = true, hold.EndedAt
		}
	}
	if !payment.Claimed {
		payment.Reason = word
	}
	return payment, nil
}

// settle tells Redis how the claims ended.
func (s *Service) settle(ctx context.Context, payments []Payment, answers []PaymentAnswer) []error {
	errs := make([]error, len(payments))
	calls, whose := make([]*lua.Call, 0, len(payments)), make([]int, 0, len(payments))
	for i, p := range payments {
		if !p.Claimed || answers[i].Err != nil {
			continue
		}
		verdict := "rejected"
		if answers[i].Confirmed {
			verdict = "confirmed"
		}
		calls = append(calls, s.newCall(scriptSettle, p.Hold.Resource, s.memory(), p.Hold.UUID, p.PaymentID, verdict))
		whose = append(whose, i)
	}
	s.run(ctx, calls...)
	for j, c := range calls {
		errs[whose[j]] = c.Expect(1)
	}
	return errs
}

func (a PaymentAnswer) outcome(r ConfirmRequest) Outcome {
	outcome := Outcome{Resource: r.Hold.Resource, Hold: r.Hold, At: a.DecidedAt}
	if a.Confirmed {
		outcome.Event = EventHoldConfirmed
		outcome.Data = HoldConfirmed{HoldData: a.Data, PaymentID: r.PaymentID, ConfirmedAt: a.DecidedAt}
	} else {
		outcome.Event = EventConfirmRejected
		outcome.Data = ConfirmRejected{HoldData: a.Data, PaymentID: r.PaymentID, Reason: a.Reason, RefundRequired: true}
	}
	return outcome
}
