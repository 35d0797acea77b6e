package events

import (
	"context"
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
)

// publishAll settles decided events, as many together as are waiting, until there are no more.
func (l *lane) publishAll(ctx context.Context) {
	for d := range l.decided {
		batch := []*delivery{d}
		for len(l.decided) > 0 && len(batch) < resultsMax {
			batch = append(batch, <-l.decided)
		}
		l.publishBatch(ctx, batch)
	}
}

// pendingMsg is an event whose outcome or dead letter is being stored.
type pendingMsg struct {
	*delivery
	message *nats.Msg
	ack     jetstream.PubAckFuture // nil when it was not even sent:
	unsent  error
	dead    bool
}

// publishBatch stores the outcomes and dead letters of events, waits until they are stored, and only
// then acknowledges the events. What failed is delivered again.
func (l *lane) publishBatch(ctx context.Context, batch []*delivery) {
	waiting := make([]pendingMsg, 0, len(batch))
	var epochErr error // of what was decided under an epoch
	var verifiedEpoch string
	for _, d := range batch {
		if ctx.Err() != nil {
			return // stopping: what is not settled is given back
		}
		message, dead := l.finalMessage(ctx, d)
		if message == nil {
			continue
		}
		if dead {
			id, err := l.deadLetterID(ctx, d)
			if err != nil {
				l.redeliver(d, err)
				continue
			}
			message.Header.Set(headerMsgID, id)
		}
		if !dead { // a dead letter rests on nothing
			if epochErr == nil || verifiedEpoch != d.epoch {
				epochErr, verifiedEpoch = l.service.Verify(ctx, d.epoch), d.epoch
				if epochErr != nil && !errors.Is(epochErr, holds.ErrDataLost) {
					epochErr = &serverError{serverPostgres, epochErr}
				}
			}
			if epochErr != nil {
				l.redeliver(d, epochErr)
				continue
			}
		}
		future, err := l.js.PublishMsgAsync(message)
		waiting = append(waiting, pendingMsg{d, message, future, ofNATS(err), dead})
	}
	for _, s := range waiting {
		err := s.unsent
		if err == nil {
			err = ofNATS(l.awaitOutcomeStored(ctx, &s))
		}
		switch {
		case s.dead && IsTooLarge(err):
			s.message, err = l.storeClaimCheck(ctx, s)
		case IsTooLarge(err):
			s.dead = true
			if s.message, err = l.handleOversized(ctx, s); s.message == nil && err == nil {
				continue
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return // stopping: what is not settled is given back
			}
			l.redeliver(s.delivery, err)
			continue
		}
		failpoint.Hit(l.name + ".published")
		l.reply(s)
		if s.dead {
			if err := s.msg.TermWithReason(s.message.Header.Get(HeaderDLQReason)); err != nil {
				l.log.Debug().Err(err).Msg("term failed, the dead letter will be repeated")
			}
			l.inFlight.remove(s.delivery)
		} else {
			l.ack(s.delivery)
		}
		failpoint.Hit(l.name + ".acked")
		l.recordSuccess()
	}
}

// storeClaimCheck stores the dead letter of an event that is too large to be copied: a pointer to where the
// event is in the inbound stream, with its headers if they fit.
func (c *Consumer) storeClaimCheck(ctx context.Context, s pendingMsg) (deadLetter *nats.Msg, err error) {
	reason, detail := s.message.Header.Get(HeaderDLQReason), s.message.Header.Get(HeaderDLQDetail)
	id := s.message.Header.Get(headerMsgID)
	for _, form := range []deadLetterForm{deadLetterClaimCheck, deadLetterBare} {
		s.message = c.deadLetter(s.delivery, reason, detail, form)
		s.message.Header.Set(headerMsgID, id)
		var ack *jetstream.PubAck
		if ack, err = c.js.PublishMsg(ctx, s.message); !IsTooLarge(err) {
			return s.message, c.checkDuplicate(ctx, &s, ack, err)
		}
	}
	return s.message, err
}

// awaitStored waits for the PubAck of a message.
func awaitStored(ctx context.Context, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// isBeingStored reports whether the nodes of NATS have not agreed yet about a message with the same id, from another
// delivery of the event: soon this one is a duplicate, or can be stored.
func isBeingStored(err error) bool {
	const duplicateInProcess = 10158
	refused, is := errors.AsType[*jetstream.APIError](err)
	return is && refused.ErrorCode == duplicateInProcess
}

// finalMessage returns the message that ends an event: its outcome, or its dead letter (dead). It
// returns none for an event that is to be delivered again.
func (l *lane) finalMessage(ctx context.Context, d *delivery) (message *nats.Msg, dead bool) {
	seq, deliveries := d.origin(), d.meta.NumDelivered
	err := d.result.Err
	if err == nil {
		if message, err = l.message(d, d.result.Outcome); err == nil {
			delete(l.failures, seq)
			l.recall(l.deferred.markDecided(resourceOf(d.msg.Subject()), seq.seq))
			return message, false
		}
		err = &encodeError{err}
	}
	log := l.log.With().Err(err).Uint64("stream_seq", seq.seq).Str("subject", d.msg.Subject()).Logger()
	switch dispositionOf(err) {
	case dispositionDeadLetter:
		var why *UnprocessableError
		_ = errors.As(err, &why) // dispositionDeadLetter means that it is one
		l.logDeadLetter(log.Warn(), d, why.Reason)
		return l.deadLetter(d, why.Reason, why.Detail, deadLetterWhole), true
	case dispositionRetryCounted:
		l.failures[seq]++
		_, oversized := errors.AsType[*oversizedError](err) // it stays so
		// A payment must end in a reservation or a refund, and its hold may be claimed: it waits
		// until the fault is repaired.
		if (oversized || l.failures[seq] >= failuresMax) && !l.isPayment(d) {
			deadLetter, err := l.recordPoison(ctx, d, err)
			switch {
			case err != nil:
				l.redeliver(d, err)
				return nil, false
			case deadLetter == nil:
				l.ack(d)
			default:
				l.logDeadLetter(log.Error(), d, ReasonPoison)
			}
			delete(l.failures, seq)
			return deadLetter, deadLetter != nil
		}
		if failures := l.failures[seq]; failures&(failures-1) == 0 { // the longer it waits, the rarer
			log.Error().Int("faults", failures).Msg("event failed, it is retried")
		}
		l.nakDelayed(d, backoffDelay(delayRetryCounted, uint64(l.failures[seq])))
	case dispositionDefer:
		if l.deferEvent(d, true) && deliveries&(deliveries-1) == 0 { // the longer it waits, the rarer
			log.Error().Uint64("deliveries", deliveries).Msg("event waits, the data of its resource is corrupt")
		}
	case dispositionRetrySoon, dispositionPause:
		l.redeliver(d, err)
	}
	return nil, false
}

// logDeadLetter logs that an event is dead-lettered, and which one it is as far as that can be read. The resource is that of
// its subject: in the data there may be anything.
func (c *Consumer) logDeadLetter(log *zerolog.Event, d *delivery, reason string) {
	header, body := d.msg.Headers(), d.msg.Data()
	log.Str("reason", reason).Str("event_id", oneLine(Summarize(d.msg.Subject(), header, body).ID)).
		Str("source", oneLine(sourceOf(header, body))).
		Str("resource_id", oneLine(resourceOf(d.msg.Subject()))).Msg("event dead-lettered")
}

// isPayment reports whether an event is a payment, also when it could not be read.
func (c *Consumer) isPayment(d *delivery) bool {
	if d.in != nil {
		return d.in.Confirm != nil
	}
	return strings.HasPrefix(d.msg.Subject(), c.ns.In(PaymentConfirmed, ""))
}

// redeliver has an event delivered again for nobody's fault: soon when something was only in its way, else after an
// outage, for which the consumer pauses.
func (c *Consumer) redeliver(d *delivery, err error) {
	if dispositionOf(err) == dispositionRetrySoon {
		c.nakDelayed(d, backoffDelay(delayRetrySoon, d.meta.NumDelivered))
		return
	}
	c.recordOutage(err)
	c.nakDelayed(d, delayPause)
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

// reply sends an outcome also to whoever waits for it. Best effort: the stream has it.
func (c *Consumer) reply(s pendingMsg) {
	inbox := replyTo(s.msg.Headers())
	if inbox == "" {
		return
	}
	reply := nats.NewMsg(inbox)
	reply.Data = s.message.Data
	reply.Header.Set(HeaderContentType, s.message.Header.Get(HeaderContentType))
	if s.dead {
		body, err := json.Marshal(DeadLetterReply{s.message.Header.Get(HeaderDLQReason), s.message.Header.Get(HeaderDLQDetail)})
		if err != nil {
			return
		}
		reply.Data = body
		reply.Header.Set(HeaderContentType, ContentTypeJSON)
	}
	if err := c.nc.PublishMsg(reply); err != nil {
		c.log.Debug().Err(err).Msg("reply failed")
	}
}

// DeadLetterReply answers who waits for the outcome of an event that was dead-lettered.
type DeadLetterReply struct {
	Error  string `json:"error"` // the reason
	Detail string `json:"detail"`
}
