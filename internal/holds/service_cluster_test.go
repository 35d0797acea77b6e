package holds_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// clusterHarness is a namespace on a Redis Cluster, with its own clock.
type clusterHarness struct {
	*harness
	*stacktest.RedisCluster
	client    *redis.ClusterClient
	resources []string // one on each primary
}

// newClusterHarness returns a harness on a cluster of three primaries. No replication history is checked.
func newClusterHarness(t *testing.T) *clusterHarness {
	t.Helper()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	client := cluster.ClusterClient()
	w := newSchema(t)
	keys := record.Keyspace(w.namespace)
	w.term = recovery.StaticTerm(w.epoch, "")
	for p := range record.Partitions {
		stacktest.Must(t, client.Set(t.Context(), keys.Epoch(p), w.epoch, 0).Err())
	}
	stacktest.Must(t, w.store.CompleteEpoch(t.Context(), record.AllPartitions, w.epoch, "run history", ""))
	h := &clusterHarness{harness: w, RedisCluster: cluster, client: client}
	for node := range 3 {
		for i := 0; len(h.resources) == node; i++ {
			if name := fmt.Sprintf("room-%d", i); cluster.NodeOf(keys.Epoch(record.Partition(name))) == node {
				h.resources = append(h.resources, name)
			}
		}
	}
	w.serve(client, newLocker(t, w.rangeLocks(client, lockLease)))
	for _, resource := range h.resources {
		w.setInventory(t, resource, slots("a", "b"), 1000)
	}
	return h
}

// key returns a key of the partition of a resource.
func (h *clusterHarness) key(resource string) string {
	return record.Keyspace(h.namespace).Epoch(record.Partition(resource))
}

// tryEach requests one hold of every resource, in one batch, and returns the errors by resource. keys has
// the request keys that were not answered: they are used again.
func (h *clusterHarness) tryEach(t *testing.T, keys map[string]string, granted map[string]int) map[string]error {
	t.Helper()
	var requests []holds.PlaceRequest
	for _, resource := range h.resources {
		if keys[resource] == "" {
			keys[resource] = fmt.Sprintf("k%d-%s", granted[resource], resource)
		}
		requests = append(requests, holds.PlaceRequest{
			EventID: keys[resource], RequestKey: keys[resource], Resource: resource, User: keys[resource], Quantity: 1,
			Selection: slots("a", "b"), StoredAt: time.Now(),
		})
	}
	h.syncInventory(t, h.service)
	failed := make(map[string]error)
	for i, r := range h.service.Place(t.Context(), requests) {
		if resource := requests[i].Resource; r.Err != nil {
			failed[resource] = r.Err
		} else {
			created(t, r.Outcome)
			granted[resource]++
			keys[resource] = ""
		}
	}
	return failed
}

// TestPlace_SlotMoves_OthersGrantedNothingHalf requests holds on all primaries in each state of a slot that
// moves. The requests of its partition fail, without any effect, until the target has the slot, and are
// answered then. The others are granted in the same batches.
func TestPlace_SlotMoves_OthersGrantedNothingHalf(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	moving, keys, granted := h.resources[0], make(map[string]string), make(map[string]int)
	move := h.Move(h.key(moving), 1)
	check := func(state string, served bool) {
		t.Helper()
		failed := h.tryEach(t, keys, granted)
		if served && len(failed) > 0 || !served && (len(failed) != 1 || failed[moving] == nil) {
			t.Fatalf("%s: failed %v", state, failed)
		}
		h.service.InventorySyncLost() // the rows are read again
	}
	check("before", true)
	check("before, again", true)
	move.Begin()
	check("no key moved", false)
	for n := 1; move.MoveKeys(1) > 0; n++ {
		check(fmt.Sprintf("%d keys moved", n), false)
	}
	check("all keys moved", false)
	move.EndTarget()
	stacktest.Eventually(t, "the target to decide", func() bool { return len(h.tryEach(t, keys, granted)) == 0 })
	move.EndSource()
	check("after", true)
	for _, resource := range h.resources {
		for _, slot := range h.available(t, resource, slots("a", "b")) {
			if slot.Held != int64(granted[resource]) {
				t.Errorf("%s: %d held, %d granted", resource, slot.Held, granted[resource])
			}
		}
	}
}

// TestCancel_Cluster_AsksOnlyItsServers cancels a reservation. Only the server of its partition is asked for the
// time: another one may hang.
func TestCancel_Cluster_AsksOnlyItsServers(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	hold := created(t, h.place(t, holds.PlaceRequest{Resource: h.resources[1], User: "ann", Selection: slots("a")})[0]).HoldID
	h.pay(t, hold, "p1")
	asked := func() (nodes []int) {
		for i := range h.Nodes {
			node := h.Client(i)
			if strings.Contains(node.Info(t.Context(), "commandstats").Val(), "cmdstat_time:") {
				nodes = append(nodes, i)
			}
			stacktest.Must(t, errors.Join(node.ConfigResetStat(t.Context()).Err(), node.Close()))
		}
		return nodes
	}
	asked()
	h.cancelReservation(t, holds.CancelRequest{EventID: "c1", Hold: hold})
	if nodes := asked(); !slices.Equal(nodes, []int{1}) {
		t.Errorf("the servers %v were asked", nodes)
	}
	if _, err := h.service.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if nodes := asked(); len(nodes) != len(h.Nodes) {
		t.Errorf("only the servers %v were asked, every one has partitions", nodes)
	}
}

// TestNow_ShardDown_OthersAnswer reads the clock while one of three primaries is down. A cancellation of its
// own waits for it, as one of the shard.
func TestNow_ShardDown_OthersAnswer(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	hold := created(t, h.place(t, holds.PlaceRequest{Resource: h.resources[1], User: "ann", Selection: slots("a")})[0]).HoldID
	h.pay(t, hold, "p1")
	stacktest.Must(t, h.Nodes[1].Kill())
	if now, err := h.service.Now(t.Context()); err != nil || now.IsZero() {
		t.Errorf("now is %v: %v", now, err)
	}
	result := h.service.Cancel(t.Context(), []holds.CancelRequest{{EventID: "c1", Hold: hold}})[0]
	if _, is := errors.AsType[*lua.ShardError](result.Err); !is {
		t.Errorf("cancelled with %v", result.Err)
	}
}

// TestPlace_ShardDownLocksFirst_OthersGranted requests holds on three primaries while one of them is down, with the
// strategies that lock in a step of their own: fair locks, and redlock on lock servers beside the cluster.
func TestPlace_ShardDownLocksFirst_OthersGranted(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]func(*testing.T, *clusterHarness) locking.Strategy{
		"fair": func(_ *testing.T, h *clusterHarness) locking.Strategy {
			return locking.NewRange(h.client, locking.RangeOptions{
				Lease: locking.FixedLease(lockLease), FenceBase: h.store.FenceBase, Fair: true,
			})
		},
		"redlock": func(t *testing.T, h *clusterHarness) locking.Strategy {
			var servers []redis.UniversalClient
			for _, url := range stacktest.LockServers(t, 3) {
				servers = append(servers, stacktest.ConnectRedis(t, url))
			}
			return locking.NewRedlock(h.client, servers, locking.FixedLease(lockLease))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newClusterHarness(t)
			set := telemetry.NewSet()
			l := locking.New(strategy(t, h), locking.Options{Metrics: locking.NewMetrics(set)})
			t.Cleanup(func() { _ = l.Close() })
			h.service = h.newService(h.client, l, h.store)
			keys, granted := make(map[string]string), make(map[string]int)
			if failed := h.tryEach(t, keys, granted); len(failed) > 0 {
				t.Fatal(failed)
			}
			stacktest.Must(t, h.Nodes[0].Kill())
			for range 2 {
				failed := h.tryEach(t, keys, granted)
				if _, is := errors.AsType[*lua.ShardError](failed[h.resources[0]]); !is || len(failed) != 1 {
					t.Fatalf("failed %v", failed)
				}
			}
			if got := attempts(t, set); name == "fair" && (got["failed"] != 2 || got["blocked"] != 0) {
				t.Errorf("attempts to lock are counted as %v, want 2 failed and none blocked", got)
			}
		})
	}
}

// attempts returns how many attempts to lock had each result.
func attempts(t *testing.T, set *telemetry.Set) map[string]int64 {
	t.Helper()
	measured, err := set.Produce(t.Context())
	stacktest.Must(t, err)
	results := make(map[string]int64)
	for _, m := range measured[0].Metrics {
		if data, is := m.Data.(metricdata.Sum[int64]); is && m.Name == "holdfast.lock.attempts" {
			for _, point := range data.DataPoints {
				result, _ := point.Attributes.Value(locking.LabelResult)
				results[result.AsString()] += point.Value
			}
		}
	}
	return results
}

// openPipelines makes so many connections for pipelines to a server, by as many that wait for a word of a list.
func openPipelines(t *testing.T, client *redis.Client, list string, number int) {
	t.Helper()
	var waiting errgroup.Group
	for range number {
		waiting.Go(func() error {
			_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.BLPop(t.Context(), 0, list).Err() })
			return err
		})
	}
	stacktest.Eventually(t, "the pipelines to wait", func() bool {
		return strings.Contains(client.Info(t.Context(), "clients").Val(), fmt.Sprintf("blocked_clients:%d\r", number))
	})
	for range number {
		client.RPush(t.Context(), list, "word")
	}
	stacktest.Must(t, waiting.Wait())
}

// TestPlace_ShardHangsInBatch_LeavesNoLock requests holds with fair locks while one of three primaries hangs. When it goes
// on, it runs what has reached it: the attempt to lock, and that the attempt was given up.
func TestPlace_ShardHangsInBatch_LeavesNoLock(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	fair := locking.RangeOptions{Lease: locking.FixedLease(lockLease), FenceBase: h.store.FenceBase, Fair: true}
	locker, set := newLocker(t, locking.NewRange(h.client, fair)), h.lockOf(h.resources[0])
	h.service = h.newService(h.client, locker, h.store)
	l, err := locker.Lock(t.Context(), "", lockLease, set) // so that the server knows the scripts
	stacktest.Must(t, err)
	stacktest.Must(t, locker.Unlock(t.Context(), l))
	hung, err := h.client.MasterForKey(t.Context(), h.key(h.resources[0]))
	stacktest.Must(t, err)
	openPipelines(t, hung, set.Scope+"words", 3) // a connection to a server that hangs cannot be made
	stacktest.Must(t, h.Nodes[0].Pause())
	request := holds.PlaceRequest{
		EventID: "late", RequestKey: "late", Resource: h.resources[0], User: "late", Quantity: 1, Selection: slots("a"),
		StoredAt: time.Now(),
	}
	for _, r := range h.service.Place(holds.InBatch(t.Context()), []holds.PlaceRequest{request}) {
		if _, is := errors.AsType[*lua.ShardError](r.Err); !is {
			t.Errorf("placed while the server hangs: %v", r.Err)
		}
	}
	stacktest.Must(t, h.Nodes[0].Resume())
	node := h.Client(0) // a new connection: what waits on the others is run before
	defer func() { _ = node.Close() }()
	var locks map[string]string
	stacktest.Eventually(t, "an answer of the server, which may take the cluster for down", func() bool {
		locks, err = node.HGetAll(t.Context(), set.Scope+"locks").Result()
		return err == nil
	})
	if len(locks) > 0 {
		t.Errorf("locks are left: %v", locks)
	}
}

// TestBumpRevisions_ShardDown_CachedRowsDropped changes capacities by SQL while one of three primaries is down.
// The report of the changes succeeds, and the next decisions of the others see them.
func TestBumpRevisions_ShardDown_CachedRowsDropped(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	keys, granted := make(map[string]string), make(map[string]int)
	for range 2 { // the second time with cached rows
		if failed := h.tryEach(t, keys, granted); len(failed) > 0 {
			t.Fatal(failed)
		}
	}
	stacktest.Must(t, h.Nodes[0].Kill())
	h.execute(t, "UPDATE inventory SET capacity = 2")
	stacktest.Must(t, h.service.BumpRevisions(t.Context(), h.resources[0])) // the others were not reported yet
	for i, r := range h.service.Place(t.Context(), []holds.PlaceRequest{
		{Resource: h.resources[1], RequestKey: "late", User: "late", Quantity: 1, Selection: slots("a", "b"), StoredAt: time.Now()},
	}) {
		if r.Err != nil || r.Outcome.Event != holds.EventHoldRejected {
			t.Errorf("request %d: %s %v", i, r.Outcome.Event, r.Err)
		}
	}
}

// expireEach lets a hold on each of some primaries expire, and waits until they are announced.
func (h *clusterHarness) expireEach(t *testing.T, resources []string) {
	t.Helper()
	for _, resource := range resources {
		created(t, h.place(t, holds.PlaceRequest{
			Resource: resource, User: "ann", Selection: slots("a"), TTLSeconds: seconds(1),
		})[0])
	}
	var expired []string
	stacktest.Eventually(t, "hold.expired of every primary", func() bool {
		for _, o := range h.takeAnnounced() {
			expired = append(expired, o.Resource)
		}
		slices.Sort(expired)
		return len(slices.Compact(slices.Clone(expired))) == len(resources)
	})
}

// TestSweep_ShardDown_OthersExpire lets holds expire by the timer while one primary hangs, and then is killed.
func TestSweep_ShardDown_OthersExpire(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	h := newClusterHarness(t)
	runExpirer(t, holds.NewExpirer(h.service, h, holds.ExpirerOptions{NoNotifications: true}, zerolog.Nop()))
	h.expireEach(t, h.resources)
	stacktest.Must(t, h.Nodes[0].Pause())
	h.expireEach(t, h.resources[1:])
	stacktest.Must(t, h.Nodes[0].Kill())
	h.expireEach(t, h.resources[1:])
}

// TestWatch_Cluster_NotifiedByEveryPrimary lets a hold on each primary expire without the timer, then on each
// that is left while one is down.
func TestWatch_Cluster_NotifiedByEveryPrimary(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	h := newClusterHarness(t)
	x := holds.NewExpirer(h.service, h, holds.ExpirerOptions{NoTimer: true}, zerolog.Nop())
	runExpirer(t, x)
	stacktest.Eventually(t, "the subscriptions", func() bool { return x.NotificationError() == nil })
	h.expireEach(t, h.resources)
	stacktest.Must(t, h.Nodes[0].Kill())
	stacktest.Eventually(t, "the lost subscription", func() bool { return x.NotificationError() != nil })
	h.expireEach(t, h.resources[1:])
}

// lockOf returns the lock of slot a of a resource.
func (h *clusterHarness) lockOf(resource string) locking.KeySet {
	keys := record.Keyspace(h.namespace)
	return locking.KeySet{
		Names: []string{"a"}, Fence: keys.Fence(record.Partition(resource)), Scope: keys.Prefix(resource),
	}
}

// TestLock_Cluster_WaiterWoken locks a slot of each primary, of which another worker waits for the release.
func TestLock_Cluster_WaiterWoken(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	h := newClusterHarness(t)
	first, second := newLocker(t, h.rangeLocks(h.client, lockLease)), newLocker(t, h.rangeLocks(h.ClusterClient(), lockLease))
	for _, resource := range h.resources {
		set := h.lockOf(resource)
		held, err := first.Lock(t.Context(), "", time.Second, set)
		stacktest.Must(t, err)
		woken := make(chan error, 1)
		go func() {
			l, err := second.Lock(t.Context(), "", lockLease/2, set)
			if err == nil {
				err = second.Unlock(t.Context(), l)
			}
			woken <- err
		}()
		stacktest.Eventually(t, "the waiter to subscribe", func() bool {
			node := h.Client(h.NodeOf(h.key(resource)))
			defer func() { _ = node.Close() }()
			return len(node.PubSubShardChannels(t.Context(), "*").Val()) > 0
		})
		stacktest.Must(t, first.Unlock(t.Context(), held))
		if err := <-woken; err != nil { // without the wake-up it times out, because the lease is longer
			t.Errorf("%s: %v", resource, err)
		}
	}
}
