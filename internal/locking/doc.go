// Package locking locks sets of keys in Redis. A [Locker] uses one of four strategies: [Range],
// [Redlock], [Optimistic] or [None]. The package knows nothing about holds; its callers choose the
// keys.
//
// # What a lock is for
//
// A lock puts work in order, so that less of it is done in vain. It does not make a result correct.
// Any lock can end while its holder is paused, disconnected or slow and does not notice. Therefore
// the work itself must be refused when the lock is lost, in the same atomic step that would write.
// The work is one script, run by [Locker.Exec].
//
// # The life of a lock
//
//	NewAcquisition ──► TryLock ── blocked ──► Wait ──► TryLock ...   after a release: one waiter for each key
//	                      │                    │                     after a lease: by the waiter's own clock
//	                     held                  └─► ErrTimeout or cancelled ──► Close leaves nothing behind
//	                      │
//	                      ├─► WithContext: a context that ends with the validity of the lock
//	                      │        (renewed at each third of the lease if Options.RenewMax is set)
//	                      │
//	                      ├─► Exec ── ok ───────────► released in the same step
//	                      │     └──── lock_lost, conflict: nothing was written ──► TryLock again
//	                      └─► Unlock
//
// docs/locks.md compares the guarantees of the strategies and their costs, and says when to choose which.
//
// # Redis keys of Range
//
//	<scope>locks           hash    name -> "<owner>:<fencing token>.<acquisition>[:...] <until_ms>"
//	<scope>waited_for      string  exists while a waiter waits for one of the locks
//	<fence>                string  the last fencing token of the partition
//	<scope>waiting         hash    acquisition in a queue -> "ticket deadline_ms" (fair only)
//	<scope>queue:<name>    zset    acquisition -> ticket (fair only)
//	<scope>gone:<id>       string  the acquisition has left, but an attempt may still arrive (fair only)
//	<scope>released        channel the names that were released (sharded pub/sub)
//
// A lock is held until its until_ms, even if its field exists for longer. All keys except the fence
// have a TTL that covers their content, so a process that dies leaves nothing behind.
//
// A release is published on the channel only while waited_for exists. A blocked attempt writes
// waited_for for at least the time that it may wait for the release: until the lease in its way
// expires or, in a queue, until its own wait ends. A waiter that waits longer tries again then.
//
// # Clocks
//
// Leases and queues use the clock of Redis. [Lock.Validity] uses the monotonic clock of the
// process. It begins before the lease and ends a margin before the lease does.
package locking
