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

	var inventory, extends, releases, confirms, cancels, places []*delivery
	var extend []holds.ExtendRequest
	var cancel []holds.CancelRequest
	var release []holds.ReleaseRequest
	var confirm []holds.ConfirmRequest
	var place []holds.PlaceRequest
	for _, event := range batch {
		switch in := event.in; {
		case in.Inventory != nil:
			inventory = append(inventory, event)
		case in.Extend != nil:
			extends, extend = append(extends, event), append(extend, *in.Extend)
		case in.Cancel != nil:
			cancels, cancel = append(cancels, event), append(cancel, *in.Cancel)
		case in.Release != nil:
			releases, release = append(releases, event), append(release, *in.Release)
		case in.Confirm != nil:
			confirms, confirm = append(confirms, event), append(confirm, *in.Confirm)
		case in.Place != nil:
			places, place = append(places, event), append(place, *in.Place)
		}
	}
	for _, event := range inventory {
		finish(event, d.service.SetInventory(ctx, *event.in.Inventory))
	}
	if len(extends) > 0 {
		finishAll(extends, d.service.Extend(ctx, extend))
	}
	if len(releases) > 0 {
		finishAll(releases, d.service.Release(ctx, release))
	}
	if len(confirms) > 0 {
		finishAll(confirms, d.service.Confirm(ctx, confirm))
	}
	if len(cancels) > 0 {
		finishAll(cancels, d.service.Cancel(ctx, cancel))
	}
	if len(places) > 0 {
		for i, r := range d.service.Place(ctx, place) {
			finish(places[i], r)
		}
	}
}
