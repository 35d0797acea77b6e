package events

import (
	"context"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/failpoint"
)

// laneSlow is how long an event waits in a lane before the lane counts as slow.
const laneSlow = 5 * time.Second

// lane is the way of the events about some of the resources through a consumer.
type lane struct {
	*Consumer
	order    sync.Mutex // of what comes to wait
	queue    *queue
	deferred *deferredEvents
	decided  chan *delivery
	failures map[origin]int // failures of events that failed alone

	queueMax, queueBytesMax int // that a slow lane keeps waiting here
	batchBytesMax           int // that are decided together
}

// newLane returns one of the lanes of a consumer. A slow one keeps so little of what the consumer may have in flight
// that others go on, even when all but one are slow.
func (c *Consumer) newLane(lanes int) *lane {
	return &lane{
		Consumer: c, queue: newQueue(), deferred: newDeferredEvents(),
		decided: make(chan *delivery, resultsMax), failures: make(map[origin]int),
		queueMax:      inFlightMax / (2 * lanes),
		queueBytesMax: inFlightBytesMax / (4 * lanes), batchBytesMax: inFlightBytesMax / (2 * lanes),
	}
}

// laneOf chooses a lane by the resource.
func laneOf(subject string, lanes int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(resourceOf(subject))) // a hash never returns an error
	return int(h.Sum32() % uint32(lanes))
}

// resourceOf returns the resource of an event, the last token of its subject.
func resourceOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// enqueue has an event decided after those that wait, or has it wait at the server when one about the same
// resource before it does.
func (l *lane) enqueue(d *delivery) {
	l.order.Lock()
	defer l.order.Unlock()
	if d.result.Err != nil || l.deferred.admits(resourceOf(d.msg.Subject()), d.meta.Sequence.Stream) {
		l.queue.add(d)
	} else {
		l.deferEvent(d, false)
	}
}

// deferExcess has most of the events that wait in a slow lane wait at the server: they keep others from being fetched.
func (l *lane) deferExcess() {
	l.order.Lock()
	defer l.order.Unlock()
	for _, d := range l.queue.cut(l.queueMax, l.queueBytesMax, l.slowAfter) {
		l.deferEvent(d, false)
	}
}

// deferEvent has an event wait at the server, and reports whether it is the first of its resource. corrupt says that the
// data of the resource was found to be so.
func (l *lane) deferEvent(d *delivery, corrupt bool) (first bool) {
	delay, first := l.deferred.add(resourceOf(d.msg.Subject()), d, corrupt)
	l.nakDelayed(d, delay)
	return first
}

// recall has events delivered again now that wait at the server.
func (c *Consumer) recall(replies []string) {
	for _, reply := range replies {
		if err := c.nc.Publish(reply, nak); err != nil {
			c.log.Debug().Err(err).Msg("recall failed, the event is delivered again later")
			return
		}
	}
}

// nak asks for an event to be delivered again at once.
var nak = []byte("-NAK")

// decideAll decides what waits in the lane, until the end of the queue.
func (l *lane) decideAll(ctx context.Context) {
	for {
		batch := l.queue.take(l.decides, l.batchBytesMax)
		if len(batch) == 0 {
			return
		}
		failpoint.Hit(l.name + ".fetched")
		l.findPoisoned(ctx, batch)
		ready, limit := batch[:0], l.outcomeLimit()
		for _, d := range batch {
			if l.canDecide(ctx, d, limit) {
				ready = append(ready, d)
			} else {
				l.decided <- d
			}
		}
		l.decide(ctx, l.locate(ctx, ready))
		if free := l.queueMax/2 - l.queue.len(); free > 0 {
			l.recall(l.deferred.recallWaiting(free))
		}
	}
}

// canDecide reports whether an event can be decided, else its result says why not.
func (l *lane) canDecide(ctx context.Context, d *delivery, outcomeLimit int64) bool {
	if d.result.Err == nil {
		d.result.Err = l.checkSize(ctx, d, outcomeLimit)
	}
	return d.result.Err == nil
}

// queue is the events that wait to be decided, in their order. It has no bound of its own: the in-flight window has.
type queue struct {
	mu     sync.Mutex
	events []*delivery
	closed bool
	filled chan struct{} // an event has come, or the end
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

// add appends an event.
func (q *queue) add(d *delivery) {
	q.mu.Lock()
	q.events = append(q.events, d)
	q.mu.Unlock()
	q.signal()
}

// close says that no event comes any more.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.events)
}

// take waits for events and removes the first of them, at most so many and about so many bytes. It returns none when
// the queue is closed and empty. One goroutine takes.
func (q *queue) take(number, bytes int) []*delivery {
	for {
		q.mu.Lock()
		n := q.first(number, bytes)
		batch := q.events[:n:n]
		if q.events = q.events[n:]; len(q.events) == 0 {
			q.events = nil
		}
		closed := q.closed
		q.mu.Unlock()
		if n > 0 || closed {
			return batch
		}
		<-q.filled
	}
}

// cut removes and returns what is behind the first events, at most so many and about so many bytes, when the first has
// waited for so long.
func (q *queue) cut(number, bytes int, waited time.Duration) []*delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 || time.Since(q.events[0].fetched) < waited {
		return nil
	}
	n := q.first(number, bytes)
	rest := q.events[n:]
	q.events = q.events[:n:n]
	return rest
}

// first returns how many of the first events are at most so many and about so many bytes, at least one if there is one.
func (q *queue) first(number, bytes int) (n int) {
	for n < len(q.events) && n < number && (n == 0 || bytes > 0) {
		bytes -= len(q.events[n].msg.Data())
		n++
	}
	return n
}
