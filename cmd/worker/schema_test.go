package main

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/contract"
	"holdfast/internal/events"
)

// checkOutbound holds an outbound event against its schema. Every event that a worker publishes
// in any of these tests goes through it.
func checkOutbound(t testing.TB, e events.Envelope, m jetstream.Msg) {
	t.Helper()
	schema, err := contract.ReadSchema("../../docs/schemas/out/"+strings.TrimPrefix(e.Type, "holdfast.")+".json", "")
	if err == nil {
		err = schema.Validate(m.Data())
	}
	if err != nil {
		t.Errorf("%s is not as its schema says: %v\n%s", e.Type, err, m.Data())
	}
	if m.Headers().Get("Content-Type") != "application/cloudevents+json" || m.Headers().Get("Nats-Msg-Id") != e.ID {
		t.Errorf("%s has the headers %v", e.Type, m.Headers())
	}
}
