// Package holds is what Holdfast knows about holds: what one is, how it changes, and who
// decides each change. The scripts under lua/ are the transition rules; the Go files beside
// them, one a verb, gather what a script needs and turn its answer into an outcome.
//
// # The life of a hold
//
//	                 booking.requested
//	                        │ place.lua
//	      ┌─ refused ◄──────┤
//	      ▼                 ▼    payment.confirmed: claim.lua
//	hold.rejected   ┌───► held ─────────────────────────────► confirming
//	(remembered     └──────┘││▲                                    │
//	 under its   extend.lua ││└─── settle.lua: capacity was cut ───┤
//	 request key)           ││                                     │ settle.lua: Postgres has committed
//	booking.cancelled       ││ deadline reached                    ▼
//	release.lua ◄───────────┘└────► expire.lua, or any         confirmed: a reservation in Postgres,
//	     │                          script that sweeps first       │      until reservation.cancelled
//	     ▼                            │                            │
//	 released                         ▼                            │
//	     │                         expired                         │
//	     │                            │ hold.expired is stored:    │
//	     │                            │ forget.lua                 │
//	     ▼                            ▼                            ▼
//	  tombstone ── remembered for HOLDFAST_REQUEST_KEY_TTL, then dropped
//
// A payment that comes after the deadline may take the slots again, if the policy wants it and they
// are free: place.lua makes a record late:<id> of it, which is confirming and then confirmed as a
// hold's own is, or is dropped. The hold stays expired.
//
// A hold takes its quantity of each of its slots while it is held or confirming. It ends
// exactly once, as confirmed, released or expired, and the script that ends it gives its
// counts back in the same atomic step: see finish in lua/prelude.lua, the only place that
// lowers a counter.
//
// # Which clock rules
//
// Redis' TIME, read inside the scripts. A hold has lapsed when that clock has reached its
// deadline, whether or not anyone has swept it: every script that reads counters lapses first
// what is due. One judgement is made without it, because it must be the same at every
// delivery of an event: whether a night has passed is judged at the time at which JetStream
// stored the event.
//
// # What Redis holds
//
// Everything begins <ns>:{<partition>}: so that one script's keys share a hash slot.
//
//	epoch                    string  proof that this Redis still has what was written to it, or the mark
//	                                 of who is filling it
//	fence                    string  counts the locks taken, gives each its fencing token
//	agenda                   zset    resource -> when to look at it next (ms)
//	format                   string  number of the form of all this (recovery/format.go); only in partition 0
//	<resource>:counts        hash    slot -> held
//	<resource>:users         hash    user -> live holds
//	                                 user and sha1 of slots -> id of the user's live hold on just these
//	<resource>:records       hash    id -> the hold, one line of words (package record)
//	<resource>:due           zset    id -> deadline (ms) of holds that can lapse
//	<resource>:departing     zset    id -> when to announce hold.expired (again) (ms)
//	<resource>:tombstones    zset    id -> when to drop the record of an ended hold (ms)
//	<resource>:rev           string  counts the changes of capacity and reserved, with TTL
//	<resource>:hold:<id>     string  a live hold as JSON, with TTL; its expiry is a hint to sweep
//	<resource>:started:<id>  string  when the payment of a live hold was started, with TTL
//	<resource>:request:<key> string  the answer to a request, with TTL
//	<resource>:extension:<event>  string  the answer to a booking.extended or payment.started, with TTL
//	<resource>:locks         hash    slot -> owner, fencing token and end of a lease; TTL: the longest of these
//	<resource>:lock          string  who repairs counters of a large resource, with TTL (package audit)
//	<resource>:waited_for    string  is there while somebody waits for one of them, with TTL
//	<resource>:waiting       hash    who waits for locks, and until when (only with HOLDFAST_LOCK_FAIR)
//	<resource>:queue:<slot>  zset    those who wait for it, in the order in which they came (likewise)
//	<resource>:gone:<id>     string  who has left, and of whom something may still be on its way, with TTL (likewise)
//
// With HOLDFAST_LOCK_STRATEGY=redlock each slot has a key <resource>:lock:<slot> of its own, on the lock
// servers. While somebody waits, it is told on the channel
// <resource>:released (sharded pub/sub) which locks were released. See package locking.
//
// # What is guaranteed, and by what
//
//   - A grant was right at its moment: place.lua compares capacity and reserved as read from
//     Postgres with its own counters, and refuses to decide when rev says that Postgres has
//     changed since: by an event, or by plain SQL, of which Postgres sends word. Postgres' CHECK
//     stands behind it: a reservation that does not fit is refused.
//   - The same event has the same answer: an answer is remembered with the cause that made it;
//     payments are answered from their row in Postgres for ever.
//   - Inventory rows may come from memory (rows.go): only while the worker has proof, not older than readAge, that it
//     has heard of every change of them, and only with the rev that they were read under. Such a decision takes its
//     locks and gives them back in the one step of place.lua, unless another holds one of them.
//   - The lock only orders work. place.lua checks the group's tokens in the same step as it
//     writes, and all of this holds with no lock at all.
//   - What would be answered can be asked without doing it: a dry Service runs the same scripts
//     without their writes (dry.go), and the same transactions, rolled back.
//   - Lost data is noticed, and filled in again before anything else is decided: see package recovery.
//   - Damage stays with its resource: a script that finds there what no script writes refuses before it has written
//     anything of the hold (ErrCorrupt). Events of that resource wait until it is mended, in place by whoever is
//     told (OnCorruption), or a few seconds later by filling Redis again, which is all that the others notice.
//   - One resource delays no other's sweep: holds are expired in rounds, a bounded number of each partition. A
//     resource that fails rests for a second, alone; one that always has more due takes its turn; a partition that
//     fails, or does not answer within a second, is left to the next round.
package holds
