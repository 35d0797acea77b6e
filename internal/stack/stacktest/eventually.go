package stacktest

import (
	"context"
	"testing"
	"time"
)

// The pace and the bound of Eventually, and of what a Patience is for. The bound is generous: a test that waits
// in vain fails by it, one that does not never notices it.
const (
	pollInterval = 5 * time.Millisecond
	waitBound    = 2 * time.Minute
)

// Eventually asks again until something is so, for what no signal can be had of: the state of a
// server or of another process. It fails the test with what it waited for in vain.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	bound := time.NewTimer(waitBound)
	defer bound.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-bound.C:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// WaitContext returns a context for a call that returns when something has come, like the answer to an event. It is
// over when a test has waited in vain.
func WaitContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	t.Cleanup(cancel)
	return ctx
}
