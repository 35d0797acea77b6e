package events

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// Announcer publishes hold.expired events. It implements holds.Announcer.
type Announcer struct {
	js jetstream.JetStream
	ns Namespace
}

// NewAnnouncer returns an Announcer for a namespace. js comes from NewJetStream and should serve
// nothing else: thousands of holds may expire at once, and the outcomes of events should not wait
// for them.
func NewAnnouncer(js jetstream.JetStream, ns Namespace) *Announcer { return &Announcer{js, ns} }

// Announce implements holds.Announcer. The id of a hold.expired is derived from its hold, so the
// stream, or the readers of the stream, drop one that is published twice.
func (a *Announcer) Announce(ctx context.Context, outcomes []holds.Outcome) (stored []holds.Outcome, err error) {
	futures, errs := make([]jetstream.PubAckFuture, len(outcomes)), make([]error, len(outcomes))
	for i, o := range outcomes {
		var message *nats.Msg
		if message, errs[i] = a.ns.outcomeMessage(o, expiryID(o.Hold), ""); errs[i] == nil {
			futures[i], errs[i] = a.js.PublishMsgAsync(message)
		}
	}
	for i, o := range outcomes {
		if errs[i] == nil {
			_, errs[i] = awaitStored(ctx, futures[i])
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
