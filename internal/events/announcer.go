package events

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// Announcer publishes hold.expired events. It implements holds.Announcer.
type Announcer struct {
	js JetStream
	ns Namespace
}

// NewAnnouncer returns an Announcer for a namespace. js should serve
// nothing else: thousands of holds may expire at once, and the outcomes of events should not wait
// for them.
func NewAnnouncer(js JetStream, ns Namespace) *Announcer { return &Announcer{js, ns} }

// Announce implements holds.Announcer. The id of a hold.expired is derived from its hold, so the
// stream, or the readers of the stream, drop one that is published twice.
func (a *Announcer) Announce(ctx context.Context, outcomes []holds.Outcome) (stored []holds.Outcome, err error) {
	sent, errs := make([]*Sending, len(outcomes)), make([]error, len(outcomes))
	for i, o := range outcomes {
		var message *nats.Msg
		if message, errs[i] = a.ns.outcomeMessage(o, expiryID(o.Hold), ""); errs[i] == nil {
			sent[i] = a.js.Send(message)
		}
	}
	ctx, cancel := withStoreLimit(ctx, storeLimit)
	defer cancel()
	for i, o := range outcomes {
		if errs[i] == nil {
			_, errs[i] = sent[i].Stored(ctx)
		}
		if errs[i] == nil {
			stored = append(stored, o)
		}
	}
	if failed := len(outcomes) - len(stored); failed > 0 {
		err = fmt.Errorf("publish %s, %d of %d: %w", holds.EventHoldExpired, failed, len(outcomes), cmp.Or(errs...))
	}
	return stored, err
}
