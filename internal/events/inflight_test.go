package events

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestExtendAckWait_SlowEvents_GetInProgress keeps events in flight for long, in different steps.
// The ack wait is extended once for those that are not completed, when the connection is up, and for no
// others.
func TestExtendAckWait_SlowEvents_GetInProgress(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop() // no other consumer fetches
	c := b.workers[0]
	acks, err := b.nc.SubscribeSync("$JS.ACK." + b.ns.InStream() + "." + ConsumerRequests + ".>")
	if err != nil {
		t.Fatal(err)
	}
	const number = 6
	for i := range number {
		b.publishRequest("room", i)
	}
	b.awaitPublished()
	batch := b.fetchAllOf(c, number)
	late := make(map[string]bool)
	for i, d := range batch {
		if i%2 == 0 {
			d.waitFrom = d.waitFrom.Add(-ackWait)
			late[d.msg.Reply] = true
		} else {
			d.waitFrom = d.waitFrom.Add(time.Hour)
		}
	}
	c.ack(batch[0]) // completed
	up := c.nc
	if c.nc, err = up.Opts.Connect(); err != nil {
		t.Fatal(err)
	}
	c.nc.Close()
	c.extendDue() // it sends nothing, and the events stay due
	c.nc = up
	c.extendDue()
	if again := c.inFlight.takeWaiting(c.inFlight.extendAfter()); len(again) != 0 {
		t.Errorf("the ack wait of %d events is extended twice in a row", len(again))
	}
	received := make(map[string]string)
	for range late {
		ack, err := acks.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("only %v: %v", received, err)
		}
		received[ack.Subject] += string(ack.Data)
	}
	for i, d := range batch {
		want := map[bool]string{true: "+WPI", false: ""}[late[d.msg.Reply]]
		if i == 0 {
			want = "+ACK"
		}
		if got := received[d.msg.Reply]; got != want {
			t.Errorf("event %d has the ack %q, want %q", i, got, want)
		}
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := acks.Pending(); n != 0 {
		t.Errorf("%d more acks were sent", n)
	}
}

// TestExtendAfter_AckWaitOfTheServer_IsFollowed checks that an ack wait is extended in its first half, and
// sooner when the server waits for a shorter time.
func TestExtendAfter_AckWaitOfTheServer_IsFollowed(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c := b.workers[0]
	for wait, latest := range map[time.Duration]time.Duration{
		ackWait: ackWait / 2, 15 * time.Second: ackWait / 2, ackWait / 2: ackWait / 4, ackWait / 8: ackWait / 16,
	} {
		b.ackWithin(ConsumerRequests, wait)
		if _, err := c.checkConsumers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := c.inFlight.extendAfter() + c.inFlight.extendEvery(); after > latest {
			t.Errorf("an ack wait of %v is extended after up to %v, want at most %v", wait, after, latest)
		}
	}
}

// TestInFlightWindow_AckWaitOver_DeliveryIsOverdue lets the ack wait of events end before it is extended, and before
// they are read from the connection. The server may wait for a shorter time than a worker requests, and began to wait when it
// sent the event, which may have been under way for some time.
func TestInFlightWindow_AckWaitOver_DeliveryIsOverdue(t *testing.T) {
	t.Parallel()
	for found, wait := range map[time.Duration]time.Duration{
		0: ackWait, ackWait: ackWait, 2 * ackWait: ackWait, ackWait / 2: ackWait / 2,
	} {
		var c Consumer
		c.durable.Store(&jetstream.ConsumerInfo{Config: jetstream.ConsumerConfig{AckWait: found}})
		f, now := newInFlightWindow(c.leastAckWait), time.Now()
		later, before := now.Add(time.Hour), now.Add(-wait*15/16)
		inTime := &delivery{meta: sequenced(1), requested: later, fetched: later}
		waited := &delivery{meta: sequenced(2), requested: before, fetched: before}
		readLate := &delivery{meta: sequenced(3), requested: before, fetched: later}
		f.add([]*delivery{inTime, waited, readLate})
		for _, extended := range []bool{false, true} {
			if f.isOverdue(inTime) || !f.isOverdue(waited) || !f.isOverdue(readLate) {
				t.Errorf("ack wait %v, extended=%v: overdue are %v, %v, %v", found, extended, f.isOverdue(inTime),
					f.isOverdue(waited), f.isOverdue(readLate))
			}
			f.takeWaiting(0)
		}
	}
}

// TestInFlightWindow_ReadLate_IsExtendedAtOnce adds an event that a slow server sent some time ago. Its ack wait ends before
// that of what was just sent.
func TestInFlightWindow_ReadLate_IsExtendedAtOnce(t *testing.T) {
	t.Parallel()
	f, now := newInFlightWindow(func() time.Duration { return time.Hour }), time.Now()
	late := &delivery{meta: sequenced(1), requested: now.Add(-30 * time.Minute), fetched: now}
	f.add([]*delivery{late, {meta: sequenced(2), requested: now, fetched: now}})
	if f.isOverdue(late) {
		t.Error("it is overdue after half of the ack wait")
	}
	if due := f.takeWaiting(f.extendAfter()); !slices.Equal(due, []*delivery{late}) {
		t.Errorf("%d are extended, want the late one", len(due))
	}
}

// sequenced returns the metadata of the event with a sequence.
func sequenced(seq int) *nats.MsgMetadata {
	return &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: uint64(seq)}}
}

// TestInFlightWindow_DeliveredAgain_IsNotAdded adds an event that is in flight already, from its first delivery. That one is
// overdue. An event of a stream that was deleted and created again is another one, and so is a delivery after the first
// is completed.
func TestInFlightWindow_DeliveredAgain_IsNotAdded(t *testing.T) {
	t.Parallel()
	f, now := newInFlightWindow(func() time.Duration { return time.Hour }), time.Now()
	deliver := func(stored time.Time) *delivery {
		meta := sequenced(1)
		meta.Timestamp = stored
		return &delivery{meta: meta, bytes: 10, requested: now, fetched: now}
	}
	first, again, other := deliver(now), deliver(now), deliver(now.Add(time.Second))
	if added := f.add([]*delivery{first, again, other}); !slices.Equal(added, []*delivery{first, other}) || f.bytes != 20 {
		t.Errorf("%d events of %d bytes are added, want 2 of 20", len(added), f.bytes)
	}
	if !f.isOverdue(first) || f.isOverdue(other) {
		t.Errorf("overdue are %v, %v", f.isOverdue(first), f.isOverdue(other))
	}
	f.remove(again) // not in flight
	if added := f.add([]*delivery{again}); len(added) > 0 {
		t.Error("an event is in flight twice")
	}
	f.remove(first)
	if added := f.add([]*delivery{again}); len(added) != 1 || f.len() != 2 || f.bytes != 20 {
		t.Errorf("%d added, %d events of %d bytes are in flight", len(added), f.len(), f.bytes)
	}
}

// TestInFlightWindow_Full_WaitsForCapacity checks that the window is bounded by number and by
// bytes, and that a waiter continues when an event is completed.
func TestInFlightWindow_Full_WaitsForCapacity(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.stop()
	c := b.workers[0]
	b.publish(b.ns.In(BookingRequested, "room"), nats.Header{"Baggage": {strings.Repeat("x", 1000)}}, resourceKeyed("room", 0))
	d := b.fetchAllOf(c, 1)[0]
	size := len("NATS/1.0\r\n\r\n") + len(d.msg.Data) + len("Baggage: \r\n") + 1000
	if c.inFlight.bytes != size || len(c.inFlight.events) != 1 {
		t.Errorf("%d events of %d bytes, want 1 of %d", len(c.inFlight.events), c.inFlight.bytes, size)
	}
	full := make([]*delivery, inFlightMax-1)
	for i := range full {
		full[i] = &delivery{msg: d.msg, meta: sequenced(i), bytes: size}
	}
	free := func(want int) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if want == 0 {
			cancel() // otherwise it would wait
		}
		defer cancel()
		if got := c.inFlight.waitCapacity(ctx, fetchMax, func() {}); got != want {
			t.Errorf("capacity for %d, want %d", got, want)
		}
	}
	c.inFlight.add(full)
	free(0)
	for _, d := range full[:fetchMax/4] {
		c.inFlight.remove(d)
	}
	free(fetchMax / 4)
	for _, d := range full {
		c.inFlight.remove(d) // some for the second time
	}
	c.inFlight.eventSize = inFlightBytesMax / fetchMax
	c.inFlight.bytes = inFlightBytesMax / 2
	free(fetchMax / 2)
	if got, want := c.inFlight.numberIn(readBytes), readBytes/(inFlightBytesMax/fetchMax); got != want {
		t.Errorf("a request is for %d events, want %d", got, want)
	}
	c.inFlight.bytes = inFlightBytesMax - 1
	free(0)
	c.inFlight.bytes = size
	waits := make(chan int)
	c.inFlight.add(full)
	go func() { waits <- c.inFlight.waitCapacity(t.Context(), fetchMax, func() {}) }()
	for _, d := range full {
		c.inFlight.remove(d)
	}
	if got := <-waits; got < fetchMax/4 {
		t.Errorf("the waiter has capacity for %d", got)
	}
	c.inFlight.remove(d)
	if c.inFlight.bytes != 0 || len(c.inFlight.events) != 0 {
		t.Errorf("%d events of %d bytes are left", len(c.inFlight.events), c.inFlight.bytes)
	}
	c.inFlight.eventSize = 2 * inFlightBytesMax // an event larger than the window
	free(1)
}
