package locking_test

import (
	"bytes"
	"cmp"
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

// tryCounter counts the attempts to lock that the server has run. It does not count a call of an
// unknown script, which other tests may have flushed.
type tryCounter struct {
	stacktest.PassHook
	n atomic.Int32
}

func (c *tryCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
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

// lockResult is the result of Lock in another goroutine.
type lockResult struct {
	name string
	lock *locking.Lock
	err  error
}

// served returns the next result of a Lock that must succeed.
func served(t *testing.T, got <-chan lockResult) lockResult {
	t.Helper()
	r := <-got
	if r.err != nil {
		t.Fatalf("%s was not served: %v", cmp.Or(r.name, "the waiter"), r.err)
	}
	return r
}

// wantServed releases a lock for which several wait: they are served in order, each when the one before it has released.
func wantServed(t *testing.T, l *locking.Locker, lock *locking.Lock, got <-chan lockResult, order ...string) {
	t.Helper()
	for _, want := range order {
		mustUnlock(t, l, lock)
		r := served(t, got)
		if r.name != want {
			t.Fatalf("%s was served before %s", r.name, want)
		}
		lock = r.lock
	}
	mustUnlock(t, l, lock)
}

// startWaiter calls Lock in another goroutine and returns when it waits, or when got has a result.
func (k harness) startWaiter(t *testing.T, l *locking.Locker, name string, got chan<- lockResult, set locking.KeySet) {
	t.Helper()
	before := len(locking.Waiting(l, k.prefix))
	go func() {
		lock, err := l.Lock(context.Background(), "", long, set)
		got <- lockResult{name, lock, err}
	}()
	stacktest.Eventually(t, name+" to wait", func() bool {
		return len(locking.Waiting(l, k.prefix)) == before+1 || len(got) > 0
	})
}

// TestWait_LockReleased_WakesWaiter waits for a lock with a long lease. A release wakes the waiter.
// It makes at most three attempts: before it subscribes, after that, and when it is woken.
func TestWait_LockReleased_WakesWaiter(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		holder := k.locker(t, s, long)
		lock := mustLock(t, holder, k.keySet("a", "b", "c"))

		other := k // stands for another process
		other.client = newClient(t, stacktest.Shared().RedisURL)
		tries := new(tryCounter)
		other.client.AddHook(tries)
		l := other.locker(t, s, long)
		got := make(chan lockResult)
		k.startWaiter(t, l, "the waiter", got, k.keySet("c", "d"))
		mustUnlock(t, holder, lock)
		served(t, got)
		if n := tries.n.Load(); n > 3 {
			t.Errorf("%d attempts", n)
		}
	})
}

// TestWait_ReleasedBeforeWait_ReturnsAtOnce releases a lock between an attempt and its wait: once
// before the waiter has subscribed, so that it cannot receive the release, and once after, when no
// waiter waits. In both cases the waiter must not wait for the end of the released lease.
func TestWait_ReleasedBeforeWait_ReturnsAtOnce(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		a := begin(t, l, "", long)
		for round := range 3 {
			lock := try(t, l, "", k.keySet("a"))
			if blocked := attempt(t, a, k.keySet("a", "b")); blocked.Held {
				t.Fatalf("round %d: %+v", round, blocked)
			}
			before := locking.Received(l, k.prefix)
			mustUnlock(t, l, lock)
			if round > 0 {
				stacktest.Eventually(t, "the release to be received", func() bool {
					return locking.Received(l, k.prefix) > before
				})
			}
			stacktest.Must(t, a.Wait(t.Context()))
			if lock = attempt(t, a, k.keySet("a", "b")); !lock.Held {
				t.Fatalf("round %d: the wait returned, but the lock was not free", round)
			}
			mustUnlock(t, l, lock)
		}
	})
}

// TestWait_OlderWaiterExists_QueuesWithoutServer starts an acquisition while another one of the
// same process waits. It sends no attempt to the server and is served after the older one.
func TestWait_OlderWaiterExists_QueuesWithoutServer(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	tries := new(tryCounter)
	k.client.AddHook(tries)
	l := k.locker(t, ranges, long)
	lock := mustLock(t, l, k.keySet("a"))
	got := make(chan lockResult, 2)
	k.startWaiter(t, l, "first", got, k.keySet("a", "b"))
	before := tries.n.Load()
	k.startWaiter(t, l, "second", got, k.keySet("a", "c"))
	if n := tries.n.Load(); n != before {
		t.Errorf("it made %d attempts", n-before)
	}
	wantServed(t, l, lock, got, "first", "second")
}

// TestWait_OlderAcquisition_IsServedFirst wakes a waiter when an older acquisition, which has tried
// before the release, is about to wait. The younger one queues behind it and notifies it.
func TestWait_OlderAcquisition_IsServedFirst(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	l := k.locker(t, ranges, long)
	ctx := t.Context()
	tryAgain := func(a *locking.Acquisition) bool { return attempt(t, a, k.keySet("a")).Held }
	lock := mustLock(t, l, k.keySet("a"))
	var both [2]*locking.Acquisition
	for i := range both {
		both[i] = begin(t, l, "", long)
		tryAgain(both[i])
		stacktest.Must(t, both[i].Wait(ctx)) // until it has subscribed
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
	stacktest.Must(t, <-waited)
	wait(older)
	if tryAgain(younger) {
		t.Error("the younger one has overtaken the older one, which was in the line before it tried")
	}
	stacktest.Must(t, <-waited)
	if !tryAgain(older) {
		t.Error("the older one was notified but did not get the lock")
	}
}

// TestWait_ReleaseMissed_NotifiesNextWaiter releases a key when two acquisitions have tried for it
// and none waits. The first one to wait tries again instead. If it is then blocked by another key,
// it notifies the other acquisition.
func TestWait_ReleaseMissed_NotifiesNextWaiter(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	l := k.locker(t, ranges, long)
	ctx := t.Context()
	a, b := mustLock(t, l, k.keySet("a")), mustLock(t, l, k.keySet("b"))
	begin := func(names ...string) (acquisition *locking.Acquisition, tryAgain func() bool) {
		acquisition = begin(t, l, "", long)
		tryAgain = func() bool { return attempt(t, acquisition, k.keySet(names...)).Held }
		tryAgain()
		stacktest.Must(t, acquisition.Wait(ctx)) // until it has subscribed
		tryAgain()
		return acquisition, tryAgain
	}
	both, tryBoth := begin("a", "b")
	one, tryOne := begin("a")
	before := locking.Received(l, k.prefix)
	mustUnlock(t, l, a)
	stacktest.Eventually(t, "the release to be received", func() bool { return locking.Received(l, k.prefix) > before })
	stacktest.Must(t, both.Wait(ctx))
	waited := make(chan error)
	go func() { waited <- one.Wait(ctx) }()
	stacktest.Eventually(t, "the wait to begin", func() bool { return len(locking.Waiting(l, k.prefix)) == 1 })
	if tryBoth() {
		t.Fatal("b is locked twice")
	}
	stacktest.Must(t, <-waited)
	if !tryOne() {
		t.Error("a is free, but was not locked")
	}
	mustUnlock(t, l, b)
}

// TestWait_WokenWaiterStillBlocked_NotifiesNext wakes a waiter that is blocked by another key. The
// next waiter for the released key must be notified.
func TestWait_WokenWaiterStillBlocked_NotifiesNext(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	l := k.locker(t, ranges, long)
	a, b := mustLock(t, l, k.keySet("a")), mustLock(t, l, k.keySet("b"))
	got := make(chan lockResult, 2)
	k.startWaiter(t, l, "both", got, k.keySet("a", "b"))
	k.startWaiter(t, l, "one", got, k.keySet("a"))
	mustUnlock(t, l, a)
	first := served(t, got)
	if first.name != "one" {
		t.Fatalf("%s was served first while b is locked", first.name)
	}
	mustUnlock(t, l, first.lock, b)
	served(t, got)
}

// TestWait_ManyWaiters_AllGetTheLock lets 200 acquisitions wait for one lock after one attempt
// each. All get it, one after the other, although each release wakes only one.
func TestWait_ManyWaiters_AllGetTheLock(t *testing.T) {
	const waiters = 200
	eachRange(t, func(t *testing.T, s subject, k harness) {
		l := k.locker(t, s, long)
		lock := mustLock(t, l, k.keySet("a", "b"))
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				set := k.keySet("a", "b")
				if i%2 == 0 {
					set = k.keySet("b", "c")
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
		stacktest.Eventually(t, "all waiters to wait", func() bool { return len(locking.Waiting(l, k.prefix)) == waiters })
		mustUnlock(t, l, lock)
		all.Wait()
	})
}

// TestWait_CancelledBeforeSubscribed_Ends cancels the first waiter of a process before the process
// has subscribed to its channel.
func TestWait_CancelledBeforeSubscribed_Ends(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	lock := mustLock(t, k.locker(t, ranges, long), k.keySet("a"))
	for range 50 {
		l := k.locker(t, ranges, long)
		a := begin(t, l, "", long)
		attempt(t, a, k.keySet("a"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled wait ended with %v", err)
		}
		a.Close(ctx)
	}
	mustUnlock(t, k.locker(t, ranges, long), lock)
}

// TestWait_CutWhileSubscribing_RestoresChannels cuts the connection when it subscribes to a second
// channel. It reconnects with both channels.
func TestWait_CutWhileSubscribing_RestoresChannels(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	other := k
	other.prefix += "other:"
	var cut atomic.Bool
	options := *k.client.Options()
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &cuttingConn{conn, &cut}, err
	}
	k.client = redis.NewClient(&options)
	defer func() { _ = k.client.Close() }()
	l := k.locker(t, ranges, long)
	one, two := mustLock(t, l, k.keySet("a")), mustLock(t, l, other.keySet("a"))

	var all sync.WaitGroup
	for i, waits := range []harness{k, other} {
		cut.Store(i == 1)
		all.Go(func() { mustUnlock(t, l, mustLock(t, l, waits.keySet("a"))) })
		stacktest.Eventually(t, "the waiter to wait", func() bool { return len(locking.Waiting(l, waits.prefix)) == 1 })
	}
	if cut.Load() {
		t.Error("the connection was not cut")
	}
	mustUnlock(t, l, one, two)
	all.Wait()
}

// cuttingConn is a connection that is cut by the next subscription written to it, once.
type cuttingConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cuttingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("ssubscribe")) && c.cut.CompareAndSwap(true, false) {
		_ = c.Close()
	}
	return c.Conn.Write(b)
}

// shards returns keys on two shards of a cluster.
func shards(t *testing.T, cluster *stacktest.RedisCluster) (k, other harness) {
	t.Helper()
	k.prefix = stacktest.Namespace(t) + ":{0}:"
	for i := 0; other.prefix == "" || cluster.NodeOf(other.prefix) == cluster.NodeOf(k.prefix); i++ {
		other.prefix = fmt.Sprintf("%s:{%d}:", stacktest.Namespace(t), i)
	}
	return k, other
}

// clusterLocker returns a Range on a cluster.
func clusterLocker(t *testing.T, client *redis.ClusterClient) *locking.Locker {
	t.Helper()
	return newLocker(t, locking.NewRange(client, locking.RangeOptions{
		Lease: locking.FixedLease(long), FenceBase: fenceBase,
	}), locking.Options{})
}

// TestWait_ClusterSlotMoves_WakesWaiter waits for locks in a Redis Cluster whose hash slot moves to another server: once
// while an acquisition waits, and once while none does, when no server announces the move to the worker's subscriptions.
// After each move the worker subscribes at the new server, and a release wakes the waiter.
func TestWait_ClusterSlotMoves_WakesWaiter(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	k := harness{prefix: stacktest.Namespace(t) + ":{1}:"}
	holder, waiting := clusterLocker(t, cluster.ClusterClient()), clusterLocker(t, cluster.ClusterClient())
	move := func() { cluster.MoveAll(k.prefix, (cluster.NodeOf(k.prefix)+1)%3) }
	wait := func(meanwhile func()) {
		t.Helper()
		lock := mustLock(t, holder, k.keySet("a"))
		got := make(chan lockResult)
		k.startWaiter(t, waiting, "the waiter", got, k.keySet("a"))
		meanwhile()
		node, channel := cluster.Client(cluster.NodeOf(k.prefix)), k.prefix+"released"
		defer func() { _ = node.Close() }()
		stacktest.Eventually(t, "the subscription at the slot's server", func() bool {
			return node.PubSubShardNumSub(t.Context(), channel).Val()[channel] == 1
		})
		mustUnlock(t, holder, lock)
		mustUnlock(t, waiting, served(t, got).lock)
	}
	wait(move)
	stacktest.Eventually(t, "the subscription to end", func() bool { return locking.Received(waiting, k.prefix) == 0 })
	move()
	wait(func() {})
}

// TestWait_ShardHangs_OthersSubscribe waits for a lock of a shard to which no connection can be opened any more. Meanwhile
// an acquisition that waits on another shard subscribes there.
func TestWait_ShardHangs_OthersSubscribe(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	k, other := shards(t, cluster)
	holder := clusterLocker(t, cluster.ClusterClient())
	lock, others := mustLock(t, holder, k.keySet("a")), mustLock(t, holder, other.keySet("a"))
	var hanging atomic.Value
	hanging.Store("")
	dialed, release := make(chan struct{}, 64), make(chan struct{})
	options := *cluster.ClusterClient().Options()
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == hanging.Load() {
			dialed <- struct{}{}
			<-release
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	client := redis.NewClusterClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	l := clusterLocker(t, client)
	defer close(release)
	a := begin(t, l, "", long)
	if attempt(t, a, k.keySet("a")).Held {
		t.Fatal("locked twice")
	}
	hanging.Store(cluster.Addr(cluster.NodeOf(k.prefix)))
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- a.Wait(ctx) }()
	<-dialed
	got := make(chan lockResult)
	other.startWaiter(t, l, "the waiter on the other shard", got, other.keySet("a"))
	mustUnlock(t, holder, others, lock)
	mustUnlock(t, l, served(t, got).lock)
	cancel()
	<-waited
}

// TestWait_WokenWaiterFailsOnItsShard_NotifiesNext wakes an acquisition for a key of a shard that then refuses writes, while
// those on other shards answer. The next waiter for the key must be notified.
func TestWait_WokenWaiterFailsOnItsShard_NotifiesNext(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	k, other := shards(t, cluster)
	shard := cluster.Client(cluster.NodeOf(k.prefix))
	defer func() { _ = shard.Close() }()
	holder, l := clusterLocker(t, cluster.ClusterClient()), clusterLocker(t, cluster.ClusterClient())
	lock, still := mustLock(t, holder, k.keySet("a")), mustLock(t, holder, other.keySet("a"))
	both, sets := begin(t, l, "", long), []locking.KeySet{k.keySet("a"), other.keySet("a")}
	woken := make(chan error)
	var released atomic.Bool
	go func() {
		for !released.Load() { // a confirmation of a subscription wakes it too
			_, err := both.TryLock(t.Context(), sets)
			if err == nil {
				err = both.Wait(t.Context())
			}
			if err != nil {
				woken <- err
				return
			}
		}
		woken <- nil
	}()
	for _, scope := range []string{k.prefix, other.prefix} {
		stacktest.Eventually(t, "the first to wait", func() bool { return len(locking.Waiting(l, scope)) == 1 })
	}
	got := make(chan lockResult, 1)
	k.startWaiter(t, l, "the next", got, k.keySet("a"))
	released.Store(true)
	mustUnlock(t, holder, lock)
	stacktest.Must(t, <-woken)
	refuseWrites := func(yes int) {
		t.Helper()
		stacktest.Must(t, shard.ConfigSet(t.Context(), "min-replicas-to-write", fmt.Sprint(yes)).Err())
	}
	refuseWrites(1)
	locks, err := both.TryLock(t.Context(), sets)
	waiting := locking.Waiting(l, k.prefix)
	refuseWrites(0)
	if err != nil || locks[0].Err == nil || locks[1].Err != nil || locks[1].Held {
		t.Fatalf("%+v, %v", locks, err)
	}
	if len(waiting) > 0 {
		t.Fatal("the key is free, and the next waiter was not notified")
	}
	if r := <-got; r.err == nil { // it may have tried while the shard refused writes
		mustUnlock(t, l, r.lock)
	}
	mustUnlock(t, holder, still)
}

// TestUnlock_PublishForbiddenByACL_Releases unlocks as a user whose ACL allows no channel: the lock
// is released.
func TestUnlock_PublishForbiddenByACL_Releases(t *testing.T) {
	t.Parallel()
	k := newHarness(t, ranges)
	user := strings.NewReplacer(":", "", "{", "", "}", "").Replace(k.prefix)
	stacktest.Must(t, k.client.Do(t.Context(), "acl", "setuser", user, "on", ">secret", "~*", "+@all",
		"resetchannels").Err())
	t.Cleanup(func() { k.client.Do(context.Background(), "acl", "deluser", user) })
	options := *k.client.Options()
	options.Username, options.Password = user, "secret"
	k.client = redis.NewClient(&options)
	defer func() { _ = k.client.Close() }()
	l := k.locker(t, ranges, long)
	lock := mustLock(t, l, k.keySet("a"))
	if waits := try(t, l, "", k.keySet("a")); waits.Held { // makes a waiter, so that the release must be published
		t.Error("locked twice")
	}
	mustUnlock(t, l, lock)
	k.wantNoLocks(t)
}

// TestWait_SubscriptionHalfOpen_RestoresIt has the connections of a process break without a sign, as when the host of the
// primary fails, or a firewall forgets them. New connections work. The process hears of releases again.
func TestWait_SubscriptionHalfOpen_RestoresIt(t *testing.T) {
	eachRange(t, func(t *testing.T, s subject, k harness) {
		holder, got := k.locker(t, s, long), make(chan lockResult, 1)
		url, proxy := stacktest.ProxyTo(t, stacktest.Shared().RedisURL)
		other := k
		other.client = newClient(t, url)
		l := other.locker(t, s, long)
		waits := func(name string) {
			t.Helper()
			lock := mustLock(t, holder, k.keySet("a"))
			k.startWaiter(t, l, name, got, k.keySet("a"))
			mustUnlock(t, holder, lock)
			mustUnlock(t, l, served(t, got).lock)
		}
		waits("the waiter that subscribes")
		proxy.HalfOpen()
		other.replaceConnections(t)
		waits("the waiter after the loss")
	})
}

// replaceConnections uses all connections of the client's pool until each one answers. One that does not is closed.
func (k harness) replaceConnections(t *testing.T) {
	t.Helper()
	stacktest.Eventually(t, "all connections to answer", func() bool {
		var failed atomic.Bool
		var all sync.WaitGroup
		for range 2 * k.client.Options().PoolSize {
			all.Go(func() {
				pipe := k.client.Pipeline()
				pipe.Ping(t.Context())
				if _, err := pipe.Exec(t.Context()); err != nil {
					failed.Store(true)
				}
			})
		}
		all.Wait()
		return !failed.Load()
	})
}

// TestWait_SubscriptionsCutRepeatedly_AllFinish lets many acquisitions wait for overlapping sets,
// in several scopes and three processes. Many give up at a random time, and the server cuts all
// subscriptions repeatedly. No acquisition waits for ever.
func TestWait_SubscriptionsCutRepeatedly_AllFinish(t *testing.T) {
	const waiters, rounds, scopes, names = 30, 25, 3, 4
	own := stacktest.StartRedis(t).RedisURL // a separate server, because the test cuts connections
	eachRange(t, func(t *testing.T, s subject, k harness) {
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
		k.wantNoLocks(t)
	})
}

// lockScopes locks some keys in each of several scopes, each as soon as it is free, and gives up at
// a random time.
func (k harness) lockScopes(ctx context.Context, l *locking.Locker, scopes, names int) error {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	if rand.IntN(4) == 0 {
		timer := time.AfterFunc(rand.N(10*time.Millisecond), giveUp)
		defer timer.Stop()
	}
	var sets []locking.KeySet
	for i := range scopes {
		scope := k
		scope.prefix += fmt.Sprintf("scope-%d:", i)
		var some []string
		for range 1 + rand.IntN(names) {
			some = append(some, fmt.Sprint(rand.IntN(names)))
		}
		set := scope.keySet(some...)
		set.Fence = k.keySet().Fence
		sets = append(sets, set)
	}
	a := l.NewAcquisition("", long)
	defer a.Close(ctx)
	for len(sets) > 0 {
		locks, err := a.TryLock(ctx, sets)
		if err == nil {
			var held []*locking.Lock
			sets = sets[:0]
			for _, lock := range locks {
				if lock.Held {
					held = append(held, lock)
				} else {
					sets = append(sets, lock.KeySet)
				}
			}
			err = l.Unlock(context.WithoutCancel(ctx), held...)
		}
		if err == nil && len(sets) > 0 {
			err = a.Wait(ctx)
		}
		if ctx.Err() != nil {
			return nil // the acquisition has given up
		}
		if err != nil {
			return err
		}
	}
	return nil
}
