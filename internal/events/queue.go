package events

import (
	"sync"
	"time"

	"holdfast/internal/holds"
)

// queue holds the events of a lane that wait to be decided, in their order. It needs no bound of
// its own: the in-flight window bounds it.
type queue struct {
	mu     sync.Mutex
	events []*delivery
	closed bool
	filled sync.Cond // signals an event, or the end
}

func newQueue() *queue {
	q := &queue{}
	q.filled.L = &q.mu
	return q
}

// add appends an event.
func (q *queue) add(d *delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, d)
	q.filled.Signal()
}

// close marks the end of the queue: no event is added after it.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Signal()
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.events)
}

// take waits for events, then removes and returns a batch of them: at most so many and about so many
// bytes, but at least one. It returns none when the queue is closed and empty. Only one goroutine may
// call it at a time.
//
// The batch has the first event, and the events of each resource are in their order. When not all
// fit, it has as many as possible of few resources: what one call of a script decides for a resource
// costs less than what several decide.
func (q *queue) take(number, bytes int) (batch []*delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.events) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.first(number, bytes) == len(q.events) {
		batch, q.events = q.events, nil
	} else {
		batch, q.events = splitBatch(q.events, number, bytes)
	}
	return batch
}

// splitBatch splits events into a batch and the rest. It goes through the resources in the order of their
// first events, and takes of each as many as one call of a script decides, until the batch has so many
// events or bytes.
func splitBatch(events []*delivery, number, bytes int) (batch, rest []*delivery) {
	waiting := make(map[string]int, len(events)/2)
	for _, d := range events {
		waiting[resourceOf(d.msg.Subject)]++
	}
	batch, rest = make([]*delivery, 0, number), make([]*delivery, 0, len(events))
	room := make(map[string]int) // how many events of a resource the batch may still have
	for i, planned := 0, 0; i < len(events); i++ {
		d := events[i]
		if len(batch) == number || bytes <= 0 && len(batch) > 0 {
			rest = append(rest, events[i:]...)
			break
		}
		resource := resourceOf(d.msg.Subject)
		left, chosen := room[resource]
		if !chosen && planned < number {
			left = min(waiting[resource], holds.GroupRequestsMax)
			planned += left
		}
		if left == 0 {
			rest = append(rest, d)
			continue
		}
		room[resource] = left - 1
		batch, bytes = append(batch, d), bytes-d.bytes
	}
	return batch, rest
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
		bytes -= q.events[n].bytes
		n++
	}
	return n
}
