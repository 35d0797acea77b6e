package events

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// TestDeferred_SlowLane_OtherLanesDecide stops the lane of one resource, and publishes more events
// of it than the in-flight window holds. The events of other resources are decided. When the lane
// continues, each of its events is decided.
func TestDeferred_SlowLane_OtherLanesDecide(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newHarness(t)
	const number = inFlightMax + fetchMax
	stuck := resources[0]
	decided := &decisions{keys: make(map[string][]string)}
	goOn, letGo := newGate(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, stuck+":") {
			<-goOn
		}
		decided.note(key)
		return nil
	})
	for i := range number {
		if b.publishRequest(stuck, i); i%fetchMax == 0 {
			b.awaitPublished() // at most inFlightMax wait
		}
	}
	b.awaitPublished()
	for i := range 10 {
		for _, resource := range resources[1:] {
			b.publishRequest(resource, i)
		}
	}
	b.awaitPublished()
	others := 10 * (len(resources) - 1)
	b.await("the outcomes of the others", func() bool { return len(b.out) == others })
	if n := len(decided.of(stuck)); n != 0 {
		t.Errorf("%d events of the stopped lane were decided", n)
	}
	letGo()
	b.await("all outcomes", func() bool { return len(b.out) == number+others })
	if got := len(decided.of(stuck)); got != number {
		t.Errorf("%d events of the slow lane were decided, want %d", got, number)
	}
}

// TestDeferred_CorruptHotResource_OthersDecide makes more events wait for one corrupt resource than
// fit in the in-flight window. The events of other resources are decided, and later
// those of the resource.
func TestDeferred_CorruptHotResource_OthersDecide(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "hot:") {
			return fmt.Errorf("stock count: %w", holds.ErrCorrupt)
		}
		return nil
	})
	const number = inFlightMax + fetchMax
	for i := range number {
		if b.publishRequest("hot", i); i%fetchMax == 0 {
			b.awaitPublished() // at most inFlightMax wait
		}
	}
	b.awaitPublished()
	for i := range 100 {
		b.publishRequest(fmt.Sprintf("cold-%d", i), 0)
	}
	b.awaitPublished()
	b.await("the outcomes of the others", func() bool { return len(b.out) == 100 })
	consumer := consumerOf(t, b.js, b.ns, ConsumerRequests)
	if info := consumer.CachedInfo(); info.Config.MaxAckPending != ackPendingMax {
		t.Errorf("%d events may be pending, want %d", info.Config.MaxAckPending, ackPendingMax)
	}
	if b.workers[0].failure.Load() != nil || len(b.dlq) > 0 {
		t.Errorf("the consumer has paused, or %d events are dead-lettered", len(b.dlq))
	}
	b.setFault(nil)
	before := len(b.out)
	b.await("outcomes of the resource", func() bool { return len(b.out) > before+recallMax })
}

// TestDeferred_PartitionRebuilding_OthersDecide makes events of lost partitions wait, more than fit in
// the in-flight window, and some that were decided before the loss was noticed. The events of other
// partitions are decided, no consumer pauses, and no event is dead-lettered.
func TestDeferred_PartitionRebuilding_OthersDecide(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.setRebuilding("lost")
	b.setFault(func(key string, _ int) error {
		switch {
		case strings.HasPrefix(key, "unnoticed"):
			return fmt.Errorf("place: %w", holds.ErrDataLost)
		case strings.HasPrefix(key, "lost"):
			return fmt.Errorf("place: %w", &holds.RebuildingError{Progress: "reading outcomes"})
		}
		return nil
	})
	const number = inFlightMax + fetchMax
	for i := range number {
		if b.publishRequest(fmt.Sprintf("lost-%d", i%100), i); i%fetchMax == 0 {
			b.awaitPublished() // at most inFlightMax wait
		}
	}
	b.publishRequest("unnoticed", 0)
	for i := range 100 {
		b.publishRequest(fmt.Sprintf("whole-%d", i), 0)
	}
	b.awaitPublished()
	b.await("the outcomes of the others", func() bool { return len(b.out) == 100 })
	if b.workers[0].failure.Load() != nil || len(b.dlq) > 0 {
		t.Errorf("the consumer has paused, or %d events are dead-lettered", len(b.dlq))
	}
	b.setFault(nil)
	b.setRebuilding("")
	b.await("the outcomes of all", func() bool { return len(b.out) == number+101 })
	if len(b.dlq) > 0 {
		t.Errorf("%d events are dead-lettered", len(b.dlq))
	}
}

// newDeferredDelivery returns an event of its first delivery.
func newDeferredDelivery(seq uint64) *delivery {
	return &delivery{
		msg:  &nats.Msg{Reply: fmt.Sprint(seq)},
		meta: &nats.MsgMetadata{NumDelivered: 1, Sequence: nats.SequencePair{Stream: seq}},
	}
}

// TestDeferred_SlowLane_KeepsOrder defers events of a slow lane, and delivers them again.
func TestDeferred_SlowLane_KeepsOrder(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	admits := func(resource string, seq uint64, want bool) {
		t.Helper()
		if got := h.admits(resource, seq, false); got != want {
			t.Errorf("event %d of %s may be decided: %v, want %v", seq, resource, got, want)
		}
	}
	admits("a", 1, true)
	for seq := uint64(10); seq <= 14; seq++ {
		if delay, first := h.add("a", newDeferredDelivery(seq), false); first != (seq == 10) || delay != delayDeferred {
			t.Errorf("event %d waits %v, is the first: %v", seq, delay, first)
		}
	}
	admits("b", 30, true) // no event of it is deferred
	admits("a", 15, false)
	admits("a", 12, false) // it was delivered again, and is deferred again
	h.add("a", newDeferredDelivery(12), false)
	admits("a", 9, true)
	admits("a", 10, true)
	if got := h.recallWaiting(2); !slices.Equal(got, []string{"11", "12"}) {
		t.Errorf("recalled %q", got)
	}
	if got := h.recallAll(); !slices.Equal(got, []string{"13", "14"}) {
		t.Errorf("recalled %q", got)
	}
	for seq := uint64(11); seq <= 14; seq++ {
		admits("a", 15, false)
		admits("a", seq, true)
	}
	admits("a", 15, true)
	h.add("b", newDeferredDelivery(20), false)
	admits("b", 21, false)
	h.resources["b"].events[0].returnsAt = time.Now().Add(-2 * lostAfter)
	admits("b", 21, true) // the earlier one is lost
	if n := h.events; n != 0 || len(h.resources) != 0 {
		t.Errorf("%d events are left, of %d resources", n, len(h.resources))
	}
}

// TestDeferred_FirstEventElsewhere_LaterOnesAreRecalled recalls the first of two events, which another worker then
// decides. The second one is delivered here meanwhile, and deferred behind it. It is recalled and then admitted, without
// waiting for the first. A third one, whose predecessor was deferred again, waits.
func TestDeferred_FirstEventElsewhere_LaterOnesAreRecalled(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop() // no other consumer fetches
	c := b.workers[0]
	b.publishRequest("room", 1)
	b.publishRequest("room", 2)
	b.publishRequest("room", 3)
	b.awaitPublished()
	l := c.newLane(1)
	events := b.fetchAllOf(c, 3)
	for _, d := range events[:2] {
		l.deferEvent(d, false)
	}
	l.deferred.recallWaiting(1) // the server does not hear of it: the event does not come back here
	l.deferEvent(events[1], false)
	c.recallDue([]*lane{l})
	again, want := b.fetchAllOf(c, 1)[0].meta.Sequence.Stream, events[1].meta.Sequence.Stream
	if again != want {
		t.Fatalf("event %d is delivered again, want %d", again, want)
	}
	l.deferEvent(events[1], false)
	l.deferEvent(events[2], false)
	l.deferred.recallWaiting(10)
	l.deferEvent(events[1], false)
	if l.deferred.admits("room", events[2].meta.Sequence.Stream, false) {
		t.Error("an event overtakes one that waits")
	}
	l.deferred.recallWaiting(10)
	if !l.deferred.admits("room", events[1].meta.Sequence.Stream, true) {
		t.Error("an event that was recalled waits for one that another worker has")
	}
}

// TestDeferred_CorruptResource_RecallsAfterFirst defers events of a corrupt resource. They keep no
// others waiting, and the first is retried soon. When one of them is decided, the others are
// recalled.
func TestDeferred_CorruptResource_RecallsAfterFirst(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	for seq := uint64(10); seq <= 12; seq++ {
		want := delayDeferred
		if seq == 10 {
			want = delayCorrupt
		}
		if delay, first := h.add("a", newDeferredDelivery(seq), true); first != (seq == 10) || delay != want {
			t.Errorf("event %d waits %v, is the first: %v", seq, delay, first)
		}
	}
	if !h.admits("a", 10, false) || !h.admits("a", 15, false) {
		t.Error("an event waits for another one of its corrupt resource")
	}
	got, _ := h.markDecided("a", 15)
	if got = append(got, h.recallWaiting(10)...); len(got) > 0 {
		t.Errorf("recalled %q when an event that was not deferred was decided", got)
	}
	if _, first := h.add("a", newDeferredDelivery(10), true); !first {
		t.Error("the first event is no longer the first after its delivery")
	}
	if got, _ := h.markDecided("a", 10); !slices.Equal(got, []string{"11", "12"}) {
		t.Errorf("recalled %q", got)
	}
	h.markDecided("a", 11)
	if h.markDecided("a", 12); h.events != 0 || len(h.resources) != 0 {
		t.Errorf("%d events are left, of %d resources", h.events, len(h.resources))
	}
	h.add("a", newDeferredDelivery(20), true)
	h.resources["a"].events[0].returnsAt = time.Now().Add(-2 * lostAfter)
	if _, first := h.add("a", newDeferredDelivery(21), true); !first || h.events != 1 {
		t.Error("a lost event is still the first")
	}
	h.resources["a"].events[0].returnsAt = time.Now().Add(-2 * lostAfter)
	if h.add("a", newDeferredDelivery(22), false); h.admits("a", 23, false) {
		t.Error("an event overtakes one of a slow lane, because lost events of its resource were unordered")
	}
}

// TestDeferred_PartitionRebuilt_RecallsAll defers events of lost partitions, and of a corrupt resource.
// When a partition is rebuilt, its events are recalled, once.
func TestDeferred_PartitionRebuilt_RecallsAll(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	for i, resource := range []string{"corrupt", "lost", "rebuilt", "rebuilt"} {
		h.add(resource, newDeferredDelivery(uint64(i)), true)
		if resource != "corrupt" {
			h.markLost(resource)
		}
	}
	rebuilt := func(resource string) bool { return resource != "lost" }
	if got := h.recallRebuilt(rebuilt); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("recalled %q", got)
	}
	if got := h.recallRebuilt(rebuilt); len(got) > 0 {
		t.Errorf("recalled %q again", got)
	}
	h.add("rebuilt", newDeferredDelivery(3), true) // the partition is lost again
	h.markLost("rebuilt")
	if got := h.recallRebuilt(rebuilt); !slices.Equal(got, []string{"3"}) {
		t.Errorf("recalled %q after the second loss", got)
	}
}

// TestDeferred_ShardQuiet_RecallsOneOfEach defers events in outages of servers. When an outage is quiet, one
// event of each of its resources is recalled at a time. The first decided one ends the outage.
func TestDeferred_ShardQuiet_RecallsOneOfEach(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	quiet, failing := &shardOutage{}, &shardOutage{}
	for i, resource := range []string{"quiet", "quiet", "failing", "lost", "corrupt"} {
		h.add(resource, newDeferredDelivery(uint64(i)), true)
		switch resource {
		case "failing":
			h.markShard(resource, failing)
		case "quiet", "lost":
			h.markShard(resource, quiet)
		}
	}
	probes := func() []string {
		return h.recallProbes(
			func(of *shardOutage) bool { return of == quiet }, func(resource string) bool { return resource != "lost" })
	}
	for _, want := range [][]string{{"0"}, {"1"}, nil} {
		if got := probes(); !slices.Equal(got, want) {
			t.Errorf("recalled %q, want %q", got, want)
		}
	}
	over := func(resource string, seq uint64) *shardOutage {
		_, over := h.markDecided(resource, seq)
		return over
	}
	if over("quiet", 7) != nil || over("corrupt", 4) != nil {
		t.Error("an event that was not deferred in an outage has ended one")
	}
	if over("quiet", 1) != quiet || over("quiet", 0) != nil {
		t.Error("the outage has not ended once, with the first decided event")
	}
}

// TestDeferred_ManyWait_ReturnLessOften defers the first events of many resources, and then events while many wait at the
// server. It prefers redeliveries: when they came as often as those of a few, it would deliver nothing else.
func TestDeferred_ManyWait_ReturnLessOften(t *testing.T) {
	t.Parallel()
	wait := 0
	h := newDeferredEvents(func() int { return wait })
	var perSecond, last float64
	for seq := range uint64(100_000) {
		delay, _ := h.add(strconv.FormatUint(seq, 10), newDeferredDelivery(seq), true)
		last = 1 / delay.Seconds()
		perSecond += last
	}
	if rate := last * float64(len(h.resources)); rate > 1001 { // on a slow machine the first ones count as lost by now
		t.Errorf("the resources are retried %.0f times a second, want 1000", rate)
	}
	if perSecond > 20_000 { // at first, while their number is not known
		t.Errorf("they are first retried %.0f times a second", perSecond)
	}
	for number, want := range map[int]time.Duration{
		0: 15 * time.Second, 40_000: 20 * time.Second, 400_000: 200 * time.Second, 10_000_000: delayEachMax,
	} {
		wait = number
		if delay, _ := newDeferredEvents(h.waiting).add("a", newDeferredDelivery(1), false); delay != want {
			t.Errorf("while %d events wait, one returns after %v, want %v", number, delay, want)
		}
	}
}

// TestDeferred_Full_KeepsOnePerResource defers more events than are recorded. At least one of each
// resource is recorded.
func TestDeferred_Full_KeepsOnePerResource(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	h.events = deferredMax
	for seq := range uint64(3) {
		h.add("a", newDeferredDelivery(seq), false)
	}
	if n := h.events; n != deferredMax+1 {
		t.Errorf("%d events, want %d", n, deferredMax+1)
	}
	d := newDeferredDelivery(3)
	d.meta.NumDelivered = 100
	if delay, _ := h.add("a", d, false); delay != delayDeferredMax {
		t.Errorf("event waits %v", delay)
	}
}

// TestDeferred_DeliveredOften_ReturnsWithinThirtySeconds defers events that were delivered often. The server
// delivers each within 30 s: when the worker that has deferred them is killed, no worker recalls them.
func TestDeferred_DeliveredOften_ReturnsWithinThirtySeconds(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	for seq := range uint64(4) {
		d := newDeferredDelivery(seq)
		d.meta.NumDelivered = 100
		delay, _ := h.add([]string{"slow", "corrupt"}[seq%2], d, seq%2 == 1)
		if longest := delay + delay/2; longest > 30*time.Second {
			t.Errorf("event %d waits for up to %v", seq, longest)
		}
	}
}

// TestDeferExcess_AllLanesSlow_NoneDeferred gives every lane more than it keeps when it is slow. An event is
// deferred only when a lane has room: otherwise it would be fetched again in vain.
func TestDeferExcess_AllLanesSlow_NoneDeferred(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop() // no other consumer fetches
	c := b.workers[0]
	const number, kept = 2 * batchMin, batchMin
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	lanes := []*lane{c.newLane(2), c.newLane(2)}
	for i, d := range b.fetchAllOf(c, number) {
		d.fetched = d.fetched.Add(-c.slowAfter)
		lanes[i%2].queue.add(d)
	}
	for _, l := range lanes {
		l.queueMax = kept / 2
	}
	c.deferExcess(lanes)
	if first, second := lanes[0].queue.len(), lanes[1].queue.len(); first != kept || second != kept {
		t.Errorf("the slow lanes keep %d and %d events, want %d", first, second, kept)
	}
	lanes[1].queue.take(1, inFlightBytesMax)
	c.deferExcess(lanes)
	for i, l := range lanes {
		if n := l.queue.len(); n != kept/2 {
			t.Errorf("lane %d keeps %d events when one has room, want %d", i, n, kept/2)
		}
	}
}

// TestDeferred_FirstOfTwoRecalledAgain_SecondWaits recalls two events. The first is delivered, deferred again and recalled
// again, so it comes after the second: the second waits for it.
func TestDeferred_FirstOfTwoRecalledAgain_SecondWaits(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	for seq := uint64(1); seq <= 2; seq++ {
		h.add("a", newDeferredDelivery(seq), false)
	}
	h.recallWaiting(10)
	if !h.admits("a", 1, false) {
		t.Error("the first event waits")
	}
	h.add("a", newDeferredDelivery(1), false)
	h.recallWaiting(10)
	if h.admits("a", 2, false) {
		t.Error("the second event overtakes the first one")
	}
}

func noneWait() int { return 0 }

// TestDeferred_RecalledByAnotherWorker_NeedNotWait delivers an event that another worker has deferred and recalled. It waits
// for an earlier one that waits at the server, but not for one that was recalled here, as a new event does.
func TestDeferred_RecalledByAnotherWorker_NeedNotWait(t *testing.T) {
	t.Parallel()
	h := newDeferredEvents(noneWait)
	h.add("a", newDeferredDelivery(1), false)
	if h.admits("a", 2, true) {
		t.Error("an event that another worker has recalled overtakes one that waits")
	}
	h.recallWaiting(1)
	if h.admits("a", 2, false) {
		t.Error("a new event overtakes one that was recalled")
	}
	if !h.admits("a", 2, true) {
		t.Error("an event that another worker has recalled waits for one that was recalled here")
	}
	h.add("a", newDeferredDelivery(2), false)
	if h.admits("a", 2, true) {
		t.Error("an event that was deferred here, and comes before its recall, overtakes an earlier one")
	}
}

// modelServer models the durable consumer of one resource, in fake time: it delivers what is due again before new events.
type modelServer struct {
	events, next uint64
	acked        map[uint64]bool
	due          map[uint64]time.Time // of deferred events
	queue        []uint64             // to be delivered again
	delivered    map[uint64]uint64    // the deliveries of each event
	deliveries   int
}

// nak delivers events again, at once.
func (s *modelServer) nak(replies []string) {
	for _, reply := range replies {
		seq, _ := strconv.ParseUint(reply, 10, 64)
		if _, waits := s.due[seq]; waits {
			delete(s.due, seq)
			s.queue = append(s.queue, seq)
		}
	}
}

// nakDue delivers the events again whose delay is over.
func (s *modelServer) nakDue() {
	var over []uint64
	for seq, at := range s.due {
		if !at.After(time.Now()) {
			over = append(over, seq)
		}
	}
	slices.Sort(over) // the order of a map is random
	for _, seq := range over {
		s.nak([]string{strconv.FormatUint(seq, 10)})
	}
}

// deliver returns an event, 0 when there is none.
func (s *modelServer) deliver() (seq uint64) {
	switch {
	case len(s.queue) > 0:
		seq, s.queue = s.queue[0], s.queue[1:]
	case s.next < s.events:
		s.next++
		seq = s.next
	default:
		return 0
	}
	s.delivered[seq]++
	s.deliveries++
	return seq
}

// modelWorker models the one lane of a worker that has the real deferredEvents.
type modelWorker struct {
	*modelServer
	deferred *deferredEvents
	queue    []uint64
	since    map[uint64]time.Time // when an event of the queue came
}

func (w *modelWorker) deferEvent(seq uint64) {
	d := newDeferredDelivery(seq)
	d.meta.NumDelivered = w.delivered[seq]
	delay, _ := w.deferred.add("a", d, false)
	w.due[seq] = time.Now().Add(delay + delay/4)
}

// fetch takes up to so many events, and defers those for which the lane is too slow.
func (w *modelWorker) fetch(most int) {
	for range most {
		if len(w.queue) > inFlightMax-fetchMax {
			if time.Since(w.since[w.queue[0]]) >= laneSlow {
				for _, seq := range w.queue[inFlightMax/4:] {
					w.deferEvent(seq)
				}
				w.queue = w.queue[:inFlightMax/4]
			}
			return
		}
		seq := w.deliver()
		switch {
		case seq == 0:
			return
		case w.deferred.admits("a", seq, w.delivered[seq] > 1):
			w.queue = append(w.queue, seq)
			w.since[seq] = time.Now()
		default:
			w.deferEvent(seq)
		}
	}
}

// decide answers up to so many events, and recalls others.
func (w *modelWorker) decide(most int) {
	for range min(most, len(w.queue)) {
		seq := w.queue[0]
		w.queue = w.queue[1:]
		w.acked[seq] = true
		replies, _ := w.deferred.markDecided("a", seq)
		w.nak(replies)
	}
	if free := inFlightMax/8 - len(w.queue); free > 0 {
		w.nak(w.deferred.recallWaiting(free))
	}
}

// TestDeferred_TwoWorkersShareResource_EventsDoNotBounce lets two workers share what waits for one resource. Both are slow at
// first, so they defer events. Then they are quick, and the server takes seconds to deliver what they recall. The events
// must not go from one to the other: they did so for minutes, while new ones waited.
func TestDeferred_TwoWorkersShareResource_EventsDoNotBounce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const events, tick = 40_000, 250 * time.Millisecond
		s := &modelServer{
			events: events, acked: make(map[uint64]bool), due: make(map[uint64]time.Time), delivered: make(map[uint64]uint64),
		}
		var workers []*modelWorker
		for range 2 {
			waiting := func() int { return int(s.next) - len(s.acked) }
			workers = append(workers, &modelWorker{s, newDeferredEvents(waiting), nil, make(map[uint64]time.Time)})
		}
		began := time.Now()
		for len(s.acked) < events {
			delivers, decides := fetchMax, 25 // of each worker in a tick
			if time.Since(began) > 10*time.Second {
				delivers, decides = 250, 1000
			}
			s.nakDue()
			for _, w := range workers {
				w.fetch(delivers)
				w.decide(decides)
			}
			slices.Reverse(workers)
			time.Sleep(tick) // fake time
			if time.Since(began) > 10*time.Minute {
				t.Fatalf("%d of %d events are answered after ten minutes, with %d deliveries", len(s.acked), events, s.deliveries)
			}
		}
		t.Logf("all answered after %v, with %d deliveries", time.Since(began), s.deliveries)
		if s.deliveries > 9*events/4 {
			t.Errorf("%d events needed %d deliveries", events, s.deliveries)
		}
	})
}
