package events

import (
	"sync"
	"time"
)

// queue holds the events of a lane that wait to be decided, in their order. It needs no bound of
// its own: the in-flight window bounds it.
type queue struct {
	mu     sync.Mutex
	events []*delivery
	closed bool
	filled chan struct{} // signals an event, or the end
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

// add appends an event.
func (q *queue) add(d *delivery) {
	q.mu.Lock()
	q.events = append(q.events, d)
	q.mu.Unlock()
	q.signal()
}

// close marks the end of the queue: no event is added after it.
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

// take waits for events, then removes and returns the first ones (see first). It returns none when
// the queue is closed and empty. Only one goroutine may call it.
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

// cut keeps the first events (see first), and removes and returns the others. It does so only if
// the first event has waited for so long, else it returns none.
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

// first counts the first events: at most so many and about so many bytes, but at least one if the
// queue is not empty.
func (q *queue) first(number, bytes int) (n int) {
	for n < len(q.events) && n < number && (n == 0 || bytes > 0) {
		bytes -= len(q.events[n].msg.Data())
		n++
	}
	return n
}
