package main

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// storedMessage is a message with a body only.
type storedMessage struct {
	jetstream.Msg
	body string
}

func (m storedMessage) Data() []byte { return []byte(m.body) }

// TestDemo_HoldsOfOthersExpire_DemoGoesOn lets holds of others expire in the namespace of a demo, and more of its own than it
// waits for. Neither keeps its subscription from ending.
func TestDemo_HoldsOfOthersExpire_DemoGoesOn(t *testing.T) {
	t.Parallel()
	expired := func(resource string) events.StoredMsg {
		return events.StoredMsg{Msg: storedMessage{body: `{"type":"` + events.Type(holds.EventHoldExpired) + `","data":{"resource_id":"` + resource + `"}}`}}
	}
	d := &demo{suffix: "abc123", expired: make(chan holds.HoldExpired, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		d.onOutcome(ctx, expired("loft"))
	}
	d.onOutcome(ctx, expired("double-abc123"))
	if own := <-d.expired; own.ResourceID != "double-abc123" {
		t.Errorf("the demo waits for %+v", own)
	}
	cancel()
	for range 3 {
		d.onOutcome(ctx, expired("double-abc123"))
	}
}
