package events

import (
	"context"
	"fmt"

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

// Announce publishes the outcomes and returns nil when all are stored. The id of a hold.expired is
// derived from its hold, so the stream, or the readers of the stream, drop one that is published
// twice.
func (a *Announcer) Announce(ctx context.Context, outcomes []holds.Outcome) error {
	if err := a.announce(ctx, outcomes); err != nil {
		return fmt.Errorf("publish %s: %w", holds.EventHoldExpired, err)
	}
	return nil
}

func (a *Announcer) announce(ctx context.Context, outcomes []holds.Outcome) error {
	futures := make([]jetstream.PubAckFuture, len(outcomes))
	for i, o := range outcomes {
		message, err := a.ns.outcomeMessage(o, expiryID(o.Hold), "")
		if err != nil {
			return err
		}
		if futures[i], err = a.js.PublishMsgAsync(message); err != nil {
			return err
		}
	}
	for _, future := range futures {
		if _, err := awaitStored(ctx, future); err != nil {
			return err
		}
	}
	return nil
}
