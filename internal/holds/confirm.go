package holds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

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
// While Postgres does not answer, the holds are still claimed: a customer who has paid in time keeps the slots, however
// long the outage lasts. Most calls then end at once with the *UnreachableError, so that later payments do not wait
// behind them until their holds expire. See postgresTries.
//
// Confirm returns one result for each request: ErrBusy while another payment of the same hold is
// being decided.
func (s *Service) Confirm(ctx context.Context, requests []ConfirmRequest) []Result {
	w := s.beginWork()
	results := make([]Result, len(requests))
	claims := make([]*lua.Call, len(requests))
	for i, r := range requests {
		claims[i] = w.newCall(scriptClaim, r.Hold.Resource, w.requestKeyTTLMS(), r.Hold.UUID, r.PaymentID)
	}
	w.run(ctx, claims...)
	failpoint.Hit("confirm.claimed")

	payments := make([]*paying, 0, len(requests))
	claimed := make([]*paying, len(requests)) // of each request, nil when its claim has failed
	known := make(map[paymentKey]*paying)     // a payment may be requested twice
	for i, r := range requests {
		payment, err := parseClaim(r, claims[i])
		if err != nil {
			w.reportUnread(r.Hold.Resource, claims[i].Err, err)
			results[i].Err = fmt.Errorf("confirm hold %s: %w", r.Hold, err)
			continue
		}
		key := paymentKey{r.Hold, r.PaymentID}
		if known[key] == nil {
			payment.Epoch = w.epochName(r.Hold.Resource)
			known[key] = &paying{Payment: payment, compared: claims[i].Reply[4]}
			payments = append(payments, known[key])
		}
		claimed[i] = known[key]
	}
	w.decidePayments(ctx, payments)
	s.metrics.settled(payments)
	for i, r := range requests {
		switch p := claimed[i]; {
		case p == nil:
		case p.answer.Err != nil:
			results[i].Err = fmt.Errorf("confirm hold %s: %w", r.Hold, p.answer.Err)
		default:
			results[i].Outcome = p.answer.outcome(r)
		}
	}
	return results
}

// paying is a payment that is being decided.
type paying struct {
	Payment
	compared string // how often Postgres was compared before the claim
	answer   PaymentDecision
}

// toDecide returns payments as the Inventory gets them.
func toDecide(payments []*paying) []Payment {
	values := make([]Payment, len(payments))
	for i, p := range payments {
		values[i] = p.Payment
	}
	return values
}

// decidePayments decides payments in Postgres, settles them in Redis, and sets their answers.
func (w *work) decidePayments(ctx context.Context, payments []*paying) {
	unreachable, is := errors.AsType[*UnreachableError](w.service.Unreachable())
	away := is && unreachable.Postgres
	if away && !w.service.tries.due() {
		for _, p := range payments {
			p.answer.Err = unreachable
		}
		return
	}
	deciding := ctx
	if away {
		var cancel context.CancelFunc
		deciding, cancel = context.WithTimeout(ctx, postgresTryWithin)
		defer cancel()
	}
	w.retakeLate(deciding, payments)
	failpoint.Hit("confirm.retaken")
	payments = slices.DeleteFunc(slices.Clone(payments), func(p *paying) bool { return p.answer.Err != nil })
	if len(payments) == 0 {
		return
	}
	answers, err := w.service.inventory.Decide(deciding, toDecide(payments))
	failpoint.Hit("confirm.committed")
	for i, p := range payments {
		if err != nil {
			p.answer.Err = err
		} else {
			p.answer = answers[i]
		}
	}
	if err == nil {
		w.service.tries.succeeded()
		w.settle(ctx, payments)
		failpoint.Hit("confirm.settled")
	}
}

// postgresTries limits how often payments are decided while the check of Postgres gets no answer. The check has
// connections of its own: those that decide may work. Without a limit each call would wait for Postgres.
type postgresTries struct {
	next atomic.Pointer[time.Time] // when the next one is made; nil after a success
}

// The least time from a try that fails to the next one, and how long one may take. Payments that come meanwhile wait.
const (
	postgresTryEvery  = 15 * time.Second
	postgresTryWithin = 2 * time.Second
)

// due reports whether to try now.
func (t *postgresTries) due() bool {
	next, now := t.next.Load(), time.Now()
	after := now.Add(postgresTryEvery)
	return (next == nil || !now.Before(*next)) && t.next.CompareAndSwap(next, &after)
}

func (t *postgresTries) succeeded() { t.next.Store(nil) }

// retakeLate takes the slots of the holds of late payments again, if the policy allows it and the
// slots are free. It uses place, like a new hold: the same lock and the same counters. A payment
// that already has an answer takes nothing. Otherwise it would keep the slots from others for as
// long as Postgres cannot return its answer.
func (w *work) retakeLate(ctx context.Context, payments []*paying) {
	if w.policy.LatePayment != LateAcceptedIfFree {
		return
	}
	var expired []*paying
	for _, p := range payments {
		if p.Reason == ReasonExpired {
			expired = append(expired, p)
		}
	}
	if len(expired) == 0 {
		return
	}
	answered, err := w.service.inventory.FindDecisions(ctx, toDecide(expired))
	if err != nil {
		for _, p := range expired {
			p.answer.Err = err
		}
		return
	}
	var late []*placing
	for i, p := range expired {
		if p.answer.Err = answered[i].Err; p.answer.Err != nil {
			continue
		}
		if !answered[i].DecidedAt.IsZero() {
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
	w.place(ctx, late, func(l *placing, answer, _ string, err error) {
		p := expired[l.index]
		if err == nil {
			err = p.parseRetake(answer)
		}
		p.answer.Err = err
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

var errPaymentDecided = fmt.Errorf("another payment is being decided: %w", ErrBusy)

func parseClaim(r ConfirmRequest, c *lua.Call) (Payment, error) {
	if err := c.Expect(5); err != nil {
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
		payment.Data, payment.Names = hold.HoldData, hold.Names
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
func (w *work) settle(ctx context.Context, payments []*paying) {
	calls, settling := make([]*lua.Call, 0, len(payments)), make([]*paying, 0, len(payments))
	for _, p := range payments {
		if !p.Claimed || p.answer.Err != nil {
			continue
		}
		decision, id := "rejected", p.Hold.UUID
		if p.answer.Confirmed {
			decision = "confirmed"
		}
		if p.Late {
			id = "late:" + id
		}
		calls = append(calls, w.newCall(scriptSettle, p.Hold.Resource, w.requestKeyTTLMS(), id, p.PaymentID, decision,
			p.compared))
		settling = append(settling, p)
	}
	w.run(ctx, calls...)
	for i, c := range calls {
		if c.Err == nil && c.Status == "again" {
			c.Err = fmt.Errorf("postgres was compared since the claim, it may have lost the decision: %w", ErrBusy)
		}
		if err := c.Expect(1); err != nil {
			settling[i].answer.Err = fmt.Errorf("settle: %w", err)
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
