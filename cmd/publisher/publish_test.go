package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestPublish_ServerWithoutStreams_UsesAnother publishes on two servers, one of which has no streams. Publisher begins with
// either; each event is stored by the other one then.
func TestPublish_ServerWithoutStreams_UsesAnother(t *testing.T) {
	const number = 8
	empty := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	s := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	ns := events.Namespace("two")
	js := stacktest.ConnectNATS(t, s.ClientURL())
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: ns.InStream(), Subjects: []string{string(ns) + ".in.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for range number {
		publisher(t, append(words("inventory set --resource-id room --slot a --capacity 1 --namespace two --nats-url"),
			empty.ClientURL()+","+s.ClientURL())...).want(t, exitOK)
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != number {
		t.Errorf("%v: %+v, want %d messages", err, info, number)
	}
}

// TestPublishError_NoStreamAnswers_IsNotUnknown turns the errors of publishing into those of the program. An event that no stream
// has taken is not stored, also when the time is over.
func TestPublishError_NoStreamAnswers_IsNotUnknown(t *testing.T) {
	h := newHarness(t)
	p := newProgram(io.Discard, io.Discard)
	var err error
	if p.client, err = client.New(h.nc, h.ns); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx     context.Context
		err     error
		unknown bool
	}{
		{t.Context(), jetstream.ErrNoStreamResponse, false},
		{over, jetstream.ErrNoStreamResponse, false},
		{over, context.DeadlineExceeded, true},
		{t.Context(), nats.ErrDisconnected, true},
	} {
		err := p.publishError(c.ctx, fmt.Errorf("publish: %w", c.err), nats.NewMsg("s"), events.Envelope{})
		if errors.Is(err, errUnacknowledged) != c.unknown || !c.unknown && !errors.Is(err, c.err) {
			t.Errorf("%v with a context whose error is %v: %v", c.err, c.ctx.Err(), err)
		}
	}
}
