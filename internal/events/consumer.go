package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/telemetry"
)

const (
	fetchMax       = 1024 // events in one fetch
	decideMax      = 2048 // events that a lane decides together: the more share a resource, the less each costs
	changesMax     = 256  // both limits for changes: some are decided one after the other, within decideLimit
	fetchWait      = time.Second
	fetchGrace     = time.Second            // after fetchWait, for the last messages and the status to arrive
	silentMax      = 5                      // fetches in a row without any answer that are a failure: fewer may be slow
	fetchGap       = 100 * time.Millisecond // after so long without a fetch the durable consumer is read again
	recallEvery    = fetchWait / 2          // how often events are recalled whose partition is rebuilt
	decideLimit    = 10 * time.Second       // longer than ackWait, which extendAckWait extends meanwhile
	waitReadyLimit = 5 * time.Second        // the part of decideLimit that a batch may wait for an epoch
	finishLimit    = 5 * time.Second        // for the events that were fetched before a stop
	resultsMax     = 2048                   // decided events in a lane that wait to be published
	lanesMax       = 4
	pauseMin       = 100 * time.Millisecond
	pauseMax       = 5 * time.Second
	pausedFor      = pauseMax + decideLimit + fetchWait // the longest time between a failure and the next one
)

// Service decides events: *holds.Service. Each call has exactly one result for each request, in the
// order of the requests. Place yields its results with their index as soon as they are known.
type Service interface {
	Place(ctx context.Context, requests []holds.PlaceRequest) iter.Seq2[int, holds.Result]
	Extend(ctx context.Context, requests []holds.ExtendRequest) []holds.Result
	Release(ctx context.Context, requests []holds.ReleaseRequest) []holds.Result
	Confirm(ctx context.Context, requests []holds.ConfirmRequest) []holds.Result
	Cancel(ctx context.Context, requests []holds.CancelRequest) []holds.Result
	SetInventory(ctx context.Context, requests []holds.InventoryRequest) []holds.Result

	// AnswerTTL returns the least time for which the answer to an event that was stored at storedAt is remembered.
	AnswerTTL(storedAt time.Time) time.Duration

	// TermID names what new decisions on a resource are made under, see holds.Service.TermID. It is ""
	// while nothing can be decided there.
	TermID(resource string) string
	// Ready reports whether there is an epoch in at least one partition.
	Ready() bool
	// WaitReady returns nil when there is an epoch in at least one partition, or an error when ctx ends
	// first.
	WaitReady(ctx context.Context) error
	// Unreachable returns why Redis or Postgres did not answer when they were last checked, nil when they did.
	Unreachable() error
	// Verify returns nil if outcomes that were decided under a TermID may be published at this moment.
	Verify(ctx context.Context, termID string) error
	// Publishing is called before Verify by who then publishes, and done after that. certain says that
	// nothing that was sent can be stored later.
	Publishing() (done func(certain bool))
}

// Consumer processes the events of one durable consumer in the steps of the package comment. Fetch and
// decode share a goroutine, and each lane has two. A batch is what waits at that moment: no step delays
// an event to fill a batch.
type Consumer struct {
	name    string
	ns      Namespace
	service Service
	decider decider
	js      JetStream
	nc      *nats.Conn
	process *Process
	log     zerolog.Logger

	fetches, decides int           // the most events in one fetch, and in one decision
	decideWithin     time.Duration // for one decision
	searchEach       time.Duration // for one search of dropAnswered
	searchWithin     time.Duration // for all its searches for a batch
	storeWithin      time.Duration // for the PubAcks of a batch
	finishWithin     time.Duration // for the events that were fetched before a stop
	slowAfter        time.Duration // a lane in which an event has waited for so long is slow
	leaveAfter       time.Duration // see leaveServer
	inFlight         *inFlightWindow
	durable          atomic.Pointer[jetstream.ConsumerInfo] // the durable consumer, as last read; see checkReplaced

	// Only the first step uses these.
	puller     *puller
	recalledAt time.Time // the last recallDue
	fetchedAt  time.Time // the end of the last fetch
	silent     int       // the last fetches in a row that got no answer, see silentMax
	replaced   bool      // the durable consumer may be another one than the one that was read last
	sequence   uint64    // of the last delivery, in the durable consumer

	failing atomic.Bool             // something has failed that is not the event's own error, and nothing was answered since
	failure atomic.Pointer[failure] // the last one of these, nil before the first

	busyLogged atomic.Pointer[time.Time] // the last logBusy

	streams        sync.Map                               // jetstream.Stream by its name, see streamOf
	uncheckedUntil atomic.Pointer[time.Time]              // duplicates are not checked before
	inboundCreated atomic.Pointer[streamCreation]         // of the inbound stream, as last read
	floors         atomic.Pointer[floors]                 // as last read; nil before the first time
	outbound       atomic.Pointer[jetstream.StreamConfig] // of the outbound stream, as last read
}

// delivery is an event on its way through a consumer.
type delivery struct {
	msg           *nats.Msg
	meta          *nats.MsgMetadata
	bytes         int // see messageSize
	fetched       time.Time
	requested     time.Time // the server has sent it later
	waitFrom      time.Time // when its ack wait was last started; the in-flight window guards it
	overdue       bool      // its ack wait was over before it was started again; likewise
	streamCreated time.Time // when the inbound stream was created, as known before the fetch
	in            *Inbound
	termID        string // that it was decided under
	result        holds.Result
	span          *telemetry.Span // nil when it is not traced
}

// NewConsumer returns a Consumer of a durable consumer that Setup has created.
func NewConsumer(
	ctx context.Context, name string, ns Namespace, service Service,
	nc *nats.Conn, js JetStream, process *Process,
) (*Consumer, error) {
	source, err := js.Consumer(ctx, ns.InStream(), name)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	log := process.log.With().Str("consumer", name).Logger()
	c := &Consumer{
		name: name, ns: ns, service: service, decider: decider{service, ns, log}, log: log,
		js: js, nc: nc, process: process,
		fetches: fetchMax, decides: decideMax, decideWithin: decideLimit,
		searchEach: searchLimit, searchWithin: outcomeSearchLimit,
		storeWithin: storeLimit, finishWithin: finishLimit, slowAfter: laneSlow, leaveAfter: leaveAfter,
	}
	c.puller = newPuller(nc, ns.InStream(), name, openRequestsMax*fetchMax)
	c.durable.Store(source.CachedInfo())
	c.inFlight = newInFlightWindow(c.leastAckWait)
	if name == ConsumerChanges {
		c.fetches, c.decides = changesMax, changesMax
	}
	if _, err := c.refreshInboundCreated(ctx); err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	c.outbound.Store(&jetstream.StreamConfig{})
	c.readOutbound(ctx)
	process.mu.Lock()
	defer process.mu.Unlock()
	process.consumers = append(process.consumers, c)
	return c, nil
}

// Run processes events until ctx ends. Then it fetches no more, finishes within finishLimit what it
// can of the events that it has fetched, returns the others to the server, and returns nil.
//
// Meanwhile it supervises the durable consumer, and extends the ack wait of events that take long.
func (c *Consumer) Run(ctx context.Context) error {
	finish, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	stopped := context.AfterFunc(ctx, func() { time.AfterFunc(c.finishWithin, giveUp) })
	defer stopped()
	lanes := make([]*lane, min(runtime.GOMAXPROCS(0), lanesMax))
	var steps sync.WaitGroup
	for i := range lanes {
		l := c.newLane(len(lanes))
		lanes[i] = l
		steps.Go(func() { defer close(l.decided); l.decideAll(finish) })
		steps.Go(func() { l.publishAll(finish) })
	}
	steps.Go(func() { c.supervise(ctx) })
	extending, stopExtending := context.WithCancel(finish)
	var extender sync.WaitGroup
	extender.Go(func() { c.extendAckWait(extending) })
	c.fetchAll(ctx, lanes)
	c.puller.close()
	for _, l := range lanes {
		l.queue.close()
	}
	steps.Wait()
	stopExtending()
	extender.Wait()
	c.nakUnfinished(lanes)
	return nil
}

// fetchAll is the first step: it fetches until ctx ends. It never cuts a fetch short: a message
// that is on its way to a cancelled fetch is delivered again only after ackWait.
func (c *Consumer) fetchAll(ctx context.Context, lanes []*lane) {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: pauseMin, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: pauseMax,
	}
	var failing time.Time // since when every fetch has failed
	for ctx.Err() == nil {
		if !c.service.Ready() {
			if c.service.WaitReady(ctx) != nil {
				return
			}
			c.recordSuccess()
			failing = time.Time{}
		}
		if c.failing.Load() && !c.Paused() {
			c.recordSuccess() // other workers have the events that could have shown it
		}
		c.recallDue(lanes)
		c.process.checkOutage()
		unreachable := c.service.Unreachable()
		claims := c.claims(unreachable)
		limit := c.fetchLimit(unreachable, claims)
		if limit == 0 {
			failing = time.Time{}
			_ = pauseFor(ctx, recallEvery)
			continue
		}
		free := c.inFlight.waitCapacity(ctx, c.fetches, func() { c.deferExcess(lanes) })
		if free == 0 {
			return
		}
		err := c.fetchChecked(ctx, min(free, limit, c.inFlight.numberIn(readBytes)), claims, lanes)
		failing = c.leaveServer(ctx, err, failing)
		if err != nil {
			c.replaced = true
			if ctx.Err() == nil {
				c.recordOutage(ofNATS(err), !c.failing.Load() || c.failure.Load().onlyFetches)
			}
		} else if last := c.failure.Load(); last != nil && last.onlyFetches && !c.replaced {
			c.recordSuccess() // nothing else has failed before or since
		}
		switch {
		case claims && err == nil:
			_ = pauseFor(ctx, recallEvery)
		case c.failing.Load():
			_ = pauseFor(ctx, retry.NextBackOff()) // the next batch shows whether the outage is over
		default:
			retry.Reset()
		}
	}
}

// fetchLimit returns the most events of a fetch. If a server did not answer the last check, it is mostly 0, because other
// workers may reach it, unless the consumer claims.
func (c *Consumer) fetchLimit(unreachable error, claims bool) int {
	tries := unreachable == nil || c.mayTry()
	if !tries && c.failing.Load() {
		c.recordOutage(unreachable, false)
	}
	switch {
	case unreachable == nil || claims:
		return c.fetches
	case tries:
		return 1
	}
	return 0
}

// mayTry reports whether an event may be fetched alone although Redis or Postgres did not answer the last check: the
// connections that decide may work. After a failure one is tried now and then.
func (c *Consumer) mayTry() bool {
	return c.inFlight.len() == 0 && (!c.failing.Load() || time.Since(c.fetchedAt) > pausedFor)
}

// claims reports whether events are fetched although a server did not answer the last check: payments, when it is
// Postgres that does not. They claim their holds in Redis, which would expire otherwise although their customers have
// paid in time, and are delivered again until Postgres decides them.
func (c *Consumer) claims(unreachable error) bool {
	return unreachable != nil && c.name == ConsumerPayments && serverOf(unreachable) == serverPostgres
}

// deferExcess makes room for the events of other lanes, if one of them could use it. When all are slow, a
// deferred event would only be fetched again, perhaps by another worker that defers it again, and late.
func (c *Consumer) deferExcess(lanes []*lane) {
	if !slices.ContainsFunc(lanes, (*lane).hasRoom) {
		return
	}
	for _, l := range lanes {
		l.deferExcess()
	}
}

// recallDue recalls the events whose partition was lost and is rebuilt, some of those whose server may serve
// them again, and those for which their lane has room: another worker may have decided what they waited for.
func (c *Consumer) recallDue(lanes []*lane) {
	if time.Since(c.recalledAt) < recallEvery {
		return
	}
	c.recalledAt = time.Now()
	ready := func(resource string) bool { return c.service.TermID(resource) != "" }
	for _, l := range lanes {
		c.recall(l.deferred.recallRebuilt(ready))
		c.recall(l.deferred.recallProbes(c.process.isQuiet, ready))
		l.recallWaiting()
	}
}

// fetchChecked fetches for the lanes, see fetch, unless the durable consumer loses events. Its errors name the server.
func (c *Consumer) fetchChecked(ctx context.Context, events int, onlyLeft bool, lanes []*lane) error {
	err := c.readReplaced(ctx)
	if err == nil && losesEvents(c.durable.Load().Config, c.ns.consumer(c.name)) {
		return errLosesEvents
	}
	if err == nil {
		err = c.fetch(events, onlyLeft, func(batch []*delivery) { c.enqueue(batch, lanes) })
	}
	if address := c.nc.ConnectedAddr(); err != nil && address != "" {
		err = fmt.Errorf("%s: %w", address, err)
	}
	return err
}

// fetch requests at most so many events, and passes batches of them on while they arrive, within fetchWait: when
// there are few events, a request for each batch would cost more than the events do. With onlyLeft it does not wait: it
// takes only events that no other worker has requested.
//
// A server that is slow may answer a request later than fetchGrace. The request then stays open, and later fetches pass its
// events on too: an event that no worker receives is delivered again only after its ack wait.
func (c *Consumer) fetch(events int, onlyLeft bool, pass func(batch []*delivery)) error {
	defer func() { c.fetchedAt = time.Now() }()
	created := c.inboundCreated.Load().created
	wait := fetchWait
	if onlyLeft {
		wait = 0
	}
	c.puller.giveUp(openRequestsMax - 1)
	request, err := c.puller.request(events, fetchBytes, wait)
	if err != nil {
		return err
	}
	request.streamCreated = created
	for request.left > 0 {
		messages, err := c.puller.take(context.Background(), fetchWait+fetchGrace)
		if errors.Is(err, errNothingPulled) { // not even the end of the request
			c.replaced = true
			return c.countSilent()
		}
		c.silent = 0
		switch {
		case errors.Is(err, errPullEnded): // this one, or one of an earlier fetch
			continue
		case err != nil:
			return err
		}
		batch := make([]*delivery, len(messages))
		for i, msg := range messages {
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			c.checkReplaced(meta)
			size := messageSize(msg.Msg)
			batch[i] = &delivery{
				msg: msg.Msg, meta: meta, bytes: int(size), fetched: time.Now(),
				requested: msg.request.sent, streamCreated: msg.request.streamCreated,
			}
		}
		pass(c.inFlight.add(batch))
	}
	return nil
}

// countSilent counts a fetch that got no answer. After several in a row it returns an error: a server that is only slow
// answers an earlier fetch meanwhile, with its end if there is no event, but never a user without the permission to fetch.
func (c *Consumer) countSilent() error {
	if c.silent++; c.silent < silentMax {
		return nil
	}
	return fmt.Errorf("%d requests for events in a row got no answer: make sure that the user may publish on %s", c.silent,
		c.puller.subject)
}

// enqueue is the second step: it decodes the events that no other consumer answers, and adds each to the lane of its
// resource.
func (c *Consumer) enqueue(batch []*delivery, lanes []*lane) {
	batch = slices.DeleteFunc(batch, func(d *delivery) bool {
		isOfAnother := c.ns.ConsumerOf(d.msg.Subject) != c.name
		if isOfAnother {
			c.ack(d)
		}
		return isOfAnother
	})
	c.decodeBatch(batch)
	for _, d := range batch {
		lanes[laneOf(d.msg.Subject, len(lanes))].enqueue(d)
	}
}

// decodeBatch decodes the events of a batch.
func (c *Consumer) decodeBatch(batch []*delivery) {
	defer c.measure(stageDecode, len(batch))()
	for _, d := range batch {
		if d.result.Err = c.checkBody(d); d.result.Err == nil {
			d.in, d.result.Err = c.decider.decode(d.msg.Subject, d.msg.Header, d.msg.Data, d.meta.Timestamp)
		}
	}
}

// checkBody returns an error if an event was delivered without its body, as a consumer that was changed does.
func (c *Consumer) checkBody(d *delivery) error {
	if len(d.msg.Data) > 0 || d.msg.Header.Get(headerMsgSize) == "" { // a publisher may set the header, too
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), streamRequestLimit)
	defer cancel()
	var stored *jetstream.RawStreamMsg
	stream, err := c.streamOf(ctx, c.ns.InStream())
	if err == nil {
		stored, err = stream.GetMsg(ctx, d.meta.Sequence.Stream)
	}
	if err == nil && len(stored.Data) > 0 {
		err = errLosesEvents
	}
	return ofNATS(err)
}

// decideAll is the third step: it decides the events of the lane until its queue is closed and
// empty.
func (l *lane) decideAll(ctx context.Context) {
	c := l.consumer
	for {
		batch := l.queue.take(l.batch.max, l.batchBytesMax)
		if len(batch) == 0 {
			return
		}
		c.received(batch)
		failpoint.Hit(c.name + ".fetched")
		// A server that is only slow has failed none. An event that is alone is a try, see mayTry.
		if err := c.service.Unreachable(); err != nil && l.failing && c.inFlight.len() > 1 && !c.claims(err) {
			for _, d := range batch {
				d.result.Err = cmp.Or(d.result.Err, err)
				l.decided <- d
			}
			continue
		}
		l.findPoisoned(ctx, batch)
		batch = l.dropAnswered(ctx, batch)
		c.locate(ctx, batch)
		ready, limit := batch[:0], c.outcomeLimit()
		for _, d := range batch {
			if d.result.Err == nil {
				d.result.Err = c.checkSize(ctx, d, limit)
			}
			if d.result.Err == nil {
				ready = append(ready, d)
			} else {
				l.decided <- d
			}
		}
		began := time.Now()
		l.decide(ctx, ready)
		l.batch.adapt(len(batch), time.Since(began))
		l.recallWaiting()
	}
}

// decide decides a batch and passes every event on to the next step. An event may fail because of
// another one of its batch. So each event that fails and would be counted as failed is decided once
// more, alone.
func (l *lane) decide(ctx context.Context, batch []*delivery) {
	c := l.consumer
	defer c.measure(stageDecide, len(batch))()
	ctx, cancel := context.WithTimeout(ctx, c.decideWithin)
	defer cancel()
	ctx, traced := c.traceDecision(holds.InBatch(ctx), batch)
	defer traced()
	waitCtx, stopWaiting := context.WithTimeout(ctx, waitReadyLimit)
	_ = c.service.WaitReady(waitCtx) // without an epoch the events fail with ErrDataLost and are delivered again
	stopWaiting()
	for _, d := range batch {
		d.termID = c.service.TermID(resourceOf(d.msg.Subject))
	}
	var suspects []*delivery
	c.decider.dispatch(ctx, batch, func(d *delivery) {
		l.failing = d.result.Err != nil && dispositionOf(d.result.Err) == dispositionPause
		if d.result.Err != nil && len(batch) > 1 && dispositionOf(d.result.Err) == dispositionRetryCounted {
			suspects = append(suspects, d)
			return
		}
		l.decided <- d
	})
	for _, d := range suspects {
		c.decider.dispatch(ctx, []*delivery{d}, func(d *delivery) { l.decided <- d })
	}
}

// publishAll is the fourth step: it publishes the answers to decided events until the third step
// has ended. A batch is all events that wait at that moment, or as many as the pace says. publishBatch
// acknowledges the events.
func (l *lane) publishAll(ctx context.Context) {
	for d := range l.decided {
		batch := []*delivery{d}
		for len(l.decided) > 0 && len(batch) < resultsMax {
			batch = append(batch, <-l.decided)
		}
		for len(batch) > 0 {
			n, together := len(batch), false
			if l.consumer.outbound.Load().AllowAtomicPublish {
				n, together = l.consumer.process.pace.Next(n)
			}
			l.publishBatch(ctx, batch[:n], together)
			batch = batch[n:]
		}
	}
}

// answer answers the delivery of an event to the server.
func (c *Consumer) answer(d *delivery, text string) error {
	return c.nc.Publish(d.msg.Reply, []byte(text))
}

// ack is the fifth step: it acknowledges an event whose outcome is stored. If the ack is lost, the
// event is delivered again and has the same outcome.
func (c *Consumer) ack(d *delivery) {
	defer c.inFlight.remove(d)
	if err := c.answer(d, "+ACK"); err != nil {
		c.log.Debug().Err(err).Uint64("stream_seq", d.meta.Sequence.Stream).Msg("ack failed, event will be redelivered")
	}
}

// nakDelayed requests another delivery of an event after delay, plus up to half of it at random.
func (c *Consumer) nakDelayed(d *delivery, delay time.Duration) {
	c.inFlight.remove(d) // before that delivery can come
	d.endTrace("")
	delay += rand.N(delay / 2)
	if err := c.answer(d, fmt.Sprintf(`-NAK {"delay":%d}`, delay.Nanoseconds())); err != nil {
		c.log.Debug().Err(err).Uint64("stream_seq", d.meta.Sequence.Stream).Msg("nak failed, event will be redelivered")
	}
}

// nakNow is the payload of a nak without a delay.
var nakNow = []byte("-NAK")

// recall requests another delivery, at once, of events that wait at the server. It takes the reply
// subjects of their messages.
func (c *Consumer) recall(replies []string) {
	for _, reply := range replies {
		if err := c.nc.Publish(reply, nakNow); err != nil {
			c.log.Debug().Err(err).Msg("recall failed, events will be redelivered later")
			return
		}
	}
}

// nakUnfinished requests another delivery, at once and to another worker, of all events that a stop
// has kept from being answered.
func (c *Consumer) nakUnfinished(lanes []*lane) {
	for _, d := range c.inFlight.takeWaiting(0) {
		c.recall([]string{d.msg.Reply})
		c.inFlight.remove(d)
	}
	for _, l := range lanes {
		c.recall(l.deferred.recallAll())
	}
}
