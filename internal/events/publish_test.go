package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// failingJetStream is a JetStream of which the first publications fail: before they are done, or after
// (lost), when only the PubAck does not arrive.
type failingJetStream struct {
	jetstream.JetStream
	storesFirst  bool
	err          error // of the PubAck; nil = it does not come
	failuresLeft atomic.Int32
}

func (u *failingJetStream) PublishMsgAsync(m *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if u.failuresLeft.Add(-1) < 0 {
		return u.JetStream.PublishMsgAsync(m, opts...)
	}
	if u.storesFirst {
		if _, err := u.PublishMsg(context.Background(), m); err != nil {
			return nil, err
		}
	}
	failed := make(chan error, 1)
	err := cmp.Or(u.err, nats.ErrTimeout)
	time.AfterFunc(20*time.Millisecond, func() { failed <- err }) // as late as a real one
	return &failedAck{m, failed}, nil
}

type failedAck struct {
	msg *nats.Msg
	err chan error
}

func (*failedAck) Ok() <-chan *jetstream.PubAck { return nil }
func (f *failedAck) Err() <-chan error          { return f.err }
func (f *failedAck) Msg() *nats.Msg             { return f.msg }

// TestPublish_PubAckLost_StoresEachOnce loses the PubAcks of outcomes and dead letters. No event may be acknowledged
// before its outcome is stored, and none has two.
func TestPublish_PubAckLost_StoresEachOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			js.failuresLeft.Store(5)
			b := newHarnessWithJetStream(t, func(inner jetstream.JetStream) jetstream.JetStream { js.JetStream = inner; return js })
			const number = 3
			for i := range number {
				b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
				b.publish(b.ns.In(BookingRequested, "room"), nil, "not JSON")
			}
			b.awaitIdle(ConsumerRequests)
			b.await("an end of each", func() bool { return len(b.out) >= number && len(b.dlq) >= number })
			if js.failuresLeft.Load() >= 0 || len(b.out) != number || len(b.dlq) != number {
				t.Errorf("%d outcomes, %d dead letters, want %d each; %d PubAcks not lost", len(b.out), len(b.dlq), number, js.failuresLeft.Load())
			}
		})
	}
}

// TestPoison_OneOfABatch_IsDeadLetteredAlone has one event of many fail by its own fault, by an error and by a panic. It alone
// dies, after several tries; those that were in a batch with it are answered, and none of them
// is delivered again.
func TestPoison_OneOfABatch_IsDeadLetteredAlone(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func() error{
		"error": func() error { return postgres.WrapError(&pgconn.PgError{Code: "22P05"}) },
		"panic": func() error { panic("a bug") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t)
			published := make(chan struct{})
			var batched atomic.Bool
			b.setFault(func(key string, batch int) error {
				switch key {
				case "first": // keeps the consumer busy until all others wait
					<-published
				case "bad":
					if batch > 1 {
						batched.Store(true)
					}
					return fault()
				}
				return nil
			})
			const number = 100
			b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("first"))
			for i := range number {
				b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
				if i == number/2 {
					b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("bad"))
				}
			}
			close(published)
			b.await("all others' outcomes and the one dead letter", func() bool { return len(b.out) == number+1 && len(b.dlq) == 1 })
			h := b.dlq[0].Headers()
			if h.Get("Holdfast-Dlq-Reason") != ReasonPoison || h.Get("Holdfast-Dlq-Deliveries") != fmt.Sprint(failuresMax) {
				t.Errorf("headers %v", h)
			}
			info := b.awaitIdle(ConsumerRequests)
			if again := info.Delivered.Consumer - info.Delivered.Stream; again != failuresMax-1 || !batched.Load() {
				t.Errorf("%d deliveries were repeated, want those of the poison, %d; it was in a batch with others: %v", again, failuresMax-1, batched.Load())
			}
		})
	}
}

// TestConsumer_CorruptResource_EventsWait has what there is of one resource be damaged for longer than a fault of an event would be
// borne. Its events wait, also a payment; none dies; all others are answered, those in a batch with them too,
// and the consumers do not pause.
func TestConsumer_CorruptResource_EventsWait(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	b := newHarness(t)
	b.setFault(func(key string, _ int) error {
		if strings.HasPrefix(key, "bad") {
			return fmt.Errorf("count of stock: %w", holds.ErrCorrupt)
		}
		return nil
	})
	const number = 30
	for i := range number {
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("bad%d", i)))
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
	}
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`","payment_id":"bad-payment"}`))
	b.await("all others' outcomes", func() bool { return len(b.out) == number })
	stacktest.Eventually(t, "more deliveries than a fault has", func() bool {
		return b.decidedCount("bad0") > failuresMax && b.decidedCount("bad-payment") > failuresMax
	})
	for _, c := range b.workers {
		if c.Paused() {
			t.Errorf("consumer %s pauses", c.name)
		}
	}
	b.setFault(nil)
	b.await("all outcomes", func() bool { return len(b.out) == 2*number+1 })
	if len(b.dlq) > 0 {
		t.Errorf("%d dead letters", len(b.dlq))
	}
}

// TestPayment_FailsOften_NeverDeadLettered has a payment fail by what looks like its own fault, more often than
// other events may. It must not die: it ends in a reservation or a refund.
func TestPayment_FailsOften_NeverDeadLettered(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	var failures atomic.Int32
	b.setFault(func(string, int) error {
		if failures.Add(1) <= failuresMax+1 {
			return postgres.WrapError(&pgconn.PgError{Code: "22P05"})
		}
		return nil
	})
	b.publish(b.ns.In(PaymentConfirmed, "room"), nil, envelopeOf(PaymentConfirmed, "e1", `{"hold_id":"`+holdID+`","payment_id":"p"}`))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	if len(b.dlq) != 0 {
		t.Errorf("a payment was dead-lettered")
	}
}

// TestPublish_DuplicateInProcess_RetriesWithoutPause has nodes of NATS say that they do not agree yet about an outcome with the same id: the event is
// delivered again, and nothing else waits for that.
func TestPublish_DuplicateInProcess_RetriesWithoutPause(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{err: &jetstream.APIError{Code: 409, ErrorCode: 10158, Description: "duplicate message id is in process"}}
	js.failuresLeft.Store(2)
	b := newHarnessWithJetStream(t, func(inner jetstream.JetStream) jetstream.JetStream { js.JetStream = inner; return js })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("an outcome", func() bool { return len(b.out) == 1 })
	b.awaitIdle(ConsumerRequests)
	if n := b.decidedCount("k"); n != 3 {
		t.Errorf("decided %d times, want one more than it was refused", n)
	}
	if b.workers[0].failedAt.Load() != 0 {
		t.Error("it was taken for an outage")
	}
}

// TestDispositionOf_EncodeError_IsRetryCounted has an outcome that cannot be written: a fault of that event, not an outage.
func TestDispositionOf_EncodeError_IsRetryCounted(t *testing.T) {
	t.Parallel()
	if got := dispositionOf(&encodeError{errors.New("x")}); got != dispositionRetryCounted {
		t.Errorf("fate %d, want %d", got, dispositionRetryCounted)
	}
	for deliveries, want := range map[uint64]time.Duration{1: delayRetrySoon, 2: 2 * delayRetrySoon, 100: delayMax} {
		if got := backoffDelay(delayRetrySoon, deliveries); got != want {
			t.Errorf("delay of delivery %d is %v, want %v", deliveries, got, want)
		}
	}
}
