package locking_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// sentHook counts the commands that a client sends.
type sentHook struct{ sent *atomic.Int64 }

func (sentHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k sentHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		k.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (sentHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// newSkippingRedlock starts lock servers, and returns a locker that does not ask one again that has hung.
func newSkippingRedlock(t *testing.T) (k harness, servers []*stack.Stack, l *locking.Locker) {
	t.Helper()
	k, servers = newServers(t)
	r := locking.NewRedlock(k.client, k.servers, locking.FixedLease(8*time.Second))
	r.SkipHungFor(time.Hour)
	return k, servers, newLocker(t, r, locking.Options{})
}

// TestRedlock_ServersHang_AskedNowAndThen lets a minority of the servers hang. They are asked once, and then not again for a
// while. When the next one hangs it is asked each time, because only a majority can lock.
func TestRedlock_ServersHang_AskedNowAndThen(t *testing.T) {
	t.Parallel()
	k, servers, l := newSkippingRedlock(t)
	mustUnlock(t, l, mustLock(t, l, k.keySet("a", "b"))) // all are connected
	sent := make([]atomic.Int64, len(k.servers))
	for i, server := range k.servers {
		server.AddHook(sentHook{&sent[i]}) // behind those of the locks
	}
	const minority, rounds = redlockServers / 2, 3
	for _, server := range servers[:minority] {
		hang(t, server)
	}
	for range rounds {
		mustUnlock(t, l, mustLock(t, l, k.keySet("a", "b")))
	}
	for i := range sent {
		if n := sent[i].Load(); i < minority && n != 1 || i >= minority && n < 4*rounds {
			t.Errorf("server %d was sent %d commands", i, n)
		}
	}
	hang(t, servers[minority])
	before := sent[minority].Load()
	for range rounds {
		if _, err := l.Lock(t.Context(), "", long, k.keySet("a")); !errors.Is(err, locking.ErrNoQuorum) {
			t.Errorf("with a majority that hangs: %v", err)
		}
	}
	if n := sent[minority].Load() - before; n < rounds {
		t.Errorf("the server without which there is no majority was asked %d times, want %d at least", n, rounds)
	}
}

// TestRedlock_OneServerLate_AskedOnce locks some keys while one server answers each time within its timeout, but so late that all
// keys of a long stay would take longer than the lease. The server is not asked for each of them.
func TestRedlock_OneServerLate_AskedOnce(t *testing.T) {
	t.Parallel()
	k := newHarness(t, subjects[0])
	var late *stacktest.Proxy
	for i := range redlockServers {
		url := stacktest.StartRedis(t).RedisURL
		if i == 0 {
			url, late = stacktest.ProxyTo(t, url)
		}
		k.servers = append(k.servers, newClient(t, url))
	}
	names := []string{"a", "b", "c", "d"}
	const share = 500 * time.Millisecond // of the lease, for each key
	r := locking.NewRedlock(k.client, k.servers, locking.FixedLease(time.Duration(4*len(names))*share))
	r.SetTimeoutMin(long)
	l := newLocker(t, r, locking.Options{})
	mustUnlock(t, l, mustLock(t, l, k.keySet(names...))) // all are connected
	r.SkipHungFor(time.Hour)
	var sent atomic.Int64
	k.servers[0].AddHook(sentHook{&sent}) // behind that of the locks
	late.Set(stacktest.Downstream, stacktest.Toxics{Delay: 2 * share})
	mustLock(t, l, k.keySet(names...))
	if n := sent.Load(); n != 1 {
		t.Errorf("the late server was sent %d commands for %d keys", n, len(names))
	}
}

// TestRedlock_MinorityDown_LateServerIsAsked stops a minority of the servers. When another one answers late, it is asked
// again at once: without it there is no majority.
func TestRedlock_MinorityDown_LateServerIsAsked(t *testing.T) {
	t.Parallel()
	k, servers, l := newSkippingRedlock(t)
	const minority = redlockServers / 2
	for _, server := range servers[:minority] {
		stacktest.Must(t, server.Close())
	}
	mustUnlock(t, l, mustLock(t, l, k.keySet("a")))
	resume := hang(t, servers[minority])
	_, err := l.Lock(t.Context(), "", long, k.keySet("b"))
	resume()
	if !errors.Is(err, locking.ErrNoQuorum) {
		t.Errorf("without a majority: %v", err)
	}
	mustUnlock(t, l, mustLock(t, l, k.keySet("c")))
}
