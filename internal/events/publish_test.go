package events

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestPublish_PubAckLost_StoresEachOnce loses the PubAcks of outcomes and dead letters. No event is
// acknowledged before its outcome is stored, and none has two.
func TestPublish_PubAckLost_StoresEachOnce(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", lost), func(t *testing.T) {
			t.Parallel()
			js := &failingJetStream{storesFirst: lost}
			js.failuresLeft.Store(5)
			b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
			const number = 3
			for i := range number {
				b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", i)))
				b.publish(b.ns.In(BookingRequested, "room"), nil, "not JSON")
			}
			b.awaitIdle(ConsumerRequests)
			b.await("an answer to each", func() bool { return len(b.out) >= number && len(b.dlq) >= number })
			if js.failuresLeft.Load() >= 0 || len(b.out) != number || len(b.dlq) != number {
				t.Errorf("%d outcomes, %d dead letters, want %d each; %d PubAcks not lost", len(b.out), len(b.dlq), number, js.failuresLeft.Load())
			}
		})
	}
}

// TestPublish_NoPubAck_DecidedAgain never gets the PubAck of an outcome and of a hold.expired, on a connection that works.
func TestPublish_NoPubAck_DecidedAgain(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{silent: true}
	b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
	js.failuresLeft.Store(1)
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })

	js.failuresLeft.Store(1)
	expired := holds.Outcome{Event: holds.EventHoldExpired, Resource: "room", Hold: holds.NewHoldID("room"), Data: holds.HoldExpired{}}
	if stored, err := NewAnnouncer(js, b.ns).Announce(stacktest.WaitContext(t), []holds.Outcome{expired}); len(stored) > 0 ||
		!errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		t.Errorf("announced %v, %v; want %v", stored, err, jetstream.ErrAsyncPublishTimeout)
	}
}

// TestPublish_EachOutcome_AnnouncedBefore checks that what is being published is known from before it is verified
// until its PubAck, and that a PubAck that did not arrive is known.
func TestPublish_EachOutcome_AnnouncedBefore(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{storesFirst: true}
	b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
	for n, failures := range []int32{0, 1} {
		js.failuresLeft.Store(failures)
		b.publish(b.ns.In(BookingRequested, "room"), nil, keyed(fmt.Sprintf("k%d", n)))
		b.awaitIdle(ConsumerRequests)
		what := fmt.Sprintf("%d publications of which a PubAck was lost, and no other", n)
		stacktest.Eventually(t, what, func() bool { // a publication may end after its outcome is followed
			return b.publicationsNow() == publications{uncertain: n}
		})
	}
}

// TestPublish_DuplicateInProcess_RetriesWithoutPause makes NATS answer that its nodes have not
// agreed yet about an outcome with the same id. The event is delivered again, and no other event
// waits for that.
func TestPublish_DuplicateInProcess_RetriesWithoutPause(t *testing.T) {
	t.Parallel()
	js := &failingJetStream{err: &jetstream.APIError{Code: 409, ErrorCode: 10158, Description: "duplicate message id is in process"}}
	js.failuresLeft.Store(2)
	b := newHarnessWithJetStream(t, func(inner JetStream) JetStream { js.JetStream = inner; return js })
	b.publish(b.ns.In(BookingRequested, "room"), nil, keyed("k"))
	b.await("an outcome", func() bool { return len(b.out) == 1 })
	b.awaitIdle(ConsumerRequests)
	if n := b.decidedCount("k"); n != 3 {
		t.Errorf("decided %d times, want one more than refusals", n)
	}
	if b.workers[0].failure.Load() != nil {
		t.Error("the consumer has paused")
	}
}

// TestReply_OutcomeOrDeadLetter_SentToInboxOnly publishes events with an inbox for the reply. It has the headers that the
// AsyncAPI document has for an outcome, with the trace of the event.
func TestReply_OutcomeOrDeadLetter_SentToInboxOnly(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	reply := b.requestReply(b.ns.In(BookingRequested, "room"), keyed("good"), headerTraceParent, "t")
	var outcome Envelope
	if err := json.Unmarshal(reply.Data, &outcome); err != nil || outcome.CausationID != "good" {
		t.Errorf("%v: the reply to a request is %s", err, reply.Data)
	}
	want := nats.Header{HeaderContentType: {ContentTypeEvent}, headerMsgID: {outcome.ID}, headerTraceParent: {"t"}}
	if !maps.EqualFunc(reply.Header, want, slices.Equal) {
		t.Errorf("the reply to a request has the headers %v, want %v", reply.Header, want)
	}
	reply = b.requestReply(b.ns.In(BookingRequested, "room"), "{", headerTraceParent, "t")
	var dead DeadLetterReply
	if err := json.Unmarshal(reply.Data, &dead); err != nil || dead.Error != ReasonMalformed || dead.Detail == "" {
		t.Errorf("%v: the reply to a malformed request is %s", err, reply.Data)
	}
	want = nats.Header{HeaderContentType: {ContentTypeJSON}, headerTraceParent: {"t"}}
	if !maps.EqualFunc(reply.Header, want, slices.Equal) {
		t.Errorf("the reply to a malformed request has the headers %v, want %v", reply.Header, want)
	}
	reply = b.requestReply(b.ns.In(BookingRequested, "room"), keyed("better"), "Traceparent", "t")
	if got := reply.Header.Get(headerTraceParent); got != "t" {
		t.Errorf("the reply to a request with the header Traceparent has the traceparent %q", got)
	}
	reply = b.requestReply(b.ns.In(BookingRequested, "room"), "{", headerTraceParent, strings.Repeat("t", traceParentMax+1))
	if reply.Header.Get(headerTraceParent) != "" {
		t.Errorf("the reply repeats a traceparent that is too long")
	}
	long := inboxPrefix + strings.Repeat("x", inboxMax)
	for inbox, want := range map[string]string{
		long: "", long[:inboxMax]: long[:inboxMax],
		"_INBOX.x.y": "_INBOX.x.y", "_INBOX.>": "", "holdfast.in.x": "", "$JS.API.STREAM.DELETE.X": "", "_INBOX.a b": "", "": "",
	} {
		if got := replyTo(nats.Header{HeaderReplyTo: {inbox}}); got != want {
			t.Errorf("reply to %q goes to %q, want %q", inbox, got, want)
		}
	}
}

// TestReply_InboxTooLongForServer_EventsGoOn publishes an event whose inbox exceeds the server's control
// line, and then another one. A worker that replies to such an inbox loses its connection for good.
func TestReply_InboxTooLongForServer_EventsGoOn(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	header := nats.Header{HeaderReplyTo: {inboxPrefix + strings.Repeat("x", 8<<10)}}
	b.publish(b.ns.In(BookingRequested, "room"), header, keyed("long"))
	b.await("the outcome", func() bool { return len(b.out) == 1 })
	b.awaitIdle(ConsumerRequests)
	b.requestReply(b.ns.In(BookingRequested, "room"), keyed("next"))
}

// TestLogDeadLetter_BothModes_NamesEvent checks that the log identifies a dead-lettered event, in
// both modes, even if it cannot be decoded.
func TestLogDeadLetter_BothModes_NamesEvent(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	b.publish(b.ns.In(BookingRequested, "room"), nil, envelopeOf(BookingRequested, "e1", `{"resource_id":"room"}`))
	b.publish(b.ns.In(BookingRequested, "room"), nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"e2"}, "ce-source": {"/binary"},
		"ce-type": {"holdfast.booking.requested.v1"},
	}, `no JSON`)
	stacktest.Eventually(t, "the dead letters to be logged", func() bool { return len(b.logged.with(t, "event dead-lettered")) == 2 })
	got := make(map[any]string)
	for _, line := range b.logged.with(t, "event dead-lettered") {
		got[line["event_id"]] = fmt.Sprint(line["source"], " ", line["resource_id"], " ", line["reason"])
	}
	if len(got) != 2 || got["e1"] != "/s room malformed" || got["e2"] != "/binary room malformed" {
		t.Errorf("logged %v", got)
	}
}
