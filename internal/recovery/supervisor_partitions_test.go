package recovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// twoResources returns two resources of different partitions.
func twoResources() (one, other string) {
	one, other = "room", "hall"
	if record.Partition(one) == record.Partition(other) {
		panic("both are in one partition")
	}
	return one, other
}

// losePartition removes all keys of a resource's partition.
func (w *harness) losePartition(t *testing.T, resource string) {
	t.Helper()
	pattern := record.Keyspace(w.namespace).Partition(record.Partition(resource)) + "*"
	keys, err := w.client.Keys(t.Context(), pattern).Result()
	if err == nil {
		err = w.client.Del(t.Context(), keys...).Err()
	}
	if err != nil {
		t.Fatalf("lose: %v", err)
	}
}

// tryPlace requests a hold and publishes the answer.
func (w *harness) tryPlace(t *testing.T, service *holds.Service, resource, key string) (holds.Outcome, error) {
	t.Helper()
	request := holds.PlaceRequest{EventID: key, RequestKey: key, Resource: resource, User: key, Quantity: 1}
	for _, r := range service.Place(t.Context(), []holds.PlaceRequest{request}) {
		if r.Err == nil {
			w.publish(key, r.Outcome)
		}
		return r.Outcome, r.Err
	}
	panic("no result")
}

// TestSupervisor_PartitionLost_OthersDecide removes one partition. Its requests and payments wait, also
// in one batch with others. The others are decided meanwhile, and stay as they were when it is rebuilt.
func TestSupervisor_PartitionLost_OthersDecide(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	ctx := t.Context()
	lost, whole := twoResources()
	for _, resource := range []string{lost, whole} {
		w.setInventory(t, resource, holds.SlotSelection{}, 4)
	}
	w.term = recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "w1", w.term)
	supervisor.Drain = 0
	w.startNewTerm(t)
	if _, err := checkAll(t, supervisor); err != nil {
		t.Fatal(err)
	}
	live := created(t, w.place(t, holds.PlaceRequest{Resource: lost, User: "ana"})[0])
	held := created(t, w.place(t, holds.PlaceRequest{Resource: whole, User: "ana"})[0])
	w.losePartition(t, lost)
	epoch, err := checkOne(t, supervisor, lost)
	if err != nil || epoch.Complete || !strings.HasPrefix(epoch.Why, "epoch missing") {
		t.Fatalf("epoch is %+v %v", epoch, err)
	}

	rebuilding := func(what string, err error) {
		t.Helper()
		if _, is := errors.AsType[*holds.RebuildingError](err); !is {
			t.Errorf("%s: %v, want a RebuildingError", what, err)
		}
	}
	if _, err := w.tryPlace(t, w.service, lost, "k1"); err == nil {
		t.Error("a request was decided in the lost partition")
	}
	if o, err := w.tryPlace(t, w.service, whole, "k2"); err != nil || o.Event != holds.EventHoldCreated {
		t.Errorf("a request in the other partition: %+v %v", o, err)
	}
	requests := []holds.PlaceRequest{
		{EventID: "c3", RequestKey: "k3", Resource: lost, User: "ben", Quantity: 1},
		{EventID: "c4", RequestKey: "k4", Resource: whole, User: "ben", Quantity: 1},
	}
	for i, r := range w.service.Place(ctx, requests) {
		if i == 0 {
			rebuilding("a request in a batch with others", r.Err)
		} else if r.Err != nil {
			t.Errorf("a request in a batch with the lost partition: %v", r.Err)
		}
	}
	paid := w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: live.HoldID, PaymentID: "p"}, {Hold: held.HoldID, PaymentID: "p"}})
	rebuilding("a payment", paid[0].Err)
	if paid[1].Err != nil || paid[1].Outcome.Event != holds.EventHoldConfirmed {
		t.Errorf("a payment in the other partition: %+v", paid[1])
	}
	cancelled := w.service.Cancel(ctx, []holds.CancelRequest{{EventID: "c5", Hold: live.HoldID}, {EventID: "c6", Hold: held.HoldID}})
	rebuilding("a cancellation", cancelled[0].Err)
	if cancelled[1].Err != nil || cancelled[1].Outcome.Event != holds.EventReservationCancelled {
		t.Errorf("a cancellation in the other partition: %+v", cancelled[1])
	}
	_, err = w.service.Availability(ctx, lost, holds.SlotSelection{})
	rebuilding("availability", err)
	if n := w.held(t, whole); n != 2 {
		t.Errorf("%d held in the other partition, want 2", n)
	}
	if err := w.term.Paused(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("partition %d: ", record.Partition(lost))) {
		t.Errorf("paused: %v", err)
	}

	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the partition to be rebuilt", func() bool { return w.term.Paused() == nil })
	stop()
	epochs, err := w.store.Epochs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for p, e := range epochs {
		if rebuilt := e.Name != w.epoch; rebuilt != (p == record.Partition(lost)) || !e.Complete {
			t.Errorf("epoch of partition %d is %+v", p, e)
		}
	}
	if n := w.held(t, lost); n != 1 {
		t.Errorf("%d held in the rebuilt partition, want 1", n)
	}
	if n := w.held(t, whole); n != 2 {
		t.Errorf("%d held in the other partition after the rebuild, want 2", n)
	}
	if o := w.pay(t, live.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Errorf("payment after the rebuild: %+v", o)
	}
}

// run runs a supervisor until the returned function is called.
func (w *harness) run(t *testing.T, supervisors ...*recovery.Supervisor) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, supervisor := range supervisors {
		running.Go(func() {
			if err := supervisor.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestSupervisor_PartitionsLostTwoWorkers_NothingOversold removes partitions again and again, while two
// workers decide and rebuild. Each resource sells what it has, and no more.
func TestSupervisor_PartitionsLostTwoWorkers_NothingOversold(t *testing.T) {
	t.Parallel()
	const capacity, losses = 5, 2
	w := newRealTimeHarness(t)
	resources := make([]string, 6)
	for i := range resources {
		resources[i] = fmt.Sprintf("room-%d", i)
		w.setInventory(t, resources[i], holds.SlotSelection{}, capacity)
	}
	outcomes := &replayLog{harness: w}
	var services []*holds.Service
	var supervisors []*recovery.Supervisor
	for _, name := range []string{"w1", "w2"} {
		w.term = recovery.NewEpochTerm()
		supervisor := w.newSupervisor(outcomes, name, w.term)
		supervisor.Drain = 0 // each buyer publishes before it removes the partition
		supervisors = append(supervisors, supervisor)
		services = append(services, w.newService(t, w.client, w.store))
	}
	stop := w.run(t, supervisors...)
	var buyers sync.WaitGroup
	sold := make([]int, len(resources))
	for i, resource := range resources {
		buyers.Go(func() {
			for n := range 2 * capacity {
				key := fmt.Sprintf("%s-%d", resource, n)
				stacktest.Eventually(t, key, func() bool {
					o, err := w.tryPlace(t, services[n%2], resource, key)
					if err != nil && !errors.Is(err, holds.ErrDataLost) {
						t.Errorf("%s: %v", key, err)
					}
					if err == nil && o.Event == holds.EventHoldCreated {
						sold[i]++
					}
					return err == nil
				})
				if n < losses && i < 2 {
					w.losePartition(t, resource)
				}
			}
		})
	}
	buyers.Wait()
	stop()
	for i, n := range sold {
		if n != capacity {
			t.Errorf("%d sold of %s, want %d", n, resources[i], capacity)
		}
	}
}

// shards are two Redis servers that share the partitions, as in a cluster.
type shards struct {
	urls [2]string
	mu   sync.Mutex
	has  [2]record.PartitionSet
}

// servers implements SupervisorOptions.Servers.
func (s *shards) servers(context.Context) ([]recovery.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []recovery.Server
	for i, url := range s.urls {
		options := func() *redis.Options { return stacktest.RedisOptions(url) }
		all = append(all, recovery.Server{Addr: url, Options: options, Partitions: s.has[i]})
	}
	return all, nil
}

// low are the partitions of the first of two servers.
const low = record.PartitionSet(1<<32 - 1)

// splitOver gives the partitions that are not low to a second server, as if they had been there from the start.
func (w *harness) splitOver(t *testing.T, second *redis.Client) {
	t.Helper()
	ctx := t.Context()
	for p := range (^low).Each() {
		w.client.Del(ctx, record.Keyspace(w.namespace).Epoch(p))
	}
	server, err := recovery.Initialise(ctx, w.namespace, second, ^low, w.epoch)
	if err != nil {
		t.Fatal(err)
	}
	epochs, err := w.store.Epochs(ctx)
	if err == nil {
		err = w.store.SetEpochServer(ctx, ^low, &epochs, server)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestSupervisor_TwoServers_LosesOnlyOne checks two servers. A partition that was moved from one to the
// other has lost nothing, no connection is closed, and the next decision on it is valid. When one is restarted,
// or does not answer, only its partitions are lost, or wait, also when another one was moved at that moment.
// A server that does not answer is logged once, and the check of the other has not failed.
func TestSupervisor_TwoServers_LosesOnlyOne(t *testing.T) {
	t.Parallel()
	first, second := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, first.RedisURL)
	ctx := t.Context()
	both := &shards{urls: [2]string{first.RedisURL, second.RedisURL}, has: [2]record.PartitionSet{low, ^low}}
	clients := [2]*redis.Client{w.client, stacktest.ConnectRedis(t, second.RedisURL)}
	w.splitOver(t, clients[1])
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisorOf(both.servers, w.store, &replayLog{harness: w}, "w1", term)
	var logged bytes.Buffer
	supervisor.Log = zerolog.New(&logged)
	guarded := stacktest.RedisOptions(second.RedisURL)
	supervisor.Guard.Attach(guarded)
	source := redis.NewClient(guarded)
	t.Cleanup(func() { _ = source.Close() })
	check := func(what string, complete, ready record.PartitionSet) recovery.Epochs {
		t.Helper()
		epochs, err := supervisor.Check(ctx)
		if got := epochs.Complete(); got != complete {
			t.Fatalf("%s: %v are complete, want %v (%v)", what, got, complete, err)
		}
		if got := term.Current().Ready; got != ready {
			t.Fatalf("%s: %v are ready, want %v (%v)", what, got, ready, err)
		}
		return epochs
	}
	move := func(p, from, to int) {
		key := record.Keyspace(w.namespace).Epoch(p)
		clients[to].Set(ctx, key, clients[from].Get(ctx, key).Val(), 0)
		clients[from].Del(ctx, key)
		both.mu.Lock()
		defer both.mu.Unlock()
		both.has[from] &^= record.PartitionSetOf(p)
		both.has[to].Add(p)
	}
	check("at first", record.AllPartitions, record.AllPartitions)
	connection, err := source.ClientID(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	move(40, 1, 0)
	term.Report(40, w.epoch, "", holds.ErrDataLost) // a script on its new server has found another history
	check("moved", record.AllPartitions, record.AllPartitions)
	if now := term.Current(); now.Partition(40).History != now.Partition(0).History {
		t.Error("after the check the partition still has the history of its former server")
	}
	if same, err := source.ClientID(ctx).Result(); err != nil || same != connection {
		t.Errorf("the connections to its former server were closed: %v", err)
	}
	epochs := check("moved before", record.AllPartitions, record.AllPartitions)
	if epochs[40].Server != epochs[0].Server || epochs[40].Name != w.epoch || epochs[40].Server == epochs[41].Server {
		t.Errorf("epochs are %+v", epochs)
	}

	stacktest.KillRedis(t, clients[1])
	silent := ^low &^ record.PartitionSetOf(40)
	check("one server is down", record.AllPartitions, record.AllPartitions&^silent)
	check("one server is still down", record.AllPartitions, record.AllPartitions&^silent)
	if _, err := supervisor.Check(ctx); err != nil {
		t.Errorf("the check of the other server has failed: %v", err)
	}
	if err := term.Paused(); err == nil || errors.Is(err, holds.ErrDataLost) || !strings.Contains(err.Error(), both.urls[1]) {
		t.Errorf("paused: %v, want the address of the server, and no loss", err)
	}
	if lines := logged.String(); strings.Count(lines, "redis shard does not answer") != 1 ||
		!strings.Contains(lines, silent.String()) || strings.Contains(lines, "mismatch") {
		t.Errorf("logged %s", lines)
	}

	third := stacktest.StartRedis(t)
	both.urls[1], clients[1] = third.RedisURL, stacktest.ConnectRedis(t, third.RedisURL)
	for p := range silent.Each() { // its last writes may be missing
		clients[1].Set(ctx, record.Keyspace(w.namespace).Epoch(p), w.epoch, 0)
	}
	move(3, 0, 1)
	lost := silent | record.PartitionSetOf(3)
	epochs = check("another server, and moved to it", record.AllPartitions&^lost, record.AllPartitions&^lost)
	if !strings.HasPrefix(epochs[3].Why, "another server") || !strings.HasPrefix(epochs[50].Why, "another server") {
		t.Errorf("epochs are %+v", epochs)
	}
	if err := term.Paused(); !errors.Is(err, holds.ErrDataLost) || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("paused: %v, want a loss", err)
	}
	supervisor.Drain, supervisor.Log = 0, zerolog.Nop()
	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the partitions to be rebuilt", func() bool { return term.Paused() == nil })
	stop()
	epochs = check("rebuilt", record.AllPartitions, record.AllPartitions)
	for p, e := range epochs {
		if rebuilt := e.Name != w.epoch; rebuilt != lost.Has(p) {
			t.Errorf("epoch of partition %d is %+v", p, e)
		}
	}
}

// TestSupervisor_OtherServerHangs_IsChecked has a server that accepts connections and answers nothing. The other one gets its
// first replica, and with that a new history, and is then replaced by one without its history: both must be noticed.
func TestSupervisor_OtherServerHangs_IsChecked(t *testing.T) {
	t.Parallel()
	first, second, third := stacktest.StartRedis(t), stacktest.StartRedis(t), stacktest.StartRedis(t)
	hangURL, hang := stacktest.ProxyTo(t, first.RedisURL)
	w, ctx := newHarnessOn(t, first.RedisURL), t.Context()
	client := stacktest.ConnectRedis(t, second.RedisURL)
	w.splitOver(t, client)
	both := &shards{urls: [2]string{hangURL, second.RedisURL}, has: [2]record.PartitionSet{low, ^low}}
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisorOf(both.servers, w.store, &replayLog{harness: w}, "w1", term)
	if _, err := supervisor.Check(ctx); err != nil || term.Current().Ready != record.AllPartitions {
		t.Fatal(term.Current().Ready, err)
	}
	supervisor.InspectTimeout = time.Second // as in a worker: the first server uses up all of it in each check
	for _, direction := range []stacktest.Direction{stacktest.Upstream, stacktest.Downstream} {
		hang.Set(direction, stacktest.Toxics{Stall: true})
	}
	eventually := func(what string, reached func(epochs *recovery.Epochs, now *holds.CurrentEpochs) bool) {
		t.Helper()
		stacktest.Eventually(t, what, func() bool {
			epochs, err := supervisor.Check(ctx)
			if err != nil {
				t.Log(err)
			}
			return reached(&epochs, term.Current())
		})
	}
	before := term.Current().Partition(50).History
	stacktest.ReplicaOf(t, stacktest.ConnectRedis(t, third.RedisURL), client)
	eventually("the new history to be stored", func(_ *recovery.Epochs, now *holds.CurrentEpochs) bool {
		return now.Ready == ^low && now.Partition(50).History != before
	})
	other := stacktest.StartRedis(t)
	for p := range (^low).Each() {
		stacktest.ConnectRedis(t, other.RedisURL).Set(ctx, record.Keyspace(w.namespace).Epoch(p), w.epoch, 0)
	}
	both.mu.Lock()
	both.urls[1] = other.RedisURL
	both.mu.Unlock()
	eventually("the loss to be found", func(epochs *recovery.Epochs, _ *holds.CurrentEpochs) bool { return epochs.Complete() == low })
}
