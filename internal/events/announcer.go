package events

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// Announcer stores hold.expired events.
type Announcer struct {
	js jetstream.JetStream
	ns Namespace
}

// NewAnnouncer returns an Announcer for a namespace. It implements holds.Announcer. The
// JetStream context is one of NewJetStream, and should be its own: thousands of holds may lapse at once, and the
// outcomes of events should not have to wait for them.
func NewAnnouncer(js jetstream.JetStream, ns Namespace) *Announcer { return &Announcer{js, ns} }

// Announce implements holds.Announcer. The id of an event is derived from its hold, so one that
// is announced again is dropped by the stream or by its consumers.
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
