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
	usualNights   = 3 // per request, in all measurements but sales
)

// scenario describes a sale: nights per request, number of resources and of workers.
type scenario struct {
	nights, resources, workers int
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %s, %s",
		plural(s.nights, "night"), plural(s.resources, "resource"), plural(s.workers, "worker"))
}

// scenarios returns the sales with a number of nights. The others are compared with the first.
func scenarios(nights int) []scenario {
	all := []scenario{{nights, manyResources, 1}, {nights, 10, 1}, {nights, 1, 1}}
	if nights == usualNights {
		all = append(all, scenario{nights, manyResources, 2}, scenario{nights, manyResources, 3})
	}
	return all
}

// events returns the number of events of a sale: fewer with many nights, which take longer.
func (b *runner) events(nights int) int {
	if nights >= 30 {
		return b.scenarioEvents / 2
	}
	return b.scenarioEvents
}

func (b *runner) throughputSteps() (steps int) {
	for _, nights := range b.nights {
		steps += b.rounds * len(scenarios(nights))
	}
	return steps
}

// throughput measures sales and compares them with the ceiling, the baseline and each other.
func (b *runner) throughput(ctx context.Context) error {
	b.progressf("sales: stored requests are decided, each sale %s, compared with the minimal script on the same Redis",
		plural(b.rounds, "time"))
	for _, nights := range b.nights {
		figures := make([]Throughput, len(scenarios(nights)))
		for round := range b.rounds {
			for i, kind := range scenarios(nights) {
				b.step("sale of %s, round %d of %d", kind, round+1, b.rounds)
				if err := b.compare(ctx, kind, &figures[i]); err != nil {
					return fmt.Errorf("sale of %s: %w", kind, err)
				}
			}
		}
		for i := range figures {
			figures[i].sum(&figures[0])
			b.progressf("  %s", figures[i].line())
		}
		b.report.Throughputs = append(b.report.Throughputs, figures...)
	}
	return nil
}

// compare measures one round of a sale, its ceiling and, for the first scenario, its baseline.
func (b *runner) compare(ctx context.Context, what scenario, figure *Throughput) error {
	figure.Nights, figure.Resources, figure.Workers = what.nights, what.resources, what.workers
	ceiling, err := b.ceiling(ctx, what.nights, what.resources)
	if err != nil {
		return err
	}
	rate, err := b.decideRequests(ctx, what)
	if err != nil {
		return err
	}
	figure.Ceiling, figure.Holdfast = append(figure.Ceiling, ceiling), append(figure.Holdfast, rate)
	if what.resources == manyResources && what.workers == 1 {
		rate, err := b.measureBaseline(ctx, what)
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		figure.Baseline = append(figure.Baseline, rate)
	}
	return nil
}

// decideRequests measures how workers decide stored requests.
func (b *runner) decideRequests(ctx context.Context, what scenario) (rate Rate, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, what.resources); err != nil {
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
