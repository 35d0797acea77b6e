package recovery_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

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

// TestCluster_PrimaryDrained_NothingIsLost moves all partitions of a primary, one after the other, to others, as an
// operator does who wants to remove it. No check takes one of them for lost, and it is not asked any more.
func TestCluster_PrimaryDrained_NothingIsLost(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	w, ctx := newHarness(t), t.Context()
	servers, keys := w.moveToCluster(t, cluster), record.Keyspace(w.namespace)
	supervisor := w.newSupervisorOf(servers.Servers, w.store, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	check := func(what string) recovery.Epochs {
		t.Helper()
		epochs, err := supervisor.Check(ctx)
		if lost := record.AllPartitions &^ epochs.Complete(); lost != 0 || err != nil {
			t.Fatalf("%s: lost %v, %v", what, lost, err)
		}
		return epochs
	}
	check("at first")
	const from = 1
	var its []int
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == from {
			its = append(its, p)
		}
	}
	for i, p := range its {
		cluster.MoveAll(keys.Epoch(p), (from+1+i%2)%3)
		check("after a move")
	}
	if epochs := check("drained"); epochs[its[0]].Server == "" || epochs[0].Name != w.epoch {
		t.Errorf("epochs are %+v", epochs[its[0]])
	}
	if n := servers.Connections(); n > 2 { // fewer when one was slow to answer
		t.Errorf("%d servers are asked for the topology, want the two that have partitions", n)
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
	node := cluster.NodeOf(keys.Epoch(moving))
	var its record.PartitionSet
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == node {
			its.Add(p)
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
	for move.MoveKeys(100) > 0 {
	}
	move.EndTarget()
	move.EndSource()
	stacktest.Eventually(t, "all to be recovered", func() bool { return term.Current().Ready == record.AllPartitions })
}
