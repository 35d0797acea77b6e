package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// baselineBatch bounds the events that the baseline fetches at a time.
const baselineBatch = 256

// measureBaseline decides the same events as many teams would: event by event and night by night, with
// a lock, a read and a write in Redis for each night. It leaves out work that such a program needs too:
// Postgres, the wait for other holders of a lock, the rollback of a half-done event, the release of
// locks one by one, and the wait for the PubAck of the outcome before the ack of the event.
func (b *runner) measureBaseline(ctx context.Context, what scenario) (rate Rate, err error) {
	s, err := b.open(ctx)
	if err != nil {
		return Rate{}, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	err = s.preload(ctx, b.baseline, func(n int) (*nats.Msg, error) { return s.request(n, what.resources, what.nights) })
	if err != nil {
		return Rate{}, err
	}
	consumer, err := s.js.Consumer(ctx, s.ns.InStream(), events.ConsumerRequests)
	if err != nil {
		return Rate{}, err
	}
	conn := s.redis.Conn()
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.Ping(ctx).Err(); err != nil {
		return Rate{}, err
	}
	before := b.processorTimes(nil)
	info, err := s.out(ctx)
	if err != nil {
		return Rate{}, err
	}
	for done := 0; done < b.baseline; {
		batch, err := consumer.Fetch(min(baselineBatch, b.baseline-done))
		if err != nil {
			return Rate{}, err
		}
		fetched := 0
		for m := range batch.Messages() {
			if err := s.decideNightByNight(ctx, conn, m); err != nil {
				return Rate{}, err
			}
			fetched++
		}
		if err := batch.Error(); err != nil {
			return Rate{}, err
		}
		if fetched == 0 {
			return Rate{}, fmt.Errorf("the stream had %d of %d events", done, b.baseline)
		}
		done += fetched
	}
	last, err := s.awaitAnswers(ctx, b.baseline)
	if err != nil {
		return Rate{}, err
	}
	rate, err = newRate(b.baseline, last.Sub(info.TimeStamp), b.processorTimes(nil).since(before))
	return rate, errors.Join(err,
		s.tally(ctx, map[string]int{holds.EventHoldCreated: b.baseline}), s.tallyNights(ctx, what))
}

// tallyNights returns an error unless the baseline has counted every night of every event.
func (s *cluster) tallyNights(ctx context.Context, what scenario) error {
	pipe := s.redis.Pipeline()
	counts := make([]*redis.StringSliceCmd, what.resources)
	for r := range counts {
		counts[r] = pipe.HVals(ctx, s.nightByNight("r"+strconv.Itoa(r))+"counts")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	sum := 0
	for _, values := range counts {
		for _, count := range values.Val() {
			n, err := strconv.Atoi(count)
			if err != nil {
				return err
			}
			sum += n
		}
	}
	if sum != s.baseline*what.nights {
		return fmt.Errorf("%d nights counted, want %d", sum, s.baseline*what.nights)
	}
	return nil
}

// nightByNight returns the prefix of the baseline's keys of a resource.
func (s *cluster) nightByNight(resource string) string { return string(s.ns) + ":" + resource + ":" }

func (s *cluster) decideNightByNight(ctx context.Context, conn *redis.Conn, m jetstream.Msg) error {
	var event struct {
		ID   string                      `json:"id"`
		Data events.BookingRequestedData `json:"data"`
	}
	if err := json.Unmarshal(m.Data(), &event); err != nil {
		return err
	}
	from, err := time.Parse(time.DateOnly, event.Data.CheckIn)
	if err != nil {
		return err
	}
	prefix := s.nightByNight(event.Data.ResourceID)
	var locks []string
	for night := from; night.Format(time.DateOnly) < event.Data.CheckOut; night = night.AddDate(0, 0, 1) {
		name := night.Format(time.DateOnly)
		lock := prefix + "lock:" + name
		if free, err := conn.SetNX(ctx, lock, event.ID, time.Minute).Result(); err != nil {
			return err
		} else if !free {
			return fmt.Errorf("lock %s is taken", lock)
		}
		locks = append(locks, lock)
		count, err := conn.HGet(ctx, prefix+"counts", name).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if count+1 > unlimitedCapacity {
			return fmt.Errorf("%s is full", name)
		}
		if err := conn.HSet(ctx, prefix+"counts", name, count+1).Err(); err != nil {
			return err
		}
	}
	if err := conn.Set(ctx, prefix+"hold:"+event.ID, m.Data(), time.Hour).Err(); err != nil {
		return err
	}
	if err := conn.Del(ctx, locks...).Err(); err != nil {
		return err
	}
	outcome := nats.NewMsg(s.ns.Out(holds.EventHoldCreated, event.Data.ResourceID))
	outcome.Data = m.Data()
	if err := s.publish(outcome); err != nil {
		return err
	}
	return m.Ack()
}
