package events

import (
	"context"
	"sync"
	"time"
)

// What a consumer may have fetched that has not ended yet. More would be there for nothing but to wait,
// while another worker could take it.
const (
	inFlightMax      = 12 * fetchMax
	inFlightBytesMax = 32 << 20
)

// extendAckWaitEvery is how often the server is told that events are still being worked on.
const extendAckWaitEvery = ackWait / 3

// inFlightWindow is the events that a consumer has fetched and that have not ended yet: acknowledged, terminated,
// or asked for again.
type inFlightWindow struct {
	mu        sync.Mutex
	events    map[*delivery]struct{}
	bytes     int
	eventSize int           // of an event, as the latest were
	freed     chan struct{} // an event has ended
}

func newInFlightWindow() *inFlightWindow {
	return &inFlightWindow{events: make(map[*delivery]struct{}), eventSize: 1 << 10, freed: make(chan struct{}, 1)}
}

// fullEvery is how often it is said that there is no room.
const fullEvery = 500 * time.Millisecond

// waitCapacity waits until there is room for a good part of a batch, and returns for how much of it, 0 when ctx is over.
// Meanwhile it calls full now and then.
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

// add adds what was fetched.
func (f *inFlightWindow) add(batch []*delivery) {
	if len(batch) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes := 0
	for _, d := range batch {
		f.events[d] = struct{}{}
		bytes += len(d.msg.Data())
	}
	f.bytes += bytes
	f.eventSize = max(bytes/len(batch), 1)
}

// remove removes an event.
func (f *inFlightWindow) remove(d *delivery) {
	f.mu.Lock()
	if _, found := f.events[d]; found {
		delete(f.events, d)
		f.bytes -= len(d.msg.Data())
	}
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
}

// olderThan returns the events that were fetched so long ago.
func (f *inFlightWindow) olderThan(than time.Duration) (found []*delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for d := range f.events {
		if time.Since(d.fetched) >= than {
			found = append(found, d)
		}
	}
	return found
}

// extendAckWait has the server wait on for events that take long, until ctx is over: they would be delivered once
// more while they wait here.
func (c *Consumer) extendAckWait(ctx context.Context) {
	ticker := time.NewTicker(extendAckWaitEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c.sendInProgress(c.inFlight.olderThan(extendAckWaitEvery / 2))
	}
}

func (c *Consumer) sendInProgress(events []*delivery) {
	for _, d := range events {
		if err := d.msg.InProgress(); err != nil {
			c.log.Debug().Err(err).Msg("in-progress failed, the event may be repeated")
		}
	}
}
