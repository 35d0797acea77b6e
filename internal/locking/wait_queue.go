package locking

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// waitQueue hears what is released, on one connection for the whole process. The acquisitions of
// this process stand in line, oldest first, for the key in their way. A release wakes the first in
// line for each key, and nobody else; if that one finds another key in its way, it passes the
// word on. Who comes later lines up without asking the server.
//
// Nothing depends on hearing: a waiter goes on by itself when the lease in its way is over.
type waitQueue struct {
	client redis.UniversalClient
	fair   bool // the line is kept by the server, over all processes

	subscribing sync.Mutex    // held while talking to the server
	pubsub      *redis.PubSub // nil until somebody waits
	changes     sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*channel
}

// channel is where the releases of a scope are told.
type channel struct {
	listeners   int                  // acquisitions
	requested   bool                 // the server was asked for it
	subscribed  bool                 // the server has said so
	received    uint64               // counts the messages and confirmations
	confirmedAt uint64               // the last of them before which messages may have been lost: a confirmation
	missed      map[string]uint64    // key -> the last release that nobody was told
	lines       map[string][]*waiter // by the key in the way, the oldest acquisition first
}

// waiter is an acquisition from Wait to the end of its next attempt.
type waiter struct {
	a        *Acquisition
	lines    []lineKey // where it stands in line
	until    time.Time // when it goes on by itself
	wake     chan struct{}
	woken    bool
	releases []release // what it was the one to be told
}

// lineKey is a line, or the key in the way of those who stand in it.
type lineKey struct{ channel, key string }

// release is that of a key, with how much was heard on its channel by then.
type release struct {
	lineKey
	received uint64
}

func newWaitQueue(client redis.UniversalClient, fair bool) *waitQueue {
	return &waitQueue{client: client, fair: fair, channels: make(map[string]*channel)}
}

// channelOf returns where the releases of a lock's keys are told.
func channelOf(l *Lock) string { return l.KeySet.Scope + released }

const released = "released"

// beforeTry notes how much was heard before a try: a release that is heard after it may have been too
// late for it.
func (h *waitQueue) beforeTry(a *Acquisition) {
	if h == nil || len(a.channels) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range a.channels {
		a.channels[name] = h.channels[name].received
	}
}

// blockedByOlder reports whether somebody older than a stands in line for one of the lock's keys. It
// has what is in the way then: that one.
func (h *waitQueue) blockedByOlder(a *Acquisition, l *Lock) bool {
	if h == nil || h.fair {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[channelOf(l)]
	if c == nil || len(c.lines) == 0 {
		return false
	}
	for _, key := range l.KeySet.Keys {
		if line := c.lines[key]; len(line) > 0 && line[0].a.order < a.order {
			l.blocker = blocker{key: key, remaining: max(time.Until(line[0].until), time.Millisecond), olderWaits: true}
			return true
		}
	}
	return false
}

// afterTry ends the waiting of a, which has tried again, and passes on the releases that it was told
// and that did not help it.
func (h *waitQueue) afterTry(a *Acquisition) {
	if h == nil || a.waiter == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.dequeue(a) {
		i := slices.IndexFunc(a.blocked, func(l *Lock) bool { return slices.Contains(l.KeySet.Keys, r.key) })
		if i < 0 {
			continue // it has the key, and will release it
		}
		switch in := a.blocked[i].blocker; {
		case in.key != r.key || in.olderWaits:
			h.notifyFirst(r)
		case in.ahead != "":
			h.notifyWaiter(r, in.ahead)
		case r.received > a.channels[r.channel]:
			h.channels[r.channel].markMissed(r) // it came after the try
		}
		// Else somebody was quicker, and will release it.
	}
}

// stopWaiting ends the waiting of a, which has learned nothing since, and passes on what it was told.
func (h *waitQueue) stopWaiting(a *Acquisition) {
	if h == nil || a.waiter == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.dequeue(a) {
		h.notifyFirst(r)
	}
}

// dequeue takes a out of its lines and returns the releases that it was told.
func (h *waitQueue) dequeue(a *Acquisition) []release {
	w := a.waiter
	a.waiter = nil
	for _, p := range w.lines {
		lines := h.channels[p.channel].lines
		lines[p.key] = slices.DeleteFunc(lines[p.key], func(other *waiter) bool { return other == w })
		if len(lines[p.key]) == 0 {
			delete(lines, p.key)
		}
	}
	return w.releases
}

// wait waits until a release or its own clock says that a should try again.
func (h *waitQueue) wait(ctx context.Context, a *Acquisition, left time.Duration) error {
	h.stopWaiting(a) // it has waited and not tried since
	w := &waiter{a: a, wake: make(chan struct{})}
	timeout := min(left, a.retryDelay())
	w.until = time.Now().Add(timeout)
	h.mu.Lock()
	stale := false
	for _, l := range a.blocked {
		stale = h.listen(w, lineKey{channelOf(l), l.blocker.key}) || stale
	}
	a.waiter = w
	if stale {
		h.mu.Unlock()
		return context.Cause(ctx)
	}
	for _, l := range a.blocked {
		h.enqueue(w, lineKey{channelOf(l), l.blocker.key})
	}
	h.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
	return context.Cause(ctx) // nil unless ctx is over, whatever came besides
}

// enqueue puts a waiter in a line, behind all older acquisitions.
func (h *waitQueue) enqueue(w *waiter, p lineKey) {
	lines := h.channels[p.channel].lines
	i, _ := slices.BinarySearchFunc(lines[p.key], w, func(other, w *waiter) int { return int(other.a.order - w.a.order) })
	lines[p.key] = slices.Insert(lines[p.key], i, w)
	w.lines = append(w.lines, p)
}

// retryDelay returns when the first of what is in the way is gone by itself. Contenders for it do
// not come back all at the same moment.
func (a *Acquisition) retryDelay() time.Duration {
	const spread = 20 * time.Millisecond
	first := a.blocked[0].blocker.remaining
	for _, l := range a.blocked[1:] {
		first = min(first, l.blocker.remaining)
	}
	return first + rand.N(spread)
}

// listen makes a waiter hear a channel, and reports whether it should rather try again: because
// the key was released since its last try and nobody was told, in which case it is now, or
// because that may be.
func (h *waitQueue) listen(w *waiter, p lineKey) (stale bool) {
	c := h.channels[p.channel]
	if mark, listens := w.a.channels[p.channel]; listens {
		if received := c.missed[p.key]; received > mark {
			delete(c.missed, p.key)
			w.releases = append(w.releases, release{p, received})
			return true
		}
		return c.confirmedAt > mark
	}
	if c == nil {
		c = &channel{missed: make(map[string]uint64), lines: make(map[string][]*waiter)}
		h.channels[p.channel] = c
		h.changes.Go(h.subscribe)
	}
	c.listeners++
	w.a.channels[p.channel] = c.received
	return c.subscribed // if not, the confirmation will wake it
}

// subscribe makes the connection have the channels that are listened to, and no others. Lasting
// errors are left to the connection, which comes back with all its channels, and to the
// waiters' clocks.
func (h *waitQueue) subscribe() {
	h.subscribing.Lock()
	defer h.subscribing.Unlock()
	var more, fewer []string
	h.mu.Lock()
	for name, c := range h.channels {
		switch {
		case c.listeners == 0:
			delete(h.channels, name)
			if c.requested {
				fewer = append(fewer, name)
			}
		case !c.requested:
			c.requested = true
			more = append(more, name)
		}
	}
	h.mu.Unlock()
	ctx := context.Background() // bounded by the client's timeouts
	if len(fewer) > 0 {
		_ = h.pubsub.SUnsubscribe(ctx, fewer...)
	}
	if len(more) == 0 {
		return
	}
	if h.pubsub == nil {
		h.pubsub = h.client.SSubscribe(ctx)
		messages := h.pubsub.ChannelWithSubscriptions()
		h.changes.Go(func() { h.receive(messages) })
	}
	// A call that fails has made the connection anew, with the channels that it knew before
	// (go-redis v9.23.0). After it these are among them, so any other failure is mended by the next connection.
	if h.pubsub.SSubscribe(ctx, more...) != nil {
		_ = h.pubsub.SSubscribe(ctx, more...)
	}
}

// close ends the connection. Nobody waits any more.
func (h *waitQueue) close() error {
	h.subscribing.Lock()
	var err error
	if h.pubsub != nil {
		err = h.pubsub.Close()
	}
	h.subscribing.Unlock()
	h.changes.Wait()
	return err
}

// receive hears until the subscription is closed.
func (h *waitQueue) receive(messages <-chan any) {
	for message := range messages {
		h.mu.Lock()
		switch m := message.(type) {
		case *redis.Subscription:
			if c := h.channels[m.Channel]; c != nil && m.Kind == "ssubscribe" {
				c.confirm()
			}
		case *redis.Message:
			if c := h.channels[m.Channel]; c != nil {
				c.received++
				in := KeySet{Scope: strings.TrimSuffix(m.Channel, released)}
				for name := range strings.FieldsSeq(m.Payload) {
					h.notifyFirst(release{lineKey{m.Channel, in.Key(name)}, c.received})
				}
			}
		}
		h.mu.Unlock()
	}
}

// confirm wakes everybody: what was released before the channel was heard, or while it was not,
// was told to nobody.
func (c *channel) confirm() {
	c.subscribed = true
	c.received++
	c.confirmedAt = c.received
	for _, line := range c.lines {
		for _, w := range line {
			w.wakeUp()
		}
	}
}

// notifyFirst tells the first in line of a release. If that one is awake already, it will see to it
// after its attempt.
func (h *waitQueue) notifyFirst(r release) {
	c := h.channels[r.channel]
	if line := c.lines[r.key]; len(line) > 0 {
		line[0].notify(r)
		return
	}
	c.markMissed(r)
}

// notifyWaiter tells an acquisition of a release, if it is in line for it. It may be about to be, or
// in another process, which hears of the release as well.
func (h *waitQueue) notifyWaiter(r release, id string) {
	c := h.channels[r.channel]
	for _, w := range c.lines[r.key] {
		if w.a.id == id {
			w.notify(r)
			return
		}
	}
	c.markMissed(r)
}

// markMissed remembers a release that nobody was told: who has tried before it tries again.
func (c *channel) markMissed(r release) { c.missed[r.key] = max(c.missed[r.key], r.received) }

func (w *waiter) notify(r release) {
	w.releases = append(w.releases, r)
	w.wakeUp()
}

func (w *waiter) wakeUp() {
	if !w.woken {
		w.woken = true
		close(w.wake)
	}
}

// leave ends what a hears.
func (h *waitQueue) leave(a *Acquisition) {
	if h == nil {
		return
	}
	h.stopWaiting(a)
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range a.channels {
		c := h.channels[name]
		if c.listeners--; c.listeners == 0 {
			h.changes.Go(h.subscribe)
		}
	}
	clear(a.channels)
}
