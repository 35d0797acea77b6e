package stacktest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	pollMin = 5 * time.Millisecond
	pollMax = 50 * time.Millisecond
)

// WaitBound bounds Eventually and WaitContext. It is generous, since only failing tests reach it, and
// shorter for the runner of the mutants, whose tests are expected to fail: HOLDFAST_TEST_WAIT.
var WaitBound = func() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("HOLDFAST_TEST_WAIT")); err == nil {
		return d
	}
	return 5 * time.Minute
}()

// Eventually polls until condition returns true, and fails the test after [WaitBound]. Use it for states
// that send no signal: of a server or of another process. The pause between two polls grows with the
// time that has passed, because many tests wait for seconds at the same time and each poll is a query.
// what is the object of "waiting for".
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); {
		passed := time.Since(began)
		if passed > WaitBound {
			t.Fatalf("timeout waiting for %s", what)
		}
		<-time.After(pollAfter(passed))
	}
}

// pollAfter returns the pause before the next poll: a tenth of the time that has passed, within bounds.
func pollAfter(passed time.Duration) time.Duration { return min(max(passed/10, pollMin), pollMax) }

// WaitContext returns a context with a timeout of [WaitBound], for a call that waits for a message.
func WaitContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), WaitBound)
	t.Cleanup(cancel)
	return ctx
}

// WithoutHurry makes an asynchronous publication wait, at most for [WaitBound], while too many others have no PubAck
// yet. Without it the publication fails after 200 ms.
func WithoutHurry() jetstream.PublishOpt { return jetstream.WithStallWait(WaitBound) }
