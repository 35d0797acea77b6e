package store_test

import (
	"fmt"
	"math"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/store"
)

// TestResources_SumsBeyondInt64_ListsTheLargest lists a resource whose capacities, each of them
// valid, have a sum beyond 64 bits.
func TestResources_SumsBeyondInt64_ListsTheLargest(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "unlimited", math.MaxInt64, "n1", "n2")
	s.set(t, "room", 3, "n1", "n2")
	got, _, err := s.Resources(t.Context(), "", "", 10)
	want := []holds.ResourceRow{
		{ResourceID: "room", Slots: 2, Capacity: 6},
		{ResourceID: "unlimited", Slots: 2, Capacity: math.MaxInt64},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("resources %v %v, want %v", got, err, want)
	}
}

// TestResources_PrefixOfNone_ReadsInBoundedCalls lists by prefixes that few, or none, of many resources have. It begins at the
// prefix, and a call that has read as many resources as it may says where to continue.
func TestResources_PrefixOfNone_ReadsInBoundedCalls(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, fmt.Sprintf("INSERT INTO inventory (resource_id, slot, capacity) SELECT 'r' || lpad(n::text, 6, '0'), 's', 1 "+
		"FROM generate_series(1, %d) AS n", store.ResourcesRead+1))
	s.set(t, "z", 1, "s")
	all, last := store.ResourcesRead+2, fmt.Sprintf("r%06d", store.ResourcesRead)
	for _, step := range []struct {
		prefix, after string
		found         int
		next          string
	}{
		{"r", "", 10, ""},
		{"z", "", 1, ""},
		{"zz", "", 0, ""},
		{"a", "", 0, last},
		{"a", last, 0, ""},
		{"r", last, 1, ""},
	} {
		page, next, err := s.Resources(t.Context(), step.prefix, step.after, 10)
		if err != nil || len(page) != step.found || next != step.next {
			t.Errorf("prefix %q after %q: %d resources, then %q, %v; want %d, then %q", step.prefix, step.after, len(page), next, err,
				step.found, step.next)
		}
	}
	page, next, err := s.Resources(t.Context(), "", "", all)
	if err != nil || len(page) != store.ResourcesRead || next != last {
		t.Errorf("all: %d resources, then %q, %v; want %d, then %q", len(page), next, err, store.ResourcesRead, last)
	}
}
