package events

import (
	"testing"
	"time"
)

// TestPace_AnyServer_TakesTheFasterWay chooses 1,000 times for servers of different speed.
func TestPace_AnyServer_TakesTheFasterWay(t *testing.T) {
	t.Parallel()
	const times = 1000
	for name, c := range map[string]struct {
		single, batch time.Duration // per outcome
		least, most   int           // choices of a batch
		outcomes      int
	}{
		"syncs":                          {200 * time.Microsecond, 20 * time.Microsecond, times - times/30, times - 1, 256},
		"does not sync":                  {10 * time.Microsecond, 20 * time.Microsecond, 0, 0, 256},
		"is slow, and slower in batches": {100 * time.Microsecond, 300 * time.Microsecond, 1, times / 30, 256},
		"syncs, few outcomes":            {200 * time.Microsecond, 20 * time.Microsecond, 0, 0, atomicMin - 1},
	} {
		p, batches := NewPace(), 0
		for range times {
			batch, each := p.Batches(c.outcomes), c.single
			if batch {
				batches++
				each = c.batch
			}
			p.Measured(each*time.Duration(c.outcomes), c.outcomes, batch)
		}
		if batches < c.least || batches > c.most {
			t.Errorf("%s: %d of %d in batches, want %d to %d", name, batches, times, c.least, c.most)
		}
	}
}
