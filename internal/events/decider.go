package events

import (
	"cmp"
	"context"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// decider decodes events and passes them to the Service. Consumers and the dry run use it.
type decider struct {
	service Service
	ns      Namespace
	log     zerolog.Logger
}

// decode decodes an event that JetStream stored at storedAt. A panic becomes an error of the event.
func (d *decider) decode(subject string, header nats.Header, body []byte, storedAt time.Time) (in *Inbound, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic while decoding an event")
			err = &panicError{p}
		}
	}()
	return d.ns.Decode(subject, header, body, storedAt)
}

// dispatch passes the events of a batch to the Service, one call for each kind in each round, and calls done
// once for each event. A panic becomes an error of every event that has no result by then.
func (d *decider) dispatch(ctx context.Context, batch []*delivery, done func(*delivery)) {
	open := make(map[*delivery]struct{}, len(batch))
	for _, event := range batch {
		open[event] = struct{}{}
	}
	finish := func(event *delivery, r holds.Result) {
		event.result = r
		delete(open, event)
		done(event)
	}
	defer func() {
		if p := recover(); p != nil {
			d.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("panic while deciding events")
			for event := range open {
				event.result = holds.Result{Err: &panicError{p}}
				done(event)
			}
		}
	}()

	for _, round := range rounds(batch) {
		decideTogether(ctx, round, d.service.Extend, finish)
		decideTogether(ctx, round, d.service.Release, finish)
		decideTogether(ctx, round, d.service.Confirm, finish)
		decideTogether(ctx, round, d.service.Cancel, finish)
		decideTogether(ctx, round, d.service.SetInventory, finish) // after what needs no row of inventory
		if events, requests := pick[holds.PlaceRequest](round); len(events) > 0 {
			for i, r := range d.service.Place(ctx, requests) {
				finish(events[i], r)
			}
		}
	}
}

// rounds splits a batch into parts that are decided one after the other. Within a round one kind of event is decided
// after the other, so an event goes to a later round when an event that it depends on would be decided after it:
// an extension that follows the release of its hold, or one by a request key, which may be that of its hold, or a
// payment.started its payment.confirmed, or the cancellation of a reservation that follows an inventory.set on its
// resource. Nearly always there is one round.
func rounds(batch []*delivery) (parts [][]*delivery) {
	type position struct{ round, rank int }
	last := make(map[string]position) // of the events about a hold, a request key or the reservations of a resource
	for _, event := range batch {
		var at position
		var about []string
		switch r := event.in.Request.(type) {
		case *holds.ExtendRequest:
			about, at.rank = []string{r.Hold.String(), r.Hold.Resource + " by key"}, 0
		case *holds.ReleaseRequest:
			about, at.rank = []string{cmp.Or(r.Hold.String(), r.Resource+" by key")}, 1
		case *holds.ConfirmRequest:
			about, at.rank = []string{r.Hold.String()}, 2
		case *holds.CancelRequest:
			about, at.rank = []string{r.Hold.Resource}, 3
		case *holds.InventoryRequest:
			about, at.rank = []string{r.Resource}, 4
		}
		for _, one := range about {
			before := last[one]
			if at.rank < before.rank {
				before.round++
			}
			at.round = max(at.round, before.round)
		}
		for _, one := range about {
			last[one] = at
		}
		if at.round == len(parts) {
			parts = append(parts, make([]*delivery, 0, len(batch)))
		}
		parts[at.round] = append(parts[at.round], event)
	}
	return parts
}

// decideTogether decides the events of one kind in one call.
func decideTogether[T any](
	ctx context.Context, batch []*delivery, decide func(context.Context, []T) []holds.Result,
	finish func(*delivery, holds.Result),
) {
	if events, requests := pick[T](batch); len(events) > 0 {
		for i, r := range decide(ctx, requests) {
			finish(events[i], r)
		}
	}
}

// pick returns the events of one kind with their requests.
func pick[T any](batch []*delivery) (events []*delivery, requests []T) {
	for _, event := range batch {
		if r, is := event.in.Request.(*T); is {
			events, requests = append(events, event), append(requests, *r)
		}
	}
	return events, requests
}
