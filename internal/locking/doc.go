// Package locking has the ways to keep others away from a set of keys while one works on them:
// [Range], [Redlock], [Optimistic] and [None], behind one [Locker]. It knows nothing of holds: its
// callers name the keys.
//
// A lock orders work and tells the loser early. It never makes a result right: any lock can end
// under a holder that was paused, cut off or slow, who does not know. So the work itself, one
// script run by [Locker.Commit], must be refused when the lock is gone, in the same step in which it
// would write.
//
// # The life of a lock
//
//	Begin ──► TryLock ──── blocked ───► Wait ──► TryLock ...        released: woken, one a key
//	             │                       │                          lease over: by its own clock
//	           held                      └─► ErrTimeout, cancelled ──► End: nothing is left behind
//	             │
//	             ├─► Keep: a context that ends with the trust in the lock
//	             │        (renewed at a third of the lease, if Options.RenewMax says so)
//	             │
//	             ├─► Commit ── ok ──────────► released in the same step
//	             │       └──── lock_lost, conflict: nothing was written ──► TryLock again
//	             └─► Unlock
//
// # What each strategy promises
//
//	              keeps others out     refuses late work by    fencing token   survives
//	Range         yes, for the lease   the token in the key    yes             what its Redis survives
//	Redlock       yes, by clocks       time (Trust)            no              the loss of a minority
//	Optimistic    no                   WATCH on the version    no              what its Redis survives
//	None          no                   the script's own checks no              everything
//
// docs/locks.md says which to choose when, and what each costs.
//
// # The keys of a Range
//
//	<key>                  string  <owner>:<fencing token>.<acquisition>[:...], its TTL is the lease
//	<fence>                string  the last fencing token of the partition
//	<scope>waiting         hash    acquisition -> "ticket deadline_ms" of who queues (fair only)
//	<scope>queue:<key>     zset    acquisition -> ticket (fair only)
//	<scope>released        channel the keys that were released (sharded pub/sub)
//
// # Which clock rules
//
// Redis' for leases and queues; the process' own monotonic clock for [Lock.Trust], which begins
// before the lease does and ends a margin before it.
package locking
