package holds_test

import (
	"reflect"
	"testing"

	"github.com/google/uuid"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestCancel_HoldWithoutReservation_AnswerHasIts cancels the reservation of a hold that has none. The refusal has what the
// hold has, also when the event is delivered again after Redis has forgotten the hold.
func TestCancel_HoldWithoutReservation_AnswerHasIts(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", Metadata: []byte(`{"a":1}`)})[0])
	cancel := holds.CancelRequest{EventID: uuid.NewString(), Hold: hold.HoldID}
	for range 2 {
		refused, is := w.cancelReservation(t, cancel).Data.(holds.CancelRejected)
		if !is || refused.Reason != holds.ReasonUnknownReservation || !reflect.DeepEqual(refused.HoldData, hold.HoldData) {
			t.Errorf("refused with %+v, want %s and %+v", refused, holds.ReasonUnknownReservation, hold.HoldData)
		}
		w.release(t, holds.ReleaseRequest{Hold: hold.HoldID})
		w.client.HDel(t.Context(), holds.Key(w.namespace, "room", "records"), hold.HoldID.UUID)
	}
}

// TestCancel_RecordOfOtherCorrupt_AnswerHasIts cancels the reservations of two holds at once, neither of which has one. The
// record of the first cannot be read, and the refusal for the other has what that hold has.
func TestCancel_RecordOfOtherCorrupt_AnswerHasIts(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	first, other := w.onlyHold(t, "room", 60), w.onlyHold(t, "hall", 60)
	records := holds.Key(w.namespace, "room", "records")
	stacktest.Must(t, w.client.HSet(t.Context(), records, first.HoldID.UUID, "rubbish").Err())
	got := w.service.Cancel(t.Context(), []holds.CancelRequest{
		{EventID: uuid.NewString(), Hold: first.HoldID}, {EventID: uuid.NewString(), Hold: other.HoldID},
	})[1]
	stacktest.Must(t, got.Err)
	if data, ok := got.Outcome.Data.(holds.CancelRejected); !ok || data.RequestKey != other.RequestKey || data.UserID != other.UserID {
		t.Errorf("%+v, want the request key and the user of %+v", got.Outcome.Data, other)
	}
}
