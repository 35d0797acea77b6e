package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
