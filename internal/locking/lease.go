package locking

import (
	"math"
	"slices"
	"sync"
	"time"
)

// LeaseFunc returns the lease of a lock on a number of keys: the time after which it ends unless it
// is released or renewed.
type LeaseFunc func(keys int) time.Duration

// FixedLease returns a LeaseFunc that returns d for all locks.
func FixedLease(d time.Duration) LeaseFunc {
	return func(int) time.Duration { return d }
}

// SizeClasses contains the size classes, by number of keys, in which locks are measured, smallest
// first.
var SizeClasses = []string{"1", "2-7", "8-30", "31+"}

// sizeClassMax is the maximum number of keys of each size class except the last.
var sizeClassMax = []int{1, 7, 30}

func sizeClassOf(keys int) int {
	i, _ := slices.BinarySearch(sizeClassMax, keys)
	return i
}

// Histogram counts durations. Counts[i] is the number of durations that are greater than
// Bounds[i-1] and at most Bounds[i] seconds. Counts has one element more than Bounds, for the
// durations above all bounds.
type Histogram struct {
	Bounds []float64
	Counts []float64
}

// Total returns the number of durations.
func (d Histogram) Total() float64 {
	total := 0.0
	for _, n := range d.Counts {
		total += n
	}
	return total
}

// Quantile returns the q-quantile, for q from 0 to 1. It interpolates linearly between two bounds.
// It returns the last bound for a quantile above it, and 0 for an empty histogram.
func (d Histogram) Quantile(q float64) time.Duration {
	rank, below, low := q*d.Total(), 0.0, 0.0
	if rank == 0 {
		return 0
	}
	for i, bound := range d.Bounds {
		if n := d.Counts[i]; below+n >= rank {
			return seconds(low + (bound-low)*(rank-below)/n)
		}
		below += d.Counts[i]
		low = bound
	}
	return seconds(low)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// MinSamples is the minimum number of critical sections for a recommendation.
const MinSamples = 200

// A recommended lease is leaseMargin times the 99th percentile of the critical sections, within
// these bounds.
const (
	leaseMargin = 10
	leaseMin    = 500 * time.Millisecond // allows for pauses and retransmissions, which are too rare for the histogram
	leaseMax    = 30 * time.Second       // limits how long the locks of a dead worker block others
)

// Recommendation is a recommended lease with the measurement that it follows from.
type Recommendation struct {
	Class   string
	Lease   time.Duration
	P99     time.Duration
	Samples int
}

// RecommendLease returns the lease that follows from measured critical sections. ok is false when
// there are fewer than MinSamples.
func RecommendLease(class string, sections Histogram) (s Recommendation, ok bool) {
	p99 := sections.Quantile(0.99)
	lease := min(max(p99*leaseMargin, leaseMin), leaseMax)
	s = Recommendation{
		Class: class, Lease: lease.Round(10 * time.Millisecond), P99: p99.Round(10 * time.Microsecond),
		Samples: int(math.Round(sections.Total())),
	}
	return s, s.Samples >= MinSamples
}

// AutoLease measures the lease of each size class. A critical section that exceeds its lease counts
// with its full duration, so a lease that is too short becomes longer. It is safe for concurrent
// use.
type AutoLease struct {
	mu       sync.Mutex
	leases   [4]time.Duration
	observed [4]Histogram // argument of the last Observe
	recent   [4]Histogram // sum of the observations, where older ones have less weight
}

// NewAutoLease returns an AutoLease that uses initial until it has enough samples.
func NewAutoLease(initial time.Duration) *AutoLease {
	a := new(AutoLease)
	for i := range a.leases {
		a.leases[i] = initial
	}
	return a
}

// Lease returns the current lease for a number of keys. It is a LeaseFunc.
func (a *AutoLease) Lease(keys int) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[sizeClassOf(keys)]
}

const (
	recentDecay   = 0.9 // factor for the weight of older samples at each Observe
	leaseChangeBy = 0.2 // minimum relative difference for which a lease is changed
)

// Observe takes the critical sections measured since the start of the process, by size class. It
// changes each lease that differs from its recommendation by more than leaseChangeBy. It returns
// the recommendations that it has applied.
func (a *AutoLease) Observe(sections map[string]Histogram) (changed []Recommendation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, class := range SizeClasses {
		now, measured := sections[class]
		if !measured {
			continue
		}
		counts := make([]float64, len(now.Counts))
		for j, n := range now.Counts {
			counts[j] = n
			if len(a.observed[i].Counts) > 0 {
				counts[j] += recentDecay*a.recent[i].Counts[j] - a.observed[i].Counts[j]
			}
		}
		a.observed[i], a.recent[i] = now, Histogram{now.Bounds, counts}
		recommendation, ok := RecommendLease(class, a.recent[i])
		if off := float64(recommendation.Lease-a.leases[i]) / float64(a.leases[i]); ok && math.Abs(off) > leaseChangeBy {
			a.leases[i] = recommendation.Lease
			changed = append(changed, recommendation)
		}
	}
	return changed
}
