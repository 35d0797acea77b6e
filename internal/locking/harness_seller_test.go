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

// sellerKind is a method of selling with its setup. open is called once. It returns a function that
// is called once for each contender.
type sellerKind struct {
	name string
	// correct says that no failure of its locks makes the method oversell.
	correct bool
	open    func(t testing.TB, m *saleHarness) func(sale) seller
}

// The names of the methods that are compared with each other.
const (
	sellerRange   = "range"
	sellerCareful = "one after the other"
)

// sellerKinds contains all methods, first those that teams write themselves.
var sellerKinds = []sellerKind{
	{"no lock", false, handWritten(func(s sale) seller { return baselineUnlocked{s} })},
	{"SETNX, plain DEL", false, handWritten(func(s sale) seller { return baselinePlainDelete{s} })},
	{"SETNX, then EXPIRE", false, handWritten(func(s sale) seller { return baselineLateExpire{s} })},
	{"SET NX, GET then DEL", false, handWritten(func(s sale) seller { return baselineGetThenDelete{s} })},
	{sellerCareful, false, handWritten(func(s sale) seller { return baselineCareful{s} })},
	{"redsync a slot", false, handWritten(func(s sale) seller { return newBaselineRedsync(s) })},
	{sellerRange, true, sellerOf(rangeStrategy(false))},
	{"range, fair", true, sellerOf(rangeStrategy(true))},
	{"redlock", true, sellerOf(redlockStrategy)},
	{"optimistic", true, sellerOf(func(_ testing.TB, m *saleHarness) locking.Strategy {
		return locking.NewOptimistic(m.client)
	})},
	{"none", false, sellerOf(func(_ testing.TB, m *saleHarness) locking.Strategy {
		return locking.NewNone(m.client)
	})},
}

// sellerNamed returns the method with a name.
func sellerNamed(t testing.TB, name string) sellerKind {
	t.Helper()
	for _, kind := range sellerKinds {
		if kind.name == name {
			return kind
		}
	}
	t.Fatalf("no method is called %q", name)
	return sellerKind{}
}

func handWritten(open func(sale) seller) func(testing.TB, *saleHarness) func(sale) seller {
	return func(testing.TB, *saleHarness) func(sale) seller { return open }
}

type newStrategy func(testing.TB, *saleHarness) locking.Strategy

func sellerOf(strategy newStrategy) func(testing.TB, *saleHarness) func(sale) seller {
	return func(t testing.TB, m *saleHarness) func(sale) seller {
		l := newLocker(t, strategy(t, m), locking.Options{})
		return func(s sale) seller { return lockedSeller{s, l, &m.noQuorum} }
	}
}

func rangeStrategy(fair bool) newStrategy {
	return func(_ testing.TB, m *saleHarness) locking.Strategy {
		return locking.NewRange(m.client, locking.RangeOptions{
			Lease: locking.FixedLease(saleLease), FenceBase: fenceBase, Fair: fair,
		})
	}
}

func redlockStrategy(t testing.TB, m *saleHarness) locking.Strategy {
	var servers []redis.UniversalClient
	for _, url := range stacktest.LockServers(t, 5) {
		servers = append(servers, m.connect(t, url))
	}
	return locking.NewRedlock(m.client, servers, locking.FixedLease(saleLease))
}

// saleScript sells under a lock and releases the lock, like holds/lua/place.lua.
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

// saleWait is the maximum wait of one acquisition.
const saleWait = 5 * time.Second

// lockedSeller sells under a lock of this package.
type lockedSeller struct {
	sale
	locker   *locking.Locker
	noQuorum *atomic.Int64
}

func (w lockedSeller) sell(ctx context.Context) (bool, error) {
	for {
		sold, err := w.acquireAndSell(ctx)
		if !errors.Is(err, locking.ErrTimeout) {
			return sold, err
		}
	}
}

func (w lockedSeller) acquireAndSell(ctx context.Context) (bool, error) {
	a := w.locker.NewAcquisition("", saleWait)
	defer a.Close(ctx)
	// Optimistic must watch the counters, because the work must not miss a change of them.
	set := locking.KeySet{Names: w.slots, Fence: w.prefix + "fence", Version: w.counts(), Scope: w.prefix}
	for {
		locks, err := a.TryLock(ctx, []locking.KeySet{set})
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
		}
		if err := a.Wait(ctx); err != nil {
			return false, err
		}
	}
}

func (w lockedSeller) sellUnder(ctx context.Context, lock *locking.Lock) (sold, refused bool, err error) {
	pipe := w.client.Pipeline()
	clock, values := pipe.Time(ctx), pipe.HMGet(ctx, w.counts(), w.slots...)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, false, err
	}
	validity := lock.Validity()
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
		Args: []any{lock.Token, w.prefix, clock.Val().UnixMilli(), validity.Milliseconds(), len(w.slots)},
	}
	for _, name := range lock.KeySet.Names {
		call.Args = append(call.Args, name)
	}
	call.Args = append(call.Args, w.oneMore(counts)...)
	w.locker.Exec(ctx, []*locking.Lock{lock}, []*lua.Call{call})
	if call.Err == nil && (call.Status == locking.StatusLockLost || call.Status == locking.StatusConflict) {
		_ = w.locker.Unlock(ctx, lock) // the keys that it still holds
		return false, true, nil
	}
	return call.Err == nil, false, call.Expect(0)
}
