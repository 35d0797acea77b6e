package events

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	deferredMax = 1 << 16         // events of a lane whose order is known
	recallMax   = 1024            // events of a resource in one recall
	lostAfter   = 5 * time.Second // an event that is late by so much counts as delivered to another worker

	// delayDeferred is the delay until a deferred event is delivered without a recall; nakDelayed adds up to
	// half of it. The events of a killed worker must be taken up within 30 s, so the delay grows with the
	// deliveries only while deferredMany wait.
	delayDeferred    = 15 * time.Second
	delayDeferredMax = 2 * time.Minute
	deferredMany     = 1 << 12

	// A server delivers what is due again before anything new. So the delays grow with what waits, else redeliveries would
	// be all that a consumer gets: delayEach for each event that waits at the server, and delayFirst for each resource
	// of a lane, of which the first event is retried soon.
	delayEach    = 500 * time.Microsecond
	delayEachMax = 10 * time.Minute
	delayFirst   = time.Millisecond
)

// deferredEvents records the events of a lane that wait at the server, outside the in-flight window.
// Without a recall, the server delivers each of them again after delayDeferred, and less often while more
// than deferredMany wait.
//
//   - A slow lane defers events in order: each waits for the earlier ones of its resource, until the lane has room.
//   - An event whose data is corrupt, lost or not served is unordered: perhaps only a part of the data is corrupt. The
//     first one of a resource is retried soon. When it can be decided, the others are recalled, and all of them when
//     their partition is rebuilt.
type deferredEvents struct {
	mu        sync.Mutex
	resources map[string]*deferredResource
	events    int        // the number of events of all resources
	swept     time.Time  // when lost events were last removed
	waiting   func() int // returns how many events of the consumer wait at the server, those of other lanes and workers too
}

// deferredResource records the deferred events of a resource, in the order of the stream.
type deferredResource struct {
	events    []deferredEvent
	unordered bool         // they keep no later event waiting, until all of them are decided
	waits     bool         // until its partition is rebuilt
	shard     *shardOutage // in which one of them was deferred last, nil when none was
}

type deferredEvent struct {
	seq       uint64
	reply     string    // the reply subject of its message, for a recall
	returnsAt time.Time // when the server has delivered it at the latest; after a recall, the time of that
	recalled  bool
}

func newDeferredEvents(waiting func() int) *deferredEvents {
	return &deferredEvents{resources: make(map[string]*deferredResource), waiting: waiting}
}

// admits reports whether an event may be decided: no earlier event of its resource waits for a slow
// lane. If the event itself was deferred, it is no longer. An event that was recalled need not wait for earlier
// ones that were recalled with it or before it: they came before it, or are with another worker.
//
// again says that the event was delivered before. If it is not recorded here, another worker may have recalled it. It need not
// wait for earlier ones that were recalled either: workers that defer what others recall would pass the events of a
// resource to each other for minutes.
func (h *deferredEvents) admits(resource string, seq uint64, again bool) (admitted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[resource]
	if r == nil || r.unordered {
		return true
	}
	i, found := r.find(seq)
	lost := min(r.lost(), i)
	earlier := r.events[lost:i]
	switch {
	case len(earlier) == 0:
		admitted = true
	case found:
		own := r.events[i]
		comesLater := func(e deferredEvent) bool { return !e.recalled || e.returnsAt.After(own.returnsAt) }
		admitted = own.recalled && !slices.ContainsFunc(earlier, comesLater)
	case again:
		stillWaits := func(e deferredEvent) bool { return !e.recalled }
		admitted = !slices.ContainsFunc(earlier, stillWaits)
	}
	if found {
		h.remove(resource, r, i, i+1)
	}
	h.remove(resource, r, 0, lost)
	return admitted
}

// add records an event as deferred. It returns the delay until its next delivery, unless it is
// recalled, and whether it is the first deferred event of its resource.
func (h *deferredEvents) add(resource string, d *delivery, unordered bool) (delay time.Duration, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[resource]
	if r == nil {
		r = &deferredResource{}
	}
	seq := d.meta.Sequence.Stream
	if lost := r.lost(); lost > 0 {
		i, found := r.find(seq)
		if found {
			lost = min(lost, i)
		}
		h.remove(resource, r, 0, lost)
	}
	space := h.hasSpace()
	i, found := r.find(seq)
	delay = delayDeferred
	if h.events > deferredMany {
		delay = backoffDelayTo(delayDeferred, d.meta.NumDelivered, delayDeferredMax)
	}
	delay = max(delay, min(time.Duration(h.waiting())*delayEach, delayEachMax))
	if unordered && i == 0 {
		delay = max(backoffDelay(delayCorrupt, d.meta.NumDelivered),
			min(time.Duration(len(h.resources))*delayFirst, delayDeferredMax))
	}
	e := deferredEvent{seq: seq, reply: d.msg.Reply, returnsAt: time.Now().Add(delay + delay/2)}
	switch {
	case found:
		r.events[i] = e
	case space || len(r.events) == 0: // the first event of each resource is always recorded
		r.events = slices.Insert(r.events, i, e)
		h.events++
	}
	r.unordered = r.unordered || unordered
	h.resources[resource] = r
	return delay, i == 0
}

// hasSpace reports whether one more event may be recorded. If not, it first removes lost events,
// once in lostAfter.
func (h *deferredEvents) hasSpace() bool {
	if h.events >= deferredMax && time.Since(h.swept) > lostAfter {
		h.swept = time.Now()
		for resource, r := range h.resources {
			h.remove(resource, r, 0, r.lost())
		}
	}
	return h.events < deferredMax
}

// with calls f with the deferred events of a resource, if there are any.
func (h *deferredEvents) with(resource string, f func(r *deferredResource)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.resources[resource]; r != nil {
		f(r)
	}
}

// each calls f with the deferred events of each resource.
func (h *deferredEvents) each(f func(resource string, r *deferredResource)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for resource, r := range h.resources {
		f(resource, r)
	}
}

// markDecided records that an event was decided. If it was deferred, markDecided returns the reply
// subjects of the next events of its resource, to be recalled, and once for each resource the outage
// of a shard in which one of them was deferred, nil for none.
func (h *deferredEvents) markDecided(resource string, seq uint64) (replies []string, over *shardOutage) {
	h.with(resource, func(r *deferredResource) {
		if i, found := r.find(seq); found {
			over, r.shard = r.shard, nil
			h.remove(resource, r, i, i+1)
			replies = r.recall(nil, recallMax, recallMax)
		}
	})
	return replies, over
}

// markLost records that the deferred events of a resource wait until its partition is rebuilt.
func (h *deferredEvents) markLost(resource string) {
	h.with(resource, func(r *deferredResource) { r.waits = true })
}

// markShard records that an event of a resource was deferred in an outage of its server.
func (h *deferredEvents) markShard(resource string, outage *shardOutage) {
	h.with(resource, func(r *deferredResource) { r.shard = outage })
}

// recallWaiting marks at most so many events as recalled, of resources whose events are in order,
// and returns their reply subjects.
func (h *deferredEvents) recallWaiting(free int) (replies []string) {
	h.each(func(resource string, r *deferredResource) {
		if r.unordered || len(replies) >= free {
			return
		}
		h.remove(resource, r, 0, r.lost())
		replies = r.recall(replies, len(r.events), free-len(replies))
	})
	return replies
}

// recallRebuilt marks events as recalled whose partition was lost, and is rebuilt according to
// rebuilt, and returns their reply subjects.
func (h *deferredEvents) recallRebuilt(rebuilt func(resource string) bool) (replies []string) {
	h.each(func(resource string, r *deferredResource) {
		if r.waits && rebuilt(resource) {
			r.waits = false
			replies = r.recall(replies, recallMax, recallMax)
		}
	})
	return replies
}

// recallProbes marks one event of each resource as recalled that was deferred in an outage of its server which
// is quiet, in a partition that is ready: another worker may have the first event, whose decision would recall
// the others. It returns their reply subjects.
func (h *deferredEvents) recallProbes(quiet func(*shardOutage) bool, ready func(resource string) bool) (replies []string) {
	h.each(func(resource string, r *deferredResource) {
		if r.shard != nil && quiet(r.shard) && ready(resource) {
			replies = r.recall(replies, len(r.events), 1)
		}
	})
	return replies
}

// recallAll marks all events as recalled, and returns their reply subjects.
func (h *deferredEvents) recallAll() (replies []string) {
	h.each(func(_ string, r *deferredResource) { replies = r.recall(replies, len(r.events), len(r.events)) })
	return replies
}

// recall marks those of the first events as recalled that are not yet, at most so many, and appends their reply
// subjects.
func (r *deferredResource) recall(replies []string, first, most int) []string {
	now := time.Now()
	for i := 0; i < min(first, len(r.events)) && most > 0; i++ {
		if e := &r.events[i]; !e.recalled && now.Before(e.returnsAt) {
			e.recalled, e.returnsAt = true, now
			replies = append(replies, e.reply)
			most--
		}
	}
	return replies
}

// lost counts the first events that are late by lostAfter: other workers have them.
func (r *deferredResource) lost() (n int) {
	for n < len(r.events) && time.Since(r.events[n].returnsAt) > lostAfter {
		n++
	}
	return n
}

// find returns the index of an event, or where it would be inserted.
func (r *deferredResource) find(seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(r.events, seq, func(e deferredEvent, seq uint64) int { return cmp.Compare(e.seq, seq) })
}

// remove removes events that no longer wait, and their resource if it has none left.
func (h *deferredEvents) remove(resource string, r *deferredResource, from, to int) {
	h.events -= to - from
	if from == 0 {
		r.events = r.events[to:] // most are removed there
	} else {
		r.events = slices.Delete(r.events, from, to)
	}
	if len(r.events) == 0 {
		*r = deferredResource{} // what was known of them does not hold for an event that is added next
		delete(h.resources, resource)
	}
}
