package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/store"
)

// How the ceiling of payments is asked for: so that it is highest.
const (
	ceilingPaid   = 1024 // payments in one transaction
	ceilingPayers = 2    // transactions at a time
)

// payAll measures how many holds a second are paid, against what Postgres alone can do.
func (b *runner) payAll(ctx context.Context) error {
	b.progressf("payments: holds are paid, %s, beside the same transactions in Postgres alone", plural(b.rounds, "time"))
	var figure Payments
	for round := range b.rounds {
		b.step("payments, round %d of %d", round+1, b.rounds)
		ceiling, err := b.payInPostgres(ctx)
		if err != nil {
			return fmt.Errorf("in Postgres alone: %w", err)
		}
		rate, err := b.pay(ctx)
		if err != nil {
			return err
		}
		figure.Ceiling, figure.Holdfast = append(figure.Ceiling, ceiling), append(figure.Holdfast, rate)
	}
	figure.sum()
	b.report.Payments = &figure
	b.progressf("  %s", figure.line())
	return nil
}

// pay has a worker confirm waiting payments. They wait for the consumer of requests too, which passes
// over them: that is part of what a payment costs.
func (b *runner) pay(ctx context.Context) (rate Rate, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, manyResources); err != nil {
		return Rate{}, err
	}
	if err := s.start(ctx, 1); err != nil {
		return Rate{}, err
	}
	err = s.preload(ctx, b.payments, func(n int) (*nats.Msg, error) { return s.request(n, manyResources, usualNights) })
	if err != nil {
		return Rate{}, err
	}
	if _, err = s.awaitAnswers(ctx, b.payments); err != nil {
		return Rate{}, err
	}
	if err := s.tally(ctx, map[string]int{holds.EventHoldCreated: b.payments}); err != nil {
		return Rate{}, err
	}
	granted, err := s.granted(ctx, b.payments)
	if err != nil {
		return Rate{}, err
	}
	consumers := []string{events.ConsumerRequests, events.ConsumerPayments}
	if err := s.pause(ctx, consumers...); err != nil {
		return Rate{}, err
	}
	err = s.preload(ctx, b.payments, func(n int) (*nats.Msg, error) {
		return s.event(events.PaymentConfirmed, granted[n].Resource, events.PaymentConfirmedData{HoldID: granted[n].String(), PaymentID: "p" + strconv.Itoa(n)})
	})
	if err != nil {
		return Rate{}, err
	}
	if rate, err = s.resume(ctx, b.payments, 2*b.payments, consumers...); err != nil {
		return Rate{}, err
	}
	return rate, s.tally(ctx, map[string]int{holds.EventHoldCreated: b.payments, holds.EventHoldConfirmed: b.payments})
}

// granted returns the holds that were granted.
func (s *cluster) granted(ctx context.Context, number int) ([]holds.HoldID, error) {
	granted := make([]holds.HoldID, 0, number)
	err := s.read(ctx, holds.EventHoldCreated, number, func(e events.Envelope) error {
		var data struct {
			HoldID holds.HoldID `json:"hold_id"`
		}
		err := json.Unmarshal(e.Data, &data)
		granted = append(granted, data.HoldID)
		return err
	})
	return granted, err
}

// payInPostgres decides payments by the transactions that a worker uses, in tables of their own.
func (b *runner) payInPostgres(ctx context.Context) (rate Rate, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, manyResources); err != nil {
		return Rate{}, err
	}
	db, err := store.Open(ctx, s.PostgresURL, string(s.ns))
	if err != nil {
		return Rate{}, err
	}
	defer db.Close()
	warm, err := s.batches(-ceilingPayers*ceilingPaid, 0)
	if err != nil {
		return Rate{}, err
	}
	batches, err := s.batches(0, s.payments)
	if err != nil {
		return Rate{}, err
	}
	epoch, err := db.Epoch(ctx)
	if err != nil {
		return Rate{}, err
	}
	if err := decideAll(ctx, db, epoch.Name, warm); err != nil { // opens connections, prepares statements
		return Rate{}, err
	}
	before := s.processorTimes(nil)
	began := time.Now()
	if err := decideAll(ctx, db, epoch.Name, batches); err != nil {
		return Rate{}, err
	}
	took := time.Since(began)
	return newRate(s.payments, took, s.processorTimes(nil).since(before))
}

// batches are payments from a number to another, as many in each as one transaction decides.
func (s *cluster) batches(from, to int) (all [][]holds.Payment, err error) {
	for n := from; n < to; n += ceilingPaid {
		batch := make([]holds.Payment, min(ceilingPaid, to-n))
		for i := range batch {
			if batch[i], err = s.payment(n + i); err != nil {
				return nil, err
			}
		}
		all = append(all, batch)
	}
	return all, nil
}

// decideAll decides batches under an epoch, some at a time. All are to be confirmed.
func decideAll(ctx context.Context, db *store.Store, epoch string, batches [][]holds.Payment) error {
	waiting := make(chan []holds.Payment, len(batches))
	for _, batch := range batches {
		waiting <- batch
	}
	close(waiting)
	errs := make([]error, ceilingPayers)
	var payers sync.WaitGroup
	for i := range errs {
		payers.Go(func() {
			for batch := range waiting {
				answers, err := db.Decide(ctx, epoch, batch)
				for _, a := range answers {
					if !a.Confirmed {
						err = errors.Join(err, a.Err, fmt.Errorf("a payment was refused: %s", a.Reason))
					}
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	payers.Wait()
	return errors.Join(errs...)
}

// payment is the n-th of the ceiling: for a claimed hold that there never was.
func (s *cluster) payment(n int) (holds.Payment, error) {
	resource := "r" + strconv.Itoa(rand.IntN(manyResources))
	hold, err := holds.NewHoldID(resource)
	if err != nil {
		return holds.Payment{}, err
	}
	from := rand.IntN(calendar - usualNights + 1)
	names := make([]string, usualNights)
	for i := range names {
		names[i] = s.first.AddDate(0, 0, from+i).Format(time.DateOnly)
	}
	quantity := int64(1)
	return holds.Payment{
		ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: "p" + strconv.Itoa(n)},
		Claimed:        true, At: holds.TimeFromMillis(time.Now().UnixMilli()), Names: names,
		Data: holds.HoldData{ResourceID: resource, HoldID: hold, RequestKey: "k" + strconv.Itoa(n), UserID: "u" + strconv.Itoa(n), Quantity: &quantity},
	}, nil
}
