package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

const (
	answerWithin  = 30 * time.Second // after the last request
	headerReplyTo = "Holdfast-Reply-To"
)

// loads are at which shares of what can be done latency is measured, in percent.
var loads = []int{10, 50, 80}

// latencies measures how long requests take that come at 10, 50 and 80 % of what a worker has just
// been seen to do with the same requests.
func (b *runner) latencies(ctx context.Context) error {
	b.progressf("latency: requests of %s on %s come at a steady rate; each counts from when it was due", plural(usualNights, "night"), plural(manyResources, "resource"))
	rounds := make([]Rate, b.rounds)
	for round := range rounds {
		b.step("what a worker can do, round %d of %d", round+1, b.rounds)
		rate, err := b.decideRequests(ctx, scenario{usualNights, manyResources, 1})
		if err != nil {
			return fmt.Errorf("what a worker can do: %w", err)
		}
		rounds[round] = rate
	}
	full := medianRate(rounds, perSecond)
	for _, percent := range loads {
		b.step("latency at %d %% of %.0f/s", percent, full)
		figure, err := b.steady(ctx, full*float64(percent)/100)
		if err != nil {
			return fmt.Errorf("at %d %%: %w", percent, err)
		}
		figure.Percent, figure.Full = percent, full
		b.report.Latencies = append(b.report.Latencies, figure)
		b.progressf("  %s", figure.line())
	}
	return nil
}

// newHistogram counts times from a microsecond to ten minutes, to three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)
}

// record counts a time, which is at least a microsecond and surely no ten minutes.
func record(h *hdrhistogram.Histogram, took time.Duration) {
	_ = h.RecordValue(max(took.Microseconds(), 1))
}

// steady publishes requests at a steady rate, each at its time, however late answers are. A request's
// time counts from when it should have been published: what kept the publisher is part of it (coordinated
// omission: G. Tene, How NOT to Measure Latency, 2015).
func (b *runner) steady(ctx context.Context, rate float64) (figure Latency, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, manyResources); err != nil {
		return Latency{}, err
	}
	if err := s.start(ctx, 1); err != nil {
		return Latency{}, err
	}
	warm := int(rate * b.warmFor.Seconds()) // requests that are not counted
	number := int(rate*b.latencyFor.Seconds()) + 1
	requests := make([]*nats.Msg, warm+number)
	inbox := s.nc.NewInbox() + "."
	for n := range requests {
		if requests[n], err = s.request(n, manyResources, usualNights); err != nil {
			return Latency{}, err
		}
		requests[n].Header.Set(headerReplyTo, inbox+strconv.Itoa(n))
	}
	times, sent := newHistogram(), newHistogram()
	due := evenly(time.Now().Add(10*beat), rate)
	answered, left := make([]bool, len(requests)), len(requests)
	all := make(chan struct{})
	// The client calls it for one answer after another.
	sub, err := s.nc.Subscribe(inbox+"*", func(m *nats.Msg) {
		now := time.Now()
		n, err := strconv.Atoi(strings.TrimPrefix(m.Subject, inbox))
		if err != nil || answered[n] { // an event that was delivered again is answered again
			return
		}
		answered[n] = true
		if n >= warm {
			record(times, now.Sub(due(n)))
		}
		if left--; left == 0 {
			close(all)
		}
	})
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
	if err := s.nc.Flush(); err != nil {
		return Latency{}, err
	}
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
		return Latency{}, errors.Join(s.alive(), fmt.Errorf("not all of %d outcomes came within %s of the last request", len(requests), answerWithin))
	case <-ctx.Done():
		return Latency{}, context.Cause(ctx)
	}
	used := s.processorTimes(s.workers).since(before)
	figure = Latency{PerSecond: rate, Number: number, Quantiles: newQuantiles(times), Sent: newQuantiles(sent), ProcessorMicros: used.each(len(requests))}
	return figure, s.tally(ctx, map[string]int{holds.EventHoldCreated: len(requests)})
}
