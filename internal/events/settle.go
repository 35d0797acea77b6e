package events

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/failpoint"
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
			return // stopping: what is not settled is delivered again
		}
		message, dead := l.answer(d)
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
			}
			if doubt != nil {
				l.failed(d, doubt)
				continue
			}
		}
		future, err := l.js.PublishMsgAsync(message)
		waiting = append(waiting, stored{d, message, future, err, dead})
	}
	for _, s := range waiting {
		err := s.unsent
		if err == nil {
			err = l.awaitSame(ctx, &s)
		}
		if s.dead && isTooLarge(err) {
			s.message, err = l.park(ctx, s)
		}
		if err != nil {
			if ctx.Err() != nil {
				return // stopping: what is not settled is delivered again
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
func (l *lane) answer(d *delivery) (message *nats.Msg, dead bool) {
	seq, deliveries := d.origin(), d.meta.NumDelivered
	err := d.result.Err
	if err == nil {
		if message, err = l.outcome(d); err == nil {
			delete(l.faults, seq)
			return message, false
		}
		err = &encodeError{err}
	}
	log := l.log.With().Err(err).Uint64("stream_seq", seq.seq).Str("subject", d.msg.Subject()).Logger()
	switch fateOf(err) {
	case fateDead:
		var why *UnprocessableError
		_ = errors.As(err, &why) // fateDead means that it is one
		log.Warn().Str("reason", why.Reason).Msg("event dead-lettered")
		return l.deadLetter(d, why.Reason, why.Detail, letterWhole), true
	case fateFault:
		l.faults[seq]++
		// A payment must end in a reservation or a refund, and its hold may be claimed: it waits
		// for whoever mends the fault.
		if l.faults[seq] >= faultsMax && (d.in == nil || d.in.Confirm == nil) {
			delete(l.faults, seq)
			log.Error().Str("reason", ReasonPoison).Msg("event dead-lettered")
			return l.deadLetter(d, ReasonPoison, err.Error(), letterWhole), true
		}
		log.Error().Int("faults", l.faults[seq]).Msg("event failed, will be repeated")
		l.again(d, growing(delayFault, uint64(l.faults[seq])))
	case fateDamaged:
		if deliveries&(deliveries-1) == 0 { // the longer it waits, the rarer
			log.Error().Uint64("deliveries", deliveries).Msg("event waits, what there is of its resource is damaged")
		}
		l.again(d, growing(delayDamaged, deliveries))
	case fateLater, fateOutage:
		l.failed(d, err)
	}
	return nil, false
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

func (c *Consumer) outcome(d *delivery) (*nats.Msg, error) {
	message, err := c.ns.outcomeMessage(d.result.Outcome, d.in.OutcomeID, d.in.ID)
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
