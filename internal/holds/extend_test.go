package holds_test

import (
	"testing"
	"time"

	"holdfast/internal/holds"
)

// TestExtend_DeadlineIsLaterAlready_KeepsDeadline asks for less than a hold has, which is more than it could get
// since the policy was changed: what it was given lasts, and it is not told otherwise.
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
