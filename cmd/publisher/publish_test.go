package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
)

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
