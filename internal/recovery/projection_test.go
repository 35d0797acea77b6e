package recovery

import (
	"slices"
	"testing"
)

// TestGrants_AnyOrder_SameLast adds grants in each order: the second was made while the clock was ahead, and the last
// two were not stored in their order. The grants after a hold are the same.
func TestGrants_AnyOrder_SameLast(t *testing.T) {
	t.Parallel()
	all := []grant{{at: 10, storedAt: 10}, {at: 90, storedAt: 12}, {at: 20, storedAt: 21}, {at: 19, storedAt: 22}}
	var orders func(before, left []grant)
	orders = func(before, left []grant) {
		if len(left) == 0 {
			var found grants
			for _, one := range before {
				found.add(one)
			}
			for _, c := range []struct {
				hold holdFacts
				last int64
			}{
				{holdFacts{PublishedAt: 11, FirstDeadline: 8000}, 90},
				{holdFacts{PublishedAt: 13, FirstDeadline: 8000}, 20},
				{holdFacts{PublishedAt: 22, FirstDeadline: 8000}, 19},
				{holdFacts{PublishedAt: 23, FirstDeadline: 8000}, 0},
				{holdFacts{PublishedAt: 23, FirstDeadline: 23}, 90},   // published after its deadline
				{holdFacts{PublishedAt: 23, FirstDeadline: 1023}, 90}, // or perhaps, by clocks that differ
				{holdFacts{FirstDeadline: 8000}, 90},                  // its hold.created is missing
			} {
				if last := found.lastSince(&projectedHold{holdFacts: c.hold}); last != c.last {
					t.Errorf("order %v, hold published at %d: last grant %d, want %d", before, c.hold.PublishedAt, last, c.last)
				}
			}
		}
		for i, one := range left {
			orders(append(slices.Clone(before), one), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	orders(nil, all)
}
