package recovery_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// moveToCluster gives the epoch of all partitions to a cluster. Other keys stay on the shared server.
func (w *harness) moveToCluster(t *testing.T, cluster *stacktest.RedisCluster) *recovery.Cluster {
	t.Helper()
	client, keys := cluster.ClusterClient(), record.Keyspace(w.namespace)
	for p := range record.Partitions {
		if err := client.Set(t.Context(), keys.Epoch(p), w.epoch, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.execute(t, "UPDATE partition_epochs SET server = NULL") // it is that of the shared redis
	servers := recovery.NewCluster(w.namespace, []string{cluster.Addr(0)},
		func(addr string) *redis.Options { return stacktest.RedisOptions("redis://" + addr) })
	t.Cleanup(servers.Close)
	return servers
}

// lostNow checks once, and returns the partitions that are lost.
func lostNow(t *testing.T, supervisor *recovery.Supervisor) record.PartitionSet {
	t.Helper()
	epochs, err := supervisor.Check(t.Context())
	stacktest.Must(t, err)
	return record.AllPartitions &^ epochs.Complete()
}

// checkWhole checks once, and fails the test unless no partition is lost.
func checkWhole(t *testing.T, supervisor *recovery.Supervisor) recovery.Epochs {
	t.Helper()
	epochs, err := supervisor.Check(t.Context())
	if lost := record.AllPartitions &^ epochs.Complete(); lost != 0 || err != nil {
		t.Fatalf("lost %v, %v", lost, err)
	}
	return epochs
}

// TestCluster_PrimaryDrained_NothingIsLost moves all partitions of a primary, one after the other, to others, as an
// operator does who wants to remove it. No check takes one of them for lost, and it is not asked any more.
func TestCluster_PrimaryDrained_NothingIsLost(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	w := newHarness(t)
	servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
	supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	checkWhole(t, supervisor)
	const from = 1
	var its []int
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == from {
			its = append(its, p)
		}
	}
	for i, p := range its {
		cluster.MoveAll(keys.Epoch(p), (from+1+i%2)%3)
		checkWhole(t, supervisor)
	}
	if epochs := checkWhole(t, supervisor); epochs[its[0]].Server == "" || epochs[0].Name != w.epoch {
		t.Errorf("epochs are %+v", epochs[its[0]])
	}
	if n := servers.Connections(); n > 2 { // fewer when one was slow to answer
		t.Errorf("%d servers are asked for the topology, want the two that have partitions", n)
	}
}

// TestCluster_PrimaryWithoutPartition_TakesOverWithoutLoss moves partitions, one after the other, to a primary that has had
// none before, as an operator does who has added it. No check takes one of them for lost.
func TestCluster_PrimaryWithoutPartition_TakesOverWithoutLoss(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 4, 0)
	w := newHarness(t)
	servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
	const added = 3
	for p := range record.Partitions { // it keeps other hash slots
		if cluster.NodeOf(keys.Epoch(p)) == added {
			cluster.MoveAll(keys.Epoch(p), p%added)
		}
	}
	supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	checkWhole(t, supervisor)
	for _, p := range []int{5, 6} {
		cluster.MoveAll(keys.Epoch(p), added)
		checkWhole(t, supervisor)
	}
}

// TestCluster_PrimaryDiesWhileSlotMoves_PromotedReplicaFound kills a primary while one of its hash slots is moved, and
// promotes its replica. The target of the move, which is asked first, goes on to name the dead primary for this slot.
func TestCluster_PrimaryDiesWhileSlotMoves_PromotedReplicaFound(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 1)
	keys := record.Keyspace("holdfast")
	const moving = 5
	from := cluster.NodeOf(keys.Epoch(moving))
	to, promoted := (from+1)%3, from+3
	seed := fmt.Sprintf("0.0.0.0:%d", cluster.Nodes[to].Port) // it sorts before the addresses of the others
	servers := recovery.NewCluster("holdfast", []string{seed},
		func(addr string) *redis.Options { return stacktest.RedisOptions("redis://" + addr) })
	t.Cleanup(servers.Close)
	cluster.Move(keys.Epoch(moving), to).Begin()
	replica := cluster.Client(promoted)
	defer func() { _ = replica.Close() }() // all commands have ended
	if err := cluster.Nodes[from].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := replica.Do(t.Context(), "cluster", "failover", "takeover").Err(); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the promoted replica to have the partition", func() bool {
		found, err := servers.Servers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(found, func(server recovery.Server) bool {
			return server.Addr == cluster.Addr(promoted) && server.Partitions.Has(moving)
		})
	})
}

// TestCluster_SeedRemoved_OthersFound drains a primary and removes it as redis-cli --cluster del-node does, which leaves it
// running without hash slots and with the epoch of the cluster. A worker whose URL still has it finds the others.
func TestCluster_SeedRemoved_OthersFound(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 4, 0)
	w, ctx := newHarness(t), t.Context()
	seeds := []string{cluster.Addr(0), cluster.Addr(1), cluster.Addr(2), cluster.Addr(3)}
	removed := slices.Index(seeds, slices.Min(seeds)) // the first one that is asked
	heir := (removed + 1) % 4
	nodes := make([]*redis.Client, 4)
	for i := range nodes {
		nodes[i] = cluster.Client(i)
		t.Cleanup(func() { _ = nodes[i].Close() })
	}
	do := func(on int, command ...any) {
		t.Helper()
		if err := nodes[on].Do(ctx, command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do(heir, "cluster", "bumpepoch")                         // so that its claims are newer than those of the other one
	ranges, err := nodes[removed].ClusterSlots(ctx).Result() //nolint:staticcheck // as in package stack
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range ranges {
		for slot := r.Start; slot <= r.End && r.Nodes[0].Addr == seeds[removed]; slot++ { // all are empty
			for _, on := range []int{heir, (removed + 2) % 4, (removed + 3) % 4, removed} {
				do(on, "cluster", "setslot", slot, "node", cluster.ID(heir))
			}
		}
	}
	stacktest.Eventually(t, "the servers to agree", func() bool {
		epochs := make(map[string]bool)
		for _, node := range nodes {
			served := 0
			for _, r := range node.ClusterSlots(ctx).Val() { //nolint:staticcheck // as in package stack
				if r.Nodes[0].Addr != seeds[removed] {
					served += r.End - r.Start + 1
				}
			}
			if served != 16384 {
				return false
			}
			_, rest, _ := strings.Cut(node.ClusterInfo(ctx).Val(), "cluster_current_epoch:")
			epoch, _, _ := strings.Cut(rest, "\r")
			epochs[epoch] = true
		}
		return len(epochs) == 1
	})
	w.moveToCluster(t, cluster)
	id := cluster.ID(removed)
	for on := range nodes {
		if on != removed {
			do(on, "cluster", "forget", id)
		}
	}
	do(removed, "cluster", "reset", "soft")
	servers := recovery.NewCluster(w.namespace, []string{seeds[removed], seeds[heir]},
		func(addr string) *redis.Options { return stacktest.RedisOptions("redis://" + addr) })
	t.Cleanup(servers.Close)
	found, err := servers.Servers(ctx)
	var has record.PartitionSet
	for _, server := range found {
		has |= server.Partitions
	}
	if has != record.AllPartitions || err != nil {
		t.Errorf("found %v with partitions %v: %v", found, has, err)
	}
	for range 10 { // a client asks its seeds in random order
		client := redis.NewClusterClient(connect.ClusterOptions("redis+cluster://"+seeds[removed]+","+seeds[heir],
			func(addr string) *redis.Options { return stacktest.RedisOptions("redis://" + addr) }))
		if err := client.Get(ctx, record.Keyspace(w.namespace).Epoch(0)).Err(); err != nil {
			t.Errorf("the client of a worker: %v", err)
		}
		_ = client.Close()
	}
}

// TestCluster_RestartedWhileSlotMoves_OthersRecovered restarts a primary while resharding moves the slot of one of its
// partitions, or has been killed then. Its other partitions are recovered at once, and that one when it has moved.
func TestCluster_RestartedWhileSlotMoves_OthersRecovered(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	w := newHarness(t)
	servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
	const moving = recovery.FormatPartition // the server is given the format first
	node, cc := cluster.NodeOf(keys.Epoch(moving)), cluster.ClusterClient()
	var its record.PartitionSet
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == node {
			its.Add(p)
		}
		if err := cc.Set(t.Context(), keys.Applied(p), "as in production", 0).Err(); err != nil { // then scripts fail otherwise
			t.Fatal(err)
		}
	}
	move := cluster.Move(keys.Epoch(moving), (node+1)%3)
	move.Begin()
	for p := range its.Each() { // as after a restart: its server has another name
		w.execute(t, fmt.Sprintf("UPDATE partition_epochs SET server = 'former run' WHERE partition = %d", p))
	}
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", term)
	supervisor.Drain = 0
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() {
		if err := supervisor.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	others := record.AllPartitions &^ record.PartitionSetOf(moving)
	stacktest.Eventually(t, "the others to be recovered", func() bool { return term.Current().Ready == others })
	move.Finish()
	stacktest.Eventually(t, "all to be recovered", func() bool { return term.Current().Ready == record.AllPartitions })
}

// TestCluster_TargetFlushedWhileSlotMoves_MovedPartitionLost removes the data of a server to which resharding moves a
// partition, key by key. The partition is lost, too, when its epoch arrives after that.
func TestCluster_TargetFlushedWhileSlotMoves_MovedPartitionLost(t *testing.T) {
	t.Parallel()
	for name, checkedBetween := range map[string]bool{"checked before the move ends": true, "checked when it has ended": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := stacktest.StartRedisCluster(t, 3, 0)
			w, ctx := newHarness(t), t.Context()
			servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
			const moving = 5
			if err := cluster.ClusterClient().Set(ctx, keys.Applied(moving), "moved first", 0).Err(); err != nil {
				t.Fatal(err)
			}
			supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
			move := cluster.Move(keys.Epoch(moving), (cluster.NodeOf(keys.Epoch(moving))+1)%3)
			checkWhole(t, supervisor)
			move.Begin()
			for move.Keys() > 1 { // the server has the epoch until the end
				move.MoveKeys(1)
			}
			checkWhole(t, supervisor) // while the slot moves
			target := cluster.Client((move.From() + 1) % 3)
			defer func() { _ = target.Close() }()
			stacktest.Must(t, target.FlushAll(ctx).Err())
			if checkedBetween {
				if found := lostNow(t, supervisor); found == 0 || found.Has(moving) {
					t.Fatalf("after the flush %v are lost, want those of the flushed server", found)
				}
			}
			move.Finish()
			stacktest.Eventually(t, "the moved partition to be lost", func() bool { return lostNow(t, supervisor).Has(moving) })
		})
	}
}

// TestCluster_WorkerStartsWhileSlotsMove_OnlyOneLost starts a worker while one partition of several is moved, one after the
// other. It decides in all, and only that one may count as lost: the worker has not seen it before its move.
func TestCluster_WorkerStartsWhileSlotsMove_OnlyOneLost(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	w := newHarness(t)
	servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
	const from, to = 1, 2
	var its []int
	there := 0 // a partition of the target
	for p := range record.Partitions {
		switch cluster.NodeOf(keys.Epoch(p)) {
		case from:
			its = append(its, p)
		case to:
			there = p
		}
	}
	its = its[:3]
	// It stores the servers of the epochs.
	checkWhole(t, w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w0", recovery.NewEpochTerm()))
	move := cluster.Move(keys.Epoch(its[0]), to)
	move.Begin()
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", term)
	checkWhole(t, supervisor)
	if ready := term.Current().Ready; ready != record.AllPartitions {
		t.Fatalf("at the start the worker decides in %v", ready)
	}
	for i := range its {
		move.Finish()
		if i+1 < len(its) {
			move = cluster.Move(keys.Epoch(its[i+1]), to)
			move.Begin()
		}
		stacktest.Eventually(t, "a check to find the partition there", func() bool {
			found := lostNow(t, supervisor)
			if found&^record.PartitionSetOf(its[0]) != 0 {
				t.Fatalf("%v are lost", found)
			}
			return found.Has(its[i]) || w.execute(t, fmt.Sprintf(
				"SELECT count(DISTINCT server) FROM partition_epochs WHERE partition IN (%d, %d)", there, its[i])) == "1"
		})
	}
}
