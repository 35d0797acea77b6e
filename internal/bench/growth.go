package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// growth measures the cost of one more hold at growing numbers of live holds.
func (b *runner) growth(ctx context.Context) (err error) {
	b.progressf("growth: cost of one more hold of %s on %s",
		plural(usualNights, "night"), plural(manyResources, "resource"))
	s, done, err := b.stocked(ctx, manyResources)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := s.start(ctx, 1, "HOLDFAST_HOLD_TTL=2h", "HOLDFAST_HOLD_TTL_MAX=2h"); err != nil {
		return err
	}
	empty, err := s.usage(ctx)
	if err != nil {
		return err
	}
	for _, size := range s.liveHolds {
		b.step("growth to %s", plural(size, "live hold"))
		if _, err := s.grow(ctx, size-s.answered); err != nil {
			return err
		}
		before, err := s.usage(ctx)
		if err != nil {
			return err
		}
		kinds, err := s.bytesByKind(ctx)
		if err != nil {
			return err
		}
		rate, err := s.grow(ctx, s.moreHolds)
		if err != nil {
			return err
		}
		after, err := s.usage(ctx)
		if err != nil {
			return err
		}
		more := float64(s.moreHolds)
		figure := Scaling{
			Live: size, Rate: rate,
			RedisBytes: float64(before.redis-empty.redis) / float64(size), RedisTotal: before.redis,
			WireIn: float64(after.received-before.received) / more, WireOut: float64(after.sent-before.sent) / more,
			Parts: eachHold(kinds, before.redis-empty.redis, size), EventBytes: after.event,
			OutcomeBytes: after.outcome, WorkerBytes: before.worker, WorkerEmpty: empty.worker,
		}
		b.report.Scaling = append(b.report.Scaling, figure)
	}
	return s.tally(ctx, map[string]int{holds.EventHoldCreated: s.answered})
}

// grow places a number of holds, and returns the rate.
func (s *cluster) grow(ctx context.Context, number int) (Rate, error) {
	if err := s.queue(ctx, number, load{resources: manyResources}, usualNights); err != nil {
		return Rate{}, err
	}
	return s.resume(ctx, number, events.ConsumerRequests)
}

// measuredKeys is the number of keys of each kind whose memory bytesByKind asks for.
const measuredKeys = 2000

// bytesByKind returns the memory of the keys of the namespace, by kind: the word after the partition, for
// example "hold" of ns:{7}:r00001:hold:<id>. It asks for the memory of the first keys of each kind that
// a scan finds, and multiplies by their number: keys of a kind are about the same size.
func (s *cluster) bytesByKind(ctx context.Context) (map[string]float64, error) {
	number, sample := make(map[string]int), make(map[string][]*redis.IntCmd)
	var cursor uint64
	for {
		keys, next, err := s.redis.Scan(ctx, cursor, string(s.ns)+":*", scanBatch).Result()
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		pipe := s.redis.Pipeline()
		for _, key := range keys {
			kind := kindOf(key)
			if number[kind]++; len(sample[kind]) < measuredKeys {
				sample[kind] = append(sample[kind], pipe.MemoryUsage(ctx, key, 0))
			}
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) { // Nil: the key has gone
			return nil, fmt.Errorf("redis: %w", err)
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	bytes := make(map[string]float64)
	for kind, sizes := range sample {
		sum := int64(0)
		for _, size := range sizes {
			sum += size.Val()
		}
		bytes[kind] = float64(sum) / float64(len(sizes)) * float64(number[kind])
	}
	return bytes, nil
}

// eachHold returns the bytes of each hold by kind of key. What Redis uses beyond its keys (its table of
// keys, buffers, fragments of memory) is the kind "other".
func eachHold(bytes map[string]float64, total int64, holds int) map[string]float64 {
	parts, rest := make(map[string]float64, len(bytes)+1), float64(total)
	for kind, size := range bytes {
		parts[kind] = size / float64(holds)
		rest -= size
	}
	parts["other"] = max(0, rest) / float64(holds)
	return parts
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
	u.worker = procKilobytes(fmt.Sprintf("/proc/%d/status", s.workers[0].PID()), "VmRSS")
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

// kindOf returns the kind of a key of a resource, "partition" for a key of a partition.
func kindOf(key string) string {
	words := strings.SplitN(key, ":", 5)
	if len(words) < 4 {
		return "partition"
	}
	return words[3]
}
