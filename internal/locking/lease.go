package locking

import (
	"math"
	"slices"
	"sync"
	"time"
)

// LeaseFunc says after how long a lock on so many keys ends by itself.
type LeaseFunc func(keys int) time.Duration

// FixedLease returns the same lease for all.
func FixedLease(d time.Duration) LeaseFunc {
	return func(int) time.Duration { return d }
}

// SizeClasses are the classes by number of keys in which locks are measured, smallest first.
var SizeClasses = []string{"1", "2-7", "8-30", "31+"}

// sizeClassMax is the most keys of each class but the last.
var sizeClassMax = []int{1, 7, 30}

func sizeClassOf(keys int) int {
	i, _ := slices.BinarySearch(sizeClassMax, keys)
	return i
}

// Histogram is a histogram: Counts[i] is how many took at most Bounds[i] seconds and more than
// Bounds[i-1]; the last count, one more than there are bounds, is of those that took longer.
type Histogram struct {
	Bounds []float64
	Counts []float64
}

// Total returns how many there are.
func (d Histogram) Total() float64 {
	total := 0.0
	for _, n := range d.Counts {
		total += n
	}
	return total
}

// Quantile returns the time within which the part q was done, evenly spread within each bound;
// the last bound for what took longer, 0 for no durations.
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

// MinSamples is of how many critical sections a lease is measured at least.
const MinSamples = 200

// A lease that is measured is leaseMargin times the time within which 99 of 100 critical
// sections were done, within these bounds.
const (
	leaseMargin = 10
	leaseMin    = 500 * time.Millisecond // pauses and retransmissions that no histogram of calm days shows
	leaseMax    = 30 * time.Second       // how long a dead worker's locks may stand in the way
)

// Recommendation is a lease with its evidence.
type Recommendation struct {
	Class   string
	Lease   time.Duration
	P99     time.Duration
	Samples int
}

// RecommendLease returns the lease that measured critical sections call for. ok is false for too few.
func RecommendLease(class string, sections Histogram) (s Recommendation, ok bool) {
	p99 := sections.Quantile(0.99)
	lease := min(max(p99*leaseMargin, leaseMin), leaseMax)
	s = Recommendation{class, lease.Round(10 * time.Millisecond), p99.Round(10 * time.Microsecond), int(math.Round(sections.Total()))}
	return s, s.Samples >= MinSamples
}

// AutoLease is a lease from measurement, for each class of its own. Sections that outlived
// their lease count with what they took, so a lease that is too short grows again.
type AutoLease struct {
	mu       sync.Mutex
	leases   [4]time.Duration
	observed [4]Histogram // at the last Observe
	recent   [4]Histogram // since then, older ones with less weight
}

// NewAutoLease returns an AutoLease that is initial until there is evidence.
func NewAutoLease(initial time.Duration) *AutoLease {
	a := new(AutoLease)
	for i := range a.leases {
		a.leases[i] = initial
	}
	return a
}

// Lease is the Lease of now.
func (a *AutoLease) Lease(keys int) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leases[sizeClassOf(keys)]
}

const (
	recentDecay   = 0.9 // weight that evidence keeps from one Observe to the next
	leaseChangeBy = 0.2 // part by which a lease must be off to be changed
)

// Observe takes the critical sections measured since the start, by class, and changes the
// leases that are off. It returns what it has changed, and from what.
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
