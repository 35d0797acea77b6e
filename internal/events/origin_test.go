package events

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// TestConsumer_StreamRecreated_EventsAreDistinct deletes the inbound stream while workers run, and
// recreates it. Its first event is another one than the first event of the deleted stream.
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

	t.Log("the failures of an event are counted from one")
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
		t.Errorf("dead-lettered after %d failures, another event had %d, want %d of its own", got, failed, failuresMax)
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

	t.Log("an event of the deleted stream that is dead-lettered now has an id of its own")
	stream := streamOf(t, b.js, b.ns.InStream())
	created := stream.CachedInfo().Created
	delivered := func(stored time.Time) string {
		meta := &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: 1}, Timestamp: stored}
		d := &delivery{meta: meta, fetched: time.Now()}
		id, err := b.workers[0].deadLetterID(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if before, now := delivered(created.Add(-time.Hour)), delivered(created.Add(time.Hour)); before == now || now != b.ns.deadLetterID(created, 1) {
		t.Errorf("%s in the deleted stream, %s in the current one", before, now)
	}
}

// TestInventorySet_StreamRecreated_IsLater publishes inventory.set events to a stream, and to the
// next stream of the same name. Each is decided with its sequence and the creation of its own
// stream.
func TestInventorySet_StreamRecreated_IsLater(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	created := func() time.Time {
		stream := streamOf(t, b.js, b.ns.InStream())
		return stream.CachedInfo().Created
	}
	set := func(capacity int) {
		b.publish(b.ns.In(InventorySet, "room"), nil, envelopeOf(InventorySet, fmt.Sprint("set", capacity),
			fmt.Sprintf(`{"resource_id":"room","capacity":%d}`, capacity)))
	}
	var want []holds.StreamPosition
	set(1)
	set(2)
	b.await("two outcomes", func() bool { return len(b.out) == 2 })
	want = append(want, holds.StreamPosition{StreamCreatedAt: created(), Seq: 1}, holds.StreamPosition{StreamCreatedAt: created(), Seq: 2})

	if err := b.js.DeleteStream(t.Context(), b.ns.InStream()); err != nil {
		t.Fatal(err)
	}
	setup(t, b.js, b.ns)
	set(3)
	b.await("the third outcome", func() bool { return len(b.out) == 3 })
	want = append(want, holds.StreamPosition{StreamCreatedAt: created(), Seq: 1})

	b.echo.mu.Lock()
	defer b.echo.mu.Unlock()
	seen := make(map[int64]holds.StreamPosition) // by capacity; an event may be decided twice
	for _, r := range b.sets {
		seen[r.Capacity] = r.Position
	}
	for i, stored := range want {
		got := seen[int64(i+1)]
		if !got.StreamCreatedAt.Equal(stored.StreamCreatedAt) || got.Seq != stored.Seq || got.At.IsZero() {
			t.Errorf("event %d is decided as %+v, want %+v", i+1, got, stored)
		}
	}
}

// TestOrigin_StreamUnreadable_IsAnOutageOfNATS deletes the streams that a worker reads to identify an event.
func TestOrigin_StreamUnreadable_IsAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	c, d := b.fetchRequest("k")
	for _, name := range []string{b.ns.InStream(), b.ns.OutStream()} {
		if err := b.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	_, unidentified := c.deadLetterID(t.Context(), d)
	_, unsearched := c.hasOutcome(t.Context(), d)
	for _, err := range []error{unidentified, unsearched} {
		if err == nil || serverOf(err) != serverNATS {
			t.Errorf("%v is an error of %s", err, serverOf(err))
		}
	}
}
