package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// apartMax is how far the clocks of the servers may be apart. Holds lapse by Redis', events are
// stored by NATS', and what one of them tells is compared with what another does when holds are
// rebuilt or differences are looked into.
const apartMax = 250 * time.Millisecond

// clockTries is how often each clock is read: the quickest answer tells most.
const clockTries = 5

// clock is what is known of a server's clock.
type clock struct {
	of     string
	offset time.Duration // before (negative) or after the clock of this process
	blur   time.Duration // by so much it may be wrong
	err    error         // why nothing is known
}

// readClock reads a server's clock by read. The server has read it at some moment of the round
// trip: the middle is assumed, and half of the round trip is what that may be wrong by.
func readClock(ctx context.Context, of string, read func(context.Context) (time.Time, error)) clock {
	best := clock{of: of}
	for try := range clockTries {
		sent := time.Now()
		serverTime, err := read(ctx)
		took := time.Since(sent)
		switch {
		case err != nil:
			return clock{of: of, err: err}
		case try == 0 || took/2 < best.blur:
			best.offset, best.blur = serverTime.Sub(sent.Add(took/2)), took/2
		}
	}
	return best
}

// clocks compares what is known of the clocks.
func (r *report) clocks(all []clock) {
	const name, fix = "clocks", "mend what is above first, and look again"
	var known []clock
	var missing []string
	for _, c := range all {
		if c.err == nil && c.of != "" {
			known = append(known, c)
		} else if c.of != "" {
			missing = append(missing, fmt.Sprintf("%s: %v", c.of, c.err))
		}
	}
	if len(known) < 2 {
		r.unknown(name, strings.Join(append([]string{"fewer than two clocks could be read"}, missing...), "; "), fix)
		return
	}
	var found string
	surest, unclear := -time.Hour, false
	for i, a := range known {
		for _, b := range known[:i] {
			apart, blur := (a.offset - b.offset).Abs(), a.blur+b.blur
			if apart-blur > surest {
				surest = apart - blur
				found = fmt.Sprintf("%s and %s are %s apart (give or take %s)", b.of, a.of, round(apart), round(blur))
			}
			unclear = unclear || apart+blur > apartMax
		}
	}
	if len(missing) > 0 {
		found += "; not known: " + strings.Join(missing, "; ")
	}
	switch {
	case surest > apartMax:
		r.fail(name, found, "times in events, streams and tables cannot be compared: holds that are rebuilt, or looked into, may be taken for older or younger than they are",
			"let all servers follow the same time: chronyc tracking (or timedatectl) on each shows which does not")
	case len(missing) > 0:
		r.unknown(name, found, fix)
	case unclear:
		r.unknown(name, found, "look again from nearer to the servers")
	default:
		r.ok(name, found)
	}
}

// round shortens a duration for people.
func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
