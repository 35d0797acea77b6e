package record

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strings"
)

// PartitionSet is a set of partitions: bit p stands for partition p.
type PartitionSet uint64

// AllPartitions contains every partition.
const AllPartitions = ^PartitionSet(0) >> (64 - Partitions)

// PartitionSetOf returns the set of some partitions.
func PartitionSetOf(partitions ...int) (set PartitionSet) {
	for _, p := range partitions {
		set.Add(p)
	}
	return set
}

// Has reports whether the set contains a partition.
func (s PartitionSet) Has(p int) bool { return s>>p&1 == 1 }

// Add adds a partition to the set.
func (s *PartitionSet) Add(p int) { *s |= 1 << p }

// Len returns the number of partitions in the set.
func (s PartitionSet) Len() int { return bits.OnesCount64(uint64(s)) }

// Each yields the partitions of the set in ascending order.
func (s PartitionSet) Each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(bits.TrailingZeros64(uint64(s))) {
				return
			}
		}
	}
}

// Sorted returns the partitions of the set in ascending order.
func (s PartitionSet) Sorted() []int { return slices.AppendSeq(make([]int, 0, s.Len()), s.Each()) }

// String describes the set for operators: "all partitions", "partition 7" or "partitions 0-20, 42".
func (s PartitionSet) String() string {
	switch {
	case s == AllPartitions:
		return "all partitions"
	case s.Len() == 1:
		return fmt.Sprintf("partition %d", bits.TrailingZeros64(uint64(s)))
	}
	var runs []string
	for p := 0; p < Partitions; p++ {
		from := p
		for p < Partitions && s.Has(p) {
			p++
		}
		switch p - from {
		case 0:
		case 1:
			runs = append(runs, fmt.Sprint(from))
		default:
			runs = append(runs, fmt.Sprintf("%d-%d", from, p-1))
		}
	}
	return "partitions " + strings.Join(runs, ", ")
}
