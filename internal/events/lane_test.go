package events

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// lanesOf returns one resource for each lane that a consumer has on this machine, at least two.
func lanesOf(t *testing.T) (resources []string) {
	t.Helper()
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // one lane for each processor
	resources = make([]string, min(runtime.GOMAXPROCS(0), lanesMax))
	for i, missing := 0, len(resources); missing > 0; i++ {
		name := fmt.Sprintf("lane-%d", i)
		if l := laneOf("ns.in.booking.requested."+name, len(resources)); resources[l] == "" {
			resources[l] = name
			missing--
		}
	}
	return resources
}

// TestLaneOf_SameResource_SameLane checks that all events of a resource are in one lane, and that
// each lane has some resources.
func TestLaneOf_SameResource_SameLane(t *testing.T) {
	t.Parallel()
	ns := Namespace("holdfast")
	for lanes := 1; lanes <= lanesMax; lanes++ {
		used := make(map[int]bool)
		for i := range 100 {
			resource := fmt.Sprintf("room-%d", i)
			want := laneOf(ns.In(BookingRequested, resource), lanes)
			used[want] = true
			for _, event := range []string{BookingCancelled, BookingExtended, PaymentConfirmed, InventorySet} {
				if got := laneOf(ns.In(event, resource), lanes); got != want {
					t.Errorf("with %d lanes, %s of %s is in lane %d, its requests in %d", lanes, event, resource, got, want)
				}
			}
		}
		if len(used) != lanes {
			t.Errorf("with %d lanes, 100 resources use %v", lanes, used)
		}
	}
}

// TestLane_ManyBatches_DecidedInOrder publishes events of many resources, more than one fetch
// returns, while the first ones are being decided. Those of each resource are decided in the order
// in which they were published.
func TestLane_ManyBatches_DecidedInOrder(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	const resources, each = 53, 60 // a prime number: the events of a resource have sequences of every kind
	decided := &decisions{keys: make(map[string][]string)}
	published, publish := newGate(t)
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	batches := make(map[int]int) // the number of events by the size of their batch
	b.setFault(func(key string, batch int) error {
		begin()
		<-published
		decided.note(key)
		decided.mu.Lock()
		defer decided.mu.Unlock()
		batches[batch]++
		return nil
	})
	for number := range each {
		for r := range resources {
			b.publishRequest(fmt.Sprintf("room-%d", r), number)
			if r == 0 && number == 0 {
				<-begun // this event is a batch of its own, and the others of its lane are in later batches
			}
		}
	}
	b.awaitPublished()
	publish()
	b.await("all outcomes", func() bool { return len(b.out) == resources*each })
	for r := range resources {
		resource := fmt.Sprintf("room-%d", r)
		keys := decided.of(resource)
		if len(keys) != each || !slices.IsSorted(keys) {
			t.Fatalf("%d of %d events of %s were decided, in the order %q", len(keys), each, resource, keys)
		}
	}
	tried := 0
	for size, n := range batches {
		tried += n / size
	}
	if tried < 3 {
		t.Errorf("%d batches, events by batch size %v: too few to test", tried, batches)
	}
}

// TestLane_ResourceStuck_OtherLanesDecide stops one resource, as when another worker has its lock.
// The other lanes decide batch after batch, and the later events of the resource wait for their
// turn.
func TestLane_ResourceStuck_OtherLanesDecide(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const rounds, each = 5, 20
	stuck := resources[0]
	decided := &decisions{keys: make(map[string][]string)}
	begun := make(chan struct{})
	goOn, letGo := newGate(t)
	b.setFault(func(key string, _ int) error {
		if key == stuck+":00000" {
			close(begun)
			<-goOn
		}
		decided.note(key)
		return nil
	})
	b.publishRequest(stuck, 0)
	<-begun
	for round := range rounds {
		for i := range each {
			for _, resource := range resources {
				b.publishRequest(resource, 1+round*each+i)
			}
		}
		want := (round + 1) * each * (len(resources) - 1)
		b.await("the outcomes of the others", func() bool { return len(b.out) >= want })
	}
	if keys := decided.of(stuck); len(keys) != 0 {
		t.Errorf("%q were decided before an earlier event", keys)
	}
	letGo()
	b.await("all outcomes", func() bool { return len(b.out) == rounds*each*len(resources)+1 })
	if keys := decided.of(stuck); !slices.IsSorted(keys) || len(keys) != rounds*each+1 {
		t.Errorf("decided in the order %q", keys)
	}
}

// TestBatchSize_SlowAndQuickBatches_FollowsTheRate decides batches of a lane at different rates.
func TestBatchSize_SlowAndQuickBatches_FollowsTheRate(t *testing.T) {
	t.Parallel()
	b := batchSize{max: 2048, limit: 2048}
	for i, c := range []struct {
		n    int
		took time.Duration
		want int
	}{
		{2048, 400 * time.Millisecond, 2048}, // quick enough
		{2000, 10 * time.Second, 100},        // a slow server: so many within half a second
		{3, 2 * time.Second, 64},             // a few that waited for long
		{10, time.Millisecond, 64},           // says nothing about larger batches
		{64, 300 * time.Millisecond, 64},     // twice as many might take too long
		{64, 10 * time.Millisecond, 128},
		{128, 10 * time.Millisecond, 256},
		{200, 600 * time.Millisecond, 166},
		{166, time.Millisecond, 332}, {332, time.Millisecond, 664}, {664, time.Millisecond, 1328},
		{1328, time.Millisecond, 2048},
		{2048, time.Millisecond, 2048},
	} {
		if b.adapt(c.n, c.took); b.max != c.want {
			t.Fatalf("batch %d, %d events in %v: the next may have %d, want %d", i, c.n, c.took, b.max, c.want)
		}
	}
}

// TestBatchSize_EachCallTakesLong_GrowsAgain decides full batches with a server that takes long for each call, however
// many events it has, after one that takes long for each event. Small batches would only make less of each call.
func TestBatchSize_EachCallTakesLong_GrowsAgain(t *testing.T) {
	t.Parallel()
	const limit = 2048
	b := batchSize{max: limit, limit: limit}
	decide := func(batches int, call, event time.Duration) (largest int) {
		for range batches {
			largest = max(largest, b.max)
			b.adapt(b.max, call+time.Duration(b.max)*event)
		}
		return largest
	}
	decide(10, 0, 5*time.Millisecond)
	if n := decide(100, 0, 5*time.Millisecond); n > 200 {
		t.Errorf("a batch of events that take 5 ms each has %d, want about 100 and sometimes twice as many", n)
	}
	for _, call := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond} {
		for before := range 2 * batchTries {
			decide(50+before, 0, 5*time.Millisecond)
			decide(50, call, 0)
			if n := decide(50, call, 0); n != limit || b.max != limit {
				t.Errorf("calls that take %s, after %d others: the largest of 50 batches has %d and the next %d, want %d",
					call, 50+before, n, b.max, limit)
			}
		}
	}
	for range 2 * batchTries {
		b.adapt(limit, 100*time.Millisecond)
	}
	if b.adapt(limit, 800*time.Millisecond); b.max != limit*5/8 {
		t.Errorf("after many full batches of the largest size, one of 0.8 s: the next has %d, want %d", b.max, limit*5/8)
	}
	decide(50, 900*time.Millisecond, 0)
	b.adapt(limit/3, 900*time.Millisecond)
	if b.max != limit {
		t.Errorf("after a batch that was not full the next has %d, want %d", b.max, limit)
	}
	if b.adapt(limit, 10*time.Second); b.max > 102 {
		t.Errorf("after a batch of 10 s the next has %d, want about 100", b.max)
	}
}

// TestLane_EventsAnsweredElsewhere_FailuresAreForgotten counts failures of more events than a lane keeps counts of:
// of events that other workers answer it would keep them for ever.
func TestLane_EventsAnsweredElsewhere_FailuresAreForgotten(t *testing.T) {
	t.Parallel()
	l := lane{failures: make(map[origin]int)}
	for seq := range uint64(2 * inFlightMax) {
		l.countFailure(origin{seq: seq})
	}
	if n := len(l.failures); n > inFlightMax {
		t.Errorf("%d counts are kept, want at most %d", n, inFlightMax)
	}
	last := origin{seq: 2*inFlightMax - 1}
	if n := l.countFailure(last); n != 2 {
		t.Errorf("the last event has %d failures, want 2", n)
	}
}

// TestLane_DeferredEventMalformed_BlocksNone defers a malformed event of a slow lane and a later one of its resource.
// When the first is delivered again, it is taken for its dead letter, and the later one waits no longer.
func TestLane_DeferredEventMalformed_BlocksNone(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop() // no other consumer fetches
	c := b.workers[0]
	b.publishRequest("room", 1)
	b.publishRequest("room", 2)
	b.awaitPublished()
	l := c.newLane(1)
	events := b.fetchAllOf(c, 2)
	for _, d := range events {
		l.deferEvent(d, false)
	}
	events[0].result.Err = errors.New("malformed")
	for _, d := range events {
		l.enqueue(d)
	}
	if n := l.queue.len(); n != 2 || l.deferred.events != 0 {
		t.Errorf("%d events are queued and %d deferred", n, l.deferred.events)
	}
}
