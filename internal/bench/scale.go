package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack"
)

const (
	scaleResources = 2000
	scaleShare     = 0.1             // of one processor, for each worker and each shard
	scaleWarm      = 8 * time.Second // under the quotas, before the measurement
)

func (b *runner) scaleSteps() int { return b.rounds * len(b.scaleWorkers) }

// scale measures how many holds some workers with as many shards of Redis decide, each with a tenth of a
// processor of its own, so that the processors of the machine are not the limit.
func (b *runner) scale(ctx context.Context) error {
	b.progressf("scale: requests for %s wait; each worker and each shard of Redis has a tenth of a processor",
		plural(scaleResources, "resource"))
	if b.stack == nil {
		return skipError("it starts shards of its own, beside its own NATS and Postgres")
	}
	figures := make([]ScaleOut, len(b.scaleWorkers))
	for round := range b.rounds {
		for i, workers := range b.scaleWorkers {
			b.step("%s and as many shards, round %d of %d", plural(workers, "worker"), round+1, b.rounds)
			rate, err := b.scaled(ctx, workers, &figures[i])
			if err != nil {
				return fmt.Errorf("%s and as many shards: %w", plural(workers, "worker"), err)
			}
			figures[i].Workers, figures[i].Rates = workers, append(figures[i].Rates, rate)
		}
	}
	for i := range figures {
		figures[i].sum(&figures[0])
	}
	b.report.ScaleOuts = figures
	return nil
}

// scaled measures a number of workers with as many shards. It adds to figure what is not a rate.
func (b *runner) scaled(ctx context.Context, workers int, figure *ScaleOut) (rate Rate, err error) {
	dir, removeDir, err := stack.TempDir(os.TempDir())
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	shards, err := stack.StartRedisCluster(ctx, dir, workers, 0)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, shards.Close()) }()
	onShards := "HOLDFAST_REDIS_URL=" + shards.URL()
	s, err := b.open(ctx, onShards)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, scaleResources); err != nil {
		return Rate{}, err
	}
	number := workers * b.scaleWaiting
	if err := s.queue(ctx, number, load{resources: scaleResources}, usualNights); err != nil {
		return Rate{}, err
	}
	if err := s.start(ctx, workers, onShards); err != nil {
		return Rate{}, err
	}
	pids := make([]int, 0, 2*workers)
	for i := range workers {
		pids = append(pids, s.workers[i].PID(), shards.Nodes[i].PID())
	}
	others := watchOthers()
	lift, err := throttleEach(scaleShare, pids)
	if err != nil {
		return Rate{}, err
	}
	rate, err = s.rateOnShards(ctx, number, shards)
	if err = errors.Join(err, lift()); err != nil {
		return Rate{}, err
	}
	figure.Others = max(figure.Others, others.busy()-rate.PerSecond*SumMicros(rate.Processor)/1e6)
	if _, err := s.awaitAnswers(ctx, number); err != nil {
		return Rate{}, err
	}
	attempts, err := s.attempts(ctx, number)
	if err != nil {
		return Rate{}, err
	}
	figure.Attempts = max(figure.Attempts, attempts)
	return rate, s.tally(ctx, map[string]int{holds.EventHoldCreated: number})
}

// rateOnShards lets the workers decide for scaleWarm and then measures for scaleFor, or until all requests
// are decided.
func (s *cluster) rateOnShards(ctx context.Context, number int, shards *stack.RedisCluster) (Rate, error) {
	from, err := s.endPause(ctx, events.ConsumerRequests)
	if err != nil {
		return Rate{}, err
	}
	all := func(_ time.Time, sum int) bool { return sum >= number }
	began, before, err := s.watchRate(ctx, from.Add(scaleWarm), all)
	if err != nil {
		return Rate{}, err
	}
	used := s.timesOnShards(shards)
	ended, after, err := s.watchRate(ctx, began.Add(s.scaleFor), all)
	if err != nil {
		return Rate{}, err
	}
	if after >= number {
		return Rate{}, fmt.Errorf("%s were decided before the measurement ended", plural(number, "request"))
	}
	return newRate(after-before, ended.Sub(began), s.timesOnShards(shards).since(used))
}

// timesOnShards is processorTimes with these shards in place of the Redis that the other parts use.
func (s *cluster) timesOnShards(shards *stack.RedisCluster) processorTimes {
	times := s.processorTimes(s.workers)
	if times == nil {
		return nil
	}
	times[processRedis] = 0
	for _, shard := range shards.Nodes {
		if p, err := readStat(shard.PID()); err == nil {
			times[processRedis] += p.own
		}
	}
	return times
}

// throttleEach bounds each process to a share of one processor; see throttle.
func throttleEach(share float64, pids []int) (lift func() error, err error) {
	var lifts []func() error
	lift = func() error {
		var errs []error
		for _, one := range lifts {
			errs = append(errs, one())
		}
		return errors.Join(errs...)
	}
	for _, pid := range pids {
		one, err := throttle(share, pid)
		if err != nil {
			return nil, errors.Join(err, lift())
		}
		lifts = append(lifts, one)
	}
	return lift, nil
}
