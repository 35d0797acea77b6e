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
	finishAll := func(events []*delivery, results []holds.Result) {
		for i, r := range results {
			finish(events[i], r)
		}
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
		if event.in.Inventory != nil {
			finish(event, d.service.SetInventory(ctx, *event.in.Inventory))
		}
	}
	if events, requests := pick(batch, func(in *Inbound) *holds.ExtendRequest { return in.Extend }); len(events) > 0 {
		finishAll(events, d.service.Extend(ctx, requests))
	}
	if events, requests := pick(batch, func(in *Inbound) *holds.ReleaseRequest { return in.Release }); len(events) > 0 {
		finishAll(events, d.service.Release(ctx, requests))
	}
	if events, requests := pick(batch, func(in *Inbound) *holds.ConfirmRequest { return in.Confirm }); len(events) > 0 {
		finishAll(events, d.service.Confirm(ctx, requests))
	}
	if events, requests := pick(batch, func(in *Inbound) *holds.CancelRequest { return in.Cancel }); len(events) > 0 {
		finishAll(events, d.service.Cancel(ctx, requests))
	}
	if events, requests := pick(batch, func(in *Inbound) *holds.PlaceRequest { return in.Place }); len(events) > 0 {
		for i, r := range d.service.Place(ctx, requests) {
			finish(events[i], r)
		}
	}
}

// pick returns the events of one kind with their requests.
func pick[T any](batch []*delivery, request func(*Inbound) *T) (events []*delivery, requests []T) {
	for _, event := range batch {
		if r := request(event.in); r != nil {
			events, requests = append(events, event), append(requests, *r)
		}
	}
	return events, requests
}
