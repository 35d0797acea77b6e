package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/contract"
	"holdfast/internal/events"
)

// checkOutbound validates an outbound event against its schema. Every event that a worker publishes in these tests
// goes through it.
func checkOutbound(t testing.TB, e events.Envelope, m jetstream.Msg) {
	t.Helper()
	schema, err := contract.ReadSchema("../../docs/schemas/out/"+strings.TrimPrefix(e.Type, "holdfast.")+".json", "")
	if err == nil {
		err = schema.Validate(m.Data())
	}
	if err != nil {
		t.Errorf("%s does not match its schema: %v\n%s", e.Type, err, m.Data())
	}
	if m.Headers().Get("Content-Type") != "application/cloudevents+json" || m.Headers().Get("Nats-Msg-Id") != e.ID {
		t.Errorf("%s has the headers %v", e.Type, m.Headers())
	}
}
