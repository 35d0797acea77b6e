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

// settleAll settles decided events, as many together as are waiting, until there are no more.
func (l *lane) settleAll(ctx context.Context) {
	for d := range l.decided {
		batch := []*delivery{d}
		for len(l.decided) > 0 && len(batch) < resultsMax {
			batch = append(batch, <-l.decided)
		}
		l.settle(ctx, batch)
	}
}

// stored is an event whose outcome or dead letter is being stored.
type stored struct {
	*delivery
	message *nats.Msg
	ack     jetstream.PubAckFuture // nil when it was not even sent:
	unsent  error
	dead    bool
}

// settle stores the outcomes and dead letters of events, waits until they are stored, and only
// then acknowledges the events. What failed is delivered again.
func (l *lane) settle(ctx context.Context, batch []*delivery) {
	waiting := make([]stored, 0, len(batch))
	var doubt error // of what was decided under an epoch
	var doubted string
	for _, d := range batch {
		if ctx.Err() != nil {
			return // stopping: what is not settled is given back
		}
		message, dead := l.answer(ctx, d)
		if message == nil {
			continue
		}
		if dead {
			id, err := l.letterID(ctx, d)
			if err != nil {
				l.failed(d, err)
				continue
			}
			message.Header.Set(headerMsgID, id)
		}
		if !dead { // a dead letter rests on nothing
			if doubt == nil || doubted != d.epoch {
				doubt, doubted = l.service.Trust(ctx, d.epoch), d.epoch
				if doubt != nil && !errors.Is(doubt, holds.ErrDataLost) {
					doubt = &serverError{serverPostgres, doubt}
				}
			}
			if doubt != nil {
				l.failed(d, doubt)
				continue
			}
		}
		future, err := l.js.PublishMsgAsync(message)
		waiting = append(waiting, stored{d, message, future, ofNATS(err), dead})
	}
	for _, s := range waiting {
		err := s.unsent
		if err == nil {
			err = ofNATS(l.awaitSame(ctx, &s))
		}
		switch {
		case s.dead && isTooLarge(err):
			s.message, err = l.park(ctx, s)
		case isTooLarge(err):
			s.dead = true
			if s.message, err = l.oversized(ctx, s); s.message == nil && err == nil {
				continue
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return // stopping: what is not settled is given back
			}
			l.failed(s.delivery, err)
			continue
		}
		failpoint.Hit(l.name + ".published")
		l.reply(s)
		if s.dead {
			if err := s.msg.TermWithReason(s.message.Header.Get(HeaderDLQReason)); err != nil {
				l.log.Debug().Err(err).Msg("term failed, the dead letter will be repeated")
			}
			l.flow.end(s.delivery)
		} else {
			l.ack(s.delivery)
		}
		failpoint.Hit(l.name + ".acked")
		l.settled()
	}
}

// park stores the dead letter of an event that is too large to be copied: a pointer to where the
// event is in the inbound stream, with its headers if they fit.
func (c *Consumer) park(ctx context.Context, s stored) (letter *nats.Msg, err error) {
	reason, detail := s.message.Header.Get(HeaderDLQReason), s.message.Header.Get(HeaderDLQDetail)
	id := s.message.Header.Get(headerMsgID)
	for _, form := range []letterForm{letterPointer, letterBare} {
		s.message = c.deadLetter(s.delivery, reason, detail, form)
		s.message.Header.Set(headerMsgID, id)
		var ack *jetstream.PubAck
		if ack, err = c.js.PublishMsg(ctx, s.message); !isTooLarge(err) {
			return s.message, c.same(ctx, &s, ack, err)
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

// answer returns the message that ends an event: its outcome, or its dead letter (dead). It
// returns none for an event that is to be delivered again.
func (l *lane) answer(ctx context.Context, d *delivery) (message *nats.Msg, dead bool) {
	seq, deliveries := d.origin(), d.meta.NumDelivered
	err := d.result.Err
	if err == nil {
		if message, err = l.message(d, d.result.Outcome); err == nil {
			delete(l.faults, seq)
			l.recall(l.held.decided(resourceOf(d.msg.Subject()), seq.seq))
			return message, false
		}
		err = &encodeError{err}
	}
	log := l.log.With().Err(err).Uint64("stream_seq", seq.seq).Str("subject", d.msg.Subject()).Logger()
	switch fateOf(err) {
	case fateDead:
		var why *UnprocessableError
		_ = errors.As(err, &why) // fateDead means that it is one
		l.logDead(log.Warn(), d, why.Reason)
		return l.deadLetter(d, why.Reason, why.Detail, letterWhole), true
	case fateFault:
		l.faults[seq]++
		_, oversized := errors.AsType[*oversizedError](err) // it stays so
		// A payment must end in a reservation or a refund, and its hold may be claimed: it waits
		// until the fault is repaired.
		if (oversized || l.faults[seq] >= faultsMax) && !l.isPayment(d) {
			letter, err := l.condemn(ctx, d, err)
			switch {
			case err != nil:
				l.failed(d, err)
				return nil, false
			case letter == nil:
				l.ack(d)
			default:
				l.logDead(log.Error(), d, ReasonPoison)
			}
			delete(l.faults, seq)
			return letter, letter != nil
		}
		if faults := l.faults[seq]; faults&(faults-1) == 0 { // the longer it waits, the rarer
			log.Error().Int("faults", faults).Msg("event failed, it is retried")
		}
		l.again(d, growing(delayFault, uint64(l.faults[seq])))
	case fateDamaged:
		if l.hold(d, true) && deliveries&(deliveries-1) == 0 { // the longer it waits, the rarer
			log.Error().Uint64("deliveries", deliveries).Msg("event waits, the data of its resource is corrupt")
		}
	case fateLater, fateOutage:
		l.failed(d, err)
	}
	return nil, false
}

// logDead logs that an event is dead-lettered, and which one it is as far as that can be read. The resource is that of
// its subject: in the data there may be anything.
func (c *Consumer) logDead(log *zerolog.Event, d *delivery, reason string) {
	header, body := d.msg.Headers(), d.msg.Data()
	log.Str("reason", reason).Str("event_id", oneLine(AboutEvent(d.msg.Subject(), header, body).ID)).
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

// failed has an event delivered again for nobody's fault: soon when something was only in its way, else after an
// outage, for which the consumer pauses.
func (c *Consumer) failed(d *delivery, err error) {
	if fateOf(err) == fateLater {
		c.again(d, growing(delayLater, d.meta.NumDelivered))
		return
	}
	c.outage(err)
	c.again(d, delayOutage)
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
func (c *Consumer) reply(s stored) {
	inbox := replyTo(s.msg.Headers())
	if inbox == "" {
		return
	}
	reply := nats.NewMsg(inbox)
	reply.Data = s.message.Data
	reply.Header.Set(headerContentType, s.message.Header.Get(headerContentType))
	if s.dead {
		body, err := json.Marshal(DeadLettered{s.message.Header.Get(HeaderDLQReason), s.message.Header.Get(HeaderDLQDetail)})
		if err != nil {
			return
		}
		reply.Data = body
		reply.Header.Set(headerContentType, contentTypeJSON)
	}
	if err := c.nc.PublishMsg(reply); err != nil {
		c.log.Debug().Err(err).Msg("reply failed")
	}
}

// DeadLettered answers who waits for the outcome of an event that was dead-lettered.
type DeadLettered struct {
	Error  string `json:"error"` // the reason
	Detail string `json:"detail"`
}
