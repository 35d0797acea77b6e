package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/store"
)

// The ceiling of payments is highest with these numbers.
const (
	ceilingPaid   = 1024 // payments in one transaction
	ceilingPayers = 2    // concurrent transactions
)

// payAll measures payments per second, of a worker and of Postgres alone.
func (b *runner) payAll(ctx context.Context) error {
	b.progressf("payments: holds are paid, %s, compared with the same transactions in Postgres alone",
		plural(b.rounds, "time"))
	var figure Compared
	for round := range b.rounds {
		b.step("payments, round %d of %d", round+1, b.rounds)
		ceiling, err := b.payInPostgres(ctx)
		if err != nil {
			return fmt.Errorf("baseline in postgres: %w", err)
		}
		rate, err := b.pay(ctx)
		if err != nil {
			return err
		}
		figure.Ceiling, figure.Holdfast = append(figure.Ceiling, ceiling), append(figure.Holdfast, rate)
	}
	figure.sum()
	b.report.Payments = &figure
	return nil
}

// pay measures how a worker confirms stored payments. The consumer of requests also receives them and
// skips them; that is part of the cost of a payment.
func (b *runner) pay(ctx context.Context) (rate Rate, err error) {
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1); err != nil {
		return Rate{}, err
	}
	err = s.preload(ctx, b.payments, func(n int) (*nats.Msg, error) {
		return s.request(n, load{resources: manyResources}, usualNights)
	})
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
		return s.event(events.PaymentConfirmed, granted[n].Resource, events.PaymentConfirmedData{
			HoldID: granted[n].String(), PaymentID: "p" + strconv.Itoa(n),
		})
	})
	if err != nil {
		return Rate{}, err
	}
	if rate, err = s.resume(ctx, b.payments, consumers...); err != nil {
		return Rate{}, err
	}
	return rate, s.tally(ctx, map[string]int{holds.EventHoldConfirmed: b.payments})
}

// granted returns the ids of the first number holds.
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

// payInPostgres measures the transactions of payments that a worker uses, in a separate schema.
func (b *runner) payInPostgres(ctx context.Context) (rate Rate, err error) {
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	db, err := store.Open(ctx, s.PostgresURL, string(s.ns))
	if err != nil {
		return Rate{}, err
	}
	defer db.Close()
	warm, batches := s.batches(-ceilingPayers*ceilingPaid, 0), s.batches(0, s.payments)
	epochs, err := db.Epochs(ctx)
	if err != nil {
		return Rate{}, err
	}
	for _, batch := range slices.Concat(warm, batches) {
		for i := range batch {
			batch[i].Epoch = epochs[0].Name // the first epoch of all partitions
		}
	}
	// The first transactions open connections and prepare statements; they do not count.
	if err := decideAll(ctx, db, warm); err != nil {
		return Rate{}, err
	}
	before := s.processorTimes(nil)
	began := time.Now()
	if err := decideAll(ctx, db, batches); err != nil {
		return Rate{}, err
	}
	took := time.Since(began)
	return newRate(s.payments, took, s.processorTimes(nil).since(before))
}

// batches returns the payments from number from up to, not including, number to, in batches of one
// transaction.
func (s *cluster) batches(from, to int) (all [][]holds.Payment) {
	for n := from; n < to; n += ceilingPaid {
		batch := make([]holds.Payment, min(ceilingPaid, to-n))
		for i := range batch {
			batch[i] = s.payment(n + i)
		}
		all = append(all, batch)
	}
	return all
}

// decideAll decides batches, ceilingPayers at a time. It returns an error unless all payments
// are confirmed.
func decideAll(ctx context.Context, db *store.Store, batches [][]holds.Payment) error {
	payers, ctx := errgroup.WithContext(ctx)
	payers.SetLimit(ceilingPayers)
	for _, batch := range batches {
		payers.Go(func() error {
			answers, err := db.Decide(ctx, batch)
			for _, a := range answers {
				if !a.Confirmed {
					err = errors.Join(err, a.Err, fmt.Errorf("payment rejected: %s", a.Reason))
				}
			}
			return err
		})
	}
	return payers.Wait()
}

// payment returns the n-th payment of the ceiling, for a claimed hold that does not exist.
func (s *cluster) payment(n int) holds.Payment {
	resource := resourceName(rand.IntN(manyResources))
	hold := holds.NewHoldID(resource)
	from := rand.IntN(calendar - usualNights + 1)
	names := make([]string, usualNights)
	for i := range names {
		names[i] = s.first.AddDate(0, 0, from+i).Format(time.DateOnly)
	}
	quantity := int64(1)
	return holds.Payment{
		ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: "p" + strconv.Itoa(n)},
		Claimed:        true, At: holds.TimeFromMillis(time.Now().UnixMilli()), Names: names,
		Data: holds.HoldData{
			ResourceID: resource, HoldID: hold, RequestKey: "k" + strconv.Itoa(n), UserID: "u" + strconv.Itoa(n),
			Quantity: &quantity,
		},
	}
}
