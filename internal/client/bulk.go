package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// The delays until a message that could not be stored is published again.
const (
	bulkRetryMin = 50 * time.Millisecond
	bulkRetryMax = 2 * time.Second
)

// bulkStopLimit is how long a Bulk that was stopped waits for what it has published to be stored.
const bulkStopLimit = 2 * time.Second

// BulkOptions say how many messages are published at a time, and how long a Bulk waits.
type BulkOptions struct {
	InFlight      int           // messages that are on their way at a time, at least 1
	AwaitOutcomes bool          // wait for the outcome of each
	Timeout       time.Duration // for a message to be stored until it is published again, and for its outcome
	GiveUpAfter   time.Duration // without anything stored

	// OnError is told once in each outage why nothing is stored. It must not be nil.
	OnError func(err error)
}

// BulkPublisher publishes many inbound events, a bounded number at a time. What could not be stored is
// published again. It may be stored twice then: it is the same event, with the same outcome.
type BulkPublisher struct {
	options BulkOptions
	nc      *nats.Conn
	js      jetstream.JetStream

	// work is over when the Bulk gives up (with the error as its cause), or bulkStopLimit after
	// asked is over: then nothing is published again and no outcome is waited for any more.
	parent context.Context
	work   context.Context
	giveUp context.CancelCauseFunc

	inFlight chan struct{} // one is taken by each message on its way
	running  sync.WaitGroup
	storedAt atomic.Int64 // when a message was stored last, in Unix nanoseconds; 0 = never
	failedAt atomic.Int64 // when Complain was told in this outage; 0 = there is none

	inbox   string
	replies *nats.Subscription
	mu      sync.Mutex
	pending map[string]chan *nats.Msg // who waits for an answer, by the last token of its inbox
	tokens  uint64
}

// BulkResult is what became of a message.
type BulkResult struct {
	Stored    bool
	Duplicate bool   // it was stored before, by somebody else or an earlier run
	Reply     *Reply // nil unless it was followed and answered in time
	Err       error  // why it is not stored, or its answer cannot be read
}

// RefusedError says that JetStream will never store a message, however often it is published.
type RefusedError struct{ Cause error }

func (e *RefusedError) Error() string { return "JetStream refuses it: " + e.Cause.Error() }

// Unwrap returns what JetStream said.
func (e *RefusedError) Unwrap() error { return e.Cause }

// BulkPublisher returns a Bulk that works until ctx is over. The caller calls Close.
func (c *Client) BulkPublisher(ctx context.Context, o BulkOptions) (*BulkPublisher, error) {
	js, err := jetstream.New(c.nc, jetstream.WithPublishAsyncTimeout(o.Timeout), jetstream.WithPublishAsyncMaxPending(2*o.InFlight))
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	b := &BulkPublisher{
		options: o, nc: c.nc, js: js, parent: ctx,
		inFlight: make(chan struct{}, o.InFlight), pending: make(map[string]chan *nats.Msg),
	}
	if o.AwaitOutcomes {
		b.inbox = c.nc.NewInbox() + "."
		if b.replies, err = c.nc.Subscribe(b.inbox+"*", b.deliverReply); err != nil {
			return nil, fmt.Errorf("subscribe: %w", err)
		}
	}
	b.work, b.giveUp = context.WithCancelCause(context.WithoutCancel(ctx))
	return b, nil
}

// Context is over when the Bulk has given up; its cause says why.
func (b *BulkPublisher) Context() context.Context { return b.work }

// Close ends what is still under way. Publish must not be called any more. The subscription to
// PubAcks ends with the connection: CleanupPublisher of nats.go v1.55 leaves a goroutine behind for
// ever when it is called before that has begun.
func (b *BulkPublisher) Close() {
	b.giveUp(errors.New("closed"))
	b.running.Wait()
	if b.replies != nil {
		_ = b.replies.Unsubscribe() // only fails when the connection is closed
	}
}

// Wait waits for all that is on its way, and returns why the Bulk gave up, if it did.
func (b *BulkPublisher) Wait() error {
	stopped := context.AfterFunc(b.parent, func() {
		time.AfterFunc(bulkStopLimit, func() { b.giveUp(context.Cause(b.parent)) })
	})
	defer stopped()
	b.running.Wait()
	if b.work.Err() != nil {
		return context.Cause(b.work)
	}
	return nil
}

// Publish publishes a message as soon as fewer than InFlight are on their way, and returns.
// Messages are published in the order of the calls, except those that have to be repeated. done
// is called once, from another goroutine, when all is known about the message. Publish returns
// an error, and never calls done, when the Bulk has stopped.
//
// A message that JetStream takes for a duplicate of one that was stored before is, with again,
// published once more with a message id of its own: for a worker it is the same event and gets
// the same outcome, or it is another event with the same id.
func (b *BulkPublisher) Publish(m *nats.Msg, again bool, done func(BulkResult)) error {
	select {
	case b.inFlight <- struct{}{}:
	case <-b.parent.Done():
	case <-b.work.Done():
	}
	for _, ctx := range []context.Context{b.parent, b.work} {
		if ctx.Err() != nil { // also when there was a place: it may be free because all others have stopped
			return context.Cause(ctx)
		}
	}
	token, answer := b.expectReply(m)
	p := b.publish(m)
	b.running.Go(func() {
		defer func() { <-b.inFlight }()
		defer b.dropReply(token)
		done(b.awaitResult(p, again, answer))
	})
	return nil
}

// expectReply has the answer to a message sent to the channel that it returns.
func (b *BulkPublisher) expectReply(m *nats.Msg) (token string, answer chan *nats.Msg) {
	if b.replies == nil {
		return "", nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens++
	token, answer = strconv.FormatUint(b.tokens, 36), make(chan *nats.Msg, 1)
	b.pending[token] = answer
	m.Header.Set(events.HeaderReplyTo, b.inbox+token)
	return token, answer
}

func (b *BulkPublisher) dropReply(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pending, token)
}

// deliverReply passes an answer on to who waits for it.
func (b *BulkPublisher) deliverReply(reply *nats.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.pending[strings.TrimPrefix(reply.Subject, b.inbox)] <- reply:
	default: // nobody waits any more, or it was answered already
	}
}

// publication is a message that was published and may be stored.
type publication struct {
	message *nats.Msg
	at      time.Time
	ack     jetstream.PubAckFuture
	err     error // it could not even be sent
}

func (b *BulkPublisher) publish(m *nats.Msg) publication {
	p := publication{message: m, at: time.Now()}
	p.ack, p.err = b.js.PublishMsgAsync(m)
	return p
}

// awaitResult follows a message that was published until all is known about it.
func (b *BulkPublisher) awaitResult(p publication, again bool, answer <-chan *nats.Msg) (r BulkResult) {
	ack, first, err := b.publishUntilStored(p)
	if err != nil {
		return BulkResult{Err: err}
	}
	// Of a message that was repeated nobody can say whether the earlier one was its own.
	r.Stored, r.Duplicate = true, ack.Duplicate && first
	if ack.Duplicate && again {
		own := *p.message
		own.Header = maps.Clone(own.Header)
		own.Header.Set(jetstream.MsgIDHeader, own.Header.Get(jetstream.MsgIDHeader)+" "+uuid.NewString())
		if _, _, r.Err = b.publishUntilStored(b.publish(&own)); r.Err != nil {
			return r
		}
	}
	if answer == nil {
		return r
	}
	limit := time.NewTimer(b.options.Timeout)
	defer limit.Stop()
	select {
	case reply := <-answer:
		var read Reply
		if read, r.Err = ParseReply(reply.Header.Get(events.HeaderContentType), reply.Data); r.Err == nil {
			r.Reply = &read
		}
	case <-limit.C:
	case <-b.parent.Done():
	case <-b.work.Done():
	}
	return r
}

// publishUntilStored waits until a message that was published is stored, and publishes it again until it is.
// first says that it was published once.
func (b *BulkPublisher) publishUntilStored(p publication) (ack *jetstream.PubAck, first bool, err error) {
	began := p.at
	retry := &backoff.ExponentialBackOff{InitialInterval: bulkRetryMin, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: bulkRetryMax}
	for first = true; ; first = false {
		ack, err = b.awaitPubAck(p)
		if err == nil {
			b.storedAt.Store(time.Now().UnixNano())
			if failedAt := b.failedAt.Load(); p.at.UnixNano() > failedAt {
				b.failedAt.CompareAndSwap(failedAt, 0) // what was published since is stored
			}
			return ack, first, nil
		}
		if err := b.permanentError(err, began, p.at); err != nil {
			return nil, first, err
		}
		pause := time.NewTimer(retry.NextBackOff())
		select {
		case <-pause.C:
		case <-b.parent.Done():
			pause.Stop()
			return nil, first, context.Cause(b.parent)
		case <-b.work.Done():
			pause.Stop()
			return nil, first, context.Cause(b.work)
		}
		p = b.publish(p.message)
	}
}

func (b *BulkPublisher) awaitPubAck(p publication) (*jetstream.PubAck, error) {
	if p.err != nil {
		return nil, p.err
	}
	select {
	case ack := <-p.ack.Ok():
		return ack, nil
	case err := <-p.ack.Err():
		return nil, err
	case <-b.work.Done():
		return nil, context.Cause(b.work)
	}
}

// permanentError returns the error of a message that it is of no use to publish again, or nil. When
// nothing is stored for too long it gives up. began is when it was published first, at when the last time.
func (b *BulkPublisher) permanentError(err error, began, at time.Time) error {
	storedAt := b.storedAt.Load()
	if stored := time.Unix(0, storedAt); stored.After(began) {
		began = stored
	}
	switch {
	case b.work.Err() != nil:
		return context.Cause(b.work)
	case events.IsTooLarge(err):
		return &RefusedError{err}
	case errors.Is(err, jetstream.ErrNoStreamResponse) && storedAt == 0:
		b.giveUp(fmt.Errorf("publish: %w", err))
	case time.Since(began) > b.options.GiveUpAfter:
		b.giveUp(fmt.Errorf("nothing was stored for %s: %w", b.options.GiveUpAfter, err))
	default:
		// What was refused before another was stored is no news.
		if at.UnixNano() > storedAt && b.failedAt.CompareAndSwap(0, time.Now().UnixNano()) {
			b.options.OnError(err)
		}
		return nil
	}
	return context.Cause(b.work)
}
