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
//	format                   string  number of the form of all this (format.go); only in partition 0
//	<resource>:counts        hash    slot -> held
//	<resource>:users         hash    user -> live holds
//	                                 user and sha1 of slots -> id of the user's live hold on just these
//	<resource>:records       hash    id -> the hold, one line of words (record.go)
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
//   - Lost data is noticed, and filled in again before anything else is decided: see below.
//   - Damage stays with its resource: a script that finds there what no script writes refuses before it has written
//     anything of the hold (ErrCorrupt). Events of that resource wait until it is mended, in place by whoever is
//     told (OnCorruption), or a few seconds later by filling Redis again, which is all that the others notice.
//   - One resource delays no other's sweep: holds are expired in rounds, a bounded number of each partition. A
//     resource that fails rests for a second, alone; one that always has more due takes its turn; a partition that
//     fails, or does not answer within a second, is left to the next round.
//
// # When Redis has lost what was written to it
//
// Every script is told the epoch, and refuses when its partition has not this one (ErrDataLost).
// Postgres has the same epoch, and which server it was written to, by the names that a Redis gives
// itself with each start and each promotion. Scripts that decide are told that too, and refuse on another
// history: a server may follow older data and lead again between two looks, with connections open. (Scripts of
// locks are not told: there fencing tokens may repeat until then, which nothing is decided by.) Where a server
// begins a new history by itself, as with its first replica, events wait until it was looked at twice,
// a second or so. A worker decides under the epoch that Postgres says is the
// current one (Tenure), only on connections whose server was asked who it is before the first command
// (Guard), and looks every 500 ms whether all of it is still so (Keeper). What speaks against it:
//
//	the epoch is gone from a partition    FLUSHALL, a restart that kept nothing, an empty replica;
//	                                      one partition alone is enough
//	it is an older one                    the data of before an earlier loss was restored
//	the server is another one             a restart, a failover: its data may be older, and have the same
//	                                      epoch. So is one that has begun a new history while nobody looked
//	scripts find damage for 5 s           a record that cannot be read, a key of another type, and nobody heals
//	                                      it in place (see ErrCorrupt)
//
// Whoever notices first takes the epoch away from Redis and then from Postgres: no script and no payment
// is decided under it any more, whoever else has not noticed yet. Then one worker, for as long as it
// keeps a lease in Postgres, fills Redis under a new epoch (rebuild.go), and the others wait:
//
//	mark     each partition has "<new epoch> rebuilding" as its epoch. What fills it is told this mark:
//	         one who was slow and was replaced finds another and stops, as one does when Redis, or one
//	         partition, is lost again
//	read     the outcomes, as far back as one can matter (HOLDFAST_HOLD_LIFETIME_MAX for holds, and
//	         HOLDFAST_REQUEST_KEY_TTL more for answers), and removes meanwhile what is left in Redis; then
//	         waits 5 s, until nobody publishes what was decided under the epoch before, and reads the rest
//	ask      Postgres which holds are reservations, and the inbound stream which payments and
//	         cancellations have no answer yet
//	write    fences from a new base; records, answers and all that follows from them (lua/rebuild.lua),
//	         idempotent
//	verify   sums and numbers of what was written, counted apart, resource by resource; and then whether
//	         more was published meanwhile
//	seal     the mark becomes the epoch; Postgres says that it is written, and by which server
//
// It may be killed, or Redis lost again, between any two of these steps, and in the midst of each: the
// next begins anew, with another epoch. Nothing uses an epoch before Postgres says that it is written.
// Who fills Redis needs about twice as much memory for it as Redis has, see the benchmark in cmd/worker.
//
// What is live again is part of what was live before, so there is never more of it than there was room
// for: projection.go says how what was decided and not told is judged. Where capacity was cut meanwhile, holds
// stay, nobody is granted anything on their slots until they have ended, and Postgres decides whose
// payment comes first. What differs from before:
//
//   - What was decided and never told is decided anew when its event is delivered again: a hold that
//     nobody was told of gets another id; an extension begins from then, if the hold has not lapsed.
//     An extension of a hold that was paid then is refused (confirmed): the payment counts, and its
//     confirmed_at may be later than any deadline that was told.
//     What was told is remembered, and answered the same.
//   - A hold whose payment was stored by JetStream before its deadline, and has no answer yet, does not
//     lapse (confirmed_at is the time at which the payment was stored), unless somebody was granted
//     something on the resource after that deadline: then it may have lapsed before the loss, and ends
//     so. A hold whose cancellation was stored before its deadline is released at that time. (A payment
//     that has died as poison, and so never has an answer, keeps its hold as long as nobody pays it.)
//   - A payment that Postgres has answered is what Postgres says, told or not, settled or not, late or
//     not. What a late payment had only claimed is free again, and is taken anew when it is delivered.
//   - rev, fence and locks begin anew. Whoever has read rev or holds a lock does so under the epoch
//     before, and its script is refused; fencing tokens go on from a higher base of Postgres, one for
//     all partitions (there are 131,071 bases). The agenda may have been early; tombstones and answers
//     end later or earlier by up to the time that it took to announce or settle the end of their hold.
//   - Outcomes of workers that did not store Memory yet: a key's answer is that to any content, a
//     replayed one is replayed to everybody, and a payment that was started may be started again.
//   - What the outbound stream does not have any more is forgotten: when it was purged, has a limit that
//     is too low, or was made again. It is logged, and told by worker rebuild, from when on it has
//     outcomes. Nothing waits for it: the slots of a hold that is forgotten may be somebody else's, and
//     its payment ends in refund_required. When both streams were lost together nobody can tell.
//
// What remains:
//
//   - A worker that stands still, or is cut off from NATS, between the moment at which it looks whether
//     it may publish and the moment at which it has sent the outcome, for longer than Redis takes to be
//     lost and filled again. The outcome is stored then, and Redis does not know its hold: the slots may be
//     somebody else's, and its payment ends in refund_required. So it is
//     when NATS takes more than a second to store an outcome that it has, and stores nothing else
//     meanwhile. Else no outcome is stored late: it is published within 2 s of Postgres' word, sent
//     within 2 s more, kept in no buffer while NATS is away, and what comes until Redis is sealed is
//     filled in.
//   - A server that follows older data, leads again, and forgets both while nobody looks or within 30 s of
//     a look: its repl-backlog-ttl must be longer than that, and it is an hour unless it is set.
//   - Keys that are removed, or numbers that are changed to other numbers, behind the workers' back, with
//     the epoch left as it is: no script sees that, the audit does, and worker rebuild mends it.
//   - Two servers that both say that they are the master, and workers that disagree which one is: each
//     takes the other's for a loss. One of them is filled, then the other, again and again; each time
//     only the one that Postgres names is used, so nothing is sold twice, and little is decided at all.
package holds
