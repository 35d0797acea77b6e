package locking

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

// waitQueue receives releases on one connection for the whole process (see groupOf) and wakes the acquisitions
// that wait.
//
// The waiting acquisitions of this process form one line for each blocking key, oldest first. A
// release wakes only the first in the line of each released key. If that one is then blocked by
// another key, it passes the release to the next in the line. A later acquisition joins the line
// without an attempt on the server.
//
// Messages only make waiting shorter: a waiter also tries again when the lease that blocks it
// expires.
type waitQueue struct {
	client redis.UniversalClient
	fair   bool // the server keeps one queue for all processes

	changes sync.WaitGroup

	mu            sync.Mutex
	channels      map[string]*channel
	subscriptions map[string]*subscription // by group, see groupOf
}

// subscription is the connection of a group of channels. Each group has its own lock, so a server that hangs
// delays no group of another server.
type subscription struct {
	mu     sync.Mutex    // held during requests to the server
	pubsub *redis.PubSub // nil before the first request
	closed bool
}

// channel is the state of the channel on which the releases of a scope are published.
type channel struct {
	in          *subscription        // receives it
	listeners   int                  // number of acquisitions that use the channel
	requested   bool                 // the subscription was requested
	subscribed  bool                 // the server has confirmed the subscription
	received    uint64               // number of messages and confirmations received
	confirmedAt uint64               // received at the last confirmation; earlier messages may be lost
	missed      map[string]uint64    // name -> received at the key's last release that no waiter was notified of
	lines       map[string][]*waiter // by the name of the blocking key, the oldest acquisition first
}

// waiter is an acquisition from Wait to the end of its next attempt.
type waiter struct {
	a        *Acquisition
	lines    []lineKey // the lines that contain the waiter
	until    time.Time // when it tries again without a release
	wake     chan struct{}
	woken    bool
	releases []release // the releases that it, and no other waiter, was notified of
}

// lineKey identifies a line by its channel and the name of its blocking key.
type lineKey struct{ channel, name string }

// release is the release of a key. received is the value of channel.received at that time.
type release struct {
	lineKey
	received uint64
}

func newWaitQueue(client redis.UniversalClient, fair bool) *waitQueue {
	return &waitQueue{
		client: client, fair: fair, channels: make(map[string]*channel), subscriptions: make(map[string]*subscription),
	}
}

// groupOf returns which connection receives the releases of a channel. In a Redis Cluster each hash slot
// has its own, because only the server of the slot has the channel.
func (h *waitQueue) groupOf(channel string) string {
	if _, cluster := h.client.(*redis.ClusterClient); !cluster {
		return ""
	}
	_, rest, _ := strings.Cut(channel, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// channelOf returns the channel on which the releases of a lock's keys are published.
func channelOf(l *Lock) string { return l.KeySet.Scope + "released" }

// beforeTry notes the number of messages received before an attempt. The attempt may have come
// before a release that is received later.
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

// blockedByOlder reports whether an acquisition that is older than a waits for one of the lock's
// keys. If so, it sets l.blocker.
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
	for _, name := range l.KeySet.Names {
		if line := c.lines[name]; len(line) > 0 && line[0].a.order < a.order {
			l.blocker = blocker{name: name, remaining: max(time.Until(line[0].until), time.Millisecond), olderWaits: true}
			return true
		}
	}
	return false
}

// afterTry ends the waiting of a after an attempt for locks. It passes to other waiters the releases
// that a was notified of and could not use.
func (h *waitQueue) afterTry(a *Acquisition, locks []*Lock) {
	if h == nil || a.waiter == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.dequeue(a) {
		i := slices.IndexFunc(locks, func(l *Lock) bool {
			return channelOf(l) == r.channel && slices.Contains(l.KeySet.Names, r.name)
		})
		if i >= 0 && locks[i].Held {
			continue // a will release the key
		}
		var in blocker // of a failed attempt: none
		if i >= 0 {
			in = locks[i].blocker
		}
		switch {
		case in.name != r.name || in.olderWaits:
			h.notifyFirst(r)
		case in.ahead != "":
			h.notifyWaiter(r, in.ahead)
		case r.received > a.channels[r.channel]:
			h.channels[r.channel].markMissed(r) // the release came after the attempt
		}
		// Otherwise another acquisition was faster and will release the key.
	}
}

// stopWaiting ends the waiting of a without an attempt. It passes the releases that a was notified
// of to other waiters.
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

// dequeue removes a from its lines and returns the releases that it was notified of.
func (h *waitQueue) dequeue(a *Acquisition) []release {
	w := a.waiter
	a.waiter = nil
	for _, p := range w.lines {
		lines := h.channels[p.channel].lines
		lines[p.name] = slices.DeleteFunc(lines[p.name], func(other *waiter) bool { return other == w })
		if len(lines[p.name]) == 0 {
			delete(lines, p.name)
		}
	}
	return w.releases
}

// wait waits until a should try again: after a release, after retryDelay, or after left.
func (h *waitQueue) wait(ctx context.Context, a *Acquisition, left time.Duration) error {
	h.stopWaiting(a) // in case a has waited and not tried since
	w := &waiter{a: a, wake: make(chan struct{})}
	timeout := min(left, a.retryDelay())
	w.until = time.Now().Add(timeout)
	h.mu.Lock()
	stale := false
	for _, l := range a.blocked {
		stale = h.listen(w, lineKey{channelOf(l), l.blocker.name}) || stale
	}
	a.waiter = w
	if stale {
		h.mu.Unlock()
		return context.Cause(ctx)
	}
	for _, l := range a.blocked {
		h.enqueue(w, lineKey{channelOf(l), l.blocker.name})
	}
	h.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
	return context.Cause(ctx) // nil unless ctx is done
}

// enqueue puts a waiter in a line, behind all older acquisitions.
func (h *waitQueue) enqueue(w *waiter, p lineKey) {
	lines := h.channels[p.channel].lines
	byAge := func(other, w *waiter) int { return int(other.a.order - w.a.order) }
	i, _ := slices.BinarySearchFunc(lines[p.name], w, byAge)
	lines[p.name] = slices.Insert(lines[p.name], i, w)
	w.lines = append(w.lines, p)
}

// retryDelay returns the time until the first blocker ends without a release, plus a random time,
// so that contenders do not all try again at the same moment.
func (a *Acquisition) retryDelay() time.Duration {
	const spread = 20 * time.Millisecond
	first := a.blocked[0].blocker.remaining
	for _, l := range a.blocked[1:] {
		first = min(first, l.blocker.remaining)
	}
	return first + rand.N(spread)
}

// listen adds a waiter to the listeners of a channel. stale is true when the waiter should try
// again at once, because the key was released since its last attempt without a notification, or may
// have been. In the first case listen gives the release to the waiter.
func (h *waitQueue) listen(w *waiter, p lineKey) (stale bool) {
	c := h.channels[p.channel]
	if mark, listens := w.a.channels[p.channel]; listens {
		if received := c.missed[p.name]; received > mark {
			delete(c.missed, p.name)
			w.releases = append(w.releases, release{p, received})
			return true
		}
		return c.confirmedAt > mark
	}
	if c == nil {
		group := h.groupOf(p.channel)
		if h.subscriptions[group] == nil {
			h.subscriptions[group] = new(subscription)
		}
		c = &channel{
			in: h.subscriptions[group], missed: make(map[string]uint64), lines: make(map[string][]*waiter),
		}
		h.channels[p.channel] = c
		h.changes.Go(func() { h.subscribe(c.in) })
	}
	c.listeners++
	w.a.channels[p.channel] = c.received
	return c.subscribed // if it is not yet, its confirmation wakes the waiter
}

// subscribe subscribes to exactly the channels of a subscription that have listeners. After a lasting
// error the connection reconnects by itself and subscribes to all its channels again. Meanwhile the
// waiters use their own clocks.
func (h *waitQueue) subscribe(s *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	var more, fewer []string
	h.mu.Lock()
	for name, c := range h.channels {
		switch {
		case c.in != s:
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
	if len(fewer) > 0 && s.pubsub != nil {
		_ = s.pubsub.SUnsubscribe(ctx, fewer...)
	}
	if len(more) == 0 {
		return
	}
	if s.pubsub == nil {
		pubsub := h.client.SSubscribe(ctx)
		s.pubsub = pubsub
		defer h.changes.Go(func() { h.receive(s, pubsub) }) // before, it would connect to any server of a cluster
	}
	// A call that fails reconnects with the channels that the connection had before (go-redis
	// v9.23.0) and adds the new ones afterwards. So the second call subscribes to these; after any
	// other failure the next connection does.
	if s.pubsub.SSubscribe(ctx, more...) != nil {
		_ = s.pubsub.SSubscribe(ctx, more...)
	}
}

// close closes the connections. No acquisition may wait any more.
func (h *waitQueue) close() error {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.subscriptions))
	h.mu.Unlock()
	var errs []error
	for _, s := range all {
		s.mu.Lock()
		if s.closed = true; s.pubsub != nil {
			errs = append(errs, s.pubsub.Close())
		}
		s.mu.Unlock()
	}
	h.changes.Wait()
	return errors.Join(errs...)
}

// renew replaces a connection that is silent, or to a server of a cluster that does not have the hash slot of the channels.
// Receive, which is the only reader of the connection, calls it.
func (h *waitQueue) renew(s *subscription) {
	if cluster, is := h.client.(*redis.ClusterClient); is {
		_, _ = lua.Primaries(context.Background(), cluster) // it reads the slots; after an error the server refuses again
	}
	s.mu.Lock()
	_ = s.pubsub.Close()
	s.pubsub = nil
	h.mu.Lock()
	for _, c := range h.channels {
		if c.in == s {
			c.requested, c.subscribed = false, false
		}
	}
	h.mu.Unlock()
	s.mu.Unlock()
	h.subscribe(s)
}

// The intervals of receive.
const (
	pingEvery  = 3 * time.Second        // while no message comes; without an answer the connection is replaced
	retryEvery = 100 * time.Millisecond // after an error
)

// receive processes what comes on a connection until it is closed or renewed. After an error of the connection
// go-redis reconnects: in a cluster to any server while there are no channels. A server that does not have the hash slot
// of the channels refuses a subscription, which only this read shows, or ends it when the slot moves away.
func (h *waitQueue) receive(s *subscription, pubsub *redis.PubSub) {
	ctx := context.Background()
	silent := false // nothing has come since the last ping
	for failures := 0; ; {
		message, err := pubsub.ReceiveTimeout(ctx, pingEvery)
		var timeout interface{ Timeout() bool }
		switch {
		case err == nil:
			failures, silent = 0, false
			if h.process(message) {
				h.renew(s)
				return
			}
		case errors.Is(err, redis.ErrClosed):
			return
		case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "CLUSTERDOWN"):
			time.Sleep(retryEvery)
			h.renew(s)
			return
		case errors.As(err, &timeout) && timeout.Timeout():
			if silent && h.answers() { // the connection is half open: its writes do not fail
				h.renew(s)
				return
			}
			silent = true
			_ = pubsub.Ping(ctx) // after an error go-redis reconnects
		default:
			if failures++; failures > 1 {
				time.Sleep(retryEvery)
			}
		}
	}
}

// answers reports whether the server answers on another connection. While it hangs, a new subscription would block for many
// seconds, and close with it.
func (h *waitQueue) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return h.client.Ping(ctx).Err() == nil
}

// process processes a message. It reports whether the server has ended a subscription that is in use, because its hash
// slot has moved to another server.
func (h *waitQueue) process(message any) (moved bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := message.(type) {
	case *redis.Subscription:
		switch c := h.channels[m.Channel]; {
		case c == nil:
		case m.Kind == "ssubscribe":
			c.confirm()
		case m.Kind == "sunsubscribe":
			return c.subscribed && c.listeners > 0 && h.groupOf(m.Channel) != ""
		}
	case *redis.Message:
		if c := h.channels[m.Channel]; c != nil {
			c.received++
			for name := range strings.FieldsSeq(m.Payload) {
				h.notifyFirst(release{lineKey{m.Channel, name}, c.received})
			}
		}
	}
	return false
}

// confirm wakes all waiters of a channel after a confirmation of its subscription, because no
// waiter was notified of the releases before it.
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

// notifyFirst notifies the first waiter in the line of a release. If it is already awake, afterTry
// processes the release after its attempt.
func (h *waitQueue) notifyFirst(r release) {
	c := h.channels[r.channel]
	if line := c.lines[r.name]; len(line) > 0 {
		line[0].notify(r)
		return
	}
	c.markMissed(r)
}

// notifyWaiter notifies an acquisition of a release if it is in the line of the released key.
// Otherwise the acquisition may be about to enter the line, or it is in another process, which
// receives the release itself.
func (h *waitQueue) notifyWaiter(r release, id string) {
	c := h.channels[r.channel]
	for _, w := range c.lines[r.name] {
		if w.a.id == id {
			w.notify(r)
			return
		}
	}
	c.markMissed(r)
}

// markMissed remembers a release that no waiter was notified of. A waiter whose last attempt was
// before it tries again.
func (c *channel) markMissed(r release) { c.missed[r.name] = max(c.missed[r.name], r.received) }

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

// leave ends the waiting of a and removes it from the listeners of its channels.
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
			h.changes.Go(func() { h.subscribe(c.in) })
		}
	}
	clear(a.channels)
}
