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
	usualNights   = 3 // per request, in all measurements but sales and peers
)

// scenario describes a sale: nights per request, its load, and the number of workers.
type scenario struct {
	nights int
	load
	workers int
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %s, %s", plural(s.nights, "night"), s.load, plural(s.workers, "worker"))
}

// scenarios returns the sales with a number of nights. The others are compared with the first.
func (b *runner) scenarios(nights int) []scenario {
	many, hot := load{resources: manyResources}, load{resources: 1}
	if nights != usualNights {
		return []scenario{{nights, many, 1}, {nights, hot, 1}}
	}
	return []scenario{
		{nights, many, 1}, {nights, load{resources: 10}, 1}, {nights, hot, 1},
		{nights, load{b.allResources, spreadAlone}, 1}, {nights, load{b.allResources, spreadZipf}, 1},
		{nights, many, 2}, {nights, many, 3},
	}
}

// events returns the number of events of a sale: fewer with many nights, which take longer.
func (b *runner) events(nights int) int {
	if nights >= 30 {
		return b.scenarioEvents / 2
	}
	return b.scenarioEvents
}

func (b *runner) salesSteps() (steps int) {
	for _, nights := range b.nights {
		steps += b.rounds * len(b.scenarios(nights))
	}
	return steps
}

// sales measures sales and compares them with the ceiling and each other.
func (b *runner) sales(ctx context.Context) error {
	b.progressf("sales: stored requests are decided, each sale %s, compared with the least script on the same Redis",
		plural(b.rounds, "time"))
	for _, nights := range b.nights {
		kinds := b.scenarios(nights)
		figures := make([]Throughput, len(kinds))
		for round := range b.rounds {
			for i, kind := range kinds {
				b.step("sale of %s, round %d of %d", kind, round+1, b.rounds)
				if err := b.compare(ctx, kind, &figures[i]); err != nil {
					return fmt.Errorf("sale of %s: %w", kind, err)
				}
			}
		}
		for i := range figures {
			figures[i].sum(&figures[0])
		}
		b.report.Throughputs = append(b.report.Throughputs, figures...)
	}
	return nil
}

// compare measures one round of a sale and of its ceiling.
func (b *runner) compare(ctx context.Context, what scenario, figure *Throughput) error {
	figure.Nights, figure.Resources, figure.Spread, figure.Workers = what.nights, what.resources, what.spread, what.workers
	ceiling, err := b.ceiling(ctx, what.nights, what.load)
	if err != nil {
		return err
	}
	rate, err := b.decideRequests(ctx, what)
	if err != nil {
		return err
	}
	figure.Ceiling, figure.Holdfast = append(figure.Ceiling, ceiling), append(figure.Holdfast, rate)
	return nil
}

// decideRequests measures how workers decide stored requests.
func (b *runner) decideRequests(ctx context.Context, what scenario) (rate Rate, err error) {
	s, done, err := b.stocked(ctx, what.resources)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	number := b.events(what.nights)
	if err := s.queue(ctx, number, what.load, what.nights); err != nil {
		return Rate{}, err
	}
	if err := s.start(ctx, what.workers); err != nil {
		return Rate{}, err
	}
	rate, err = s.resume(ctx, number, events.ConsumerRequests)
	if err != nil {
		return Rate{}, err
	}
	return rate, s.tally(ctx, map[string]int{holds.EventHoldCreated: number})
}

// queue stores requests that wait until the pause of their consumer ends.
func (s *cluster) queue(ctx context.Context, number int, what load, nights int) error {
	if err := s.pause(ctx, events.ConsumerRequests); err != nil {
		return err
	}
	return s.preload(ctx, number, func(n int) (*nats.Msg, error) { return s.request(n, what, nights) })
}
