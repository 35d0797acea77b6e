package store_test

import (
	"fmt"
	"math"
	"testing"

	"holdfast/internal/holds"
)

// TestResources_SumsBeyondInt64_ListsTheLargest lists a resource whose capacities, each of them
// valid, have a sum beyond 64 bits.
func TestResources_SumsBeyondInt64_ListsTheLargest(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "unlimited", math.MaxInt64, "n1", "n2")
	s.set(t, "room", 3, "n1", "n2")
	got, err := s.Resources(t.Context(), "", "", 10)
	want := []holds.ResourceRow{
		{ResourceID: "room", Slots: 2, Capacity: 6},
		{ResourceID: "unlimited", Slots: 2, Capacity: math.MaxInt64},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("resources %v %v, want %v", got, err, want)
	}
}
