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

// hub hears what is released, on one connection for the whole process, and wakes the waiters of
// this process one at a time: for each key that was released the one that has waited longest.
// Whoever was woken and finds another key in its way passes the word on.
//
// Nothing depends on hearing: a waiter goes on by itself when the lease in its way is over.
type hub struct {
	client redis.UniversalClient

	subscribing sync.Mutex    // held while talking to the server
	pubsub      *redis.PubSub // nil until somebody waits
	changes     sync.WaitGroup

	mu       sync.Mutex
	channels map[string]*channel
}

// channel is where the releases of a scope are told.
type channel struct {
	listeners  int       // acquisitions
	asked      bool      // the server was asked for it
	subscribed bool      // the server has said so
	heard      uint64    // messages, and confirmations: what came before one may have been missed
	waiting    []*waiter // longest first
}

// waiter is an acquisition inside Wait.
type waiter struct {
	id     string
	keys   []string
	wake   chan struct{} // closed
	woken  bool
	reason []wakeup // the releases of which it was the one to be told
}

// wakeup is the release of a key.
type wakeup struct{ channel, key string }

func newHub(client redis.UniversalClient) *hub {
	return &hub{client: client, channels: make(map[string]*channel)}
}

func released(l *Lock) string { return l.Set.Scope + "released" }

// mark notes how much was heard before a try: if more was heard after it, the try may be old.
func (h *hub) mark(a *Acquisition) {
	if h == nil || len(a.listens) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range a.listens {
		a.listens[name] = h.channels[name].heard
	}
}

// passOn tells others of the releases that a was woken for and that did not help it.
func (h *hub) passOn(a *Acquisition) {
	if h == nil || len(a.awakened) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, release := range a.awakened {
		i := slices.IndexFunc(a.blocked, func(l *Lock) bool { return slices.Contains(l.Set.Keys, release.key) })
		if i < 0 {
			continue // it has the key, and will release it
		}
		switch in := a.blocked[i].blocker; {
		case in.key != release.key:
			h.tell(release)
		case in.ahead != "":
			h.call(release.channel, in.ahead)
		}
		// Else somebody was quicker, and will release it.
	}
	a.awakened = a.awakened[:0]
}

// wait waits until a release or its own clock says that a should try again.
func (h *hub) wait(ctx context.Context, a *Acquisition, left time.Duration) error {
	w := &waiter{id: a.id, wake: make(chan struct{})}
	stale := false
	h.mu.Lock()
	for _, lock := range a.blocked {
		w.keys = append(w.keys, lock.blocker.key)
		stale = h.listen(a, released(lock)) || stale
	}
	if stale {
		h.mu.Unlock()
		return nil
	}
	for name := range a.listens {
		c := h.channels[name]
		c.waiting = append(c.waiting, w)
	}
	h.mu.Unlock()

	err := sleepUnless(ctx, w.wake, min(left, a.patience()))

	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range a.listens {
		h.channels[name].remove(w)
	}
	a.awakened = append(a.awakened, w.reason...)
	return err
}

// patience returns when the first of what is in the way is gone by itself. Contenders for it do
// not come back all at the same moment.
func (a *Acquisition) patience() time.Duration {
	const spread = 20 * time.Millisecond
	first := a.blocked[0].blocker.remaining
	for _, lock := range a.blocked[1:] {
		first = min(first, lock.blocker.remaining)
	}
	return first + rand.N(spread)
}

// listen makes a hear a channel, and reports whether something was heard there since its last
// try, or may have been released before it began to listen.
func (h *hub) listen(a *Acquisition, name string) (stale bool) {
	c := h.channels[name]
	if heard, listens := a.listens[name]; listens {
		return c.heard != heard
	}
	if c == nil {
		c = new(channel)
		h.channels[name] = c
		h.changes.Go(h.subscribe)
	}
	c.listeners++
	a.listens[name] = c.heard
	return c.subscribed // if not, the confirmation will wake it
}

// subscribe makes the connection have the channels that are listened to, and no others. Its
// errors are left to the connection, which comes back with all its channels, and to the
// waiters' clocks.
func (h *hub) subscribe() {
	h.subscribing.Lock()
	defer h.subscribing.Unlock()
	var more, fewer []string
	h.mu.Lock()
	for name, c := range h.channels {
		switch {
		case c.listeners == 0:
			delete(h.channels, name)
			fewer = append(fewer, name)
		case !c.asked:
			c.asked = true
			more = append(more, name)
		}
	}
	h.mu.Unlock()
	ctx := context.Background() // bounded by the client's timeouts
	if len(fewer) > 0 {
		_ = h.pubsub.SUnsubscribe(ctx, fewer...)
	}
	switch {
	case len(more) > 0 && h.pubsub == nil:
		h.pubsub = h.client.SSubscribe(ctx, more...)
		messages := h.pubsub.ChannelWithSubscriptions()
		h.changes.Go(func() { h.hear(messages) })
	case len(more) > 0:
		_ = h.pubsub.SSubscribe(ctx, more...)
	}
}

// close ends the connection. Nobody waits any more.
func (h *hub) close() error {
	h.subscribing.Lock()
	var err error
	if h.pubsub != nil {
		err = h.pubsub.Close()
	}
	h.subscribing.Unlock()
	h.changes.Wait()
	return err
}

// hear hears until the subscription is closed.
func (h *hub) hear(messages <-chan any) {
	for message := range messages {
		h.mu.Lock()
		switch m := message.(type) {
		case *redis.Subscription:
			if c := h.channels[m.Channel]; c != nil && m.Kind == "ssubscribe" {
				c.subscribed = true
				c.heard++
				for _, w := range slices.Clone(c.waiting) {
					h.rouse(c, w)
				}
			}
		case *redis.Message:
			if c := h.channels[m.Channel]; c != nil {
				c.heard++
				for key := range strings.FieldsSeq(m.Payload) {
					h.tell(wakeup{m.Channel, key})
				}
			}
		}
		h.mu.Unlock()
	}
}

// tell tells of a release whoever has waited for it longest.
func (h *hub) tell(release wakeup) {
	c := h.channels[release.channel]
	if c == nil {
		return
	}
	for _, w := range c.waiting {
		if slices.Contains(w.keys, release.key) {
			w.reason = append(w.reason, release)
			h.rouse(c, w)
			return
		}
	}
}

// call wakes an acquisition, if it is one that waits in this process.
func (h *hub) call(name, id string) {
	c := h.channels[name]
	for _, w := range c.waiting {
		if w.id == id {
			h.rouse(c, w)
			return
		}
	}
}

// rouse wakes a waiter and, so that the next release goes to another one, takes it off its
// channel (its other channels it leaves itself).
func (h *hub) rouse(c *channel, w *waiter) {
	c.remove(w)
	if !w.woken {
		w.woken = true
		close(w.wake)
	}
}

func (c *channel) remove(w *waiter) {
	c.waiting = slices.DeleteFunc(c.waiting, func(other *waiter) bool { return other == w })
}

// leave ends what a hears, and passes on what it was woken for.
func (h *hub) leave(a *Acquisition) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range a.awakened {
		h.tell(w)
	}
	for name := range a.listens {
		c := h.channels[name]
		if c.listeners--; c.listeners == 0 {
			h.changes.Go(h.subscribe)
		}
	}
	clear(a.listens)
}

// sleepUnless sleeps until it is woken.
func sleepUnless(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-wake:
		return nil
	case <-timer.C:
		return nil
	}
}
