package holds_test

import (
	"fmt"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// TestPlace_BatchExceedsScriptLimit_AnswersAll has more ask for one resource in one call than a script can decide at once, and some for
// another of its partition: all are answered, and what is counted is what was granted.
func TestPlace_BatchExceedsScriptLimit_AnswersAll(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	const crowd = 2500
	beside := ""
	for i := 0; beside == ""; i++ {
		if name := fmt.Sprint("r", i); record.Partition(name) == record.Partition("hot") {
			beside = name
		}
	}
	w.setInventory(t, "hot", holds.SlotSelection{}, crowd-10)
	w.setInventory(t, beside, holds.SlotSelection{}, 1)
	requests := []holds.PlaceRequest{{Resource: beside, User: "ana"}}
	for i := range crowd {
		requests = append(requests, holds.PlaceRequest{Resource: "hot", User: fmt.Sprint("user-", i)})
	}
	requests = append(requests, holds.PlaceRequest{Resource: beside, User: "ben"})
	outcomes := w.place(t, requests...)
	for i, o := range outcomes {
		want := holds.EventHoldCreated
		if i > crowd-10 { // the first is for the other
			want = holds.EventHoldRejected + " " + holds.ReasonSoldOut
		}
		if brief(o) != want {
			t.Fatalf("request %d: %s, want %s", i, brief(o), want)
		}
	}
	if slot := w.available(t, "hot", holds.SlotSelection{})[0]; slot.Held != crowd-10 || slot.Available != 0 {
		t.Errorf("%d were granted: %+v", crowd-10, slot)
	}
	for name, want := range map[string]int64{"records": crowd - 10, "due": crowd - 10} {
		key := holds.Key(w.namespace, "hot", name)
		if got := w.client.HLen(t.Context(), key).Val() + w.client.ZCard(t.Context(), key).Val(); got != want {
			t.Errorf("%s has %d, want %d", name, got, want)
		}
	}
}
