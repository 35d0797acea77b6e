package record

import (
	"slices"
	"testing"
)

func TestPartitionSet_String_NamesRuns(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]PartitionSet{
		"all partitions":           AllPartitions,
		"partition 0":              PartitionSetOf(0),
		"partition 63":             PartitionSetOf(63),
		"partitions 0-2, 5, 62-63": PartitionSetOf(62, 0, 5, 1, 2, 63),
		"partitions 7, 9":          PartitionSetOf(7, 9),
	} {
		if got := set.String(); got != want {
			t.Errorf("set %v is %q, want %q", set.Sorted(), got, want)
		}
	}
	if got := PartitionSetOf(63, 4, 0, 4); !slices.Equal(got.Sorted(), []int{0, 4, 63}) || got.Len() != 3 || got.Has(1) {
		t.Errorf("set is %v", got.Sorted())
	}
	if n := AllPartitions.Len(); n != Partitions {
		t.Errorf("%d partitions, want %d", n, Partitions)
	}
}
