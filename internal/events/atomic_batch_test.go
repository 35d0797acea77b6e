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
			number, batch := p.Next(c.outcomes)
			each := c.single
			if batch {
				batches++
				each = c.batch
			}
			p.Measured(each*time.Duration(number), number, batch)
		}
		if batches < c.least || batches > c.most {
			t.Errorf("%s: %d of %d in batches, want %d to %d", name, batches, times, c.least, c.most)
		}
	}
}

// TestPace_OthersPublishMeanwhile_KeepsToTheFasterWay measures times that are longer because of what others
// publish to the same stream: the first batches stand behind single messages, and later each single message
// stands behind a batch.
func TestPace_OthersPublishMeanwhile_KeepsToTheFasterWay(t *testing.T) {
	t.Parallel()
	const number = 256
	measured := func(p *Pace, single, quickest, batch time.Duration) (batches int) {
		for i := range 4 * paceTrialEvery {
			n, together := p.Next(number)
			each := single
			switch {
			case together:
				batches++
				each = batch
			case i%paceWindow == 0:
				each = quickest
			}
			p.Measured(each*time.Duration(n), n, together)
		}
		return batches
	}
	synced := NewPace()
	synced.Measured(number*200*time.Microsecond, number, false)
	for range paceWindow - 1 {
		if n, together := synced.Next(number); n != number || !together {
			t.Fatalf("%d messages, in a batch: %t", n, together)
		}
		synced.Measured(number*700*time.Microsecond, number, true)
	}
	if batches := measured(synced, 400*time.Microsecond, 400*time.Microsecond, 20*time.Microsecond); batches < 3*paceTrialEvery {
		t.Errorf("a server that syncs: %d batches", batches)
	}
	unsynced := NewPace()
	unsynced.Measured(number*90*time.Microsecond, number, false) // a moment when the machine was busy
	unsynced.Measured(number*10*time.Microsecond, number, false)
	if batches := measured(unsynced, 90*time.Microsecond, 10*time.Microsecond, 30*time.Microsecond); batches > 0 {
		t.Errorf("a server that does not sync: %d batches, of which each takes longer than its messages", batches)
	}
}

// TestPace_Trial_IsSmall stores few messages one by one where batches are faster: each may need a sync.
func TestPace_Trial_IsSmall(t *testing.T) {
	t.Parallel()
	p := NewPace()
	p.Measured(BatchMax*time.Millisecond, BatchMax, false)
	for range paceTrialEvery - 1 {
		n, together := p.Next(BatchMax)
		if n != BatchMax || !together {
			t.Fatalf("%d messages, in a batch: %t", n, together)
		}
		p.Measured(time.Millisecond, n, together)
	}
	if n, together := p.Next(BatchMax); n != atomicMin || together {
		t.Errorf("a trial of %d messages, in a batch: %t", n, together)
	}
}
