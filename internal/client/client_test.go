package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestRequest_OutcomeOrDeadLetter_ReturnsReply publishes a good and a malformed event, and waits
// for both replies.
func TestRequest_OutcomeOrDeadLetter_ReturnsReply(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	subject := h.ns.In(events.BookingRequested, "room")
	good, bad := nats.NewMsg(subject), nats.NewMsg(subject)
	good.Data, bad.Data = []byte(keyed("good")), []byte("{")
	reply, err := h.client.Request(stacktest.WaitContext(t), good)
	if err != nil || reply.DeadLetter != nil || reply.Envelope.CausationID != "good" {
		t.Errorf("%v: reply %+v, want an outcome of the event", err, reply)
	}
	reply, err = h.client.Request(stacktest.WaitContext(t), bad)
	if err != nil || reply.DeadLetter == nil || reply.DeadLetter.Detail == "" ||
		reply.DeadLetter.Error != events.ReasonMalformed {
		t.Errorf("%v: reply %+v, want a dead letter", err, reply)
	}
}

// TestRequest_NoWorker_IsErrReplyTimeout publishes an event that no worker reads.
func TestRequest_NoWorker_IsErrReplyTimeout(t *testing.T) {
	t.Parallel()
	h := newStreams(t)
	m := nats.NewMsg(h.ns.In(events.BookingRequested, "room"))
	m.Data = []byte(keyed("k"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := h.client.Request(ctx, m); !errors.Is(err, ErrReplyTimeout) {
		t.Errorf("error %v, want ErrReplyTimeout", err)
	}
}
