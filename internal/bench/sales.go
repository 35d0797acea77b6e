package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

const (
	manyResources = 1000
	usualNights   = 3 // of what is not measured for each number of nights
)

// sale is events that wait, and what takes them.
type sale struct {
	nights, resources, workers int
}

func (s sale) String() string {
	return fmt.Sprintf("%s, %s, %s", plural(s.nights, "night"), plural(s.resources, "resource"), plural(s.workers, "worker"))
}

// kinds are the sales of a number of nights. The first is what the others are compared with.
func kinds(nights int) []sale {
	all := []sale{{nights, manyResources, 1}, {nights, 10, 1}, {nights, 1, 1}}
	if nights == usualNights {
		all = append(all, sale{nights, manyResources, 2}, sale{nights, manyResources, 3})
	}
	return all
}

// events is how many a sale has: fewer when each is much work.
func (b *bench) events(nights int) int {
	if nights >= 30 {
		return b.saleEvents / 2
	}
	return b.saleEvents
}

func (b *bench) salesSteps() (steps int) {
	for _, nights := range b.nights {
		steps += b.rounds * len(kinds(nights))
	}
	return steps
}

// sales measures sales against the ceiling, the baseline, and each other.
func (b *bench) sales(ctx context.Context) error {
	b.tell("sales: waiting requests are decided, each kind %s, beside the least script that Redis can run", plural(b.rounds, "time"))
	for _, nights := range b.nights {
		figures := make([]Sale, len(kinds(nights)))
		for round := range b.rounds {
			for i, kind := range kinds(nights) {
				b.step("sale of %s, round %d of %d", kind, round+1, b.rounds)
				if err := b.compare(ctx, kind, &figures[i]); err != nil {
					return fmt.Errorf("sale of %s: %w", kind, err)
				}
			}
		}
		for i := range figures {
			figures[i].sum(&figures[0])
			b.tell("  %s", figures[i].line())
		}
		b.report.Sales = append(b.report.Sales, figures...)
	}
	return nil
}

// compare measures a sale and what it is compared with, in turns.
func (b *bench) compare(ctx context.Context, what sale, figure *Sale) error {
	figure.Nights, figure.Resources, figure.Workers = what.nights, what.resources, what.workers
	ceiling, err := b.ceiling(ctx, what.nights, what.resources)
	if err != nil {
		return err
	}
	rate, err := b.sell(ctx, what)
	if err != nil {
		return err
	}
	figure.Ceiling, figure.Holdfast = append(figure.Ceiling, ceiling), append(figure.Holdfast, rate)
	if what.resources == manyResources && what.workers == 1 {
		rate, err := b.sellNightByNight(ctx, what)
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		figure.Baseline = append(figure.Baseline, rate)
	}
	return nil
}

// sell has workers decide waiting requests.
func (b *bench) sell(ctx context.Context, what sale) (rate Rate, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.stock(ctx, what.resources); err != nil {
		return Rate{}, err
	}
	if err := s.pause(ctx, events.ConsumerRequests); err != nil {
		return Rate{}, err
	}
	number := b.events(what.nights)
	err = s.preload(ctx, number, func(n int) (*nats.Msg, error) { return s.request(n, what.resources, what.nights) })
	if err != nil {
		return Rate{}, err
	}
	if err := s.start(ctx, what.workers); err != nil {
		return Rate{}, err
	}
	rate, err = s.resume(ctx, number, number, events.ConsumerRequests)
	if err != nil {
		return Rate{}, err
	}
	return rate, s.tally(ctx, map[string]int{holds.EventHoldCreated: number})
}
