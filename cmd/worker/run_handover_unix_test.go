//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// The load while workers are killed or replaced: a request for each resource in each interval, which
// HOLDFAST_TEST_LOAD_EVERY changes.
const loadResources = 36

var loadEvery = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("HOLDFAST_TEST_LOAD_EVERY")); err == nil {
		return d
	}
	return 50 * time.Millisecond
}()

// handOverWithin is promised: so long after a worker has died, another one has its events. When its machine
// has died, the server may still send it events until its last fetch ends, which takes fetchEnds.
const (
	handOverWithin = 5 * time.Second
	fetchEnds      = time.Second
)

// steadyLoad publishes requests at a constant rate, and knows when each of them was published and answered.
type steadyLoad struct {
	s      *harness
	js     jetstream.JetStream
	before uint64 // the last outcome before the load
	end    func() // stops publishing

	mu        sync.Mutex
	published map[string]time.Time // by the ids of the events
}

// startLoad sets the inventory of the resources, for which a worker must run, and starts a load. The
// harness follows no outcomes any more: that would cost more than all workers.
func (s *harness) startLoad() *steadyLoad {
	s.t.Helper()
	for r := range loadResources {
		s.setInventory(loadResource(r), holds.SlotSelection{}, 1_000_000)
	}
	s.unfollow()
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(20_000))
	stacktest.Must(s.t, err)
	l := &steadyLoad{s: s, js: js, published: make(map[string]time.Time)}
	l.before = l.stream(s.subjects.OutStream()).CachedInfo().State.LastSeq
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { every(ctx, loadEvery, func() { l.publish(loadResources) }) })
	l.end = func() { cancel(); running.Wait() }
	s.t.Cleanup(l.end)
	return l
}

// loadResource returns the resource of a request.
func loadResource(r int) string { return fmt.Sprintf("room-%d", r%loadResources) }

// publish publishes some requests, for each resource in turn.
func (l *steadyLoad) publish(number int) {
	for r := range number {
		if err := l.publishOne(loadResource(r)); err != nil {
			l.s.t.Error(err)
			return
		}
	}
}

// publishOne publishes a request of another user than all before.
func (l *steadyLoad) publishOne(resource string) error {
	name := uuid.NewString()
	m, e, err := client.NewEvent(l.s.subjects, events.BookingRequested, resource, "/test",
		bookingData(resource, name, name, holds.SlotSelection{}, hour))
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.published[e.ID] = time.Now()
	l.mu.Unlock()
	_, err = l.js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute))
	return err
}

func (l *steadyLoad) stream(name string) jetstream.Stream {
	l.s.t.Helper()
	stream, err := l.js.Stream(context.Background(), name)
	stacktest.Must(l.s.t, err)
	return stream
}

// loadAnswer is the outcome of a request.
type loadAnswer struct {
	resource string
	stored   time.Time
}

// answers ends the load, waits until each request is answered, and returns the outcomes by the ids of
// their events. Each event must have one, which grants a hold.
func (l *steadyLoad) answers() map[string]loadAnswer {
	t := l.s.t
	t.Helper()
	l.end()
	<-l.js.PublishAsyncComplete()
	stacktest.Eventually(t, "each request to be answered", func() bool {
		return l.stream(l.s.subjects.OutStream()).CachedInfo().State.LastSeq >= l.before+uint64(len(l.published))
	})
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: l.before + 1,
	}
	found := make(map[string]loadAnswer)
	for m, err := range events.ReadAll(t.Context(), l.s.js, l.stream(l.s.subjects.OutStream()), config) {
		var e events.Envelope
		if err == nil {
			err = json.Unmarshal(m.Data, &e)
		}
		stacktest.Must(t, err)
		if _, twice := found[e.CausationID]; twice || e.Type != events.Type(holds.EventHoldCreated) {
			t.Errorf("request %s was answered with %s, twice: %v", e.CausationID, e.Type, twice)
		}
		found[e.CausationID] = loadAnswer{m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], m.Meta.Timestamp}
	}
	if len(found) != len(l.published) {
		t.Errorf("%d requests have an outcome, %d were published", len(found), len(l.published))
	}
	return found
}

// consumer returns the durable consumer of requests as the server has it.
func (l *steadyLoad) consumer() *jetstream.ConsumerInfo {
	l.s.t.Helper()
	c, err := l.stream(l.s.subjects.InStream()).Consumer(context.Background(), events.ConsumerRequests)
	stacktest.Must(l.s.t, err)
	return c.CachedInfo()
}

// ackWait returns how long the server waits for the ack of a request.
func (l *steadyLoad) ackWait() time.Duration {
	return l.consumer().Config.AckWait
}

// waitForAcks changes how long the server waits for the ack of any event, until a worker migrates.
func (s *harness) waitForAcks(wait time.Duration) {
	s.t.Helper()
	for _, name := range events.ConsumerNames() {
		c, err := s.js.Consumer(context.Background(), s.subjects.InStream(), name)
		stacktest.Must(s.t, err)
		config := c.CachedInfo().Config
		config.AckWait = wait
		if _, err := s.js.UpdateConsumer(context.Background(), s.subjects.InStream(), config); err != nil {
			s.t.Fatal(err)
		}
	}
}

// pause pauses or resumes the consumer of requests.
func (l *steadyLoad) pause(paused bool) {
	l.s.t.Helper()
	var pause *events.Pause
	if paused {
		pause = &events.Pause{Reason: "load"}
	}
	stacktest.Must(l.s.t, events.SetPause(context.Background(), l.js, l.s.subjects, events.ConsumerRequests, time.Hour, pause))
}

// TestWorker_KilledUnderLoad_HandsOverInTime kills one of two workers while many events are in flight. The
// other one answers those of the killed one when the ack wait is over. What is checked is how long the server
// is configured to wait; how long it took is printed.
func TestWorker_KilledUnderLoad_HandsOverInTime(t *testing.T) {
	t.Parallel()
	const burst = 6000
	s := newHarness(t)
	other := s.startWorker()
	l := s.startLoad()
	l.pause(true)
	doomed := s.startWorker("HOLDFAST_FAILPOINT=requests.published")
	l.publish(burst) // of which each of the two gets a part
	l.pause(false)
	doomed.killed(t)
	killed, published := time.Now(), l.stream(s.subjects.InStream()).CachedInfo().State.LastSeq
	stacktest.Eventually(t, "all events from before the kill to be acknowledged, while the load goes on", func() bool {
		return l.consumer().AckFloor.Stream >= published
	})
	answers := l.answers()
	last, wait := time.Duration(0), l.ackWait()
	for id, published := range l.published {
		if published.Before(killed) {
			last = max(last, answers[id].stored.Sub(killed))
		}
	}
	redelivered := l.consumer().Delivered.Consumer - uint64(loadResources+len(answers))
	t.Logf("%d events of the killed worker were redelivered, and answered within %v; the ack wait is %v",
		redelivered, last.Round(time.Millisecond), wait)
	if redelivered == 0 {
		t.Error("no event was in flight")
	}
	if wait+fetchEnds > handOverWithin {
		t.Errorf("the server waits %v for an ack, and a fetch ends within %v: want at most %v in all",
			wait, fetchEnds, handOverWithin)
	}
	other.stop(t)
	s.wantNoFindings()
}

// TestRollingDeploy_SteadyLoad_NoEventWaitsForTheAckWait replaces two workers one after the other, each after
// its successor has started, under a steady load. A stopping worker answers its events or returns them at once:
// the server would wait an hour for their acks. The largest gap between two outcomes of a resource is printed.
//
//	HOLDFAST_TEST_LONG=1 go test ./cmd/worker -run RollingDeploy -v
//
// replaces each of them five times.
func TestRollingDeploy_SteadyLoad_NoEventWaitsForTheAckWait(t *testing.T) {
	t.Parallel()
	rounds := 1
	if stacktest.Long(t.Name()) {
		rounds = 5
	}
	s := newHarness(t)
	workers := []*process{s.startWorker(), s.startWorker()}
	l := s.startLoad()
	s.waitForAcks(time.Hour)
	for range rounds {
		for i, old := range workers {
			workers[i] = s.startWorker("HOLDFAST_NO_MIGRATE=true") // it would shorten the ack wait
			old.stop(t)
		}
	}
	answers := l.answers()
	if wait := l.ackWait(); wait != time.Hour {
		t.Fatalf("the ack wait is %v, a worker has changed it", wait)
	}
	at := make(map[string][]time.Time)
	for _, a := range answers {
		at[a.resource] = append(at[a.resource], a.stored)
	}
	gap := time.Duration(0)
	for _, times := range at {
		slices.SortFunc(times, time.Time.Compare)
		for i := range times[1:] {
			gap = max(gap, times[i+1].Sub(times[i]))
		}
	}
	t.Logf("%d workers replaced under %d requests, one for each of %d resources every %v: the largest gap between two "+
		"outcomes of a resource is %v", rounds*len(workers), len(answers), len(at), loadEvery, gap.Round(time.Millisecond))
}
