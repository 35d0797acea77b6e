package holds_test

import (
	"fmt"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// TestPlace_BatchExceedsScriptLimit_AnswersAll makes more requests for one resource in one call
// than a script decides at once, and some for another resource of the same partition. All are
// answered, and the counts match the granted holds.
func TestPlace_BatchExceedsScriptLimit_AnswersAll(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	const total = 2500
	other := ""
	for i := 0; other == ""; i++ {
		if name := fmt.Sprint("r", i); record.Partition(name) == record.Partition("hot") {
			other = name
		}
	}
	w.setInventory(t, "hot", holds.SlotSelection{}, total-10)
	w.setInventory(t, other, holds.SlotSelection{}, 1)
	requests := []holds.PlaceRequest{{Resource: other, User: "ana"}}
	for i := range total {
		requests = append(requests, holds.PlaceRequest{Resource: "hot", User: fmt.Sprint("user-", i)})
	}
	requests = append(requests, holds.PlaceRequest{Resource: other, User: "ben"})
	outcomes := w.place(t, requests...)
	for i, o := range outcomes {
		want := holds.EventHoldCreated
		if i > total-10 { // the first request is for the other resource
			want = holds.EventHoldRejected + " " + holds.ReasonSoldOut
		}
		if brief(o) != want {
			t.Fatalf("request %d: %s, want %s", i, brief(o), want)
		}
	}
	if slot := w.available(t, "hot", holds.SlotSelection{})[0]; slot.Held != total-10 || slot.Available != 0 {
		t.Errorf("%d holds were granted: %+v", total-10, slot)
	}
	for name, want := range map[string]int64{"records": total - 10, "due": total - 10} {
		key := holds.Key(w.namespace, "hot", name)
		if got := w.client.HLen(t.Context(), key).Val() + w.client.ZCard(t.Context(), key).Val(); got != want {
			t.Errorf("%s has %d holds, want %d", name, got, want)
		}
	}
}
