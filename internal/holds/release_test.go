package holds_test

import (
	"testing"

	"github.com/google/uuid"

	"holdfast/internal/holds"
)

// TestRelease_Withdrawn_RequestDecidedAgain withdraws a hold that was not announced. Its slot is free, and its request
// gets another answer, which withdrawing the same hold once more leaves alone.
func TestRelease_Withdrawn_RequestDecidedAgain(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	request := holds.PlaceRequest{EventID: uuid.NewString(), Resource: "room", RequestKey: "k", User: "ana"}
	withdrawn := created(t, w.place(t, request)[0])
	withdraw := func() {
		t.Helper()
		r := holds.ReleaseRequest{EventID: request.EventID, Hold: withdrawn.HoldID, Resource: "room", Withdraw: true}
		if result := w.service.Release(t.Context(), []holds.ReleaseRequest{r})[0]; result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	withdraw()
	w.assertNothingHeld(t, "room")
	again := created(t, w.place(t, request)[0])
	if again.HoldID == withdrawn.HoldID || again.Replayed {
		t.Fatalf("the request got the withdrawn hold: %+v", again)
	}
	withdraw()
	request.EventID = uuid.NewString()
	if same := created(t, w.place(t, request)[0]); same.HoldID != again.HoldID || !same.Replayed {
		t.Errorf("another event with the key of hold %s got %+v", again.HoldID, same)
	}
}
