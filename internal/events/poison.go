package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// PoisonRegister remembers which events are poison: *store.Store. An event is recorded there before
// its dead letter is published, so an event whose dead letter is stored is never decided again.
type PoisonRegister interface {
	// RecordPoison records that an event is poison. A second call changes nothing. The id is that of
	// the dead letter.
	RecordPoison(ctx context.Context, id, resource, detail string) error
	// Poisoned returns the details of the events that are recorded, by their ids.
	Poisoned(ctx context.Context, ids []string) (details map[string]string, err error)
}

const outcomeSearchLimit = 10 * time.Second

// findPoisoned sets an error for the events of a batch that were recorded as poison at an earlier
// delivery. It reads nothing for first deliveries.
func (l *lane) findPoisoned(ctx context.Context, batch []*delivery) {
	c := l.consumer
	again := make(map[string][]*delivery) // by the ids of their dead letters: a batch may have an event twice
	for _, d := range batch {
		decidable := d.result.Err == nil || dispositionOf(d.result.Err) == dispositionRetryCounted
		if !c.isFirstDelivery(d) && !c.isPayment(d) && decidable {
			id, err := c.deadLetterID(ctx, d)
			if err != nil {
				d.result.Err = fmt.Errorf("read which events are poison: %w", err)
				continue
			}
			again[id] = append(again[id], d)
		}
	}
	if len(again) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.decideWithin)
	defer cancel()
	details, err := c.process.poison.Poisoned(ctx, slices.Collect(maps.Keys(again)))
	for id, deliveries := range again {
		for _, d := range deliveries {
			if detail, poisoned := details[id]; poisoned {
				d.result.Err = &UnprocessableError{ReasonPoison, detail}
			} else if err != nil {
				d.result.Err = fmt.Errorf("read which events are poison: %w", err)
			}
		}
	}
}

// isFirstDelivery reports whether an event was certainly not delivered before, nor since this delivery. A durable
// consumer that was deleted and recreated counts deliveries from one: of what was stored before, it knows no earlier
// delivery. The two times may be of the clocks of two servers, except where the consumer was created with its stream.
func (c *Consumer) isFirstDelivery(d *delivery) bool {
	created := c.durable.Load().Created
	if created.Sub(d.streamCreated) > ClockSkewMax {
		created = created.Add(ClockSkewMax)
	}
	return d.meta.NumDelivered == 1 && !d.meta.Timestamp.Before(created) && !c.inFlight.isOverdue(d)
}

// findPoisonedMeanwhile does the same just before a batch is published, for events that another worker may have received
// since: this one was suspended after it had decided them. (What is recorded between this call and the publication is not
// noticed.)
func (l *lane) findPoisonedMeanwhile(ctx context.Context, batch []*delivery) {
	var overdue []*delivery
	for _, d := range batch {
		if d.result.Err == nil && l.consumer.inFlight.isOverdue(d) {
			overdue = append(overdue, d)
		}
	}
	l.findPoisoned(ctx, overdue)
}

// unprocessable returns the dead letter of an event that can never be processed. It returns nil if it was recorded as poison,
// and has an outcome.
func (c *Consumer) unprocessable(ctx context.Context, d *delivery, why *UnprocessableError) (*nats.Msg, error) {
	if why.Reason == ReasonPoison {
		if answered, err := c.hasOutcome(ctx, d); answered || err != nil {
			return nil, err
		}
		if err := c.withdraw(ctx, d); err != nil { // the hold that this worker has granted, see findPoisonedMeanwhile
			return nil, err
		}
	}
	return c.deadLetter(ctx, d, why.Reason, why.Detail, deadLetterWhole)
}

// recordPoison records that an event is poison and returns its dead letter. It returns nil if the event has an outcome: an
// earlier delivery was decided, and only its ack was lost. The dead letter must not be published if the event is overdue by
// then, see poisonMessage.
//
// This order prevents that another worker publishes an outcome and this one a dead letter:
//   - A worker that received the event earlier is overdue. It reads the register just before it publishes. If that is
//     before the record, the second search finds its outcome.
//   - A worker that received the event later may read the register before the record and publish at any time. But then
//     this one is overdue, and publishes nothing. It does not request another delivery: the server makes one only after
//     the ack wait of the later worker, and that finds the record, and the outcome if there is one.
//   - When this worker is killed after the record, the next delivery finds the same.
//   - The record stays when an outcome is found, because another worker may already be publishing the dead letter. Every
//     delivery that finds the record searches for the outcome first.
//
// What is not noticed: an earlier worker reads the register before the record, and publishes after the second search.
func (l *lane) recordPoison(ctx context.Context, d *delivery, why error) (deadLetter *nats.Msg, err error) {
	c := l.consumer
	if answered, err := c.hasOutcome(ctx, d); answered || err != nil {
		return nil, err
	}
	if deadLetter, err = c.deadLetter(ctx, d, ReasonPoison, why.Error(), deadLetterWhole); err != nil {
		return nil, err
	}
	id, detail := deadLetter.Header.Get(headerMsgID), deadLetter.Header.Get(HeaderDLQDetail)
	if err := c.process.poison.RecordPoison(ctx, id, resourceOf(d.msg.Subject), detail); err != nil {
		return nil, err
	}
	if answered, err := c.hasOutcome(ctx, d); answered || err != nil {
		return nil, err // another worker has decided it meanwhile
	}
	return deadLetter, nil
}

// poisonMessage returns the dead letter of an event that has failed too often. It returns nil if the event has an outcome,
// or waits for another delivery.
func (l *lane) poisonMessage(ctx context.Context, d *delivery, why error) *nats.Msg {
	c := l.consumer
	deadLetter, err := l.recordPoison(ctx, d, why)
	if err != nil {
		l.redeliver(d, err)
		return nil
	}
	delete(l.failures, d.origin())
	switch {
	case deadLetter == nil:
		c.ack(d)
	case c.inFlight.isOverdue(d): // see recordPoison
		d.endTrace("") // nothing is sent: the server delivers it again by itself
		c.inFlight.remove(d)
		return nil
	}
	return deadLetter
}
