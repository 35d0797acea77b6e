package holds_test

import (
	"fmt"
	"testing"
	"time"

	"holdfast/internal/holds"
)

// TestRecordsOfOtherVersions has a record in Redis as the first version has written it, and looks at
// one that is written now: workers of both may be at work, and a hold must end with each.
func TestRecordsOfOtherVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setInventory(t, "room", holds.Asked{}, 1)
	request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k", Metadata: []byte(`{"a":"b c"}`)}
	hold := created(t, w.place(t, request)[0])
	if got := brief(w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, PaymentStarted: true})); got != holds.EventHoldExtended {
		t.Fatal(got)
	}
	records := holds.Key(w.namespace, "room", "records")
	first := fmt.Sprintf(`held %d %d 1 0 - ana k stock {} {"a":"b c"}`, hold.ExpiresAt.UnixMilli(), hold.CreatedAt.UnixMilli())
	if now := w.client.HGet(t.Context(), records, hold.HoldID.UUID).Val(); now != first {
		t.Errorf("a hold is written\n\t%s\nand the first version reads\n\t%s", now, first)
	}
	w.client.HSet(t.Context(), records, hold.HoldID.UUID, first)
	w.pass(t, w.policy.HoldTTL+time.Second)
	if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lapsed := w.takeAnnounced(); len(lapsed) != 1 || lapsed[0].Hold != hold.HoldID {
		t.Errorf("lapsed: %+v", lapsed)
	}
	w.atRest(t, "room")
}
