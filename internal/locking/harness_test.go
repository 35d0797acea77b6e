package locking_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

// TestMain also runs this program as the holder in
// TestStrategy_HolderPausedPastLease_WorkIsRefused.
func TestMain(m *testing.M) {
	if os.Getenv(holderStrategy) != "" {
		os.Exit(holder())
	}
	redis.SetLogger(silentLogger{})
	locking.SetCleanUpTimeout(long) // on a busy machine a release may take seconds, and what it leaves blocks for a minute
	stacktest.Main(m)
}

// silentLogger suppresses messages of go-redis about servers that tests stop.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}

// subject is a strategy under test.
type subject struct {
	name            string
	exclusive       bool // no other owner gets the keys until they are released
	refusesLateWork bool // late work is refused
	servers         int  // lock servers, in addition to the one that runs the work
	make            func(k harness, lease time.Duration) locking.Strategy
}

const redlockServers = 5

var subjects = []subject{
	{"range", true, true, 0, func(k harness, lease time.Duration) locking.Strategy {
		return locking.NewRange(k.client, locking.RangeOptions{Lease: locking.FixedLease(lease), FenceBase: fenceBase})
	}},
	{"fair", true, true, 0, func(k harness, lease time.Duration) locking.Strategy {
		return locking.NewRange(k.client, locking.RangeOptions{Lease: locking.FixedLease(lease), FenceBase: fenceBase,
			Fair: true})
	}},
	{"redlock", true, true, redlockServers, func(k harness, lease time.Duration) locking.Strategy {
		return locking.NewRedlock(k.client, k.servers, locking.FixedLease(lease))
	}},
	{"optimistic", false, true, 0, func(k harness, _ time.Duration) locking.Strategy {
		return locking.NewOptimistic(k.client)
	}},
	{"none", false, false, 0, func(k harness, _ time.Duration) locking.Strategy {
		return locking.NewNone(k.client)
	}},
}

// bases replaces the sequence in Postgres.
var bases atomic.Int64

func fenceBase(context.Context) (int64, error) { return bases.Add(1), nil }

// harness contains the keys of a test and the servers that have them.
type harness struct {
	client  *redis.Client
	servers []redis.UniversalClient // of Redlock
	prefix  string
}

// newHarness returns keys on the shared servers, with new clients.
func newHarness(t testing.TB, s subject) harness {
	t.Helper()
	k := harness{client: newClient(t, stacktest.Shared().RedisURL), prefix: stacktest.Namespace(t) + ":{1}:"}
	if s.servers > 0 {
		for _, url := range stacktest.LockServers(t, s.servers) {
			k.servers = append(k.servers, newClient(t, url))
		}
	}
	return k
}

func newClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	options := stacktest.RedisOptions(url)
	options.DialerRetries = 1 // a stopped server fails at once
	options.PoolSize = 64
	options.PoolTimeout = time.Minute // 200 contenders share a pool on a small machine
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// locker returns a locker on the servers of the keys.
func (k harness) locker(t testing.TB, s subject, lease time.Duration) *locking.Locker {
	t.Helper()
	return newLocker(t, s.make(k, lease), locking.Options{})
}

// newLocker returns a locker that is closed at the end of its test.
func newLocker(t testing.TB, s locking.Strategy, o locking.Options) *locking.Locker {
	t.Helper()
	l := locking.New(s, o)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// keySet returns a set of keys. Work under its lock changes the counter.
func (k harness) keySet(names ...string) locking.KeySet {
	return locking.KeySet{Names: names, Fence: k.prefix + "fence", Version: k.counter(), Scope: k.prefix}
}

func (k harness) counter() string { return k.prefix + "counter" }

// lockServers returns the servers that store locks.
func (k harness) lockServers() []redis.UniversalClient {
	if len(k.servers) == 0 {
		return []redis.UniversalClient{k.client}
	}
	return k.servers
}

// lockedKeys returns all locked keys on the servers that store locks.
func (k harness) lockedKeys(t testing.TB) (names []string) {
	t.Helper()
	if len(k.servers) == 0 {
		now := k.client.Time(context.Background()).Val().UnixMilli()
		for key, field := range k.client.HGetAll(context.Background(), k.prefix+"locks").Val() {
			if fieldEnd(t, key, field) > now {
				names = append(names, k.prefix+"lock:"+key)
			}
		}
		return names
	}
	for _, server := range k.servers {
		found, err := server.Keys(context.Background(), k.prefix+"lock:*").Result()
		stacktest.Must(t, err)
		names = append(names, found...)
	}
	return names
}

// wantNoLocks checks that no key is locked.
func (k harness) wantNoLocks(t testing.TB) {
	t.Helper()
	if left := k.lockedKeys(t); len(left) != 0 {
		t.Errorf("these keys are still locked: %q", left)
	}
}

// deleteLocks deletes locked keys, like a server that loses its data.
func (k harness) deleteLocks(t testing.TB, names ...string) {
	t.Helper()
	for _, server := range k.lockServers() {
		for _, name := range names {
			err := server.Del(context.Background(), k.keySet().Key(name)).Err()
			if len(k.servers) == 0 {
				err = server.HDel(context.Background(), k.prefix+"locks", name).Err()
			}
			stacktest.Must(t, err)
		}
	}
}

// stealKey makes another owner hold a key for a long time.
func (k harness) stealKey(t testing.TB, name string) {
	t.Helper()
	for _, server := range k.lockServers() {
		err := server.Set(context.Background(), k.keySet().Key(name), "thief:1.x", 0).Err()
		if len(k.servers) == 0 {
			until := server.Time(context.Background()).Val().Add(time.Hour).UnixMilli()
			err = server.HSet(context.Background(), k.prefix+"locks", name, fmt.Sprintf("thief:1.x %d", until)).Err()
		}
		stacktest.Must(t, err)
	}
}

// begin begins an acquisition, which is closed when the test ends.
func begin(t testing.TB, l *locking.Locker, owner string, wait time.Duration) *locking.Acquisition {
	t.Helper()
	a := l.NewAcquisition(owner, wait)
	t.Cleanup(func() { a.Close(context.Background()) })
	return a
}

// attempt makes one attempt of an acquisition to lock one set.
func attempt(t testing.TB, a *locking.Acquisition, set locking.KeySet) *locking.Lock {
	t.Helper()
	locks, err := a.TryLock(t.Context(), []locking.KeySet{set})
	stacktest.Must(t, err)
	return locks[0]
}

// try makes one attempt without waiting.
func try(t testing.TB, l *locking.Locker, owner string, set locking.KeySet) *locking.Lock {
	t.Helper()
	a := l.NewAcquisition(owner, 0)
	defer a.Close(t.Context())
	for {
		locks, err := a.TryLock(t.Context(), []locking.KeySet{set})
		if err == nil {
			return locks[0]
		}
		if !tooBusy(err) {
			t.Fatal(err)
		}
	}
}

// tooBusy reports whether lock servers answered too late, which can happen on a busy machine. A
// caller would retry.
func tooBusy(err error) bool { return errors.Is(err, locking.ErrNoQuorum) }

// long exceeds every wait of these tests, unless the code is broken.
const long = time.Minute

// lockEventually locks a set and retries while the servers are too busy.
func lockEventually(ctx context.Context, l *locking.Locker, set locking.KeySet) (*locking.Lock, error) {
	for {
		lock, err := l.Lock(ctx, "", long, set)
		if !tooBusy(err) {
			return lock, err
		}
	}
}

func mustLock(t testing.TB, l *locking.Locker, set locking.KeySet) *locking.Lock {
	t.Helper()
	lock, err := lockEventually(t.Context(), l, set)
	stacktest.Must(t, err)
	return lock
}

func mustUnlock(t testing.TB, l *locking.Locker, locks ...*locking.Lock) {
	t.Helper()
	stacktest.Must(t, l.Unlock(t.Context(), locks...))
}

// write works under a lock like place.lua: it checks the lock and writes in one step.
//
// KEYS 1 key to write  2 locks
// ARGV 1 value  2 token  3 read_at_ms  4 validity_ms  5 scope  then the locked keys
var write = lua.New("write", "", `
local keys = {unpack(ARGV, 6)}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] ~= '' then
  for _, field in ipairs(redis.call('HMGET', KEYS[2], unpack(keys))) do
    local value, until_ms = string.match(field or '', '^(%S+) (%d+)$')
    if value ~= ARGV[2] or tonumber(until_ms) <= now then return {'lock_lost'} end
  end
end
if now - ARGV[3] > tonumber(ARGV[4]) then return {'lock_lost'} end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then
  redis.call('HDEL', KEYS[2], unpack(keys))
  redis.pcall('SPUBLISH', ARGV[5] .. 'released', table.concat(keys, ' '))
end
return {'ok'}`)

// increment reads the counter under a held lock and writes it plus one.
func (k harness) increment(ctx context.Context, l *locking.Locker, lock *locking.Lock, between func()) (before int,
	status string, err error) {
	readAt, err := k.client.Time(ctx).Result()
	if err != nil {
		return 0, "", err
	}
	validity := lock.Validity()
	before, err = k.client.Get(ctx, k.counter()).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, "", err
	}
	between()
	call := &lua.Call{
		Script: write, Keys: []string{k.counter(), k.prefix + "locks"},
		Args: []any{before + 1, lock.Token, readAt.UnixMilli(), validity.Milliseconds(), lock.KeySet.Scope},
	}
	for _, name := range lock.KeySet.Names {
		call.Args = append(call.Args, name)
	}
	l.Exec(ctx, []*locking.Lock{lock}, []*lua.Call{call})
	return before, call.Status, call.Err
}

// contend locks a set and increments the counter under the lock. It retries until it succeeds.
func (k harness) contend(ctx context.Context, l *locking.Locker, set locking.KeySet,
	inside func() func()) (before int, err error) {
	for {
		// On a busy machine a failed attempt may leave a lock that blocks for as long as one wait.
		before, err := k.contendOnce(ctx, l, set, inside)
		if !errors.Is(err, locking.ErrTimeout) || len(k.servers) == 0 {
			return before, err
		}
	}
}

// contendOnce is like contend, with one acquisition.
func (k harness) contendOnce(ctx context.Context, l *locking.Locker, set locking.KeySet,
	inside func() func()) (before int, err error) {
	a := l.NewAcquisition("", long)
	defer a.Close(ctx)
	for {
		locks, err := a.TryLock(ctx, []locking.KeySet{set})
		if err != nil && !tooBusy(err) {
			return 0, err
		}
		if err == nil && locks[0].Held {
			leave := inside()
			before, status, err := k.increment(ctx, l, locks[0], leave)
			if err != nil || status == "ok" {
				return before, err
			}
		}
		if err := a.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// nights returns n keys. All sets that this function returns have at least one key in common.
func nights(n int) []string {
	const last = 40
	first := last/2 - rand.IntN(n)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("night-%02d", first+i)
	}
	rand.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// allKeys returns all keys of the test on all servers, except waited_for, which expires.
func (k harness) allKeys(t testing.TB) (names []string) {
	t.Helper()
	for _, server := range append([]redis.UniversalClient{k.client}, k.servers...) {
		found, err := server.Keys(context.Background(), k.prefix+"*").Result()
		stacktest.Must(t, err)
		slices.Sort(found)
		names = append(names, slices.DeleteFunc(found, func(key string) bool { return key == k.prefix+"waited_for" })...)
	}
	return names
}

// subscriberCount returns the number of connections that listen for releases.
func (k harness) subscriberCount(t testing.TB) int64 {
	t.Helper()
	return k.client.PubSubShardNumSub(t.Context(), k.prefix+"released").Val()[k.prefix+"released"]
}
