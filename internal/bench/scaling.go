package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// scaling measures what a live hold costs while there are more and more of them.
func (b *runner) scaling(ctx context.Context) (err error) {
	b.progressf("growth: what one more hold of %s on %s costs", plural(usualNights, "night"), plural(manyResources, "resource"))
	s, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.setInventory(ctx, manyResources); err != nil {
		return err
	}
	if err := s.start(ctx, 1, "HOLDFAST_HOLD_TTL=2h", "HOLDFAST_HOLD_TTL_MAX=2h"); err != nil {
		return err
	}
	empty, err := s.usage(ctx)
	if err != nil {
		return err
	}
	live := 0
	for _, size := range s.liveHolds {
		b.step("growth to %s", plural(size, "live hold"))
		if _, err := s.grow(ctx, live, size); err != nil {
			return err
		}
		before, err := s.usage(ctx)
		if err != nil {
			return err
		}
		rate, err := s.grow(ctx, size, size+s.moreHolds)
		if err != nil {
			return err
		}
		after, err := s.usage(ctx)
		if err != nil {
			return err
		}
		live = size + s.moreHolds
		more := float64(s.moreHolds)
		figure := Scaling{
			Live: size, Rate: rate,
			RedisBytes: float64(before.redis-empty.redis) / float64(size), RedisTotal: before.redis,
			WireIn: float64(after.received-before.received) / more, WireOut: float64(after.sent-before.sent) / more,
			EventBytes: after.event, OutcomeBytes: after.outcome, WorkerBytes: before.worker, WorkerEmpty: empty.worker,
		}
		b.report.Scaling = append(b.report.Scaling, figure)
		b.progressf("  %s", figure.line())
	}
	return s.tally(ctx, map[string]int{holds.EventHoldCreated: live})
}

// grow has holds placed until there are so many.
func (s *cluster) grow(ctx context.Context, from, to int) (Rate, error) {
	if err := s.pause(ctx, events.ConsumerRequests); err != nil {
		return Rate{}, err
	}
	err := s.preload(ctx, to-from, func(n int) (*nats.Msg, error) { return s.request(from+n, manyResources, usualNights) })
	if err != nil {
		return Rate{}, err
	}
	return s.resume(ctx, to-from, to, events.ConsumerRequests)
}

// usage is memory and bytes on the wire.
type usage struct {
	redis, received, sent int64   // of Redis: memory, and bytes on the wire
	event, outcome        float64 // as stored, each
	worker                int64   // resident memory, 0 = not known
}

func (s *cluster) usage(ctx context.Context) (u usage, err error) {
	info, err := s.redis.InfoMap(ctx, "memory", "stats").Result()
	if err != nil {
		return usage{}, fmt.Errorf("redis: %w", err)
	}
	for _, wanted := range []struct {
		section, name string
		to            *int64
	}{
		{"Memory", "used_memory", &u.redis}, {"Stats", "total_net_input_bytes", &u.received}, {"Stats", "total_net_output_bytes", &u.sent},
	} {
		if *wanted.to, err = strconv.ParseInt(info[wanted.section][wanted.name], 10, 64); err != nil {
			return usage{}, fmt.Errorf("redis tells no %s: %w", wanted.name, err)
		}
	}
	u.worker = residentBytes(s.workers[0].cmd.Process.Pid)
	for stream, each := range map[string]*float64{s.ns.InStream(): &u.event, s.ns.OutStream(): &u.outcome} {
		found, err := s.js.Stream(ctx, stream)
		if err != nil {
			return usage{}, fmt.Errorf("stream %s: %w", stream, err)
		}
		if state := found.CachedInfo().State; state.Msgs > 0 {
			*each = float64(state.Bytes) / float64(state.Msgs)
		}
	}
	return u, nil
}

// residentBytes is the resident memory of a process, 0 where that cannot be known.
func residentBytes(pid int) int64 {
	return procKilobytes("/proc/"+strconv.Itoa(pid)+"/status", "VmRSS")
}
