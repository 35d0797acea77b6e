package locking_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// seller sells one unit of each slot of a sale. Each of two concurrent sellers must see what the
// other has sold.
type seller interface {
	// sell reports whether there was room.
	sell(ctx context.Context) (sold bool, err error)
}

// sale contains the steps that all methods share: read the counters of the slots, check for room,
// write the counters plus one. The counters are the fields of one hash.
type sale struct {
	client   *redis.Client
	prefix   string   // of all keys; puts them into one hash slot
	slots    []string // ascending
	capacity int64    // of each slot
	// between is called with each step, so that a test can stop the sale there.
	between func(step string)
}

// The steps for which between is called.
const (
	stepBlocked = "blocked" // another owner has a lock; about to wait
	stepSet     = "set"     // a lock is set, its expiry is not yet
	stepRead    = "read"    // the counters are read, not yet written
	stepWritten = "written" // the counters are written, no lock is released yet
	stepOwned   = "owned"   // the own lock was checked and is about to be deleted
)

func (s sale) at(step string) {
	if s.between != nil {
		s.between(step)
	}
}

func (s sale) counts() string          { return s.prefix + "counts" }
func (s sale) lock(slot string) string { return s.prefix + "lock:" + slot }

func (s sale) locks() []string {
	keys := make([]string, len(s.slots))
	for i, slot := range s.slots {
		keys[i] = s.lock(slot)
	}
	return keys
}

// read reads the counters and reports whether all of them have room.
func (s sale) read(ctx context.Context) (counts []int64, room bool, err error) {
	values, err := s.client.HMGet(ctx, s.counts(), s.slots...).Result()
	if err != nil {
		return nil, false, err
	}
	if counts, err = parseCounts(values); err != nil {
		return nil, false, err
	}
	return counts, s.room(counts), nil
}

func (s sale) room(counts []int64) bool { return slices.Max(counts) < s.capacity }

// parseCounts parses counters. A missing counter is 0.
func parseCounts(values []any) ([]int64, error) {
	counts := make([]int64, len(values))
	for i, value := range values {
		word, ok := value.(string)
		if !ok {
			continue
		}
		var err error
		if counts[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return nil, fmt.Errorf("counter %d: %w", i, err)
		}
	}
	return counts, nil
}

// oneMore returns the fields and values of the counters plus one.
func (s sale) oneMore(counts []int64) []any {
	pairs := make([]any, 0, 2*len(s.slots))
	for i, slot := range s.slots {
		pairs = append(pairs, slot, counts[i]+1)
	}
	return pairs
}

// readAndWrite sells in two round trips, under any lock that its caller has.
func (s sale) readAndWrite(ctx context.Context) (sold bool, err error) {
	counts, room, err := s.read(ctx)
	if err != nil || !room {
		return false, err
	}
	s.at(stepRead)
	if err := s.client.HSet(ctx, s.counts(), s.oneMore(counts)...).Err(); err != nil {
		return false, err
	}
	s.at(stepWritten)
	return true, nil
}

// saleHarness is a sale on the shared Redis. It counts round trips.
type saleHarness struct {
	sale
	contenders int
	trips      atomic.Int64 // round trips to any server: one for each command or pipeline
	noQuorum   atomic.Int64 // attempts for which too few lock servers answered in time
}

func newSaleHarness(t testing.TB, slots int, capacity int64, contenders int) *saleHarness {
	t.Helper()
	m := &saleHarness{contenders: contenders}
	m.sale = sale{
		client: m.connect(t, stacktest.Shared().RedisURL), prefix: "{" + stacktest.Namespace(t) + "}:", capacity: capacity,
	}
	for i := range slots {
		m.slots = append(m.slots, fmt.Sprintf("2027-01-%02d", i+1))
	}
	return m
}

// connect returns a client that is configured like the worker's. It has a connection for each
// contender and some for those that need a second one.
func (m *saleHarness) connect(t testing.TB, url string) *redis.Client {
	t.Helper()
	const spare = 10
	options := stacktest.RedisOptions(url)
	options.PoolSize = m.contenders + spare
	options.PoolTimeout = time.Minute
	client := redis.NewClient(options)
	client.AddHook(tripCounter{trips: &m.trips})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// oversold returns the number of units, of all slots together, that were sold but not counted. Each
// of them can be sold again.
func (m *saleHarness) oversold(t testing.TB, sold int64) (units int64) {
	t.Helper()
	counts, _, err := m.read(context.WithoutCancel(t.Context()))
	stacktest.Must(t, err)
	for _, count := range counts {
		units += sold - count
	}
	return units
}

// tripCounter is a hook that counts round trips.
type tripCounter struct {
	stacktest.PassHook
	trips *atomic.Int64
}

// ProcessHook implements redis.Hook.
func (c tripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		c.count(command)
		return next(ctx, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c tripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		c.count(commands[0])
		return next(ctx, commands)
	}
}

// count counts the round trip of a command, unless the command opens a connection.
func (c tripCounter) count(first redis.Cmder) {
	if name := first.Name(); name != "hello" && name != "client" {
		c.trips.Add(1)
	}
}
