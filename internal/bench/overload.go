package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack"
)

const (
	overloadResources = 2000
	throttledShare    = 0.1                    // of one processor
	recoveredShare    = 0.8                    // of the normal rate: then it counts as normal again
	recoveredWindow   = 500 * time.Millisecond // in which that rate is seen
)

// overloadSteps returns the number of steps: the normal rate, and each number of workers on each server.
func (b *runner) overloadSteps() int { return 1 + len(b.throttled)*len(b.overloadWorkers) }

// overload measures how many holds workers decide while a server is throttled to a tenth of a processor and
// more requests wait than they can decide, and how soon they are as quick as before when that ends.
func (b *runner) overload(ctx context.Context) error {
	b.progressf("overload: a server has a tenth of a processor, and %s for %s wait",
		plural(b.waiting, "request"), plural(overloadResources, "resource"))
	what := load{resources: overloadResources}
	b.step("the normal rate")
	if b.stack == nil {
		return skipError("it throttles servers only that it has started")
	}
	normal, err := b.decideRequests(ctx, scenario{usualNights, what, 1})
	if err != nil {
		return fmt.Errorf("the normal rate: %w", err)
	}
	for _, server := range b.throttled {
		for _, workers := range b.overloadWorkers {
			b.step("%s throttled, %s", server, plural(workers, "worker"))
			figure, err := b.overloaded(ctx, server, workers, normal.PerSecond)
			if err != nil {
				return fmt.Errorf("%s throttled, %s: %w", server, plural(workers, "worker"), err)
			}
			b.report.Overloads = append(b.report.Overloads, figure)
		}
	}
	return nil
}

// overloaded measures an overload of a server with a number of workers.
func (b *runner) overloaded(
	ctx context.Context, server string, workers int, normal float64,
) (figure Overload, err error) {
	s, done, err := b.stocked(ctx, overloadResources)
	if err != nil {
		return Overload{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.queue(ctx, b.waiting, load{resources: overloadResources}, usualNights); err != nil {
		return Overload{}, err
	}
	if err := s.start(ctx, workers); err != nil {
		return Overload{}, err
	}
	pids := []int{b.stack.RedisPID()}
	if server == processPostgres {
		pids = family(b.stack.PostgresPID())
	}
	lift, err := throttle(throttledShare, pids...)
	if err != nil {
		return Overload{}, err
	}
	lifted := false
	defer func() {
		if !lifted {
			err = errors.Join(err, lift())
		}
	}()
	figure = Overload{Server: server, Workers: workers, Normal: normal, Seconds: b.overloadFor.Seconds()}
	from, err := s.endPause(ctx, events.ConsumerRequests)
	if err != nil {
		return Overload{}, err
	}
	all := func(_ time.Time, sum int) bool { return sum >= b.waiting }
	end, decided, err := s.watchRate(ctx, from.Add(b.overloadFor), all)
	if err != nil {
		return Overload{}, err
	}
	figure.PerSecond = float64(decided) / end.Sub(from).Seconds()
	lifted = true
	if err := lift(); err != nil {
		return Overload{}, err
	}
	if figure.BackSeconds, err = s.recovered(ctx, end, normal); err != nil {
		return Overload{}, err
	}
	if _, err := s.awaitAnswers(ctx, b.waiting); err != nil {
		return Overload{}, err
	}
	if figure.Attempts, err = s.attempts(ctx, b.waiting); err != nil {
		return Overload{}, err
	}
	return figure, s.tally(ctx, map[string]int{holds.EventHoldCreated: b.waiting})
}

// recovered waits until outcomes are stored at the normal rate, or all requests are decided, and returns how
// many seconds after end that began.
func (s *cluster) recovered(ctx context.Context, end time.Time, normal float64) (float64, error) {
	type point struct {
		at  time.Time
		sum int
	}
	var window []point
	back := end
	_, _, err := s.watchRate(ctx, end.Add(stallWithin), func(at time.Time, sum int) bool {
		window = append(window, point{at, sum})
		for len(window) > 1 && at.Sub(window[1].at) >= recoveredWindow {
			window = window[1:]
		}
		first := window[0]
		back = first.at
		took := at.Sub(first.at)
		return sum >= s.waiting ||
			took >= recoveredWindow && float64(sum-first.sum) >= recoveredShare*normal*took.Seconds()
	})
	return max(0, back.Sub(end).Seconds()), err
}

// watchRate polls the number of outcomes until a time by the clock of NATS, or until enough returns true.
// It returns the time and the number at the end.
func (s *cluster) watchRate(
	ctx context.Context, until time.Time, enough func(at time.Time, sum int) bool,
) (at time.Time, sum int, err error) {
	return at, sum, stack.Poll(ctx, pollInterval, func() (bool, error) {
		info, err := s.out(ctx)
		if err = errors.Join(err, s.alive()); err != nil {
			return false, err
		}
		at, sum = info.TimeStamp, int(info.State.LastSeq)-s.answered
		return !at.Before(until) || enough(at, sum), nil
	})
}

// attempts returns how often an event was delivered, on average.
func (s *cluster) attempts(ctx context.Context, number int) (float64, error) {
	in, err := s.js.Stream(ctx, s.ns.InStream())
	if err != nil {
		return 0, err
	}
	delivered := uint64(0)
	consumers := in.ListConsumers(ctx)
	for c := range consumers.Info() {
		delivered += c.Delivered.Consumer
	}
	if err := consumers.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return 0, err
	}
	return float64(delivered) / float64(number), nil
}
