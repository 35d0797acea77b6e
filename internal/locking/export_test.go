package locking

import (
	"context"
	"slices"
	"time"
)

// Renew restarts the leases of held locks. It returns an ErrLost if some keys were lost; the other
// keys stay locked.
func (l *Locker) Renew(ctx context.Context, locks ...*Lock) error {
	return l.countLost(l.strategy.renew(ctx, locks), locks)
}

// Waiting returns the ids of the acquisitions of this process that wait for a release in a scope.
func Waiting(l *Locker, scope string) (ids []string) {
	h := l.strategy.waitQueue()
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.channels[scope+"released"]
	if c == nil || !c.subscribed {
		return nil
	}
	for _, line := range c.lines {
		for _, w := range line {
			if !w.woken && !slices.Contains(ids, w.a.id) {
				ids = append(ids, w.a.id)
			}
		}
	}
	return ids
}

// Received returns the number of messages received on the channel of a scope.
func Received(l *Locker, scope string) uint64 {
	h := l.strategy.waitQueue()
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.channels[scope+"released"]; c != nil {
		return c.received
	}
	return 0
}

// SetCleanUpTimeout sets the bound of the release of locks whose caller has gone.
func SetCleanUpTimeout(d time.Duration) { cleanUpTimeout = d }

// SkipHungFor sets for how long a server that has not answered in time is not asked again.
func (r *Redlock) SkipHungFor(d time.Duration) { r.hung.skipFor = d }

// SetTimeoutMin sets the minimum timeout of a server.
func (r *Redlock) SetTimeoutMin(d time.Duration) { r.timeoutMin = d }
