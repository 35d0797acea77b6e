package bench

import (
	"context"
	"errors"
	"time"
)

// idleAfter is how long a worker has been ready before its idle cost is measured.
const idleAfter = 3 * time.Second

// idle measures what a worker without work costs all processes, with a large inventory.
func (b *runner) idle(ctx context.Context) (err error) {
	b.step("an idle worker")
	b.progressf("idle: a worker without work, %s with %d nights each", plural(b.allResources, "resource"), calendar)
	if b.processorTimes(nil) == nil {
		return skipError("the CPU times of these servers are unknown")
	}
	s, done, err := b.stocked(ctx, b.allResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1); err != nil {
		return err
	}
	if err := pass(ctx, idleAfter); err != nil {
		return err
	}
	before, began := s.processorTimes(s.workers), time.Now()
	if err := pass(ctx, b.idleFor); err != nil {
		return err
	}
	took := time.Since(began)
	used := s.processorTimes(s.workers).since(before)
	delete(used, processBench)
	figure := Idle{Rows: b.allResources * calendar, Seconds: took.Seconds(), Percent: make(map[string]float64)}
	for name, t := range used {
		figure.Percent[name] = 100 * t.Seconds() / took.Seconds()
		figure.Sum += figure.Percent[name]
	}
	b.report.Idle = &figure
	return s.alive()
}

// pass waits for a time.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
