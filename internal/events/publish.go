package events

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
)

// pendingMsg is an event whose outcome or dead letter is being stored.
type pendingMsg struct {
	*delivery
	message *nats.Msg
	sending *Sending // nil if the message was not sent, or is stored in a batch
	unsent  error    // why it is unknown whether its batch is stored
	dead    bool     // the message is a dead letter
	refused bool     // the message was not sent, because it may no longer be published
	certain bool     // none of its event can be stored later
}

// publishBatch stores the outcomes and dead letters of events, waits until they are stored, and
// only then acknowledges the events. An event whose answer cannot be stored is delivered again. With
// together it stores the outcomes in atomic batches.
//
// When ctx ends, the consumer is stopping: publishBatch returns at once, and nakUnfinished returns
// the events that are left to the server.
func (l *lane) publishBatch(ctx context.Context, batch []*delivery, together bool) {
	c := l.consumer
	began := time.Now()
	defer c.measure(stagePublish, len(batch))()
	waiting := make([]pendingMsg, 0, len(batch))
	done, verified := c.service.Publishing(), termCheck{service: c.service}
	defer func() {
		done(!slices.ContainsFunc(waiting, func(s pendingMsg) bool { return !s.certain }))
	}()
	l.findPoisonedMeanwhile(ctx, batch)
	for _, d := range batch {
		if ctx.Err() != nil {
			return
		}
		message, dead := l.finalMessage(ctx, d)
		if message == nil {
			continue
		}
		waiting = append(waiting, pendingMsg{delivery: d, message: message, dead: dead})
		// A dead letter depends on no TermID. With together, storeInBatches sends the outcomes.
		if s := &waiting[len(waiting)-1]; dead || !together && l.maySend(ctx, s, &verified) {
			s.sending = c.js.Send(message)
		}
	}
	if together {
		l.storeInBatches(ctx, waiting, &verified)
	}
	acks, cancel := withStoreLimit(ctx, c.storeWithin)
	defer cancel()
	for i := range waiting {
		if !waiting[i].refused && !l.complete(ctx, acks, &waiting[i]) {
			return
		}
	}
	c.process.pace.Measured(time.Since(began), len(batch), together)
}

// termCheck verifies what the events of a batch were decided under. It does not repeat a check that has just
// failed. After an outage of Postgres it verifies nothing more: each check would wait for Postgres.
type termCheck struct {
	service Service
	termID  string
	err     error
	outage  bool
}

func (v *termCheck) check(ctx context.Context, termID string) error {
	if !v.outage && (v.err == nil || v.termID != termID) {
		v.err, v.termID = v.service.Verify(ctx, termID), termID
		if v.err != nil && !errors.Is(v.err, holds.ErrDataLost) {
			v.outage = !errors.Is(v.err, holds.ErrBusy)
			v.err = &serverError{serverPostgres, v.err}
		}
	}
	return v.err
}

// complete waits until a message is stored, for its PubAck until acks ends, and then completes its event. It reports
// whether the consumer goes on.
func (l *lane) complete(ctx, acks context.Context, s *pendingMsg) bool {
	c := l.consumer
	err := s.unsent
	if s.sending != nil {
		ack, failed := s.sending.Stored(acks)
		err = c.checkDuplicate(ctx, s, ack, failed)
	}
	s.certain = err == nil
	if !s.dead && IsTooLarge(err) {
		if s.message, err = l.handleOversized(ctx, s); s.message == nil && err == nil {
			return true
		}
		if err == nil {
			s.dead = true
			err = c.store(ctx, s)
		}
	}
	if s.dead && IsTooLarge(err) {
		err = c.storeClaimCheck(ctx, s)
	}
	if err != nil {
		if ctx.Err() != nil {
			return false
		}
		if s.dead && isStreamFull(err) {
			c.deferDeadLetter(s, err)
		} else {
			l.redeliver(s.delivery, err)
		}
		return true
	}
	failpoint.Hit(c.name + ".published")
	c.answered(s)
	c.reply(*s)
	if s.dead {
		c.logDeadLetter(s)
		if err := c.answer(s.delivery, "+TERM "+s.message.Header.Get(HeaderDLQReason)); err != nil {
			c.log.Debug().Err(err).Msg("term failed, dead letter may be duplicated")
		}
		c.inFlight.remove(s.delivery)
	} else {
		c.ack(s.delivery)
	}
	failpoint.Hit(c.name + ".acked")
	c.recordSuccess()
	return true
}

// logsAttempt reports whether a failure that repeats is logged at this attempt: 1, 2, 4, 8 ...
func logsAttempt(attempt uint64) bool { return attempt&(attempt-1) == 0 }

// deferDeadLetter requests another delivery of an event whose dead letter the stream refuses, as when it is full. No other
// event waits for it: an outage of the consumer would be one of all its events, and dead letters that are tried again
// at once would take the place of other events.
func (c *Consumer) deferDeadLetter(s *pendingMsg, refusal error) {
	c.failed(dispositionPause)
	if logsAttempt(s.meta.NumDelivered) {
		c.log.Error().Err(refusal).Str("stream", c.ns.DLQStream()).Uint64("stream_seq", s.meta.Sequence.Stream).
			Msg("dead letter refused, its event waits")
	}
	c.nakDelayed(s.delivery, backoffDelayTo(delayPause, s.meta.NumDelivered, delayDeadLetter))
}

// store publishes the message of an event on its own, and waits until it is stored.
func (c *Consumer) store(ctx context.Context, s *pendingMsg) error {
	ack, err := c.js.PublishMsg(ctx, s.message)
	return c.checkDuplicate(ctx, s, ack, err)
}

// storeClaimCheck stores the dead letter of an event that is too large to be copied: a claim check
// that says where the event is in the inbound stream, with the headers of the event if they fit.
func (c *Consumer) storeClaimCheck(ctx context.Context, s *pendingMsg) (err error) {
	reason, detail := s.message.Header.Get(HeaderDLQReason), s.message.Header.Get(HeaderDLQDetail)
	for _, form := range []deadLetterForm{deadLetterClaimCheck, deadLetterBare} {
		if s.message, err = c.deadLetter(ctx, s.delivery, reason, detail, form); err == nil {
			err = c.store(ctx, s)
		}
		if !IsTooLarge(err) {
			break
		}
	}
	return err
}

// isStreamFull reports whether NATS refuses a message because the stream, the account or the server has no room.
func isStreamFull(err error) bool {
	const (
		accountFull, noResources, memoryFull = 10002, 10023, 10028
		storageFull, notStored               = 10047, 10077 // notStored: a limit of the stream, or its disk
	)
	return HasErrorCode(err, accountFull, noResources, memoryFull, storageFull, notStored)
}

// isBeingStored reports whether NATS refuses a message because its nodes have not agreed yet about
// another one with the same id, from another delivery of the event. Soon this message is a
// duplicate, or can be stored.
func isBeingStored(err error) bool {
	const duplicateInProcess = 10158
	return HasErrorCode(err, duplicateInProcess)
}

// finalMessage returns the message that completes an event: its outcome, or its dead letter (dead).
// If the event has to be delivered again, it requests that and returns nil.
func (l *lane) finalMessage(ctx context.Context, d *delivery) (message *nats.Msg, dead bool) {
	c := l.consumer
	err := d.result.Err
	if err == nil {
		if message, err = c.message(d, d.result.Outcome); err == nil {
			delete(l.failures, d.origin())
			l.markDecided(d)
			return message, false
		}
		err = &encodeError{err}
	}
	switch c.disposition(err) {
	case dispositionDeadLetter:
		why, _ := errors.AsType[*UnprocessableError](err) // dispositionDeadLetter means that it is one
		message, err := c.unprocessable(ctx, d, why)
		switch {
		case err != nil:
			l.redeliver(d, err)
		case message == nil:
			c.ack(d)
		default:
			return message, true
		}
	case dispositionRetryCounted:
		c.failed(dispositionRetryCounted)
		failures := l.countFailure(d.origin())
		oversized := is[*oversizedError](err) // a retry does not change that
		// A payment must end in a reservation or a refund, and its hold may be claimed. So it waits
		// until the cause is repaired.
		if (oversized || failures >= failuresMax) && !c.isPayment(d) {
			message := l.poisonMessage(ctx, d, err)
			return message, message != nil
		}
		if logsAttempt(uint64(failures)) {
			d.describe(c.log.Error(), err).Int("faults", failures).Msg("event failed, will retry")
		}
		c.nakDelayed(d, backoffDelay(delayRetryCounted, uint64(failures)))
	default:
		l.redeliver(d, err)
	}
	return nil, false
}

// logDeadLetter logs that the dead letter of an event is stored, and identifies the event as far as it can be
// read. The resource is the one in its subject: the data may contain anything.
func (c *Consumer) logDeadLetter(s *pendingMsg) {
	level, reason := zerolog.WarnLevel, s.message.Header.Get(HeaderDLQReason)
	if reason == ReasonPoison {
		level = zerolog.ErrorLevel
	}
	event := Summarize(s.msg.Subject, s.msg.Header, s.msg.Data)
	c.log.WithLevel(level).Str("error", s.message.Header.Get(HeaderDLQDetail)).Uint64("stream_seq", s.meta.Sequence.Stream).
		Str("subject", s.msg.Subject).Str("reason", reason).Str("event_id", OneLine(event.ID)).
		Str("source", OneLine(event.Source)).Str("resource_id", OneLine(resourceOf(s.msg.Subject))).
		Msg("event dead-lettered")
}

// isPayment reports whether an event is a payment, even if it could not be decoded.
func (c *Consumer) isPayment(d *delivery) bool {
	if d.in != nil {
		return d.in.Event == PaymentConfirmed
	}
	return strings.HasPrefix(d.msg.Subject, c.ns.In(PaymentConfirmed, ""))
}

// redeliver requests another delivery of an event after an error that is not its own: soon if other work was in the way. The
// event waits without the others if only its resource, its partition or the server of that is to blame. Else the consumer
// pauses, and the event comes after delayPause, or later while many wait.
func (l *lane) redeliver(d *delivery, err error) {
	c := l.consumer
	of := c.disposition(err)
	c.failed(of)
	switch of {
	case dispositionDefer:
		if first := l.deferEvent(d, true); first && logsAttempt(d.meta.NumDelivered) {
			d.describe(c.log.Error(), err).Uint64("deliveries", d.meta.NumDelivered).Msg("event deferred, resource data is corrupt")
		}
	case dispositionDeferLost:
		l.deferEvent(d, true)
		l.deferred.markLost(resourceOf(d.msg.Subject))
	case dispositionDeferShard:
		l.deferEvent(d, true)
		l.deferred.markShard(resourceOf(d.msg.Subject), c.process.recordShardFailure(err))
	case dispositionRetrySoon:
		c.logBusy(d, err)
		c.nakDelayed(d, backoffDelay(delayRetrySoon, d.meta.NumDelivered))
	default:
		c.recordOutage(err, false)
		delay := delayPause
		// As payments that have claimed their holds: the server delivers them before new ones.
		if c.durable.Load().NumAckPending > deferredMany {
			delay = backoffDelayTo(delayPause, d.meta.NumDelivered, delayDeferred)
		}
		c.nakDelayed(d, delay)
	}
}

// The bounds of logBusy.
const (
	busyDeliveries = 8 // of an event, about 10 s after the first
	busyLogEvery   = time.Minute
)

// logBusy logs why an event waits for other work, such as a lock in Postgres that another program holds, when it has
// waited for long: one line for all events that wait.
func (c *Consumer) logBusy(d *delivery, err error) {
	last, now := c.busyLogged.Load(), time.Now()
	if d.meta.NumDelivered < busyDeliveries || last != nil && now.Sub(*last) < busyLogEvery || !c.busyLogged.CompareAndSwap(last, &now) {
		return
	}
	d.describe(c.log.Warn(), err).Uint64("deliveries", d.meta.NumDelivered).Msg("event waits for other work, will retry")
}

// describe adds to a line of the log which event has failed, and why.
func (d *delivery) describe(line *zerolog.Event, err error) *zerolog.Event {
	return line.Err(err).Uint64("stream_seq", d.meta.Sequence.Stream).Str("subject", d.msg.Subject)
}

// message returns the message that carries an outcome of an event.
func (c *Consumer) message(d *delivery, o holds.Outcome) (*nats.Msg, error) {
	message, err := c.ns.outcomeMessage(o, d.in.OutcomeID, d.in.ID)
	if err == nil && d.in.TraceParent != "" {
		message.Header.Set(headerTraceParent, d.in.TraceParent)
	}
	if seen := c.floors.Load(); err == nil && seen != nil {
		message.Header.Set(headerFloors, seen.text)
	}
	return message, err
}

// reply sends a stored outcome or dead letter also to the inbox that the event names, if any. A
// lost reply does not matter: the stream has the message.
func (c *Consumer) reply(s pendingMsg) {
	inbox := replyTo(s.msg.Header)
	if inbox == "" {
		return
	}
	stored := s.message.Header
	reply := nats.NewMsg(inbox)
	if s.dead {
		body, err := json.Marshal(DeadLetterReply{stored.Get(HeaderDLQReason), stored.Get(HeaderDLQDetail)}, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			return
		}
		reply.Data = body
		reply.Header.Set(HeaderContentType, ContentTypeJSON)
	} else {
		reply.Data = s.message.Data
		reply.Header.Set(HeaderContentType, stored.Get(HeaderContentType))
		reply.Header.Set(headerMsgID, stored.Get(headerMsgID))
	}
	if parent := traceParent(stored); parent != "" {
		reply.Header.Set(headerTraceParent, parent)
	}
	if err := c.nc.PublishMsg(reply); err != nil {
		c.log.Debug().Err(err).Msg("reply failed")
	}
}

// DeadLetterReply is the reply to the publisher of an event that got a dead letter.
type DeadLetterReply struct {
	Error  string `json:"error"` // the reason
	Detail string `json:"detail"`
}
