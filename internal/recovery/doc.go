// Package recovery notices that Redis has lost what was written to it, keeps every worker from deciding on
// what is left, and fills Redis again from the outbound stream and Postgres.
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
package recovery
