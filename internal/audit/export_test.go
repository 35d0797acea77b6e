package audit

import (
	"time"

	"golang.org/x/time/rate"
)

// InGroups has an audit look at so few messages of the streams at a time.
func InGroups(o Options, messages uint64) Options {
	o.groupMessages = messages
	return o
}

// InspectRecordsMax is how many records a resource can have that is looked at in one step.
const InspectRecordsMax = inspectRecordsMax

// Pace sets how often a Reconciler keeps its lease, and how long it pauses between two rounds.
func (r *Reconciler) Pace(lease, pause time.Duration) { r.lease.every, r.pause = lease, pause }

// Exhaust takes all of a Reconciler's budget, and gives it no other.
func (r *Reconciler) Exhaust() {
	r.budget = rate.NewLimiter(1e-3, 1_000_000)
	r.budget.ReserveN(time.Now(), 1_000_000)
}

// QueryResources reads which resources Postgres has.
var QueryResources = queryResources
