package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
)

// settleAll settles decided events, as many together as are waiting, until there are no more.
func (c *Consumer) settleAll(ctx context.Context, decided <-chan *delivery) {
	for d := range decided {
		batch := []*delivery{d}
		for len(decided) > 0 && len(batch) < resultsMax {
			batch = append(batch, <-decided)
		}
		c.settle(ctx, batch)
	}
}

// stored is an event whose outcome or dead letter is being stored.
type stored struct {
	*delivery
	message *nats.Msg
	ack     jetstream.PubAckFuture
	dead    bool
}

// settle stores the outcomes and dead letters of events, waits until they are stored, and only
// then acknowledges the events. What failed is delivered again.
func (c *Consumer) settle(ctx context.Context, batch []*delivery) {
	waiting := make([]stored, 0, len(batch))
	for _, d := range batch {
		message, dead := c.answer(d)
		if message == nil {
			continue
		}
		future, err := c.js.PublishMsgAsync(message)
		if err != nil {
			c.failed(d, err)
			continue
		}
		waiting = append(waiting, stored{d, message, future, dead})
	}
	for _, s := range waiting {
		if err := awaitStored(ctx, s.ack); err != nil {
			if ctx.Err() != nil {
				return // stopping: what is not settled is delivered again
			}
			c.failed(s.delivery, err)
			continue
		}
		failpoint.Hit(c.name + ".published")
		c.reply(s)
		if s.dead {
			if err := s.msg.TermWithReason(s.message.Header.Get(headerDLQReason)); err != nil {
				c.log.Debug().Err(err).Msg("term failed, the dead letter will be repeated")
			}
		} else {
			c.ack(s.delivery)
		}
		failpoint.Hit(c.name + ".acked")
		c.settled()
	}
}

// awaitStored waits for the PubAck of a message.
func awaitStored(ctx context.Context, ack jetstream.PubAckFuture) error {
	select {
	case <-ack.Ok():
		return nil
	case err := <-ack.Err():
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer returns the message that ends an event: its outcome, or its dead letter (dead). It
// returns none for an event that is to be delivered again.
func (c *Consumer) answer(d *delivery) (message *nats.Msg, dead bool) {
	seq, deliveries := d.meta.Sequence.Stream, d.meta.NumDelivered
	err := d.result.Err
	if err == nil {
		if message, err = c.outcome(d); err == nil {
			delete(c.faults, seq)
			return message, false
		}
		err = &encodeError{err}
	}
	log := c.log.With().Err(err).Uint64("stream_seq", seq).Str("subject", d.msg.Subject()).Logger()
	switch fateOf(err) {
	case fateDead:
		var why *UnprocessableError
		_ = errors.As(err, &why) // fateDead means that it is one
		log.Warn().Str("reason", why.Reason).Msg("event dead-lettered")
		return c.deadLetter(d, why.Reason, why.Detail), true
	case fateFault:
		c.faults[seq]++
		// A payment must end in a reservation or a refund, and its hold may be claimed: it waits
		// for whoever mends the fault.
		if c.faults[seq] >= faultsMax && (d.in == nil || d.in.Confirm == nil) {
			delete(c.faults, seq)
			log.Error().Str("reason", ReasonPoison).Msg("event dead-lettered")
			return c.deadLetter(d, ReasonPoison, err.Error()), true
		}
		log.Error().Int("faults", c.faults[seq]).Msg("event failed, will be repeated")
		c.again(d, growing(delayFault, uint64(c.faults[seq])))
	case fateLater:
		c.again(d, growing(delayLater, deliveries))
	case fateOutage:
		c.failed(d, err)
	}
	return nil, false
}

// failed has an event delivered again after an outage, and the consumer pause.
func (c *Consumer) failed(d *delivery, err error) {
	c.outage(err)
	c.again(d, delayOutage)
}

func (c *Consumer) outcome(d *delivery) (*nats.Msg, error) {
	message, err := c.ns.outcomeMessage(d.result.Outcome, d.in.OutcomeID, d.in.ID)
	if err == nil && d.in.TraceParent != "" {
		message.Header.Set(headerTraceParent, d.in.TraceParent)
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
		body, err := json.Marshal(DeadLettered{s.message.Header.Get(headerDLQReason), s.message.Header.Get(headerDLQDetail)})
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

// Headers of dead letters.
const (
	headerDLQReason     = "Holdfast-Dlq-Reason"
	headerDLQDetail     = "Holdfast-Dlq-Detail"
	headerDLQSubject    = "Holdfast-Dlq-Subject"
	headerDLQStreamSeq  = "Holdfast-Dlq-Stream-Seq"
	headerDLQDeliveries = "Holdfast-Dlq-Deliveries"
	headerDLQTime       = "Holdfast-Dlq-Time"
	headerDLQWorker     = "Holdfast-Dlq-Worker"
	detailMax           = 512
)

// deadLetter returns the dead letter of an event: its body and its headers as they were, and
// why, where and when it died. Its message id comes from the inbound sequence, so an event that
// is published again and dies again is seen again.
func (c *Consumer) deadLetter(d *delivery, reason, detail string) *nats.Msg {
	m := nats.NewMsg(c.ns.DLQ(reason))
	m.Data = d.msg.Data()
	for name, values := range d.msg.Headers() {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			m.Header[name] = values
		}
	}
	m.Header.Set(headerDLQReason, reason)
	m.Header.Set(headerDLQDetail, oneLine(detail))
	m.Header.Set(headerDLQSubject, d.msg.Subject())
	m.Header.Set(headerDLQStreamSeq, strconv.FormatUint(d.meta.Sequence.Stream, 10))
	m.Header.Set(headerDLQDeliveries, strconv.FormatUint(d.meta.NumDelivered, 10))
	m.Header.Set(headerDLQTime, time.Now().UTC().Format(holds.TimeFormat))
	m.Header.Set(headerDLQWorker, c.worker)
	m.Header.Set(headerMsgID, fmt.Sprintf("%s-%d", c.ns.InStream(), d.meta.Sequence.Stream))
	return m
}

// oneLine makes text fit for a header and a terminal: printable ASCII, not too long.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > detailMax {
		text = text[:detailMax]
	}
	return text
}
