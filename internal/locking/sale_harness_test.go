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

// seller is a way to sell one unit of each slot of a sale. Of two that sell at the same time, each
// must see what the other has sold.
type seller interface {
	// sell reports whether there was room.
	sell(ctx context.Context) (sold bool, err error)
}

// sale is what all ways do: read the counters of its slots, look for room, write the counters
// with one more. The counters are the fields of one hash.
type sale struct {
	client   *redis.Client
	prefix   string   // begins all keys, and puts them into one hash slot
	slots    []string // ascending
	capacity int64    // of each slot
	// between is told where the sale is, so that a test can make it stop there.
	between func(step string)
}

// The steps that between is told of.
const (
	stepBlocked = "blocked" // somebody else has a lock: about to wait
	stepSet     = "set"     // a lock is set, its expiry is not
	stepRead    = "read"    // the counters are read, not written
	stepWritten = "written" // they are written, no lock is released
	stepOwned   = "owned"   // a lock was found to be one's own, and is about to be deleted
	stepRefused = "refused" // the write was refused: about to begin again
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

// read reads the counters, and reports whether all of them have room.
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

// parseCounts reads counters of which one that is not there is 0.
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

// oneMore returns the fields and values of counters with one more unit sold of each.
func (s sale) oneMore(counts []int64) []any {
	pairs := make([]any, 0, 2*len(s.slots))
	for i, slot := range s.slots {
		pairs = append(pairs, slot, counts[i]+1)
	}
	return pairs
}

// readAndWrite sells, in two round trips, with whatever lock its caller has.
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

// saleHarness is a sale on the shared Redis, and the count of what it costs.
type saleHarness struct {
	sale
	contenders int
	trips      atomic.Int64 // round trips to any server: one for a command, or a pipeline
	noQuorum   atomic.Int64 // tries that too few lock servers answered in time
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

// connect returns a client that is configured as the worker's, with a connection for each
// contender and some for those who need a second one.
func (m *saleHarness) connect(t testing.TB, url string) *redis.Client {
	t.Helper()
	const spare = 10
	options := stacktest.RedisOptions(url)
	options.PoolSize = m.contenders + spare
	options.PoolTimeout = time.Minute
	client := redis.NewClient(options)
	client.AddHook(tripCounter{&m.trips})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// oversold returns how many units were sold, of all slots together, that the counters do not
// know of: each of them can be sold once more.
func (m *saleHarness) oversold(t testing.TB, sold int64) (units int64) {
	t.Helper()
	counts, _, err := m.read(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for _, count := range counts {
		units += sold - count
	}
	return units
}

// tripCounter is a hook that counts round trips.
type tripCounter struct{ trips *atomic.Int64 }

// DialHook implements redis.Hook.
func (tripCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

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

// count counts a round trip that begins with a command, but for those that open a connection.
func (c tripCounter) count(first redis.Cmder) {
	if name := first.Name(); name != "hello" && name != "client" {
		c.trips.Add(1)
	}
}
