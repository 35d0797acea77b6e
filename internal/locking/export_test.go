package locking

import "slices"

// Waiting returns the ids of who waits in this process for a release in a scope, longest first.
func Waiting(l *Locker, scope string) (ids []string) {
	h := l.strategy.wakeups()
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.channels[scope+"released"]; c != nil && c.subscribed {
		for _, w := range c.waiting {
			ids = append(ids, w.id)
		}
	}
	return slices.Clip(ids)
}
