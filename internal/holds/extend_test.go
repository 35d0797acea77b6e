package holds_test

import (
	"testing"
	"time"

	"holdfast/internal/holds"
)

// TestExtend_DeadlineIsLaterAlready_KeepsDeadline requests a deadline that is earlier than the
// present one. The present one exceeds the lifetime since the policy was changed. The hold keeps
// it, and the outcome is hold.extended.
func TestExtend_DeadlineIsLaterAlready_KeepsDeadline(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", TTLSeconds: seconds(3600)})[0])
	w.setPolicy(t, func(p *holds.Policy) { p.HoldLifetimeMax = 30 * time.Minute })
	got, ok := w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, TTLSeconds: 60}).Data.(holds.HoldExtended)
	if !ok || got.ExpiresAt != hold.ExpiresAt {
		t.Errorf("%+v", got)
	}
	if got := brief(w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, TTLSeconds: 3601})); got != "hold.extension_rejected invalid_request" {
		t.Error(got)
	}
}
