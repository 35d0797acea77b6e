// Package holds decides about holds: it creates, extends, confirms, releases and expires them, and
// it sets the capacity of slots.
//
// The scripts under lua/ contain the rules by which a hold changes. The Go files beside them, one
// file for each verb, collect the arguments of a script and turn its reply into an outcome. place.go
// is the way of a request through the steps in the files place_*.go. Each call of a verb is one piece
// of work under the epochs that are current when it begins (work.go).
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
//	     │                          script that expires first      │      until reservation.cancelled
//	     ▼                            │                            │
//	 released                         ▼                            │
//	     │                         expired                         │
//	     │                            │ hold.expired is stored:    │
//	     │                            │ forget.lua                 │
//	     ▼                            ▼                            ▼
//	  tombstone ── remembered for HOLDFAST_REQUEST_KEY_TTL, then dropped
//
// While a hold is held or confirming, it is live and takes its quantity of each of its slots. It
// ends exactly once, as confirmed, released or expired. The script that ends it also gives its
// counts back, in the same atomic step: of the scripts that decide, only end_holds in lua/prelude.lua
// lowers a counter.
//
// # Late payments
//
// A payment that arrives after the deadline may take the slots of its hold again, if the policy
// allows it and the slots are free. For this place.lua writes a second record, late:<id>. It is
// confirming and then becomes confirmed, like the record of a hold, or is removed when Postgres
// rejects the payment. The hold itself stays expired.
//
// # Clocks
//
// The clock of Redis decides. The scripts read it with TIME. A hold has expired when this clock has
// reached its deadline, even if no sweep has ended it yet: every script that reads counters first
// expires the holds that are due.
//
// Validation uses another clock, because it must give the same result at every delivery of an event:
// the time at which JetStream stored the event decides which policy applies and whether a night has
// passed.
//
// # Redis keys
//
// Every key begins with <ns>:{<partition>}: so that all keys of one script are in one hash slot.
//
//	epoch                    string  proves that this Redis still has all data that was written to it;
//	                                 during a rebuild, the mark of the worker that rebuilds
//	primary                  string  the history of this server and the half-second in which a script has last
//	                                 checked that it is a primary; not replicated
//	fence                    string  the number of locks taken; each lock gets it as its fencing token
//	agenda                   zset    resource -> when to sweep it next (ms)
//	folds                    zset    the resources that have a fold, with 0; only during a rebuild
//	applied                  string  the marker: an epoch, and how far the outcome log reached before it was
//	                                 written; see package recovery
//	compared                 string  how often Postgres was compared after it may have lost commits; 0 if missing
//	marking                  string  the worker that writes the markers; only in partition 0; with TTL; not
//	                                 replicated
//	format                   string  version number of this recovery/format; only in partition 0
//	<resource>:counts        hash    slot -> held
//	<resource>:users         hash    user -> number of live holds;
//	                                 user and sha1 of slots -> id of the user's live hold on exactly these slots
//	<resource>:records       hash    id -> the hold, one line of words
//	<resource>:due           zset    id -> deadline (ms) of each hold that can expire
//	<resource>:departing     zset    id -> when to announce hold.expired next (ms)
//	<resource>:tombstones    zset    id -> when to remove the record of an ended hold (ms)
//	<resource>:fold          hash    id -> what a rebuild has read of the hold, lines of JSON; only during a rebuild
//	<resource>:rev           string  counts the changes of capacity and reserved; with TTL
//	<resource>:hold:<id>     string  the deadline (ms) of a live hold; with TTL: its expiry is the hint to sweep
//	<resource>:started:<id>  string  when the payment of a live hold was started; with TTL
//	<resource>:request:<key> string  the answer to a request; with TTL
//	<resource>:extension:<event>  string  the answer to a booking.extended or payment.started; with TTL
//	<resource>:locks         hash    slot -> owner, fencing token and end of a lease; TTL: the longest of these
//	<resource>:lock          string  owner of the repair of a large resource's counters; with TTL (package audit)
//	<resource>:waited_for    string  exists while a worker waits for one of the locks; with TTL
//	<resource>:waiting       hash    waiter -> its ticket and until when it waits (ms); # -> the last ticket
//	                                 (only with HOLDFAST_LOCK_FAIR)
//	<resource>:queue:<slot>  zset    waiters for the slot in the order of arrival (likewise)
//	<resource>:gone:<id>     string  a waiter that has left while its attempt may still arrive; with TTL (likewise)
//
// With HOLDFAST_LOCK_STRATEGY=redlock each slot has a key <resource>:lock:<slot> of its own on the
// lock servers. Released locks are published on the channel <resource>:released (sharded pub/sub)
// while a worker waits for them. See package locking.
//
// # Guarantees
//
//   - A hold is created only if the capacity is free. place.lua compares the capacity and
//     reservations that were read from Postgres with its own counters. It refuses to decide when
//     rev shows that Postgres has changed since the read: by an event, or by plain SQL, of which
//     Postgres notifies the workers. As a second check, a constraint in Postgres refuses a
//     reservation that does not fit.
//   - The same event gets the same answer. Redis stores an answer together with the id of the event
//     that caused it. The answer to a payment stays in Postgres for ever.
//   - A decision may use cached inventory rows (rows.go). It does so only while the worker has a
//     proof, at most readAge old, that it has received every change of them, and only with the rev
//     under which they were read.
//   - With the strategies range (unless fair) and none, a decision takes and releases its locks in the
//     one step of place.lua. It locks before it reads Postgres only when another owner holds one of the
//     locks, or rows have changed since they were read. With the other strategies it always does.
//   - The lock only puts work in order. place.lua checks the tokens of the group's locks in the
//     step that writes. All guarantees hold without any lock.
//   - A dry run changes nothing. A dry Service runs the same scripts without their writes (dry.go),
//     and rolls the same transactions back.
//   - Corruption stays within its resource. A script that finds a value that no script writes
//     returns ErrCorrupt before it writes anything of the hold. The same holds when counts is missing
//     while users or due shows that a hold is live. The events of that resource wait
//     until the value is repaired: in place, by the callback of OnCorruption, or a few seconds
//     later by a rebuild of its partition, which delays the other resources there.
//   - One resource does not delay the sweep of another. The sweep works in rounds and expires a
//     bounded number of holds of each partition in each round. A resource that fails is skipped for
//     a second. A resource that always has more due takes turns with the others. A partition that
//     fails, or does not answer within a second, waits for the next round.
//
// # Data loss
//
// Every script gets the current epoch as an argument and refuses to work in a partition that has
// another one (ErrDataLost). Scripts that decide also get the replication history of the server,
// because a server may follow older data and become primary again between two checks; is_primary in
// lua/prelude.lua explains how they check it. Package
// recovery detects the loss, rebuilds Redis from the outbound stream and Postgres, and documents
// which guarantees change after a rebuild. Until a partition is recovered, nothing is decided in it.
package holds
