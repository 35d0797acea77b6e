package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PoisonRegister remembers which events are poison: *store.Store. That is decided there before the dead letter is
// published, so that an event whose dead letter is stored is never decided again.
type PoisonRegister interface {
	// RecordPoison records that an event is poison, unless that is recorded already. The id is that of its dead letter.
	RecordPoison(ctx context.Context, id, resource, detail string) error
	// Poisoned returns the details of those of the events that are recorded, by their ids.
	Poisoned(ctx context.Context, ids []string) (details map[string]string, err error)
}

const outcomeSearchLimit = 10 * time.Second

// findPoisoned reads which events of a batch were found to be poison at an earlier delivery: they are not decided
// again. First deliveries, which nearly all are, cost nothing.
func (l *lane) findPoisoned(ctx context.Context, batch []*delivery) {
	again := make(map[string]*delivery)
	for _, d := range batch {
		if d.meta.NumDelivered > 1 && !l.isPayment(d) && (d.result.Err == nil || dispositionOf(d.result.Err) == dispositionRetryCounted) {
			id, err := l.deadLetterID(ctx, d)
			if err != nil {
				d.result.Err = fmt.Errorf("read which events are poison: %w", err)
				continue
			}
			again[id] = d
		}
	}
	if len(again) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.decideWithin)
	defer cancel()
	details, err := l.process.poison.Poisoned(ctx, slices.Collect(maps.Keys(again)))
	for id, d := range again {
		if detail, poisoned := details[id]; poisoned {
			d.result.Err = &UnprocessableError{ReasonPoison, detail}
		} else if err != nil {
			d.result.Err = fmt.Errorf("read which events are poison: %w", err)
		}
	}
}

// recordPoison records that an event is poison and returns its dead letter. It returns nil when the event has an outcome: an
// earlier delivery of it was decided, and only its ack was lost.
func (l *lane) recordPoison(ctx context.Context, d *delivery, why error) (deadLetter *nats.Msg, err error) {
	answered := false
	if d.in != nil && d.meta.NumDelivered > uint64(l.failures[d.origin()]) { // not all deliveries failed here
		answered, err = l.hasOutcome(ctx, d)
	}
	if answered || err != nil {
		return nil, err
	}
	id, err := l.deadLetterID(ctx, d)
	if err != nil {
		return nil, err
	}
	deadLetter = l.deadLetter(d, ReasonPoison, why.Error(), deadLetterWhole)
	return deadLetter, l.process.poison.RecordPoison(ctx, id, resourceOf(d.msg.Subject()), deadLetter.Header.Get(HeaderDLQDetail))
}

// hasOutcome searches the outcomes about the resource of an event for its own.
func (c *Consumer) hasOutcome(ctx context.Context, d *delivery) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, outcomeSearchLimit)
	defer cancel()
	out, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return false, fmt.Errorf("search the outcome of an event: %w", err)
	}
	since := d.meta.Timestamp.Add(-ClockSkewMax)
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{c.ns.Out("*.*", d.in.Resource)}, HeadersOnly: true,
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
	}
	for m, err := range ReadAll(ctx, out, config) {
		if err != nil {
			return false, fmt.Errorf("search the outcome of an event: %w", err)
		}
		id, _, _ := strings.Cut(m.Headers().Get(headerMsgID), "#") // see same
		if slices.Contains(d.in.outcomeIDs(), id) {
			return true, nil
		}
	}
	return false, nil
}
