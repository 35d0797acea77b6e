package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// loads are the rates at which latency is measured, in percent of the maximum rate of a worker; 0 means
// steadyRate.
var loads = []int{0, 10, 50, 80}

// steadyRate is a rate of every day, in requests per second.
const steadyRate = 1000

// strategies are the lock strategies whose latency is measured side by side.
var strategies = []string{strategyRange, strategyNone}

const (
	strategyRange = "range"
	strategyNone  = "none"
)

// latencies measures the maximum rate of a worker, and then the latency of the same requests at lower
// rates, with locks and without.
func (b *runner) latencies(ctx context.Context) error {
	b.progressf("latency: requests of %s on %s at a steady rate; each counts from when it was due",
		plural(usualNights, "night"), plural(manyResources, "resource"))
	rounds := make([]Rate, b.rounds)
	for round := range rounds {
		b.step("maximum rate, round %d of %d", round+1, b.rounds)
		rate, err := b.decideRequests(ctx, scenario{usualNights, load{resources: manyResources}, 1})
		if err != nil {
			return fmt.Errorf("maximum rate: %w", err)
		}
		rounds[round] = rate
	}
	full := medianRate(rounds, perSecond)
	for _, strategy := range strategies {
		if err := b.latenciesWith(ctx, strategy, full); err != nil {
			return fmt.Errorf("lock strategy %s: %w", strategy, err)
		}
	}
	return nil
}

// latenciesWith measures the latency at all loads with a lock strategy.
func (b *runner) latenciesWith(ctx context.Context, strategy string, full float64) (err error) {
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1, "HOLDFAST_LOCK_STRATEGY="+strategy); err != nil {
		return err
	}
	for _, percent := range loads {
		rate := full * float64(percent) / 100
		if percent == 0 {
			rate = steadyRate
		}
		b.step("latency at %.0f/s, lock strategy %s", rate, strategy)
		figure, err := s.steady(ctx, rate)
		if err != nil {
			return fmt.Errorf("at %.0f/s: %w", rate, err)
		}
		figure.Percent, figure.Full, figure.Strategy = percent, full, strategy
		b.report.Latencies = append(b.report.Latencies, figure)
	}
	return nil
}

// newHistogram returns a histogram of times from a microsecond to ten minutes, with three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)
}

// record adds a time, at least a microsecond. Other timeouts keep it below ten minutes.
func record(h *hdrhistogram.Histogram, took time.Duration) {
	_ = h.RecordValue(max(took.Microseconds(), 1))
}

// steady publishes requests at a steady rate, independent of the answers. The latency of a request
// counts from the time when it was due, so it includes delays of the publisher (coordinated omission:
// G. Tene, How NOT to Measure Latency, 2015).
func (s *cluster) steady(ctx context.Context, rate float64) (figure Latency, err error) {
	warm := int(rate * s.warmFor.Seconds()) // the first requests, which do not count
	number := int(rate*s.latencyFor.Seconds()) + 1
	requests := make([]*nats.Msg, warm+number)
	d, err := s.dialogue()
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	times, sent := newHistogram(), newHistogram()
	var due func(n int) time.Time
	left, all := len(requests), make(chan struct{})
	for n := range requests {
		if requests[n], err = s.request(n, load{resources: manyResources}, usualNights); err != nil {
			return Latency{}, err
		}
		d.onAnswer(requests[n], func([]byte) {
			if n >= warm {
				record(times, time.Since(due(n)))
			}
			if left--; left == 0 {
				close(all)
			}
		})
	}
	due = evenly(time.Now().Add(10*beat), rate)
	before := s.processorTimes(s.workers)
	err = pace(ctx, len(requests), due, func(n int) error {
		if n >= warm {
			record(sent, time.Since(due(n)))
		}
		return s.publish(requests[n])
	})
	if err == nil {
		err = s.published(ctx)
	}
	if err != nil {
		return Latency{}, err
	}
	select {
	case <-all:
	case <-time.After(answerWithin):
		return Latency{}, errors.Join(s.alive(),
			fmt.Errorf("not all of %d outcomes came within %s of the last request", len(requests), answerWithin))
	case <-ctx.Done():
		return Latency{}, context.Cause(ctx)
	}
	used := s.processorTimes(s.workers).since(before)
	s.answered += len(requests)
	figure = Latency{
		PerSecond: rate, Number: number, Quantiles: newQuantiles(times), Sent: newQuantiles(sent),
		ProcessorMicros: used.each(len(requests)),
	}
	return figure, s.tally(ctx, map[string]int{holds.EventHoldCreated: len(requests)})
}
