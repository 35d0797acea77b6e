package events

import (
	"context"
	"testing"
	"time"
)

// TestExtendAckWait_SlowEvents_GetInProgress has events on their way for long, in whatever step: the server is told to wait on for those, as
// long as they have not ended, and for no others.
func TestExtendAckWait_SlowEvents_GetInProgress(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel() // nobody else fetches
	b.loops.Wait()
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
			d.fetched = d.fetched.Add(-ackWait)
			late[d.msg.Reply()] = true
		} else {
			d.fetched = d.fetched.Add(time.Hour)
		}
	}
	c.ack(batch[0]) // has ended
	c.sendInProgress(c.inFlight.olderThan(extendAckWaitEvery / 2))
	received := make(map[string]string)
	for range late {
		ack, err := acks.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("only %v: %v", received, err)
		}
		received[ack.Subject] += string(ack.Data)
	}
	for i, d := range batch {
		want := map[bool]string{true: "+WPI", false: ""}[late[d.msg.Reply()]]
		if i == 0 {
			want = "+ACK"
		}
		if got := received[d.msg.Reply()]; got != want {
			t.Errorf("of event %d the server was told %q, want %q", i, got, want)
		}
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := acks.Pending(); n != 0 {
		t.Errorf("it was told %d things more", n)
	}
}

// TestInFlightWindow_Full_WaitsForCapacity bounds what is fetched and has not ended, by number and by bytes, and goes on when something has.
func TestInFlightWindow_Full_WaitsForCapacity(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.cancel()
	b.loops.Wait()
	c := b.workers[0]
	b.publishRequest("room", 0)
	b.awaitPublished()
	d := b.fetchAllOf(c, 1)[0]
	size := len(d.msg.Data())
	if c.inFlight.bytes != size || len(c.inFlight.events) != 1 {
		t.Errorf("%d events of %d bytes, want 1 of %d", len(c.inFlight.events), c.inFlight.bytes, size)
	}
	full := make([]*delivery, inFlightMax-1)
	for i := range full {
		full[i] = &delivery{msg: d.msg}
	}
	free := func(want int) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if want == 0 {
			cancel() // it would wait
		}
		defer cancel()
		if got := c.inFlight.waitCapacity(ctx, fetchMax, func() {}); got != want {
			t.Errorf("there is room for %d, want %d", got, want)
		}
	}
	c.inFlight.add(full)
	free(0)
	for _, d := range full[:fetchMax/4] {
		c.inFlight.remove(d)
	}
	free(fetchMax / 4)
	for _, d := range full {
		c.inFlight.remove(d) // of some a second time
	}
	c.inFlight.eventSize = inFlightBytesMax / fetchMax
	c.inFlight.bytes = inFlightBytesMax / 2
	free(fetchMax / 2)
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
		t.Errorf("who waited was given room for %d", got)
	}
	c.inFlight.remove(d)
	if c.inFlight.bytes != 0 || len(c.inFlight.events) != 0 {
		t.Errorf("%d events of %d bytes are left", len(c.inFlight.events), c.inFlight.bytes)
	}
	c.inFlight.eventSize = 2 * inFlightBytesMax // an event that is larger than all may be
	free(1)
}
