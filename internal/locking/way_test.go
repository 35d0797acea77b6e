package locking_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

// wayKind is a way with how to set it up. open is called once, and what it returns once for
// each contender.
type wayKind struct {
	name string
	// right says that nothing that happens to its locks makes it oversell.
	right bool
	open  func(t testing.TB, m *market) func(sale) way
}

// The names of the ways that are compared with each other.
const (
	wayRange   = "range"
	wayCareful = "one after the other"
)

// wayKinds are all ways: first those that teams write themselves.
var wayKinds = []wayKind{
	{"no lock", false, handWritten(func(s sale) way { return baselineUnlocked{s} })},
	{"SETNX, plain DEL", false, handWritten(func(s sale) way { return baselinePlainDelete{s} })},
	{"SETNX, then EXPIRE", false, handWritten(func(s sale) way { return baselineLateExpire{s} })},
	{"SET NX, GET then DEL", false, handWritten(func(s sale) way { return baselineGetThenDelete{s} })},
	{wayCareful, false, handWritten(func(s sale) way { return baselineCareful{s} })},
	{"redsync a slot", false, handWritten(func(s sale) way { return newBaselineRedsync(s) })},
	{wayRange, true, wayOf(rangeStrategy(false))},
	{"range, fair", true, wayOf(rangeStrategy(true))},
	{"redlock", true, wayOf(redlockStrategy)},
	{"optimistic", true, wayOf(func(_ testing.TB, m *market, _ locking.Lease) locking.Strategy {
		return locking.NewOptimistic(m.client)
	})},
	{"none", false, wayOf(func(_ testing.TB, m *market, _ locking.Lease) locking.Strategy {
		return locking.NewNone(m.client)
	})},
}

// wayNamed returns the way of a name.
func wayNamed(t testing.TB, name string) wayKind {
	t.Helper()
	for _, kind := range wayKinds {
		if kind.name == name {
			return kind
		}
	}
	t.Fatalf("no way is called %q", name)
	return wayKind{}
}

func handWritten(open func(sale) way) func(testing.TB, *market) func(sale) way {
	return func(testing.TB, *market) func(sale) way { return open }
}

type newStrategy func(testing.TB, *market, locking.Lease) locking.Strategy

func wayOf(strategy newStrategy) func(testing.TB, *market) func(sale) way {
	return wayLeased(strategy, locking.FixedLease(saleLease))
}

func wayLeased(strategy newStrategy, lease locking.Lease) func(testing.TB, *market) func(sale) way {
	return func(t testing.TB, m *market) func(sale) way {
		l := newLocker(t, strategy(t, m, lease), locking.Options{})
		return func(s sale) way { return wayLocked{s, l, &m.noQuorum} }
	}
}

func rangeStrategy(fair bool) newStrategy {
	return func(_ testing.TB, m *market, lease locking.Lease) locking.Strategy {
		return locking.NewRange(m.client, locking.RangeOptions{Lease: lease, FenceBase: countedBases(), Fair: fair})
	}
}

func redlockStrategy(t testing.TB, m *market, lease locking.Lease) locking.Strategy {
	var servers []redis.UniversalClient
	for _, url := range stacktest.LockServers(t, 5) {
		servers = append(servers, m.connect(t, url))
	}
	return locking.NewRedlock(m.client, servers, lease)
}

// countedBases returns a FenceBase that counts.
func countedBases() locking.FenceBase {
	var last atomic.Int64
	return func(context.Context) (int64, error) { return last.Add(1), nil }
}

// saleScript sells what was read under a lock, and releases the lock, as holds/lua/place.lua does.
var saleScript = lua.New("sale", "", `
-- KEYS  1 counts  2 locks
-- ARGV  1 token  2 scope  3 read_at_ms  4 read_age_ms  5 n  then n keys that are locked
--       then pairs of a field and its new value
local token, keys = ARGV[1], {unpack(ARGV, 6, 5 + ARGV[5])}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local age = now - ARGV[3]
if age < 0 or age > tonumber(ARGV[4]) then return {'lock_lost'} end
if token ~= '' then
  for _, field in ipairs(redis.call('HMGET', KEYS[2], unpack(keys))) do
    local value, until_ms = string.match(field or '', '^(%S+) (%d+)$')
    if value ~= token or tonumber(until_ms) <= now then return {'lock_lost'} end
  end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 6 + ARGV[5]))
if token ~= '' then
  redis.call('HDEL', KEYS[2], unpack(keys))
  redis.call('SPUBLISH', ARGV[2] .. 'released', table.concat(keys, ' '))
end
return {'ok'}`)

// saleWait is how long one acquisition waits.
const saleWait = 5 * time.Second

// wayLocked sells under a lock of this package.
type wayLocked struct {
	sale
	locker   *locking.Locker
	noQuorum *atomic.Int64
}

func (w wayLocked) sell(ctx context.Context) (bool, error) {
	for {
		sold, err := w.acquireAndSell(ctx)
		if !errors.Is(err, locking.ErrTimeout) {
			return sold, err
		}
	}
}

func (w wayLocked) acquireAndSell(ctx context.Context) (bool, error) {
	a, err := w.locker.Begin("", saleWait)
	if err != nil {
		return false, err
	}
	defer a.End(ctx)
	// The counters are what work under the lock must not miss a change of.
	set := locking.Set{Keys: w.locks(), Fence: w.prefix + "fence", Version: w.counts(), Scope: w.prefix}
	for {
		locks, err := a.TryLock(ctx, []locking.Set{set})
		switch {
		case tooBusy(err):
			w.noQuorum.Add(1)
		case err != nil:
			return false, err
		case !locks[0].Held:
			w.at(stepBlocked)
		default:
			sold, refused, err := w.sellUnder(ctx, locks[0])
			if err != nil || !refused {
				return sold, err
			}
			w.at(stepRefused)
		}
		if err := a.Wait(ctx); err != nil {
			return false, err
		}
	}
}

func (w wayLocked) sellUnder(ctx context.Context, lock *locking.Lock) (sold, refused bool, err error) {
	pipe := w.client.Pipeline()
	clock, values := pipe.Time(ctx), pipe.HMGet(ctx, w.counts(), w.slots...)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, false, err
	}
	trust := lock.Trust()
	counts, err := parseCounts(values.Val())
	if err != nil {
		return false, false, err
	}
	if !w.room(counts) {
		if err := w.locker.Unlock(ctx, lock); !errors.Is(err, locking.ErrLost) && !tooBusy(err) {
			return false, false, err
		}
		return false, false, nil
	}
	w.at(stepRead)
	call := &lua.Call{
		Script: saleScript, Keys: []string{w.counts(), w.prefix + "locks"},
		Args: []any{lock.Token, w.prefix, clock.Val().UnixMilli(), trust.Milliseconds(), len(w.locks())},
	}
	for _, name := range lock.Set.Names() {
		call.Args = append(call.Args, name)
	}
	call.Args = append(call.Args, w.oneMore(counts)...)
	w.locker.Commit(ctx, []*locking.Lock{lock}, []*lua.Call{call})
	if call.Err == nil && (call.Status == locking.StatusLockLost || call.Status == locking.StatusConflict) {
		_ = w.locker.Unlock(ctx, lock) // what is left of it
		return false, true, nil
	}
	return call.Err == nil, false, call.Expect(0)
}
