package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// shardFault makes one primary of a cluster fail. It returns the repair.
type shardFault struct {
	name  string
	begin func(s *clusterSale, node int) (repair func())
}

var shardFaults = []shardFault{
	{"rejects writes", func(s *clusterSale, node int) func() {
		s.configure(node, "min-replicas-to-write", "1")
		return func() { s.configure(node, "min-replicas-to-write", "0") }
	}},
	{"stopped", func(s *clusterSale, node int) func() {
		stacktest.Must(s.t, s.cluster.Nodes[node].Pause())
		return func() { stacktest.Must(s.t, s.cluster.Nodes[node].Resume()) }
	}},
	{"killed", (*clusterSale).kill},
	{"unreachable", func(s *clusterSale, node int) func() {
		restart := s.kill(node)
		found := s.ignoreConnections(s.cluster.Addr(node))
		return func() { found(); restart() }
	}},
}

// kill kills a server, and returns what starts it again on its data.
func (s *clusterSale) kill(node int) (restart func()) {
	s.t.Helper()
	client := s.cluster.Client(node)
	settings, err := client.ConfigGet(s.t.Context(), "*").Result()
	stacktest.Must(s.t, err)
	stacktest.Must(s.t, client.Close())
	stacktest.Must(s.t, s.cluster.Nodes[node].Kill())
	return func() { s.restart(node, settings) }
}

// ignoreConnections lets an address neither accept nor refuse connections, like a host that is cut off.
func (s *clusterSale) ignoreConnections(address string) (end func()) {
	s.t.Helper()
	listener, err := net.Listen("tcp", address)
	stacktest.Must(s.t, err)
	raw, err := listener.(*net.TCPListener).SyscallConn()
	stacktest.Must(s.t, err)
	var full error
	stacktest.Must(s.t, raw.Control(func(fd uintptr) { full = syscall.Listen(int(fd), 0) })) // one connection may wait
	stacktest.Must(s.t, full)
	waiting, err := net.DialTimeout("tcp", address, time.Second)
	if waitsAlready, is := errors.AsType[net.Error](err); is && waitsAlready.Timeout() {
		return func() { stacktest.Must(s.t, listener.Close()) }
	}
	stacktest.Must(s.t, err)
	return func() { stacktest.Must(s.t, errors.Join(waiting.Close(), listener.Close())) }
}

// configure changes a setting of one server.
func (s *clusterSale) configure(node int, setting, value string) {
	s.t.Helper()
	client := s.cluster.Client(node)
	stacktest.Must(s.t, client.ConfigSet(s.t.Context(), setting, value).Err())
	stacktest.Must(s.t, client.Close())
}

// restart starts a killed server again on its data, with the settings that it had.
func (s *clusterSale) restart(node int, settings map[string]string) {
	s.t.Helper()
	program, err := stack.RedisProgram(s.t.Context())
	stacktest.Must(s.t, err)
	var args []string
	for _, name := range []string{
		"port", "bind", "dir", "save", "appendonly", "cluster-enabled", "cluster-port", "cluster-config-file",
		"cluster-node-timeout", "cluster-require-full-coverage",
	} {
		args = append(args, "--"+name, settings[name])
	}
	client := s.cluster.Client(node)
	defer func() { _ = client.Close() }() // its commands have ended
	started, err := stack.StartProgram(s.t.Context(), stack.Program{
		Path: program, Args: args, Ready: func(ctx context.Context) error { return client.Ping(ctx).Err() },
	})
	stacktest.Must(s.t, err)
	started.Port = s.cluster.Nodes[node].Port
	s.cluster.Nodes[node] = started
}

// TestRedisCluster_OneShardDown_OthersAnswered makes one of three primaries without replicas fail while two
// workers sell. As long as it fails, the resources of the others are sold, and its own events wait. They are
// answered after its return. No worker pauses, and each logs the failure once. /readyz names the primary, and no rebuild.
// A worker that starts meanwhile works with them.
func TestRedisCluster_OneShardDown_OthersAnswered(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newClusterSale(t, 0)
	for node := range s.cluster.Nodes {
		s.configure(node, "appendonly", "yes")
	}
	workers := []*process{s.startWorker(), s.startWorker()}
	end := s.start(len(s.every))
	victim := slices.IndexFunc(s.every, func(i int) bool { // a worker cannot start without partition 0
		return s.cluster.NodeOf(s.key(i)) != s.cluster.NodeOf(record.Keyspace(s.namespace).Epoch(0))
	})
	node := s.cluster.NodeOf(s.key(victim))
	others := s.others(node)
	for i, fault := range shardFaults {
		s.awaitAnswers(s.every...)
		began := time.Now()
		repair := fault.begin(s, node)
		waiting := s.enter(victim, events.BookingRequested,
			bookingData(s.resources[victim], "waiting", fmt.Sprintf("waiting-%d", i), s.stay(0, 1), 1))
		var changes []string // decided one after the other
		for range 6 {
			changes = append(changes, s.enter(victim, events.InventorySet, s.capacityOf(victim, s.stay(0, s.nights))))
		}
		for range 3 {
			s.awaitAnswers(others...)
			t.Logf("%s: 10 answers of each other resource after %v", fault.name, time.Since(began))
		}
		if fault.name != "rejects writes" {
			stacktest.Eventually(t, "the shard to be reported", func() bool {
				ready := workers[0].readiness(t)
				return slices.Equal(ready.Reasons, []string{"redis"}) && strings.Contains(ready.Details["redis"], "these partitions does not answer") &&
					strings.Contains(ready.Details["redis"], s.cluster.Addr(node))
			})
		}
		if i == len(shardFaults)-1 {
			workers = append(workers, s.startWorker())
			s.awaitAnswers(others...)
		}
		s.mu.Lock()
		early := len(answers(s.outcomes, waiting))
		s.mu.Unlock()
		if early > 0 {
			t.Errorf("%s: the shard has decided an event", fault.name)
		}
		repair()
		repaired := time.Now()
		s.answer(waiting)
		for _, id := range changes {
			s.answer(id)
		}
		t.Logf("%s: the first answer %v after the repair", fault.name, time.Since(repaired))
	}
	s.awaitAnswers(s.every...)
	end()
	s.check()
	for i, worker := range workers {
		log := worker.log.String()
		if strings.Contains(log, "event processing paused") {
			t.Errorf("worker %d has paused", i)
		}
		if n := strings.Count(log, "redis shard fails"); n > len(shardFaults) {
			t.Errorf("worker %d has logged %d failures of %d", i, n, len(shardFaults))
		}
	}
}

// TestRedisCluster_ShardOfFormatDown_StartSaysWhatToDo starts a worker while the primary of partition 0 is killed, and
// again after its return.
func TestRedisCluster_ShardOfFormatDown_StartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newClusterSale(t, 0)
	node := s.cluster.NodeOf(record.Keyspace(s.namespace).Epoch(0))
	s.configure(node, "appendonly", "yes")
	s.startWorker().stop(t)
	addr := fmt.Sprintf("127.0.0.1:%d", s.cluster.Nodes[node].Port)
	repair := s.kill(node)
	worker := s.launch()
	worker.awaitExit(t)
	log := worker.log.String()
	if !strings.Contains(log, "start this shard or promote a replica of it") || !strings.Contains(log, addr) {
		t.Errorf("the worker exits with %v, want what to do with %s", worker.err, addr)
	}
	repair()
	client := s.cluster.Client(node)
	defer func() { _ = client.Close() }() // its commands have ended
	stacktest.Eventually(t, "the shard to serve its keys", func() bool {
		return strings.Contains(client.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	s.startWorker()
}

// TestRedisCluster_LeastPrivilege_SellsAndExpires runs a worker whose user has only the privileges that it needs
// on a Redis Cluster, with TLS where all tests use it. A hold on each primary is paid, and another one expires.
func TestRedisCluster_LeastPrivilege_SellsAndExpires(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	s := &harness{t: t, restricted: stacktest.NewRestrictedServers(t), namespace: stacktest.RestrictedNamespace}
	var halls []string // one on each primary
	for node := range cluster.Nodes {
		for i := 0; len(halls) == node; i++ {
			hall := fmt.Sprintf("hall-%d", i)
			if cluster.NodeOf(record.Keyspace(s.namespace).Epoch(record.Partition(hall))) == node {
				halls = append(halls, hall)
			}
		}
	}
	s.restricted.UseRedisCluster(t, cluster)
	s.urls = s.urlsAs("admin")
	s.begin()
	worker := s.startWorker()
	for _, hall := range halls {
		s.setInventory(hall, holds.SlotSelection{}, 2)
		paid := s.answer(s.book(hall, "ann", "paid", holds.SlotSelection{}, 600))
		left := s.answer(s.book(hall, "bob", "left", holds.SlotSelection{}, 1))
		s.wantAnswer(s.pay(paid.Subject, "p"), holds.EventHoldConfirmed)
		s.expiredOutcome(left.Subject)
	}
	worker.stop(t)
}
