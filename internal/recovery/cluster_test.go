package recovery_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestCluster_PrimaryDrained_NothingIsLost moves all partitions of a primary, one after the other, to another one, as an
// operator does who wants to remove it. No check takes one of them for lost.
func TestCluster_PrimaryDrained_NothingIsLost(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	w, ctx := newHarness(t), t.Context()
	client, keys := cluster.ClusterClient(), record.Keyspace(w.namespace)
	for p := range record.Partitions {
		if err := client.Set(ctx, keys.Epoch(p), w.epoch, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	servers := recovery.NewCluster(w.namespace, strings.Split(strings.TrimPrefix(cluster.URL(), "redis+cluster://"), ","),
		func(addr string) *redis.Options { return stacktest.RedisOptions("redis://" + addr) })
	t.Cleanup(servers.Close)
	w.execute(t, "UPDATE partition_epochs SET server = NULL") // it is that of the shared redis
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
	from := cluster.NodeOf(keys.Epoch(0))
	var its []int
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == from {
			its = append(its, p)
		}
	}
	for i, p := range its {
		m := cluster.Move(keys.Epoch(p), (from+1+i%2)%3)
		m.Begin()
		for m.MoveKeys(100) > 0 {
		}
		m.EndTarget()
		m.EndSource()
		stacktest.Eventually(t, "the servers to know", func() bool { return cluster.NodeOf(keys.Epoch(p)) != from })
		check("after a move")
	}
	if epochs := check("drained"); epochs[its[0]].Server == "" || epochs[0].Name != w.epoch {
		t.Errorf("epochs are %+v", epochs[its[0]])
	}
}
