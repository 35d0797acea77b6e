package events

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestWatchdog_ConsumersDeleted_AreRecreated deletes the durable consumers while workers run. They
// are recreated, every event is answered, no event that was answered long before is decided again,
// and Setup finds no drift later.
func TestWatchdog_ConsumersDeleted_AreRecreated(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("long-before"))
	b.pay("p1")
	b.publish(b.ns.In(BookingCancelled, "room"), nil, envelopeOf(BookingCancelled, "c1", `{"hold_id":"`+holdID+`"}`))
	b.await("all outcomes", func() bool { return len(b.out) == 3 })
	for i, name := range []string{ConsumerRequests, ConsumerChanges, ConsumerPayments} {
		b.awaitIdle(name)
		stacktest.Eventually(t, "the worker to recreate them", func() bool {
			seen := b.workers[i].floors.Load()
			return seen != nil && seen.of[name] == map[string]uint64{ConsumerRequests: 3, ConsumerChanges: 3, ConsumerPayments: 2}[name]
		})
		if err := b.js.DeleteConsumer(t.Context(), b.ns.InStream(), name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(key))
		b.pay("p" + key)
	}
	b.await("an outcome of each", func() bool { return len(b.out) == 43 })
	b.mu.Lock()
	carried := readFloors(b.out[42].Headers().Get(headerFloors))
	b.mu.Unlock()
	if created, err := b.workers[0].refreshInboundCreated(t.Context()); err != nil || carried.on(created, ConsumerPayments) == 0 {
		t.Errorf("%v: the last outcome carries the floors %+v", err, carried)
	}
	if n := b.decidedCount("long-before"); n != 1 {
		t.Errorf("an event that was answered before was decided %d times", n)
	}
	stacktest.Eventually(t, "the third consumer, which has no events", func() bool {
		_, err := b.js.Consumer(t.Context(), b.ns.InStream(), ConsumerChanges)
		return err == nil
	})
	setup(t, b.js, b.ns)
	consumer := consumerOf(t, b.js, b.ns, ConsumerRequests)
	if config := consumer.CachedInfo().Config; config.MaxDeliver != -1 || config.AckPolicy != jetstream.AckExplicitPolicy {
		t.Errorf("recreated as %+v", config)
	}
}

// TestWatchdog_ConsumerChangedSoThatItLosesEvents_IsRecreated changes a durable consumer while a worker runs. Each event has
// an outcome, also those that the consumer skips, and none a dead letter. An operator's pause stays.
func TestWatchdog_ConsumerChangedSoThatItLosesEvents_IsRecreated(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*jetstream.ConsumerConfig){
		"headers only": func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"one delivery": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 },
		"a narrower filter": func(c *jetstream.ConsumerConfig) {
			c.FilterSubjects = []string{c.FilterSubjects[0][:len(c.FilterSubjects[0])-1] + "x"}
		},
		"a filter more, too": func(c *jetstream.ConsumerConfig) {
			c.HeadersOnly, c.FilterSubjects = true, append(c.FilterSubjects, "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("before"))
			b.await("the first outcome", func() bool { return len(b.out) == 1 })
			found := consumerOf(t, b.js, b.ns, ConsumerRequests).CachedInfo()
			config := found.Config
			if config.FilterSubject != "" {
				config.FilterSubject, config.FilterSubjects = "", []string{config.FilterSubject}
			}
			change(&config)
			if _, err := b.js.UpdateConsumer(t.Context(), b.ns.InStream(), config); err != nil {
				t.Fatal(err)
			}
			const number = 20
			for i := range number {
				b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprint("k", i)))
			}
			stacktest.Eventually(t, "another consumer", func() bool {
				now, err := b.js.Consumer(t.Context(), b.ns.InStream(), ConsumerRequests)
				return err == nil && !now.CachedInfo().Created.Equal(found.Created)
			})
			b.await("an outcome of each", func() bool { return len(b.out) == 1+number })
			if dead := streamOf(t, b.js, b.ns.DLQStream()).CachedInfo().State.Msgs; dead != 0 {
				t.Errorf("%d dead letters", dead)
			}
		})
	}
}

// TestWatchdog_ConsumerChangedSoThatItStops_IsUpdated changes a durable consumer while a worker runs, so that it refuses
// the worker's requests, or delivers nothing while an event waits. Preflight reports that, and the worker repairs it.
func TestWatchdog_ConsumerChangedSoThatItStops_IsUpdated(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*jetstream.ConsumerConfig){
		"few events":         func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 100 },
		"a short time":       func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = 500 * time.Millisecond },
		"few bytes":          func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 1 << 20 },
		"one event may wait": func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			b.setFault(func(key string, _ int) error {
				if strings.HasPrefix(key, "corrupt") {
					return fmt.Errorf("stock count: %w", holds.ErrCorrupt)
				}
				return nil
			})
			b.publishRequest("corrupt", 0)
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("before"))
			b.await("the first outcome", func() bool { return len(b.out) == 1 })
			config := consumerOf(t, b.js, b.ns, ConsumerRequests).CachedInfo().Config
			change(&config)
			if drifts := DiffConsumer(config, b.ns.consumer(ConsumerRequests)); len(drifts) != 1 {
				t.Errorf("preflight reports %v", drifts)
			}
			if _, err := b.js.UpdateConsumer(t.Context(), b.ns.InStream(), config); err != nil {
				t.Fatal(err)
			}
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("after"))
			b.await("an outcome", func() bool { return len(b.out) == 2 })
		})
	}
}

// TestWatchdog_RecreateFailsAgain_IsLoggedAgain deletes a durable consumer and the outbound stream, without which it
// cannot be recreated, and does so again after both were repaired.
func TestWatchdog_RecreateFailsAgain_IsLoggedAgain(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	for times := 1; times <= 2; times++ {
		for _, err := range []error{
			b.js.DeleteStream(t.Context(), b.ns.OutStream()), b.js.DeleteConsumer(t.Context(), b.ns.InStream(), ConsumerRequests),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		stacktest.Eventually(t, "the failure to be logged", func() bool {
			return len(b.logged.with(t, "consumer deleted or changed, recreate failed (run worker migrate)")) == times
		})
		setup(t, b.js, b.ns)
		for range 2 { // the first check may have begun before
			seen := b.workers[0].floors.Load()
			stacktest.Eventually(t, "a check of the consumers", func() bool { return b.workers[0].floors.Load() != seen })
		}
	}
}
