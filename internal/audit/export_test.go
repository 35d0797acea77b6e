package audit

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// A test lets the lease of a repair end by removing its mark. By itself it must not end, however busy the machine is.
func init() { adjustLease = time.Hour }

// InGroups limits an audit to so many messages of the streams at a time.
func InGroups(o Options, messages uint64) Options {
	o.groupMessages = messages
	return o
}

// InspectRecordsMax is the largest number of records of a resource that is read in one step.
const InspectRecordsMax = inspectRecordsMax

// RepairRecordsMax is the largest number of records of a resource whose counters are repaired in one step.
const RepairRecordsMax = repairRecordsMax

// Pace sets how often a Reconciler renews its lease, and how long it pauses between two rounds.
func (r *Reconciler) Pace(lease, pause time.Duration) { r.lease.every, r.pause = lease, pause }

// OnWait calls f whenever a round may rest.
func (r *Reconciler) OnWait(f func()) {
	r.inspector.wait = func(ctx context.Context) error {
		f()
		return ctx.Err()
	}
}

// RestAfter returns for how long a round rests after some work.
func (r *Reconciler) RestAfter(worked time.Duration) time.Duration { return r.restAfter(worked) }

// Exhaust uses up a Reconciler's budget and prevents it from growing.
func (r *Reconciler) Exhaust() {
	r.budget = rate.NewLimiter(1e-3, 1_000_000)
	r.budget.ReserveN(time.Now(), 1_000_000)
}

// IsPast reports whether the slots of a hold, in JSON, are nights that were all over a day before a time.
var IsPast = isPast

// QueryResources is the query for the resources that Postgres has.
var QueryResources = query("resources")

// ErrNotMine is the error while another worker has the lease.
var ErrNotMine = errNotMine

// KeepLease returns what keeps a lease, and what makes it end and the next attempt due.
func KeepLease(leases Leases) (keep func(context.Context) error, expire func()) {
	l := &lease{leases: leases, every: time.Hour}
	return l.keep, func() { l.lastAttempt, l.until = time.Time{}, time.Now().Add(-time.Second) }
}

// RedisShare is the share of its time that a group has taken when Redis is read.
const RedisShare = redisShare
