package events

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// recreateInboundStream deletes the inbound stream and creates it again.
func (b *harness) recreateInboundStream() {
	b.t.Helper()
	if err := b.js.DeleteStream(b.t.Context(), b.ns.InStream()); err != nil {
		b.t.Fatal(err)
	}
	if err := Setup(b.t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		b.t.Fatal(err)
	}
}

// TestConsumer_StreamRecreated_EventsAreDistinct deletes the inbound stream under workers, and creates it again: its first event is
// another than the first one of before.
func TestConsumer_StreamRecreated_EventsAreDistinct(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	t.Log("the dead letter of the first event is stored each time")
	subject := b.ns.In(BookingRequested, "room")
	for i := range 2 {
		b.publish(subject, nil, "not JSON")
		b.await("the dead letter", func() bool { return len(b.dlq) == i+1 })
		b.recreateInboundStream()
	}

	t.Log("an event that fails counts from one")
	b.setFault(func(string, int) error { return postgres.WrapError(&pgconn.PgError{Code: "22P05"}) })
	b.publish(subject, nil, keyed("before"))
	stacktest.Eventually(t, "a failure", func() bool { return b.decidedCount("before") > 0 })
	failed := b.decidedCount("before")
	b.recreateInboundStream()
	b.publish(subject, nil, keyed("since"))
	b.await("its dead letter", func() bool {
		return slices.ContainsFunc(b.dlq, func(m jetstream.Msg) bool { return string(m.Data()) == keyed("since") })
	})
	if got := b.decidedCount("since"); got < failuresMax {
		t.Errorf("it died of %d failures, and another event of %d, want %d of its own", got, failed, failuresMax)
	}
	b.mu.Lock()
	var ids []string
	for _, m := range b.dlq {
		ids = append(ids, m.Headers().Get(headerMsgID))
	}
	b.mu.Unlock()
	if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("message ids %v", ids)
	}

	t.Log("an event of the stream before, that comes to its end now, has an id of its own")
	stream, err := b.js.Stream(t.Context(), b.ns.InStream())
	if err != nil {
		t.Fatal(err)
	}
	created := stream.CachedInfo().Created
	delivered := func(stored time.Time) string {
		meta := &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: 1}, Timestamp: stored}
		d := &delivery{meta: meta, fetched: time.Now()}
		id, err := b.workers[0].deadLetterID(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if before, now := delivered(created.Add(-time.Hour)), delivered(created.Add(time.Hour)); before == now || now != b.ns.deadLetterID(created, 1) {
		t.Errorf("%s, and %s of the stream that exists", before, now)
	}
}
