package recovery

import "time"

// moment is a time by both clocks of the machine. The one by which Go compares times stands still while the machine
// is suspended. The wall clock goes on, but may be set back.
type moment struct{ monotonic, wall time.Time }

// momentAt returns the moment of a time that time.Now has returned.
func momentAt(t time.Time) moment { return moment{t, t.Round(0)} }

// since returns how long ago m was, by the clock by which it is longer.
func (m moment) since() time.Duration {
	now := time.Now()
	return max(now.Sub(m.monotonic), now.Round(0).Sub(m.wall))
}
