package events

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// memoryPoisonRegister is a PoisonRegister in memory. The one in Postgres is tested in package store.
type memoryPoisonRegister struct {
	mu      sync.Mutex
	details map[string]string
	refuse  error // nil unless it is not available
	refused int
}

func (p *memoryPoisonRegister) RecordPoison(_ context.Context, id, _, detail string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		p.refused++
		return p.refuse
	}
	if p.details == nil {
		p.details = make(map[string]string)
	}
	if _, known := p.details[id]; !known {
		p.details[id] = detail
	}
	return nil
}

func (p *memoryPoisonRegister) Poisoned(_ context.Context, ids []string) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := make(map[string]string)
	for _, id := range ids {
		if detail, known := p.details[id]; known {
			found[id] = detail
		}
	}
	return found, nil
}

// TestPoison_PubAckLost_NotDecidedAgain loses the PubAck of a dead letter, and then the fault is gone: the event, which is delivered
// again, is not decided again. It has its dead letter, once, and no outcome.
func TestPoison_PubAckLost_NotDecidedAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			js.failuresLeft.Store(1)
			b := newHarnessWithJetStream(t, func(inner jetstream.JetStream) jetstream.JetStream { js.JetStream = inner; return js })
			failures := 0
			b.setFault(func(string, int) error { // one event, so one at a time
				if failures++; failures > failuresMax {
					return nil
				}
				return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
			})
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
			b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
			b.awaitIdle(ConsumerRequests)
			if b.decidedCount("bad") != failuresMax || len(b.out) != 0 || len(b.dlq) != 1 {
				t.Errorf("decided %d times, want %d; %d outcomes, %d dead letters",
					b.decidedCount("bad"), failuresMax, len(b.out), len(b.dlq))
			}
			if h := b.dlq[0].Headers(); h.Get(HeaderDLQReason) != ReasonPoison || h.Get(HeaderDLQDetail) == "" {
				t.Errorf("headers %v", h)
			}
		})
	}
}

// TestPoison_OutcomeStored_NoDeadLetter loses the PubAck of an outcome, and then the event fails as often as one that is poison: it
// has its outcome, and no dead letter.
func TestPoison_OutcomeStored_NoDeadLetter(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{storesFirst: true}
	js.failuresLeft.Store(1)
	b := newHarnessWithJetStream(t, func(inner jetstream.JetStream) jetstream.JetStream { js.JetStream = inner; return js })
	first := true
	b.setFault(func(key string, _ int) error {
		if key == "other" {
			return nil
		}
		if first {
			first = false
			return nil
		}
		return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
	})
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("other"))
	b.await("another outcome", func() bool { return len(b.out) == 2 })
	b.awaitIdle(ConsumerRequests)
	if b.decidedCount("k") != 1+failuresMax || len(b.out) != 2 || len(b.dlq) != 0 {
		t.Errorf("decided %d times, want %d; %d outcomes, %d dead letters",
			b.decidedCount("k"), 1+failuresMax, len(b.out), len(b.dlq))
	}
}

// TestPoison_RegisterUnavailable_WaitsUntilRecorded has Postgres be gone when an event is found to be poison: it waits, and dies when that is
// recorded.
func TestPoison_RegisterUnavailable_WaitsUntilRecorded(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.poison.mu.Lock()
	b.poison.refuse = &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	b.poison.mu.Unlock()
	b.setFault(func(string, int) error { panic("a bug") })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
	stacktest.Eventually(t, "it to be refused twice", func() bool {
		b.poison.mu.Lock()
		defer b.poison.mu.Unlock()
		return b.poison.refused == 2
	})
	b.mu.Lock()
	dead := len(b.dlq)
	b.mu.Unlock()
	if dead != 0 {
		t.Error("a dead letter was stored before it was recorded")
	}
	b.poison.mu.Lock()
	b.poison.refuse = nil
	b.poison.mu.Unlock()
	b.await("the dead letter", func() bool { return len(b.dlq) == 1 })
}
