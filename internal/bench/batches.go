package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// batchSizes are the numbers of requests that are published together.
var batchSizes = []int{1, 8, 64}

// batches measures what a hold costs the processors when a worker gets a number of requests for different
// resources at once, and the next ones only when all are answered.
func (b *runner) batches(ctx context.Context) (err error) {
	b.progressf("batches: requests of %s for different resources arrive together", plural(usualNights, "night"))
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1); err != nil {
		return err
	}
	d, err := s.dialogue()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	for _, size := range batchSizes {
		b.step("batches of %d", size)
		figure, err := s.batch(ctx, d, size)
		if err != nil {
			return fmt.Errorf("batches of %d: %w", size, err)
		}
		b.report.Batches = append(b.report.Batches, figure)
	}
	return nil
}

// batch measures batches of a size for batchFor.
func (s *cluster) batch(ctx context.Context, d *dialogue, size int) (Batch, error) {
	from := s.answered
	before, began := s.processorTimes(s.workers), time.Now()
	for time.Since(began) < s.batchFor {
		answers := make([]<-chan []byte, size)
		requests := make([]*nats.Msg, size)
		for i := range requests {
			m, err := s.request(i, load{manyResources, spreadAlone}, usualNights)
			if err != nil {
				return Batch{}, err
			}
			requests[i], answers[i] = m, d.expect(m)
		}
		for _, m := range requests {
			if err := s.nc.PublishMsg(m); err != nil {
				return Batch{}, fmt.Errorf("publish: %w", err)
			}
		}
		for _, answer := range answers {
			if _, err := s.await(ctx, answer); err != nil {
				return Batch{}, err
			}
		}
		s.answered += size
	}
	number := s.answered - from
	rate, err := newRate(number, time.Since(began), s.processorTimes(s.workers).since(before))
	if err != nil {
		return Batch{}, err
	}
	return Batch{Size: size, Rate: rate}, s.tally(ctx, map[string]int{holds.EventHoldCreated: number})
}
