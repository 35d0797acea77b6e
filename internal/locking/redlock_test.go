package locking_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

var redlock = subjects[2]

// newServers starts lock servers that a test may stop.
func newServers(t *testing.T) (k harness, servers []*stack.Stack) {
	t.Helper()
	k = newHarness(t, subjects[0])
	for range redlockServers {
		s := stacktest.StartRedis(t)
		servers, k.servers = append(servers, s), append(k.servers, newClient(t, s.RedisURL))
	}
	return k, servers
}

// hang stops a lock server with SIGSTOP until resume, or the end of the test.
func hang(t *testing.T, server *stack.Stack) (resume func()) {
	t.Helper()
	stacktest.Must(t, syscall.Kill(server.RedisPID(), syscall.SIGSTOP))
	resume = func() { stacktest.Must(t, syscall.Kill(server.RedisPID(), syscall.SIGCONT)) }
	t.Cleanup(resume)
	return resume
}

// TestRedlock_MajorityStopped_FailsAndLeavesNothing stops lock servers one after the other. Redlock
// works with a majority. Without one it fails at once and leaves nothing on the servers that still
// answer.
func TestRedlock_MajorityStopped_FailsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	k, servers := newServers(t)
	ctx := t.Context()
	l := k.locker(t, redlock, long)
	for stopped := range redlockServers/2 + 1 {
		lock := mustLock(t, l, k.keySet("a", "b", "c"))
		if other := try(t, l, "", k.keySet("b")); other.Held {
			t.Errorf("locked twice with %d servers stopped", stopped)
		}
		mustUnlock(t, l, lock)
		stacktest.Must(t, servers[stopped].Close())
	}
	if _, err := l.Lock(ctx, "", long, k.keySet("a", "b")); !errors.Is(err, locking.ErrNoQuorum) {
		t.Errorf("with three of five servers stopped: %v", err)
	}
	rest := k
	rest.servers = k.servers[redlockServers/2+1:]
	rest.wantNoLocks(t)
}

// TestRedlock_OneServerHangs_Locks stops a lock server with SIGSTOP: it neither answers nor refuses
// connections. The others are a majority.
func TestRedlock_OneServerHangs_Locks(t *testing.T) {
	t.Parallel()
	k, servers := newServers(t)
	hang(t, servers[0])
	l := k.locker(t, redlock, 8*time.Second)
	lock := mustLock(t, l, k.keySet("a"))
	if validity := lock.Validity(); validity <= 0 {
		t.Errorf("locked without validity: %v", validity)
	}
	mustUnlock(t, l, lock)
}

// TestRedlock_FastClocks_MajorityLosesLock lets the clock of one lock server run fast, so that it
// drops its keys before their lease expires. No other owner gets a majority, and the owner can
// still renew and release. With three such servers two owners can hold the lock. This is a known
// limit of Redlock, and the reason why the server that runs the work must refuse late work.
func TestRedlock_FastClocks_MajorityLosesLock(t *testing.T) {
	t.Parallel()
	k, _ := newServers(t)
	ctx := t.Context()
	l := k.locker(t, redlock, long)
	lock := mustLock(t, l, k.keySet("a", "b"))
	drop := func(server redis.UniversalClient) {
		stacktest.Must(t, server.Del(ctx, k.keySet().Key("a"), k.keySet().Key("b")).Err())
	}
	drop(k.servers[4])
	if other := try(t, l, "", k.keySet("b")); other.Held {
		t.Error("with one fast clock another owner gets the lock")
	}
	if err := l.Renew(ctx, lock); err != nil {
		t.Errorf("renew with one fast clock: %v", err)
	}
	drop(k.servers[3])
	drop(k.servers[2])
	if other := try(t, l, "", k.keySet("b")); !other.Held {
		t.Error("three servers have dropped the lock, but another owner does not get it")
	}
	if err := l.Unlock(ctx, lock); !errors.Is(err, locking.ErrLost) {
		t.Errorf("unlock a lock that a majority has dropped: %v", err)
	}
}

// slowServer delays one command until the test continues it.
type slowServer struct {
	stacktest.PassHook
	command string
	until   func()
}

func (s slowServer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		err := next(ctx, c)
		if c.Name() == s.command {
			s.until()
		}
		return err
	}
}

// TestRedlock_LeaseExpiresWhileLocking_Fails locks each key within its own lease, but the last one
// after the lease of the first has expired. The lock fails and leaves nothing.
func TestRedlock_LeaseExpiresWhileLocking_Fails(t *testing.T) {
	t.Parallel()
	k := newHarness(t, redlock)
	const lease = 3 * time.Second
	k.servers[0].(*redis.Client).AddHook(slowServer{command: "set", until: func() {
		began := time.Now()
		stacktest.Eventually(t, "most of the lease to pass", func() bool { return time.Since(began) > lease*6/10 })
	}})
	l := k.locker(t, redlock, lease)
	if lock := try(t, l, "", k.keySet("a", "b")); lock.Held {
		t.Errorf("held with a validity of %v", lock.Validity())
	}
	k.wantNoLocks(t)
}

// TestRedlock_CancelledWhileLocking_Releases cancels the caller during the locking: the keys that
// are already locked are released.
func TestRedlock_CancelledWhileLocking_Releases(t *testing.T) {
	t.Parallel()
	k := newHarness(t, redlock)
	ctx, cancel := context.WithCancel(t.Context())
	k.servers[0].(*redis.Client).AddHook(slowServer{command: "set", until: cancel})
	l := k.locker(t, redlock, long)
	if _, err := l.Lock(ctx, "", long, k.keySet("a", "b", "c")); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled attempt ended with %v", err)
	}
	k.wantNoLocks(t)
}
