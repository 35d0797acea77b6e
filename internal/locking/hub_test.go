package locking_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// countsTries counts the attempts to lock that the server has run. One whose script it did not
// know, because another test flushed them, is not one.
type countsTries struct {
	redis.Hook
	n atomic.Int32
}

func (c *countsTries) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		for _, command := range commands {
			args := command.Args()
			locks := len(args) > 3 && strings.HasSuffix(fmt.Sprint(args[3]), "fence")
			if locks && !redis.HasErrorPrefix(command.Err(), "NOSCRIPT") {
				c.n.Add(1)
			}
		}
		return err
	}
}

func (*countsTries) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*countsTries) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// locked is what came of a Lock that was waited for elsewhere.
type locked struct {
	name string
	lock *locking.Lock
	err  error
}

// await waits for a lock elsewhere, and returns when the wait has begun.
func (k keys) await(t *testing.T, l *locking.Locker, name string, got chan<- locked, set locking.Set) {
	t.Helper()
	before := len(locking.Waiting(l, k.prefix))
	go func() {
		lock, err := l.Lock(context.Background(), "", long, set)
		got <- locked{name, lock, err}
	}()
	stacktest.Eventually(t, name+" to wait", func() bool { return len(locking.Waiting(l, k.prefix)) == before+1 })
}

// TestWokenByRelease has a waiter wait for a lock with a long lease: it hears of the release,
// and asks at most three times in all, before it listens, after that, and when it is woken.
func TestWokenByRelease(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			holder := k.locker(t, s, long)
			lock := mustLock(t, holder, k.set("a", "b", "c"))

			other := k // another process, so to say
			other.client = newClient(t, stacktest.Shared().RedisURL)
			tries := new(countsTries)
			other.client.AddHook(tries)
			l := other.locker(t, s, long)
			got := make(chan locked)
			k.await(t, l, "the waiter", got, k.set("c", "d"))
			mustUnlock(t, holder, lock)
			if r := <-got; r.err != nil {
				t.Fatal(r.err)
			}
			if n := tries.n.Load(); n > 3 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// TestReleasedMeanwhile releases a lock after somebody has tried to get it and before it waits:
// once before it listens, so that it cannot have heard, and once after that, heard by nobody who
// waits. Neither may cost it the lease of the lock that is gone.
func TestReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			l := k.locker(t, s, long)
			a, err := l.Begin("", long)
			if err != nil {
				t.Fatal(err)
			}
			defer a.End(t.Context())
			for round := range 3 {
				lock := try(t, l, "", k.set("a"))
				locks, err := a.TryLock(t.Context(), []locking.Set{k.set("a", "b")})
				if err != nil || locks[0].Held {
					t.Fatalf("round %d: %+v %v", round, locks[0], err)
				}
				before := locking.Heard(l, k.prefix)
				mustUnlock(t, l, lock)
				if round > 0 {
					stacktest.Eventually(t, "the release to be heard", func() bool { return locking.Heard(l, k.prefix) > before })
				}
				if err := a.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if locks, err = a.TryLock(t.Context(), []locking.Set{k.set("a", "b")}); err != nil || !locks[0].Held {
					t.Fatalf("round %d: the wait was over, and the lock was not had: %v", round, err)
				}
				mustUnlock(t, l, locks[0])
			}
		})
	}
}

// TestLateComerLinesUp has somebody come while another waits in the same process: it does not
// even ask the server, and is served after that one.
func TestLateComerLinesUp(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	tries := new(countsTries)
	k.client.AddHook(tries)
	l := k.locker(t, ranges, long)
	lock := mustLock(t, l, k.set("a"))
	got := make(chan locked, 2)
	k.await(t, l, "first", got, k.set("a", "b"))
	before := tries.n.Load()
	k.await(t, l, "second", got, k.set("a", "c"))
	if n := tries.n.Load(); n != before {
		t.Errorf("it asked %d times", n-before)
	}
	for _, want := range []string{"first", "second"} {
		mustUnlock(t, l, lock)
		r := <-got
		if r.err != nil || r.name != want {
			t.Fatalf("%s was served in place of the %s: %v", r.name, want, r.err)
		}
		lock = r.lock
	}
	mustUnlock(t, l, lock)
}

// TestOlderIsServedFirst wakes a waiter while an older one, who has tried before the release, is
// about to wait: the younger lines up behind it, and tells it.
func TestOlderIsServedFirst(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	l := k.locker(t, ranges, long)
	ctx := t.Context()
	tryAgain := func(a *locking.Acquisition) bool {
		t.Helper()
		locks, err := a.TryLock(ctx, []locking.Set{k.set("a")})
		if err != nil {
			t.Fatal(err)
		}
		return locks[0].Held
	}
	lock := mustLock(t, l, k.set("a"))
	var both [2]*locking.Acquisition
	for i := range both {
		var err error
		if both[i], err = l.Begin("", long); err != nil {
			t.Fatal(err)
		}
		defer both[i].End(ctx)
		tryAgain(both[i])
		if err := both[i].Wait(ctx); err != nil { // until it listens
			t.Fatal(err)
		}
		if tryAgain(both[i]) {
			t.Fatal("locked twice")
		}
	}
	older, younger := both[0], both[1]
	waited := make(chan error)
	wait := func(a *locking.Acquisition) {
		go func() { waited <- a.Wait(ctx) }()
		stacktest.Eventually(t, "the wait to begin", func() bool { return len(locking.Waiting(l, k.prefix)) == 1 })
	}
	wait(younger)
	mustUnlock(t, l, lock)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	wait(older)
	if tryAgain(younger) {
		t.Error("the younger has passed the older, who was in line before it tried")
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if !tryAgain(older) {
		t.Error("the older was told, and did not get the lock")
	}
}

// TestMissedReleaseIsPassedOn releases a key when two have tried for it and none waits: the first
// who comes to wait tries again instead, and when that does not help it, tells the other.
func TestMissedReleaseIsPassedOn(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	l := k.locker(t, ranges, long)
	ctx := t.Context()
	a, b := mustLock(t, l, k.set("a")), mustLock(t, l, k.set("b"))
	begin := func(names ...string) (acquisition *locking.Acquisition, tryAgain func() bool) {
		acquisition, err := l.Begin("", long)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { acquisition.End(context.Background()) })
		tryAgain = func() bool {
			locks, err := acquisition.TryLock(ctx, []locking.Set{k.set(names...)})
			if err != nil {
				t.Fatal(err)
			}
			return locks[0].Held
		}
		tryAgain()
		if err := acquisition.Wait(ctx); err != nil { // until it listens
			t.Fatal(err)
		}
		tryAgain()
		return acquisition, tryAgain
	}
	both, tryBoth := begin("a", "b")
	one, tryOne := begin("a")
	before := locking.Heard(l, k.prefix)
	mustUnlock(t, l, a)
	stacktest.Eventually(t, "the release to be heard", func() bool { return locking.Heard(l, k.prefix) > before })
	if err := both.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() { waited <- one.Wait(ctx) }()
	stacktest.Eventually(t, "the wait to begin", func() bool { return len(locking.Waiting(l, k.prefix)) == 1 })
	if tryBoth() {
		t.Fatal("b is locked twice")
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if !tryOne() {
		t.Error("a is free, and was not had")
	}
	mustUnlock(t, l, b)
}

// TestWordIsPassedOn wakes a waiter that finds another key in its way: who waits behind it for
// the key that was released must hear of it.
func TestWordIsPassedOn(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	l := k.locker(t, ranges, long)
	a, b := mustLock(t, l, k.set("a")), mustLock(t, l, k.set("b"))
	got := make(chan locked, 2)
	k.await(t, l, "both", got, k.set("a", "b"))
	k.await(t, l, "one", got, k.set("a"))
	mustUnlock(t, l, a)
	first := <-got
	if first.name != "one" || first.err != nil {
		t.Fatalf("%s was locked first (%v), while b is locked", first.name, first.err)
	}
	mustUnlock(t, l, first.lock, b)
	if second := <-got; second.err != nil {
		t.Error(second.err)
	}
}

// TestManyWaiters has 200 wait for one lock at once, one attempt of each before the lock is
// released: all get it, one after the other, though each release wakes only one.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 200
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			l := k.locker(t, s, long)
			lock := mustLock(t, l, k.set("a", "b"))
			var all sync.WaitGroup
			for i := range waiters {
				all.Go(func() {
					set := k.set("a", "b")
					if i%2 == 0 {
						set = k.set("b", "c")
					}
					lock, err := l.Lock(t.Context(), "", long, set)
					if err == nil {
						err = l.Unlock(t.Context(), lock)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			stacktest.Eventually(t, "all to wait", func() bool { return len(locking.Waiting(l, k.prefix)) == waiters })
			mustUnlock(t, l, lock)
			all.Wait()
		})
	}
}

// TestFirstWaiterLeaves has the first waiter of a process leave before the server was asked for
// its channel.
func TestFirstWaiterLeaves(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	lock := mustLock(t, k.locker(t, ranges, long), k.set("a"))
	for range 50 {
		l := k.locker(t, ranges, long)
		a, err := l.Begin("", long)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := a.TryLock(ctx, []locking.Set{k.set("a")}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := a.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled wait ended by %v", err)
		}
		a.End(ctx)
	}
	mustUnlock(t, k.locker(t, ranges, long), lock)
}

// TestCutWhileSubscribing has the connection cut just when a second channel is asked for on it: it
// comes back with both.
func TestCutWhileSubscribing(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	other := k
	other.prefix += "other:"
	var cut atomic.Bool
	options := *k.client.Options()
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &cutting{conn, &cut}, err
	}
	k.client = redis.NewClient(&options)
	defer func() { _ = k.client.Close() }()
	l := k.locker(t, ranges, long)
	one, two := mustLock(t, l, k.set("a")), mustLock(t, l, other.set("a"))

	var all sync.WaitGroup
	for i, waits := range []keys{k, other} {
		cut.Store(i == 1)
		all.Go(func() { mustUnlock(t, l, mustLock(t, l, waits.set("a"))) })
		stacktest.Eventually(t, "the release to be listened for", func() bool { return len(locking.Waiting(l, waits.prefix)) == 1 })
	}
	if cut.Load() {
		t.Error("nothing was cut")
	}
	mustUnlock(t, l, one, two)
	all.Wait()
}

// cutting is a connection that is cut once, by the next subscription that is written to it.
type cutting struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cutting) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("ssubscribe")) && c.cut.CompareAndSwap(true, false) {
		_ = c.Close()
	}
	return c.Conn.Write(b)
}

// TestMayNotPublish unlocks as a user whom the server's ACL lets use no channel: the lock is
// released all the same.
func TestMayNotPublish(t *testing.T) {
	t.Parallel()
	k := newKeys(t, ranges)
	user := strings.NewReplacer(":", "", "{", "", "}", "").Replace(k.prefix)
	if err := k.client.Do(t.Context(), "acl", "setuser", user, "on", ">secret", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.client.Do(context.Background(), "acl", "deluser", user) })
	options := *k.client.Options()
	options.Username, options.Password = user, "secret"
	k.client = redis.NewClient(&options)
	defer func() { _ = k.client.Close() }()
	l := k.locker(t, ranges, long)
	lock := mustLock(t, l, k.set("a"))
	if waits := try(t, l, "", k.set("a")); waits.Held { // else nothing is to be published
		t.Error("locked twice")
	}
	mustUnlock(t, l, lock)
	if left := k.left(t); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestLinesUnderFire has many wait for sets that overlap, in several scopes at once and in three
// processes, so to say. Many give up at some moment, and the server cuts all subscriptions again and
// again. Nobody waits in vain.
func TestLinesUnderFire(t *testing.T) {
	t.Parallel()
	const waiters, rounds, scopes, names = 30, 25, 3, 4
	own := stacktest.StartRedis(t).RedisURL // others would not like to be cut
	for _, s := range []subject{ranges, fair} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			k := newKeys(t, s)
			k.client = newClient(t, own)
			lockers := []*locking.Locker{k.locker(t, s, long), k.locker(t, s, long), k.locker(t, s, long)}
			var all sync.WaitGroup
			for i := range waiters {
				all.Go(func() {
					for round := range rounds {
						if i == 0 && round%5 == 0 {
							if err := k.client.ClientKillByFilter(t.Context(), "type", "pubsub").Err(); err != nil {
								t.Error(err)
							}
						}
						if err := k.lockScopes(t.Context(), lockers[i%len(lockers)], scopes, names); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			if left := k.left(t); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// lockScopes locks some keys in each of several scopes, each as soon as it can be had, and gives up
// at random.
func (k keys) lockScopes(ctx context.Context, l *locking.Locker, scopes, names int) error {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if rand.IntN(4) == 0 {
		timer := time.AfterFunc(rand.N(10*time.Millisecond), giveUp)
		defer timer.Stop()
	}
	var sets []locking.Set
	for i := range scopes {
		scope := k
		scope.prefix += fmt.Sprintf("scope-%d:", i)
		var some []string
		for range 1 + rand.IntN(names) {
			some = append(some, fmt.Sprint(rand.IntN(names)))
		}
		set := scope.set(some...)
		set.Fence = k.set().Fence
		sets = append(sets, set)
	}
	a, err := l.Begin("", long)
	if err != nil {
		return err
	}
	defer a.End(ctx)
	for len(sets) > 0 {
		locks, err := a.TryLock(ctx, sets)
		if err == nil {
			var held []*locking.Lock
			sets = sets[:0]
			for _, lock := range locks {
				if lock.Held {
					held = append(held, lock)
				} else {
					sets = append(sets, lock.Set)
				}
			}
			err = l.Unlock(context.WithoutCancel(ctx), held...)
		}
		if err == nil && len(sets) > 0 {
			err = a.Wait(ctx)
		}
		if ctx.Err() != nil {
			return nil // it has given up
		}
		if err != nil {
			return err
		}
	}
	return nil
}
