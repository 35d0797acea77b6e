package stacktest

import (
	"context"
	"testing"
	"time"
)

const (
	pollInterval = 5 * time.Millisecond
	waitBound    = 2 * time.Minute // of Eventually and WaitContext; generous, since only failing tests reach it
)

// Eventually polls until condition returns true, and fails the test after two minutes. Use it for states
// that send no signal: of a server or of another process. what is the object of "waiting for".
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	bound := time.NewTimer(waitBound)
	defer bound.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-bound.C:
			t.Fatalf("timeout waiting for %s", what)
		}
	}
}

// WaitContext returns a context with a timeout of two minutes, for a call that waits for a message.
func WaitContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	t.Cleanup(cancel)
	return ctx
}
