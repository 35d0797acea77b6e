package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// clusterSale sells nights of some resources on a Redis Cluster of three primaries.
type clusterSale struct {
	*harness
	cluster   *stacktest.RedisCluster
	resources []string // in different partitions
	first     time.Time
	requested sync.Map       // ids of all events
	answered  []atomic.Int64 // by resource
}

const clusterCalendar, clusterCapacity = 10, 3 // nights of each resource, rooms of each night

// newClusterSale returns a sale on primaries that have so many replicas each.
func newClusterSale(t *testing.T, replicas int) *clusterSale {
	t.Helper()
	cluster := stacktest.StartRedisCluster(t, 3, replicas)
	shared := stacktest.Shared()
	s := &clusterSale{
		harness: newHarnessOn(t, urls{shared.NATSURL, cluster.URL(), shared.PostgresURL}),
		cluster: cluster, first: time.Now().UTC().AddDate(0, 0, 7),
	}
	for i := range 8 {
		s.resources = append(s.resources, fmt.Sprintf("room-%d", i))
	}
	s.answered = make([]atomic.Int64, len(s.resources))
	return s
}

func (s *clusterSale) stay(from, nights int) holds.SlotSelection {
	in := s.first.AddDate(0, 0, from)
	return holds.SlotSelection{
		CheckIn: in.Format(holds.DateFormat), CheckOut: in.AddDate(0, 0, nights).Format(holds.DateFormat),
	}
}

// key returns a key of a resource's partition.
func (s *clusterSale) key(resource int) string {
	return record.Keyspace(s.namespace).Epoch(record.Partition(s.resources[resource]))
}

// sell places, pays, cancels and leaves holds until ctx ends.
func (s *clusterSale) sell(ctx context.Context, seller int) {
	request := func(i int, event string, data any) events.Envelope {
		id := s.publish(event, s.resources[i], data)
		s.requested.Store(id, event)
		o := s.answer(id)
		s.answered[i].Add(1)
		return o
	}
	for n := 0; ctx.Err() == nil; n++ {
		i := seller % len(s.resources)
		name := fmt.Sprintf("%d-%d", seller, n)
		nights := 1 + rand.N(3)
		booking := bookingData(s.resources[i], fmt.Sprintf("u%d", seller), "k"+name,
			s.stay(rand.N(clusterCalendar-nights+1), nights), 1+rand.Int64N(3))
		o := request(i, events.BookingRequested, booking)
		if o.Type != events.Type(holds.EventHoldCreated) {
			continue
		}
		switch rand.N(8) {
		case 0, 1:
			paid := request(i, events.PaymentConfirmed, events.PaymentConfirmedData{HoldID: o.Subject, PaymentID: "p" + name})
			if paid.Type == events.Type(holds.EventHoldConfirmed) {
				request(i, events.ReservationCancelled, events.ReservationCancelledData{HoldID: o.Subject})
			}
		case 2:
			request(i, events.BookingExtended, events.BookingExtendedData{HoldID: o.Subject, TTLSeconds: 2})
		case 3, 4, 5:
			request(i, events.BookingCancelled, events.BookingCancelledData{HoldID: o.Subject})
		}
	}
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
	every, end := s.begin(t)
	s.awaitAnswers(every...)
	s.reshard(0)
	s.awaitAnswers(every...)

	killed := s.cluster.NodeOf(s.key(0))
	others := s.others(killed)
	if err := s.cluster.Nodes[killed].Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.awaitAnswers(others...)
	t.Logf("the others answered %v after the kill", time.Since(began))
	s.awaitAnswers(0)
	t.Logf("the first grants after the failover: %v", time.Since(began))
	s.awaitAnswers(every...)
	end()
}

// begin starts to sell all resources, which it returns. end ends the sale, and checks it when every hold has ended.
func (s *clusterSale) begin(t *testing.T) (every []int, end func()) {
	t.Helper()
	for i, resource := range s.resources {
		s.setInventory(resource, s.stay(0, clusterCalendar), clusterCapacity)
		every = append(every, i)
	}
	ending, cancel := context.WithCancel(t.Context())
	var selling sync.WaitGroup
	stop := func() { cancel(); selling.Wait() }
	t.Cleanup(stop)
	for seller := range len(s.resources) {
		selling.Go(func() { s.sell(ending, seller) })
	}
	return every, func() {
		t.Helper()
		stop()
		s.await("the end of every hold", func(all []events.Envelope, _ []nats.Header) bool { return open(all) == 0 })
		s.checkSale(t)
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

// checkSale checks the outcomes and the counters of each resource.
func (s *clusterSale) checkSale(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	all := append([]events.Envelope(nil), s.outcomes...)
	deadLetters := len(s.deadLetters)
	s.mu.Unlock()
	if deadLetters > 0 {
		t.Errorf("%d events were dead-lettered", deadLetters)
	}
	times := make(map[string]int)
	for _, o := range all {
		times[o.CausationID]++
	}
	s.requested.Range(func(id, event any) bool {
		if n := times[id.(string)]; n != 1 {
			t.Errorf("a %s has %d outcomes", event, n)
		}
		return true
	})
	for _, resource := range s.resources {
		var its []events.Envelope
		for _, o := range all {
			if strings.HasPrefix(o.Subject, resource+".") {
				its = append(its, o)
			}
		}
		for slot, most := range recomputeTaken(t, its) {
			if most > clusterCapacity {
				t.Errorf("%d of %s %s were taken at the same time", most, resource, slot)
			}
		}
	}
	s.auditFindsNothing(t)
}

// TestRedisCluster_OptimisticLocks_Refused starts a worker whose lock strategy needs one Redis.
func TestRedisCluster_OptimisticLocks_Refused(t *testing.T) {
	t.Parallel()
	shared := stacktest.Shared()
	var out strings.Builder
	args := []string{
		"run", "--namespace", "none", "--nats-url", shared.NATSURL, "--postgres-url", shared.PostgresURL,
		"--redis-url", "redis+cluster://127.0.0.1:1", "--lock-strategy", "optimistic", "--http-addr", "127.0.0.1:0",
	}
	if code := run(t.Context(), args, streams{&out, &out}); code != exitUsage || !strings.Contains(out.String(), "use range or none") {
		t.Errorf("exit code %d: %s", code, &out)
	}
}

// TestDev_LayoutCluster_StorySucceeds runs the demo on three Redis primaries and three NATS servers.
func TestDev_LayoutCluster_StorySucceeds(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	var out strings.Builder
	args := []string{"dev", "--once", "--layout", "cluster", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir()}
	if code := run(t.Context(), args, streams{&out, &out}); code != exitOK || !strings.Contains(out.String(), "redis+cluster://") {
		t.Errorf("exit code %d:\n%s", code, &out)
	}
}
