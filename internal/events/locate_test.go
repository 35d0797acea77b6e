package events

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// TestInventorySet_StreamRecreated_IsLater publishes inventory.set events to a stream, and to the next
// one of the same name: each is decided with its sequence and the creation of its own stream.
func TestInventorySet_StreamRecreated_IsLater(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	created := func() time.Time {
		stream, err := b.js.Stream(t.Context(), b.ns.InStream())
		if err != nil {
			t.Fatal(err)
		}
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
	if err := Setup(t.Context(), b.js, b.ns, Retention{HoldLifetime: 2 * time.Hour}, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	set(3)
	b.await("the third outcome", func() bool { return len(b.out) == 3 })
	want = append(want, holds.StreamPosition{StreamCreatedAt: created(), Seq: 1})

	b.echo.mu.Lock()
	defer b.echo.mu.Unlock()
	seen := make(map[int64]holds.StreamPosition) // by capacity; an event may be delivered again
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
