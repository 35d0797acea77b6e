package preflight

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// apartMax is the largest allowed difference between the clocks of the servers. Holds expire by
// Redis' clock and events have times of NATS' clock; a rebuild and an audit compare times of
// different servers.
const apartMax = 250 * time.Millisecond

// clockTries is how often each clock is read. The fastest answer gives the most exact time.
const clockTries = 5

// clock is the measured clock of a server.
type clock struct {
	of     string
	offset time.Duration // behind (negative) or ahead of the clock of this process
	blur   time.Duration // maximum error of offset
	err    error         // why the clock could not be read
}

// readClock reads a server's clock by read. The server reads its clock at some moment of the round
// trip: readClock assumes the middle, so the maximum error is half of the round trip.
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

// clocks adds a check that compares the clocks.
func (r *report) clocks(all []clock) {
	const name, fix = "clocks", "fix the above first, and check again"
	var known []clock
	var missing []string
	for _, c := range all {
		if c.err == nil {
			known = append(known, c)
		} else {
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
				found = fmt.Sprintf("%s and %s differ by %s (give or take %s)", b.of, a.of, round(apart), round(blur))
			}
			unclear = unclear || apart+blur > apartMax
		}
	}
	if len(missing) > 0 {
		found += "; unknown: " + strings.Join(missing, "; ")
	}
	switch {
	case surest > apartMax:
		r.fail(name, found,
			"times of events, streams and tables cannot be compared: a rebuild or an audit may misjudge the age of a hold",
			"synchronize the clocks of all servers: chronyc tracking (or timedatectl) on each shows which one is off")
	case len(missing) > 0:
		r.unknown(name, found, fix)
	case unclear:
		r.unknown(name, found, "check again from a machine closer to the servers")
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
