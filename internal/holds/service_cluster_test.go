package holds_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
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
	w := &harness{namespace: stacktest.Namespace(t), policy: testPolicy}
	var err error
	if w.store, err = store.Open(t.Context(), stacktest.Shared().PostgresURL, w.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.store.Close)
	if err := w.store.Migrate(t.Context(), w.namespace); err != nil {
		t.Fatal(err)
	}
	epochs, err := w.store.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys := record.Keyspace(w.namespace)
	w.epoch, w.term = epochs[0].Name, recovery.StaticTerm(epochs[0].Name, "")
	for p := range record.Partitions {
		if err := client.Set(t.Context(), keys.Epoch(p), w.epoch, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.store.CompleteEpoch(t.Context(), record.AllPartitions, w.epoch, "run history", ""); err != nil {
		t.Fatal(err)
	}
	h := &clusterHarness{harness: w, RedisCluster: cluster, client: client}
	for node := range 3 {
		for i := 0; len(h.resources) == node; i++ {
			if name := fmt.Sprintf("room-%d", i); cluster.NodeOf(keys.Epoch(record.Partition(name))) == node {
				h.resources = append(h.resources, name)
			}
		}
	}
	w.service = w.newService(client, newLocker(t, w.rangeLocks(client, lockLease)), w.store)
	w.expirer = holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
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

// TestWatch_Cluster_NotifiedByEveryPrimary lets a hold on each primary expire without the timer.
func TestWatch_Cluster_NotifiedByEveryPrimary(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	h := newClusterHarness(t)
	x := holds.NewExpirer(h.service, h, holds.ExpirerOptions{NoTimer: true}, zerolog.Nop())
	runExpirer(t, x)
	stacktest.Eventually(t, "the subscriptions", func() bool { return x.NotificationError() == nil })
	for _, resource := range h.resources {
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
		return len(slices.Compact(slices.Clone(expired))) == len(h.resources)
	})
}

// TestLock_Cluster_WaiterWoken locks a slot of each primary, of which another worker waits for the release.
func TestLock_Cluster_WaiterWoken(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	h := newClusterHarness(t)
	first, second := newLocker(t, h.rangeLocks(h.client, lockLease)), newLocker(t, h.rangeLocks(h.ClusterClient(), lockLease))
	for _, resource := range h.resources {
		set := locking.KeySet{
			Fence: record.Keyspace(h.namespace).Fence(record.Partition(resource)), Scope: record.Keyspace(h.namespace).Prefix(resource),
		}
		set.Keys = []string{set.Key("a")}
		held, err := first.Lock(t.Context(), "", time.Second, set)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := first.Unlock(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if err := <-woken; err != nil { // without the wake-up it times out, because the lease is longer
			t.Errorf("%s: %v", resource, err)
		}
	}
}
