package locking

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Lease says after how long a lock on so many keys ends by itself.
type Lease func(keys int) time.Duration

// FixedLease returns the same lease for all.
func FixedLease(d time.Duration) Lease {
	return func(int) time.Duration { return d }
}

// Classes are the classes by number of keys in which locks are measured, smallest first.
var Classes = []string{"1", "2-7", "8-30", "31+"}

// classMax is the most keys of each class but the last.
var classMax = []int{1, 7, 30}

func classOf(keys int) int {
	i, _ := slices.BinarySearch(classMax, keys)
	return i
}

// Durations is a histogram: Counts[i] is how many took at most Bounds[i] seconds and more than
// Bounds[i-1]; the last count, one more than there are bounds, is of those that took longer.
type Durations struct {
	Bounds []float64
	Counts []float64
}

// Total returns how many there are.
func (d Durations) Total() float64 {
	total := 0.0
	for _, n := range d.Counts {
		total += n
	}
	return total
}

// Quantile returns the time within which the part q was done, evenly spread within each bound;
// the last bound for what took longer, 0 for no durations.
func (d Durations) Quantile(q float64) time.Duration {
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

// SamplesMin is of how many critical sections a lease is measured at least.
const SamplesMin = 200

// A lease that is measured is leaseMargin times the time within which 99 of 100 critical
// sections were done, within these bounds.
const (
	leaseMargin = 10
	leaseMin    = 500 * time.Millisecond // pauses and retransmissions that no histogram of calm days shows
	leaseMax    = 30 * time.Second       // how long a dead worker's locks may stand in the way
)

// Suggestion is a lease with its evidence.
type Suggestion struct {
	Class   string
	Lease   time.Duration
	P99     time.Duration
	Samples int
}

// Suggest returns the lease that measured critical sections call for. ok is false for too few.
func Suggest(class string, sections Durations) (s Suggestion, ok bool) {
	p99 := sections.Quantile(0.99)
	lease := min(max(p99*leaseMargin, leaseMin), leaseMax)
	s = Suggestion{class, lease.Round(10 * time.Millisecond), p99.Round(10 * time.Microsecond), int(math.Round(sections.Total()))}
	return s, s.Samples >= SamplesMin
}

// AutoLease is a lease from measurement, for each class of its own. Sections that outlived
// their lease count with what they took, so a lease that is too short grows again.
type AutoLease struct {
	mu     sync.Mutex
	leases [4]time.Duration
	seen   [4]Durations // at the last Observe
	recent [4]Durations // since then, older ones with less weight
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
	return a.leases[classOf(keys)]
}

const (
	recentDecay   = 0.9 // weight that evidence keeps from one Observe to the next
	leaseChangeBy = 0.2 // part by which a lease must be off to be changed
)

// Observe takes the critical sections measured since the start, by class, and changes the
// leases that are off. It returns what it has changed, and from what.
func (a *AutoLease) Observe(sections map[string]Durations) (changed []Suggestion) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, class := range Classes {
		now, measured := sections[class]
		if !measured {
			continue
		}
		counts := make([]float64, len(now.Counts))
		for j, n := range now.Counts {
			counts[j] = n
			if len(a.seen[i].Counts) > 0 {
				counts[j] += recentDecay*a.recent[i].Counts[j] - a.seen[i].Counts[j]
			}
		}
		a.seen[i], a.recent[i] = now, Durations{now.Bounds, counts}
		suggestion, ok := Suggest(class, a.recent[i])
		if off := float64(suggestion.Lease-a.leases[i]) / float64(a.leases[i]); ok && math.Abs(off) > leaseChangeBy {
			a.leases[i] = suggestion.Lease
			changed = append(changed, suggestion)
		}
	}
	return changed
}
