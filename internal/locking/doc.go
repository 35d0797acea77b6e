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
//	Range         yes, for the lease   the token in the hash   yes             what its Redis survives
//	Redlock       yes, by clocks       time (Trust)            no              the loss of a minority
//	Optimistic    no                   WATCH on the version    no              what its Redis survives
//	None          no                   the script's own checks no              everything
//
// docs/locks.md says which to choose when, and what each costs.
//
// # The keys of a Range
//
//	<scope>locks           hash    name -> "<owner>:<fencing token>.<acquisition>[:...] <until_ms>"
//	<scope>waited_for      string  is there while somebody waits for one of them
//	<fence>                string  the last fencing token of the partition
//	<scope>waiting         hash    acquisition -> "ticket deadline_ms" of who queues (fair only)
//	<scope>queue:<name>    zset    acquisition -> ticket (fair only)
//	<scope>gone:<id>       string  is there when an acquisition has left while an attempt may be on its way (fair only)
//	<scope>released        channel the names that were released (sharded pub/sub)
//
// A lock counts until its until_ms, whether or not its field is still there. All of these but the fence
// have a TTL, no shorter than what is in them needs: nothing stays of a process that has died.
//
// A release is told on the channel only while waited_for is there. Whoever is told blocked writes it,
// for at least as long as it may wait for the release: until the lease in its way is over or, in a
// queue, until its own wait is. Who waits for longer asks again then.
//
// # Which clock rules
//
// Redis' for leases and queues; the process' own monotonic clock for [Lock.Trust], which begins
// before the lease does and ends a margin before it.
package locking
