package events

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	deferredMax      = 1 << 16          // events of a lane whose place in the order is known
	recallMax        = 1024             // events of a resource that are recalled at a time
	delayDeferred    = 15 * time.Second // until an event that waits at the server comes back by itself, doubled each time
	delayDeferredMax = 2 * time.Minute
	lostAfter        = 5 * time.Second // past its time, an event counts as delivered to another worker
)

// deferredEvents is the events of a lane that wait at the server: neither in flight here nor in the way of others. What comes
// back by itself does so ever more rarely, so that however many wait, they cost little.
//
// Those of a slow lane wait for those before them, and later ones about the same resource wait behind them: they stay
// in their order, and are recalled when the lane has room. Those that cannot be decided because the data of their
// resource is corrupt keep no others waiting: perhaps only a part of the data is. The first of them is retried soon,
// and when it can be decided, the others are recalled.
type deferredEvents struct {
	mu        sync.Mutex
	resources map[string]*deferredResource
	events    atomic.Int64 // of all resources
	swept     time.Time
}

// deferredResource is the events of a resource that wait, in the order of the stream.
type deferredResource struct {
	events  []deferredEvent
	corrupt bool // until all can be decided
}

type deferredEvent struct {
	seq       uint64
	reply     string    // where it is recalled
	returnsAt time.Time // when it comes back
	recalled  bool      // it was recalled
}

func newDeferredEvents() *deferredEvents {
	return &deferredEvents{resources: make(map[string]*deferredResource)}
}

// admits reports whether an event may be decided: none before it, about the same resource, waits. One that waited
// itself has come back.
func (h *deferredEvents) admits(resource string, seq uint64) bool {
	if h.events.Load() == 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[resource]
	if r == nil || r.corrupt {
		return true
	}
	lost := r.lost()
	if i, found := r.find(seq); found {
		h.remove(resource, r, i, i+1)
		lost = min(lost, i)
	}
	h.remove(resource, r, 0, lost)
	i, _ := r.find(seq)
	return i == 0
}

// add has an event wait. It returns for how long it does unless it is recalled, and whether it is the first of its
// resource.
func (h *deferredEvents) add(resource string, d *delivery, corrupt bool) (delay time.Duration, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[resource]
	if r == nil {
		r = &deferredResource{}
	}
	seq, deliveries := d.meta.Sequence.Stream, d.meta.NumDelivered
	if lost := r.lost(); lost > 0 {
		i, found := r.find(seq)
		if found {
			lost = min(lost, i)
		}
		h.remove(resource, r, 0, lost)
	}
	place := h.hasSpace()
	i, found := r.find(seq)
	delay = backoffDelayTo(delayDeferred, deliveries, delayDeferredMax)
	if corrupt && i == 0 {
		delay = backoffDelay(delayCorrupt, deliveries)
	}
	e := deferredEvent{seq: seq, reply: d.msg.Reply(), returnsAt: time.Now().Add(delay + delay/2)}
	switch {
	case found:
		r.events[i] = e
	case place || len(r.events) == 0: // each resource has a place
		r.events = slices.Insert(r.events, i, e)
		h.events.Add(1)
	}
	r.corrupt = r.corrupt || corrupt
	h.resources[resource] = r
	return delay, i == 0
}

// hasSpace reports whether there is a place for one more event.
func (h *deferredEvents) hasSpace() bool {
	if h.events.Load() >= deferredMax && time.Since(h.swept) > lostAfter {
		h.swept = time.Now()
		for resource, r := range h.resources {
			h.remove(resource, r, 0, r.lost())
		}
	}
	return h.events.Load() < deferredMax
}

// markDecided takes note of an event that could be decided. If it is one of those that could not, it returns where the
// next of them are recalled.
func (h *deferredEvents) markDecided(resource string, seq uint64) (replies []string) {
	if h.events.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[resource]
	if r == nil {
		return nil
	}
	i, found := r.find(seq)
	if !found {
		return nil
	}
	h.remove(resource, r, i, i+1)
	return r.recall(nil, recallMax)
}

// recallWaiting returns where at most so many events are recalled of resources that are not corrupt.
func (h *deferredEvents) recallWaiting(free int) (replies []string) {
	if h.events.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.resources {
		if !r.corrupt && len(replies) < free {
			replies = r.recall(replies, free-len(replies))
		}
	}
	return replies
}

// recallAll returns where all events are recalled.
func (h *deferredEvents) recallAll() (replies []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.resources {
		replies = r.recall(replies, len(r.events))
	}
	return replies
}

// recall appends where the first events are recalled, those of them that were not yet.
func (r *deferredResource) recall(replies []string, number int) []string {
	for i := range min(number, len(r.events)) {
		e := &r.events[i]
		if now := time.Now(); !e.recalled && now.Before(e.returnsAt) {
			e.recalled, e.returnsAt = true, now
			replies = append(replies, e.reply)
		}
	}
	return replies
}

// lost returns how many of the first events have gone to other workers: they have not come back here.
func (r *deferredResource) lost() (n int) {
	for n < len(r.events) && time.Since(r.events[n].returnsAt) > lostAfter {
		n++
	}
	return n
}

// find returns the place of an event.
func (r *deferredResource) find(seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(r.events, seq, func(e deferredEvent, seq uint64) int { return cmp.Compare(e.seq, seq) })
}

// remove removes events that do not wait any more, and a resource that has none left.
func (h *deferredEvents) remove(resource string, r *deferredResource, from, to int) {
	h.events.Add(int64(from - to))
	if from == 0 {
		r.events = r.events[to:] // most are removed there
	} else {
		r.events = slices.Delete(r.events, from, to)
	}
	if len(r.events) == 0 {
		delete(h.resources, resource)
	}
}
