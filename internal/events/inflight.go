package events

import (
	"context"
	"sync"
	"time"
)

// The limits of the in-flight window. Events beyond them would only wait here, while another worker
// could process them.
const (
	inFlightMax      = 12 * fetchMax // events
	inFlightBytesMax = 32 << 20
)

// extendEveryMin is the least interval between two checks of which ack waits are to be extended.
const extendEveryMin = 50 * time.Millisecond

// inFlightWindow is the set of events that a consumer has fetched and not yet completed. An event
// is completed when it is acknowledged or terminated, or when another delivery is requested.
type inFlightWindow struct {
	mu        sync.Mutex
	events    map[origin]*delivery
	bytes     int
	eventSize int           // the average size of the last batch, in bytes
	freed     chan struct{} // signals that an event is completed

	leastAckWait func() time.Duration // of its consumer
}

func newInFlightWindow(leastAckWait func() time.Duration) *inFlightWindow {
	return &inFlightWindow{
		events: make(map[origin]*delivery), eventSize: 1 << 10, freed: make(chan struct{}, 1), leastAckWait: leastAckWait,
	}
}

// fullEvery is the interval at which waitCapacity reports a full window.
const fullEvery = 500 * time.Millisecond

// waitCapacity waits until the window has room for at least a quarter of a batch, and returns for
// how many events of the batch. It returns 0 when ctx ends. While it waits, it calls full every
// fullEvery.
func (f *inFlightWindow) waitCapacity(ctx context.Context, batch int, full func()) int {
	var tick *time.Ticker
	for {
		f.mu.Lock()
		n := min(batch, inFlightMax-len(f.events), (inFlightBytesMax-f.bytes)/f.eventSize)
		empty := len(f.events) == 0
		f.mu.Unlock()
		if n >= batch/4 || empty {
			return max(n, 1)
		}
		if tick == nil {
			tick = time.NewTicker(fullEvery)
			defer tick.Stop()
		}
		select {
		case <-ctx.Done():
			return 0
		case <-f.freed:
		case <-tick.C:
			full()
		}
	}
}

// numberIn returns how many events have so many bytes, at least one, if they are as large as those of the last batch.
func (f *inFlightWindow) numberIn(bytes int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(bytes/f.eventSize, 1)
}

// add adds fetched events, and returns them without those that it has already. The server has delivered such an event
// again because its ack wait was over; it takes the ack of any delivery for one of the event. Decided twice, the
// event would have two outcomes with one message id in a batch, which the server rejects as a whole.
func (f *inFlightWindow) add(batch []*delivery) (added []*delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes := 0
	for _, d := range batch {
		if earlier := f.events[d.origin()]; earlier != nil {
			earlier.overdue = true
			continue
		}
		f.events[d.origin()] = d
		d.waitFrom, d.overdue = d.requested, f.ackWaitOver(d.requested) // the server may have sent it soon after that
		bytes += d.bytes
		added = append(added, d)
	}
	f.bytes += bytes
	if len(added) > 0 {
		f.eventSize = max(bytes/len(added), 1)
	}
	return added
}

// remove removes a completed event.
func (f *inFlightWindow) remove(d *delivery) {
	f.mu.Lock()
	if f.events[d.origin()] == d {
		delete(f.events, d.origin())
		f.bytes -= d.bytes
	}
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
}

// len returns the number of events.
func (f *inFlightWindow) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.events)
}

// takeWaiting returns the events whose ack wait was started at least so long ago, all for 0. From now on it counts as
// started at this moment: the caller restarts it.
func (f *inFlightWindow) takeWaiting(age time.Duration) (found []*delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, d := range f.events {
		if now.Sub(d.waitFrom) >= age {
			d.overdue = d.overdue || f.ackWaitOver(d.waitFrom)
			d.waitFrom = now
			found = append(found, d)
		}
	}
	return found
}

// markOverdue keeps of all events that they may have been delivered again.
func (f *inFlightWindow) markOverdue() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.events {
		d.overdue = true
	}
}

// isOverdue reports whether the server may have delivered an event again since this delivery: its ack wait was over, because
// this process was suspended or its connection was down, or the durable consumer was recreated. Another worker may have
// answered the event.
func (f *inFlightWindow) isOverdue(d *delivery) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return d.overdue || f.ackWaitOver(d.waitFrom)
}

// ackWaitOver reports whether an ack wait that was started at a time may be over, by the wall clock: the monotonic one stands
// still while the machine is suspended. The server has started it earlier, by the time of its message.
func (f *inFlightWindow) ackWaitOver(from time.Time) bool {
	return time.Now().Round(0).Sub(from) > f.leastAckWait()*7/8
}

// leastAckWait returns ackWait, or a shorter one that the durable consumer has from another version, or from an operator.
func (c *Consumer) leastAckWait() time.Duration {
	if found := c.durable.Load().Config.AckWait; found > 0 {
		return min(ackWait, found)
	}
	return ackWait
}

// extendAckWait extends the ack wait of events that take long, until ctx ends. Otherwise the server
// would deliver them again while they wait here.
func (c *Consumer) extendAckWait(ctx context.Context) {
	for pauseFor(ctx, c.inFlight.extendEvery()) == nil {
		c.extendDue()
	}
}

// extendEvery returns the interval between two checks of which ack waits are to be extended.
func (f *inFlightWindow) extendEvery() time.Duration { return max(f.leastAckWait()/8, extendEveryMin) }

// extendDue restarts the ack wait of the events that are due. A consumer that completes a full window in a
// second extends nothing; one whose servers are slow sends at most inFlightMax messages in extendAfter.
//
// While the connection is down it sends nothing: the messages would fill the buffer of the connection, where
// acks wait to be sent. Afterwards all events are due.
func (c *Consumer) extendDue() {
	if !c.nc.IsConnected() {
		return
	}
	for _, d := range c.inFlight.takeWaiting(c.inFlight.extendAfter()) {
		if err := c.answer(d, "+WPI"); err != nil {
			c.log.Debug().Err(err).Msg("in-progress failed, event may be redelivered")
		}
	}
}

// extendAfter returns the time since the last start of an ack wait after which it is due. With the time
// until the next check, it is at most half of the ack wait: the other half is for a worker, a connection and a
// server that are late.
func (f *inFlightWindow) extendAfter() time.Duration { return f.leastAckWait() * 3 / 8 }
