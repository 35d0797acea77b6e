package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

const (
	fetchMax       = 1024 // events asked for at a time
	decideMax      = 2048 // decided together, in a lane: the more of them are about one resource, the less each costs
	changesMax     = 256  // both of changes, of which some are decided one after the other, within decideLimit
	fetchWait      = time.Second
	decideLimit    = 10 * time.Second // less than ackWait: an event is not decided twice at a time
	waitReadyLimit = 5 * time.Second  // of it, until something can be decided at all
	finishLimit    = 5 * time.Second  // for what was fetched before a stop
	resultsMax     = 2048             // decided events that wait to be settled, in a lane
	lanesMax       = 4
	pauseMin       = 100 * time.Millisecond
	pauseMax       = 5 * time.Second
	pausedFor      = pauseMax + decideLimit + fetchWait // until a try after a failure has failed too
)

// Service is what decides events: *holds.Service. Each call hands one result for each request
// to emit, once, and returns after the last.
type Service interface {
	Place(ctx context.Context, requests []holds.PlaceRequest, emit func(i int, r holds.Result))
	Extend(ctx context.Context, requests []holds.ExtendRequest, emit func(i int, r holds.Result))
	Release(ctx context.Context, requests []holds.ReleaseRequest, emit func(i int, r holds.Result))
	Confirm(ctx context.Context, requests []holds.ConfirmRequest, emit func(i int, r holds.Result))
	Cancel(ctx context.Context, requests []holds.CancelRequest, emit func(i int, r holds.Result))
	SetInventory(ctx context.Context, request holds.InventoryRequest) holds.Result

	// Epoch names what decisions rest on from now on, "" = nothing is decided now. Await returns
	// when something can be, or ctx is over. Trust returns nil if what was decided since Epoch was
	// asked may be published at this moment.
	Epoch() string
	WaitReady(ctx context.Context) error
	Verify(ctx context.Context, epoch string) error
}

// Consumer takes events from one durable consumer, has them decided in batches of what is
// waiting, without artificial delay, and settles each: outcome or dead letter, then ack.
//
//	fetch ──► decode ──┬─► lane: decide ──► settle
//	                   └─► lane: decide ──► settle
//
// All steps work at the same time, each on a batch of its own. The events about one resource go
// through the same lane, so they never wait for each other's locks and are decided in their order.
type Consumer struct {
	decider
	name   string
	source jetstream.Consumer
	js     jetstream.JetStream
	nc     *nats.Conn

	process *Process

	fetches, decides int           // events fetched, and decided, at a time
	decideWithin     time.Duration // what is decided at a time
	finishWithin     time.Duration // what was fetched before a stop
	slowAfter        time.Duration // a lane in which an event waits for so long is slow
	inFlight         *inFlightWindow

	answers func(subject string) bool // those that others do not

	failing   atomic.Bool  // something failed for no fault of an event, and nothing was settled since
	failedAt  atomic.Int64 // when, in Unix nanoseconds
	outageErr atomic.Pointer[error]

	duplicates      duplicateChecks
	inboundSnapshot atomic.Pointer[streamSnapshot] // nil until an event is dead-lettered

	floors atomic.Pointer[floors] // up to where everything is answered, as last seen; nil until then

	streamCreated atomic.Pointer[time.Time] // when the inbound stream was created, as last seen

	outcomeMax atomic.Int64 // bytes that the stream of outcomes takes in a message, 0 or less = no limit of its own
}

// delivery is an event on its way through a consumer.
type delivery struct {
	msg     jetstream.Msg
	meta    *jetstream.MsgMetadata
	fetched time.Time
	created time.Time // the creation of the inbound stream as it was known before the fetch
	in      *Inbound
	epoch   string // under which it was decided
	result  holds.Result
}

// NewConsumer returns a Consumer on a durable consumer that Setup has made. js is of NewJetStream.
func NewConsumer(
	ctx context.Context, name string, ns Namespace, service Service,
	nc *nats.Conn, js jetstream.JetStream, process *Process,
) (*Consumer, error) {
	source, err := js.Consumer(ctx, ns.InStream(), name)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	c := &Consumer{
		decider: decider{service, ns, process.log.With().Str("consumer", name).Logger()},
		name:    name, source: source, js: js, nc: nc, process: process,
		fetches: fetchMax, decides: decideMax, decideWithin: decideLimit, finishWithin: finishLimit, slowAfter: laneSlow,
		inFlight: newInFlightWindow(),
	}
	c.answers = ns.answeredBy(name)
	if name == ConsumerChanges {
		c.fetches, c.decides = changesMax, changesMax
	}
	created, err := c.readStreamCreated(ctx)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	c.streamCreated.Store(&created)
	c.readOutcomeMax(ctx)
	process.add(c)
	return c, nil
}

// Run works until ctx is over; then it fetches no more, finishes what it can of what it has
// fetched within finishLimit, gives back the rest, and returns.
// Meanwhile the durable consumer is tended, and the server reminded of what takes long.
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
	fetched := make(chan []*delivery)
	steps.Go(func() {
		for batch := range fetched {
			c.decodeAll(batch)
			for _, d := range batch {
				if c.skips(d) {
					c.ack(d)
				} else {
					lanes[laneOf(d.msg.Subject(), len(lanes))].enqueue(d)
				}
			}
		}
		for _, l := range lanes {
			l.queue.close()
		}
	})
	reminding, enough := context.WithCancel(finish)
	var reminders sync.WaitGroup
	reminders.Go(func() { c.extendAckWait(reminding) })
	steps.Go(func() { c.supervise(ctx) })
	c.fetchAll(ctx, fetched, func() {
		for _, l := range lanes {
			l.deferExcess()
		}
	})
	close(fetched)
	steps.Wait()
	enough()
	reminders.Wait()
	c.nakUnfinished(lanes)
	return nil
}

// nakUnfinished has all events that a stop has kept from being settled delivered to others at once.
func (c *Consumer) nakUnfinished(lanes []*lane) {
	for _, d := range c.inFlight.olderThan(0) {
		c.recall([]string{d.msg.Reply()})
		c.inFlight.remove(d)
	}
	for _, l := range lanes {
		c.recall(l.deferred.recallAll())
	}
}

// fetchAll fetches until ctx is over. It does not cut a fetch short: a message that is on its way to a
// fetch that was given up is delivered again only after ackWait. It calls full now and then while there is no room for
// more.
func (c *Consumer) fetchAll(ctx context.Context, batches chan<- []*delivery, full func()) {
	retry := &backoff.ExponentialBackOff{InitialInterval: pauseMin, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: pauseMax}
	for ctx.Err() == nil {
		if c.service.Epoch() == "" {
			if c.service.WaitReady(ctx) != nil {
				return
			}
			c.recordSuccess()
		}
		if c.failing.Load() && !c.Paused() {
			c.recordSuccess() // others have the events that could have shown it
		}
		c.process.checkOutage(ctx)
		free := c.inFlight.waitCapacity(ctx, c.fetches, full)
		if free == 0 {
			return
		}
		if err := c.fetch(free, batches); err != nil {
			c.recordOutage(ofNATS(err))
		}
		if c.failing.Load() {
			_ = pauseFor(ctx, retry.NextBackOff()) // the next batch shows whether the outage is over
		} else {
			retry.Reset()
		}
	}
}

// fetch asks for some events and passes them on as they come, within fetchWait, those that are there at
// the same time together. To ask for each batch again would cost NATS and the worker more than the
// events do, whenever there are few.
func (c *Consumer) fetch(events int, batches chan<- []*delivery) error {
	created := *c.streamCreated.Load()
	fetched, err := c.source.Fetch(events, jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	messages := fetched.Messages()
	for msg := range messages {
		batch := make([]*delivery, 0, 1+len(messages))
		for {
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			batch = append(batch, &delivery{msg: msg, meta: meta, fetched: time.Now(), created: created})
			if len(messages) == 0 {
				break
			}
			msg = <-messages
		}
		c.inFlight.add(batch)
		batches <- batch
	}
	return fetched.Error()
}

// decodeChunk is how many events are decoded in one go.
const decodeChunk = 32

// decodeAll decodes a batch, on all processors.
func (c *Consumer) decodeAll(batch []*delivery) {
	var chunks sync.WaitGroup
	for chunk := range slices.Chunk(batch, decodeChunk) {
		chunks.Go(func() {
			for _, d := range chunk {
				if !c.skips(d) {
					d.in, d.result.Err = c.decode(d.msg.Subject(), d.msg.Headers(), d.msg.Data(), d.meta.Timestamp)
				}
			}
		})
	}
	chunks.Wait()
}

// skips reports whether another consumer answers an event.
func (c *Consumer) skips(d *delivery) bool { return !c.answers(d.msg.Subject()) }

// prefixes are what subjects that end with > begin with.
func prefixes(subjects []string) []string {
	prefixes := make([]string, len(subjects))
	for i, subject := range subjects {
		prefixes[i] = strings.TrimSuffix(subject, ">")
	}
	return prefixes
}

// decider reads events and has them decided.
type decider struct {
	service Service
	ns      Namespace
	log     zerolog.Logger
}

// decode reads an event that was stored at a time. A panic is an error of that event.
func (c *decider) decode(subject string, header nats.Header, body []byte, storedAt time.Time) (in *Inbound, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("decoding an event panicked")
			err = &panicError{p}
		}
	}()
	return c.ns.Decode(subject, header, body, storedAt)
}

// decide has a batch decided and passes every event on. Events that fail in a way that may be
// the fault of one of them are decided once more, each alone.
func (l *lane) decide(ctx context.Context, batch []*delivery) {
	ctx, cancel := context.WithTimeout(ctx, l.decideWithin)
	defer cancel()
	waiting, enough := context.WithTimeout(ctx, waitReadyLimit)
	_ = l.service.WaitReady(waiting) // else they are refused
	enough()
	for _, d := range batch {
		d.epoch = l.service.Epoch()
	}
	var suspects []*delivery
	l.dispatch(ctx, batch, func(d *delivery) {
		if d.result.Err != nil && len(batch) > 1 && dispositionOf(d.result.Err) == dispositionRetryCounted {
			suspects = append(suspects, d)
			return
		}
		l.decided <- d
	})
	for _, d := range suspects {
		l.dispatch(ctx, []*delivery{d}, func(d *delivery) { l.decided <- d })
	}
}

// dispatch hands each kind of event to its verb and calls done once for each event. A panic is
// an error of every event that had no result by then.
func (c *decider) dispatch(ctx context.Context, batch []*delivery, done func(*delivery)) {
	open := make(map[*delivery]struct{}, len(batch))
	for _, d := range batch {
		open[d] = struct{}{}
	}
	emitTo := func(whose []*delivery) func(int, holds.Result) {
		return func(i int, r holds.Result) {
			d := whose[i]
			d.result = r
			delete(open, d)
			done(d)
		}
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("deciding events panicked")
			for d := range open {
				d.result = holds.Result{Err: &panicError{p}}
				done(d)
			}
		}
	}()

	var inventory, extends, releases, confirms, cancels, places []*delivery
	var extend []holds.ExtendRequest
	var cancel []holds.CancelRequest
	var release []holds.ReleaseRequest
	var confirm []holds.ConfirmRequest
	var place []holds.PlaceRequest
	for _, d := range batch {
		switch {
		case d.in.Inventory != nil:
			inventory = append(inventory, d)
		case d.in.Extend != nil:
			extends, extend = append(extends, d), append(extend, *d.in.Extend)
		case d.in.Cancel != nil:
			cancels, cancel = append(cancels, d), append(cancel, *d.in.Cancel)
		case d.in.Release != nil:
			releases, release = append(releases, d), append(release, *d.in.Release)
		case d.in.Confirm != nil:
			confirms, confirm = append(confirms, d), append(confirm, *d.in.Confirm)
		case d.in.Place != nil:
			places, place = append(places, d), append(place, *d.in.Place)
		}
	}
	for i, d := range inventory {
		emitTo(inventory)(i, c.service.SetInventory(ctx, *d.in.Inventory))
	}
	if len(extends) > 0 {
		c.service.Extend(ctx, extend, emitTo(extends))
	}
	if len(releases) > 0 {
		c.service.Release(ctx, release, emitTo(releases))
	}
	if len(confirms) > 0 {
		c.service.Confirm(ctx, confirm, emitTo(confirms))
	}
	if len(cancels) > 0 {
		c.service.Cancel(ctx, cancel, emitTo(cancels))
	}
	if len(places) > 0 {
		c.service.Place(ctx, place, emitTo(places))
	}
}

// ack acknowledges an event whose outcome is stored. A lost ack repeats the event, which
// repeats the outcome.
func (c *Consumer) ack(d *delivery) {
	defer c.inFlight.remove(d)
	if err := d.msg.Ack(); err != nil {
		c.log.Debug().Err(err).Uint64("stream_seq", d.meta.Sequence.Stream).Msg("ack failed, the event will be repeated")
	}
}

// nakDelayed asks for an event to be delivered again after about delay.
func (c *Consumer) nakDelayed(d *delivery, delay time.Duration) {
	defer c.inFlight.remove(d)
	delay += rand.N(delay / 2)
	if err := d.msg.NakWithDelay(delay); err != nil {
		c.log.Debug().Err(err).Uint64("stream_seq", d.meta.Sequence.Stream).Msg("nak failed, the event will be repeated")
	}
}
