package events

import (
	"hash/fnv"
	"strings"
	"sync"
	"time"
)

// laneSlow is the time that an event waits in a lane before the lane counts as slow.
const laneSlow = 5 * time.Second

// lane processes the events of some of the resources in their order. Its steps are in consumer.go.
type lane struct {
	consumer *Consumer
	order    sync.Mutex // held while an event is enqueued or deferred
	queue    *queue
	deferred *deferredEvents
	decided  chan *delivery
	failures map[origin]int       // failures of events that failed alone, of inFlightMax events at most
	searched map[origin]time.Time // when dropAnswered last searched for events, of searchedMax events at most

	queueMax, queueBytesMax int // what a slow lane keeps in its queue
	batch                   batchSize
	batchBytesMax           int  // what is decided together
	failing                 bool // the last event that was decided has failed, for a reason outside the events
}

// The bounds of a batchSize.
const (
	batchMin    = 64
	batchFirst  = 256                    // nothing is known of the servers yet
	batchWithin = 500 * time.Millisecond // far below decideLimit and the timeout of a reply of Redis
	batchTries  = 16                     // full batches of one size until one of twice the size is tried
)

// batchSize is how many events a lane decides together. It follows the rate of the slowest server, so
// that a batch takes at most about batchWithin: a server that is much slower than usual is sent less at
// a time. A batch that it could not finish within decideLimit would have to be decided again, and a
// payment would wait behind it. When a server takes long for each call, and not for each event, a smaller batch
// is no quicker: so now and then a larger one is tried, and kept up to twice that time.
type batchSize struct {
	max, limit int
	full       int           // batches that had max events since max was changed
	smaller    time.Duration // what the full batch took after which max was doubled last, 0 when it was reduced since
}

// adapt changes the size after a batch of n events.
func (b *batchSize) adapt(n int, took time.Duration) {
	if n == b.max && b.max < b.limit {
		b.full++
	}
	byCall := took < 2*batchWithin && took < b.smaller*3/2 // half as many events took nearly as long
	if n == b.max {
		b.smaller = min(b.smaller, took) // and no longer than these
	}
	switch {
	case took > batchWithin && !byCall && (b.full < batchTries || took >= 2*batchWithin):
		if within := max(batchMin, int(int64(n)*int64(batchWithin)/int64(took))); within < b.max {
			b.max, b.full, b.smaller = within, 0, 0
		}
	case n == b.max && b.max < b.limit && (took < batchWithin/2 || byCall || b.full >= batchTries):
		b.max = min(2*b.max, b.limit)
		b.full, b.smaller = 0, took
	}
}

// newLane returns one of so many lanes of a consumer. The limits of a slow lane are small enough
// that the others have room in the in-flight window, even when all lanes but one are slow.
func (c *Consumer) newLane(lanes int) *lane {
	return &lane{
		consumer: c, queue: newQueue(), deferred: newDeferredEvents(c.waiting),
		decided: make(chan *delivery, resultsMax), failures: make(map[origin]int),
		searched:      make(map[origin]time.Time),
		batch:         batchSize{max: min(batchFirst, c.decides), limit: c.decides},
		queueMax:      inFlightMax / (2 * lanes),
		queueBytesMax: inFlightBytesMax / (4 * lanes), batchBytesMax: inFlightBytesMax / (2 * lanes),
	}
}

// laneOf returns the lane of an event by the hash of its resource.
func laneOf(subject string, lanes int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(resourceOf(subject))) // a hash never returns an error
	return int(h.Sum32() % uint32(lanes))
}

// resourceOf returns the resource of an event, the last token of its subject.
func resourceOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// enqueue adds an event to the queue. If an earlier event of its resource is deferred, it defers
// the event instead.
func (l *lane) enqueue(d *delivery) {
	l.order.Lock()
	defer l.order.Unlock()
	// Also an event that cannot be decoded may have been deferred.
	admitted := l.deferred.admits(resourceOf(d.msg.Subject), d.meta.Sequence.Stream, d.meta.NumDelivered > 1)
	if admitted || d.result.Err != nil {
		l.queue.add(d)
	} else {
		l.deferEvent(d, false)
	}
}

// hasRoom reports whether the lane has less to do than the least batch.
func (l *lane) hasRoom() bool { return l.queue.len() < batchMin }

// deferExcess defers most of the events of a slow lane: in the queue they would keep the consumer
// from fetching events of other lanes.
func (l *lane) deferExcess() {
	l.order.Lock()
	defer l.order.Unlock()
	for _, d := range l.queue.cut(l.queueMax, l.queueBytesMax, l.consumer.slowAfter) {
		l.deferEvent(d, false)
	}
}

// deferEvent returns an event to the server, where it waits, and reports whether it is the first
// deferred event of its resource. unordered says that it keeps no later event waiting: its data is corrupt, lost or
// not served.
func (l *lane) deferEvent(d *delivery, unordered bool) (first bool) {
	delay, first := l.deferred.add(resourceOf(d.msg.Subject), d, unordered)
	l.consumer.nakDelayed(d, delay)
	return first
}

// recallWaiting recalls deferred events if the lane has room for them.
func (l *lane) recallWaiting() {
	l.order.Lock() // an event that is being deferred must not be recalled before it is returned to the server
	defer l.order.Unlock()
	if free := l.queueMax/2 - l.queue.len(); free > 0 {
		l.consumer.recall(l.deferred.recallWaiting(free))
	}
}

// markDecided records that an event was decided, and recalls the next deferred events of its resource.
func (l *lane) markDecided(d *delivery) {
	replies, over := l.deferred.markDecided(resourceOf(d.msg.Subject), d.meta.Sequence.Stream)
	if over != nil {
		l.consumer.process.recordShardRecovery(over)
	}
	l.consumer.recall(replies)
}

// countFailure counts a failure of an event that failed alone, and returns how many it has had. An event that
// another worker answers later keeps its count here. So when more events have one than may be in flight, any other
// count is dropped: if its event is still pending, it is counted again from one.
func (l *lane) countFailure(of origin) int {
	l.failures[of]++
	dropExcess(l.failures, inFlightMax, of)
	return l.failures[of]
}

// dropExcess removes any entries but one while a map has more than max.
func dropExcess[V any](entries map[origin]V, max int, but origin) {
	for other := range entries {
		if len(entries) <= max {
			return
		}
		if other != but {
			delete(entries, other)
		}
	}
}
