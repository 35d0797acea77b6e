package locking

import "slices"

// Waiting returns the ids of who waits in this process for a release in a scope.
func Waiting(l *Locker, scope string) (ids []string) {
	h := l.strategy.wakeups()
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

// Heard returns how much was heard of a scope.
func Heard(l *Locker, scope string) uint64 {
	h := l.strategy.wakeups()
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.channels[scope+"released"]; c != nil {
		return c.heard
	}
	return 0
}
