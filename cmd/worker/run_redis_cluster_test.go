package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// clusterSale is a sale on a Redis Cluster of three primaries. Its resources are in different partitions.
type clusterSale struct {
	*sale
	cluster *stacktest.RedisCluster
	every   []int // of the resources
}

// newClusterSale returns a sale on primaries that have so many replicas each.
func newClusterSale(t *testing.T, replicas int) *clusterSale {
	t.Helper()
	cluster := stacktest.StartRedisCluster(t, 3, replicas)
	shared := stacktest.Shared()
	s := &clusterSale{cluster: cluster}
	var resources []string
	for i := range 8 {
		resources, s.every = append(resources, fmt.Sprintf("room-%d", i)), append(s.every, i)
	}
	s.sale = newSale(newHarnessOn(t, urls{shared.NATSURL, cluster.URL(), shared.PostgresURL}), resources...)
	s.nights, s.longest, s.capacity = 10, 3, 3
	return s
}

// key returns a key of a resource's partition.
func (s *clusterSale) key(resource int) string {
	return record.Keyspace(s.namespace).Epoch(record.Partition(s.resources[resource]))
}

// awaitAnswers waits for more answers of each of some resources.
func (s *clusterSale) awaitAnswers(resources ...int) {
	s.t.Helper()
	for _, i := range resources {
		want := s.answered[i].Load() + 10
		stacktest.Eventually(s.t, "answers of "+s.resources[i], func() bool { return s.answered[i].Load() >= want })
	}
}

// others returns the resources whose slot another primary has.
func (s *clusterSale) others(node int) (some []int) {
	for i := range s.resources {
		if s.cluster.NodeOf(s.key(i)) != node {
			some = append(some, i)
		}
	}
	return some
}

// TestRedisCluster_ReshardAndFailover_NothingLostOrDoubled moves a hash slot, key by key, and then kills a
// primary, while two workers sell. In both cases the other partitions go on. In the end every event has
// one outcome, no night was sold too often, and nothing is left in the counters.
func TestRedisCluster_ReshardAndFailover_NothingLostOrDoubled(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newClusterSale(t, 1)
	for range 2 {
		s.startWorker()
	}
	end := s.start(len(s.every))
	s.awaitAnswers(s.every...)
	s.reshard(0)
	s.awaitAnswers(s.every...)

	killed := s.cluster.NodeOf(s.key(0))
	others := s.others(killed)
	stacktest.Must(t, s.cluster.Nodes[killed].Kill())
	began := time.Now()
	s.awaitAnswers(others...)
	t.Logf("the others answered %v after the kill", time.Since(began))
	s.awaitAnswers(0)
	t.Logf("the first grants after the failover: %v", time.Since(began))
	s.awaitAnswers(s.every...)
	end()
	s.check()
}

// TestRedisCluster_FailoverWhileSlotMoves_HoldKept kills a primary while a hash slot is moved from it, key by key. The
// replica that is promoted has the epoch and the marker of the partition, and lacks its hold.
func TestRedisCluster_FailoverWhileSlotMoves_HoldKept(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	cluster, shared := stacktest.StartRedisCluster(t, 3, 1), stacktest.Shared()
	s := newHarnessOn(t, urls{shared.NATSURL, cluster.URL(), shared.PostgresURL})
	worker := s.startWorker()
	worker.awaitReady(t)
	s.setInventory("room", holds.SlotSelection{}, 1)
	partition, keys := record.Partition("room"), record.Keyspace(s.namespace)
	from := cluster.NodeOf(keys.Epoch(partition))
	client := cluster.Client(from)
	defer func() { _ = client.Close() }()
	held := s.wantAnswer(s.book("room", "ann", "k1", holds.SlotSelection{}, 600), holds.EventHoldCreated)
	s.awaitMarker(client, partition)
	to := slices.MaxFunc([]int{(from + 1) % 3, (from + 2) % 3}, func(a, b int) int { // the last one to be asked who has which slots
		return strings.Compare(cluster.Addr(a), cluster.Addr(b))
	})
	move := cluster.Move(keys.Epoch(partition), to)
	move.Begin()
	slot := int(client.ClusterKeySlot(t.Context(), keys.Epoch(partition)).Val())
	for move.MoveKeys(1, keys.Applied(partition), keys.Epoch(partition)) > 0 {
	}
	stacktest.Must(t, client.Do(t.Context(), "wait", 1, 0).Err())
	stacktest.Must(t, cluster.Nodes[from].Kill())
	promoted := cluster.Client(from + 3)
	defer func() { _ = promoted.Close() }()
	stacktest.Eventually(t, "the replica to be promoted", func() bool {
		return promoted.Do(t.Context(), "role").Val().([]any)[0] == "master"
	})
	// In Valkey the slot is still being moved from it, and its partition waits until an operator ends that. Redis has forgotten.
	stacktest.Must(t, promoted.Do(t.Context(), "cluster", "setslot", slot, "stable").Err())
	s.wantAnswer(s.book("room", "ben", "k2", holds.SlotSelection{}, 600), holds.EventHoldRejected)
	s.wantAnswer(s.pay(held.Subject, "p1"), holds.EventHoldConfirmed)
	if log := worker.log.String(); !strings.Contains(log, "which were being moved") {
		t.Error("the log does not say why the partition was rebuilt")
	}
}

// reshard moves the slot of a resource to the next primary while it is in use.
func (s *clusterSale) reshard(resource int) {
	s.t.Helper()
	from := s.cluster.NodeOf(s.key(resource))
	move := s.cluster.Move(s.key(resource), (from+1)%3)
	move.Begin()
	s.awaitAnswers(s.others(from)...)
	for moved := 1; moved > 0; {
		moved = move.MoveKeys(1)
	}
	s.awaitAnswers(s.others(from)...)
	move.EndTarget()
	move.EndSource()
}

// TestRedisCluster_OptimisticLocks_Refused starts a worker whose lock strategy needs one Redis.
func TestRedisCluster_OptimisticLocks_Refused(t *testing.T) {
	t.Parallel()
	shared := stacktest.Shared()
	args := []string{
		"run", "--namespace", "none", "--nats-url", shared.NATSURL, "--postgres-url", shared.PostgresURL,
		"--redis-url", "redis+cluster://127.0.0.1:1", "--lock-strategy", "optimistic", "--http-addr", "127.0.0.1:0",
	}
	if code, out := execute(t.Context(), args...); code != exitUsage || !strings.Contains(out, "use range or none") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestDev_LayoutCluster_StorySucceeds runs the demo on three Redis primaries and three NATS servers.
func TestDev_LayoutCluster_StorySucceeds(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	args := []string{"dev", "--once", "--layout", "cluster", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir()}
	if code, out := execute(t.Context(), args...); code != exitOK || !strings.Contains(out, "redis+cluster://") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}
