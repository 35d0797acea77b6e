package events

import (
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

// dispatch passes the events of a batch to the Service, one call for each kind, and calls done once
// for each event. A panic becomes an error of every event that has no result by then.
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

	for _, event := range batch {
		if r, is := event.in.Request.(*holds.InventoryRequest); is {
			finish(event, d.service.SetInventory(ctx, *r))
		}
	}
	decideTogether(ctx, batch, d.service.Extend, finish)
	decideTogether(ctx, batch, d.service.Release, finish)
	decideTogether(ctx, batch, d.service.Confirm, finish)
	decideTogether(ctx, batch, d.service.Cancel, finish)
	if events, requests := pick[holds.PlaceRequest](batch); len(events) > 0 {
		for i, r := range d.service.Place(ctx, requests) {
			finish(events[i], r)
		}
	}
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
