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

// scaling measures the cost of one more hold at growing numbers of live holds.
func (b *runner) scaling(ctx context.Context) (err error) {
	b.progressf("growth: cost of one more hold of %s on %s",
		plural(usualNights, "night"), plural(manyResources, "resource"))
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

// grow places holds until there are to instead of from of them, and returns the rate.
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

// usage has sizes in bytes.
type usage struct {
	redis          int64   // memory of Redis
	received, sent int64   // by Redis since its start
	event, outcome float64 // average of the stored messages
	worker         int64   // resident memory; 0 if unknown
}

func (s *cluster) usage(ctx context.Context) (u usage, err error) {
	info, err := s.redis.InfoMap(ctx, "memory", "stats").Result()
	if err != nil {
		return usage{}, fmt.Errorf("redis: %w", err)
	}
	for _, field := range []struct {
		section, name string
		to            *int64
	}{
		{"Memory", "used_memory", &u.redis},
		{"Stats", "total_net_input_bytes", &u.received}, {"Stats", "total_net_output_bytes", &u.sent},
	} {
		if *field.to, err = strconv.ParseInt(info[field.section][field.name], 10, 64); err != nil {
			return usage{}, fmt.Errorf("redis: parse %s: %w", field.name, err)
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

// residentBytes returns the resident memory of a process, 0 if it is unknown.
func residentBytes(pid int) int64 {
	return procKilobytes("/proc/"+strconv.Itoa(pid)+"/status", "VmRSS")
}
