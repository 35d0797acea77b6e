package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
)

// The bounds of the delay before a message that was not stored is published again.
const (
	bulkRetryMin = 50 * time.Millisecond
	bulkRetryMax = 2 * time.Second
)

// bulkLeaveAfter is the length of an outage after which a BulkPublisher leaves its server.
const bulkLeaveAfter = 10 * time.Second

// bulkStopLimit bounds the wait for PubAcks after the context of a BulkPublisher has ended.
const bulkStopLimit = 2 * time.Second

// BulkOptions are the limits of a BulkPublisher.
type BulkOptions struct {
	InFlight      int           // messages in flight at a time, at least 1
	AwaitOutcomes bool          // wait for the reply to each message
	Timeout       time.Duration // of a PubAck, then the message is published again; and of a reply
	GiveUpAfter   time.Duration // without any message stored

	// OnError is called once in each outage with the reason why nothing is stored. It must not be
	// nil.
	OnError func(err error)
}

// BulkPublisher publishes many inbound events, a bounded number at a time: what callers publish while
// earlier messages are being stored goes out together, as one atomic batch where that is faster. It
// publishes a message again until it is stored. A message can therefore be stored twice: it is the same
// event, with the same outcome.
type BulkPublisher struct {
	options BulkOptions
	c       *Client

	// open ends with the context of the caller, or when the publisher gives up, with the error as its cause. From then on
	// no message is published and no reply is awaited. work, in which PubAcks are awaited, ends bulkStopLimit later, or
	// when the publisher gives up.
	open, work context.Context
	giveUp     context.CancelCauseFunc // ends both

	inFlight chan struct{}             // one element for each message in flight
	queue    chan *publication         // the messages in flight that were not sent yet
	pace     *events.Pace              // of send
	batches  bool                      // of send: the servers know atomic batches, as far as it is known
	running  sync.WaitGroup            // of the messages in flight
	sending  sync.WaitGroup            // of send
	storedAt atomic.Pointer[time.Time] // of the last PubAck; nil before the first
	failedAt atomic.Pointer[time.Time] // of the OnError call of this outage; nil without an outage

	leaveAfter time.Duration // the constant, except in tests
}

// BulkResult is the result of a message.
type BulkResult struct {
	Stored    bool
	Duplicate bool   // dropped: a message with the same id was stored within the duplicate window of the stream
	Reply     *Reply // nil unless replies are awaited and this one came in time
	Err       error  // why the message is not stored (events.IsTooLarge: it never will), or why its reply cannot be parsed
}

// BulkPublisher returns a BulkPublisher that works until ctx ends. The caller calls Close.
func (c *Client) BulkPublisher(ctx context.Context, o BulkOptions) *BulkPublisher {
	b := &BulkPublisher{
		options: o, c: c,
		inFlight: make(chan struct{}, o.InFlight), queue: make(chan *publication, o.InFlight), pace: events.NewPace(),
		leaveAfter: bulkLeaveAfter,
	}
	var stop, stopWork context.CancelCauseFunc
	b.open, stop = context.WithCancelCause(ctx)
	b.work, stopWork = context.WithCancelCause(context.WithoutCancel(ctx))
	b.giveUp = func(cause error) { stop(cause); stopWork(cause) } // in this order: Publish must not use what work leaves
	b.sending.Go(b.send)
	return b
}

// Context returns a context that ends when Publish publishes no more. Its cause is the reason.
func (b *BulkPublisher) Context() context.Context { return b.open }

// Close ends the work on all messages in flight. Publish must not be called afterwards.
func (b *BulkPublisher) Close() {
	b.giveUp(errors.New("closed"))
	b.running.Wait()
	b.sending.Wait()
}

// Wait waits for the results of all messages in flight. It returns the reason if the publisher has
// given up.
func (b *BulkPublisher) Wait() error {
	stopped := context.AfterFunc(b.open, func() {
		time.AfterFunc(bulkStopLimit, func() { b.giveUp(context.Cause(b.open)) })
	})
	defer stopped()
	b.running.Wait()
	if b.work.Err() != nil {
		return context.Cause(b.work)
	}
	return nil
}

// Publish waits until fewer than InFlight messages are in flight, publishes a message and returns.
// Messages are published in the order of the calls, except those that are published again. done is
// called once with the result, from another goroutine. When the publisher has stopped, Publish
// returns the reason and never calls done.
//
// republish decides about a message that JetStream drops as a duplicate of a stored one. With
// republish it is published once more, under a new message id, and a worker decides: the same event
// gets the same outcome again, and another event with the same id gets its own.
func (b *BulkPublisher) Publish(m *nats.Msg, republish bool, done func(BulkResult)) error {
	select {
	case b.inFlight <- struct{}{}:
	case <-b.open.Done():
	}
	if b.open.Err() != nil { // also after a send: messages leave inFlight when the publisher stops
		return context.Cause(b.open)
	}
	var inbox string
	var reply <-chan *nats.Msg
	if b.options.AwaitOutcomes {
		inbox, reply = b.c.replies.expect(m)
	}
	p := b.enqueue(m)
	b.running.Go(func() {
		defer func() { <-b.inFlight }()
		defer b.c.replies.drop(inbox)
		done(b.awaitResult(p, republish, reply))
	})
	return nil
}

// publication is one attempt to store a message.
type publication struct {
	message  *nats.Msg
	sent     chan struct{} // closed when the fields below are valid
	at       time.Time
	sending  *events.Sending // nil with err, and when the message is stored, in a batch
	err      error           // why it is unknown whether its batch is stored
	repeated bool            // the message may be stored already, see events.ErrNoBatches
}

// enqueue begins an attempt. The queue has room for all messages in flight.
func (b *BulkPublisher) enqueue(m *nats.Msg) *publication {
	p := &publication{message: m, sent: make(chan struct{})}
	b.queue <- p
	return p
}

// send publishes what is in the queue, waits until most of it is stored, and so on until the publisher stops.
func (b *BulkPublisher) send() {
	b.batches = events.KnowsBatches(b.c.nc)
	for {
		var group []*publication
		select {
		case p := <-b.queue:
			group = append(group, p)
		case <-b.work.Done():
			return
		}
		for len(b.queue) > 0 && len(group) < events.BatchMax {
			group = append(group, <-b.queue)
		}
		for len(group) > 0 {
			n, together := len(group), false
			if b.batches {
				n, together = b.pace.Next(n)
			}
			if !b.sendGroup(group[:n], together) {
				return
			}
			group = group[n:]
		}
	}
}

// sendGroup publishes messages, as an atomic batch with together, and waits until most are stored. It returns
// false when the publisher stops.
func (b *BulkPublisher) sendGroup(group []*publication, together bool) bool {
	began := time.Now()
	if !together || !b.sendBatch(group) {
		for _, p := range group {
			p.at = time.Now()
			p.sending = b.c.js.Send(p.message)
			close(p.sent)
		}
	}
	awaited := group
	if !together {
		awaited = group[:(len(group)+1)/2] // so that the server has work while the next ones are published
	}
	for _, p := range awaited {
		if p.sending != nil {
			_, _ = p.sending.Stored(b.work) // awaitPubAck handles the result
		}
	}
	if b.work.Err() != nil {
		return false
	}
	b.pace.Measured(time.Since(began)/time.Duration(len(awaited))*time.Duration(len(group)), len(group), together)
	return true
}

// sendBatch publishes messages as an atomic batch, and reports whether they need not be published one by one.
func (b *BulkPublisher) sendBatch(group []*publication) bool {
	ctx, cancel := context.WithTimeout(b.work, b.options.Timeout)
	defer cancel()
	batch, at := make([]*nats.Msg, len(group)), time.Now()
	for i, p := range group {
		batch[i] = p.message
	}
	stored, err := events.StoreBatch(ctx, b.c.js, b.c.ns.InStream(), batch)
	if errors.Is(err, events.ErrNoBatches) {
		b.batches = false // until the publisher stops, so that no other batch is stored twice
		for _, p := range group {
			p.repeated = true
		}
		return false
	}
	if !stored && err == nil {
		return false
	}
	for _, p := range group {
		p.at, p.err = at, err
		close(p.sent)
	}
	return true
}

// awaitResult waits until a published message has its result.
func (b *BulkPublisher) awaitResult(p *publication, republish bool, reply <-chan *nats.Msg) (r BulkResult) {
	ack, first, err := b.publishUntilStored(p)
	if err != nil {
		return BulkResult{Err: err}
	}
	// After several attempts the duplicate may be an earlier attempt of this message.
	r.Stored, r.Duplicate = true, ack.Duplicate && first
	if ack.Duplicate && republish {
		own := *p.message
		own.Header = maps.Clone(own.Header)
		own.Header.Set(jetstream.MsgIDHeader, own.Header.Get(jetstream.MsgIDHeader)+" "+uuid.NewString())
		if _, _, err := b.publishUntilStored(b.enqueue(&own)); err != nil {
			return BulkResult{Err: err} // what is stored may be another event
		}
	}
	if reply == nil {
		return r
	}
	select {
	case m := <-reply:
		var parsed Reply
		if parsed, r.Err = parseReply(m); r.Err == nil {
			r.Reply = &parsed
		}
	case <-time.After(b.options.Timeout):
	case <-b.open.Done():
	}
	return r
}

// publishUntilStored waits for the PubAck of a published message, and publishes the message again
// until it is stored. first reports that the first attempt was stored.
func (b *BulkPublisher) publishUntilStored(p *publication) (ack *jetstream.PubAck, first bool, err error) {
	began := time.Now()
	retry := &backoff.ExponentialBackOff{
		InitialInterval: bulkRetryMin, MaxInterval: bulkRetryMax, Multiplier: 2, RandomizationFactor: 0.5,
	}
	for first = true; ; first = false {
		ack, err = b.awaitPubAck(p)
		if err == nil {
			now := time.Now()
			b.storedAt.Store(&now)
			if failedAt := b.failedAt.Load(); failedAt != nil && p.at.After(*failedAt) {
				b.failedAt.CompareAndSwap(failedAt, nil) // a message that was published after the failure is stored
			}
			return ack, first && !p.repeated, nil
		}
		if err := b.permanentError(err, began, p.at); err != nil {
			return nil, first, err
		}
		select {
		case <-time.After(retry.NextBackOff()):
		case <-b.open.Done():
			return nil, first, context.Cause(b.open)
		}
		p = b.enqueue(p.message)
	}
}

// awaitPubAck waits until an attempt has succeeded or failed.
func (b *BulkPublisher) awaitPubAck(p *publication) (*jetstream.PubAck, error) {
	select {
	case <-p.sent:
	case <-b.work.Done():
		return nil, context.Cause(b.work)
	}
	if p.err != nil || p.sending == nil {
		return &jetstream.PubAck{}, p.err
	}
	ctx, cancel := context.WithTimeoutCause(b.work, b.options.Timeout, jetstream.ErrAsyncPublishTimeout)
	defer cancel()
	return p.sending.Stored(ctx)
}

// permanentError returns the error that ends the attempts to store a message, or nil to try again.
// It gives up when nothing was stored for too long. began is the time of the first attempt, at of
// the last one.
func (b *BulkPublisher) permanentError(err error, began, at time.Time) error {
	storedAt, now := b.storedAt.Load(), time.Now()
	if storedAt != nil && storedAt.After(began) {
		began = *storedAt
	}
	switch {
	case b.work.Err() != nil:
		return context.Cause(b.work)
	case events.IsTooLarge(err):
		return fmt.Errorf("JetStream refuses the message: %w", err)
	case errors.Is(err, jetstream.ErrNoStreamResponse) && storedAt == nil && !b.c.leaveServer(b.work, at):
		b.giveUp(fmt.Errorf("publish: %w", err))
	case now.Sub(began) > b.options.GiveUpAfter:
		b.giveUp(fmt.Errorf("nothing was stored for %s: %w", b.options.GiveUpAfter, err))
	default:
		// A failure before the last PubAck is no outage.
		if (storedAt == nil || at.After(*storedAt)) && b.failedAt.CompareAndSwap(nil, &now) {
			b.options.OnError(err)
		}
		failedAt, refused := b.failedAt.Load(), errors.As(err, new(*jetstream.APIError)) // as by a full stream
		if failedAt != nil && now.Sub(*failedAt) > b.leaveAfter && !refused {
			b.c.leaveServer(b.work, at)
		}
		return nil
	}
	return context.Cause(b.work)
}
