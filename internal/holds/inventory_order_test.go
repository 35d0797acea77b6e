package holds_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
)

// TestSetInventory_ClockContradictsStream_StreamWins delivers two events of a stream in the wrong
// order, where the later event has the earlier time.
func TestSetInventory_ClockContradictsStream_StreamWins(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	now := time.Now()
	set := func(seq uint64, at time.Time, capacity int64) {
		t.Helper()
		r := w.service.SetInventory(t.Context(), holds.InventoryRequest{
			EventID: uuid.NewString(), Resource: "room", Capacity: capacity,
			Position: holds.StreamPosition{At: at, StreamCreatedAt: now.Add(-time.Hour), Seq: seq},
		})
		updated, is := r.Outcome.Data.(holds.InventoryUpdated)
		if r.Err != nil || !is || updated.Slots[0].Capacity != 2 {
			t.Errorf("event %d: %+v %v, want capacity 2", seq, r.Outcome.Data, r.Err)
		}
	}
	set(2, now.Add(-time.Second), 2)
	set(1, now, 1)
}
