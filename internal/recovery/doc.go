// Package recovery detects that Redis has lost acknowledged writes, stops all workers from deciding on
// what is left, and rebuilds Redis from the outbound stream and Postgres. All of this concerns
// partitions: when one is lost, or the shard of a cluster that has some of them, the workers go on
// deciding in the others.
//
//	Supervisor  checks Postgres and Redis, and invalidates and rebuilds
//	EpochTerm   the epochs under which a worker decides, and how long it may rely on them
//	ConnGuard   refuses connections to servers that may lack data
//	Projection  computes from the published outcomes what Redis must have
//
// # How a loss is detected
//
// Every script is given the epoch of its partition, and refuses when the partition has another one or
// none (holds.ErrDataLost). Postgres stores for each partition the same epoch, and the name of the
// server to which it was written. The name consists of the ids that Redis changes with each start and each promotion. Scripts
// that decide are given the second of these ids too, the replication history, and refuse on another
// history: a server may follow older data and become master again between two checks, while connections
// stay open. Scripts of locks are not given the history: fencing tokens may repeat until the next check,
// but no decision depends on them. When a server starts a new history by itself, as with its first
// replica, events wait for two checks, about a second.
//
// A worker decides under the epochs that are current according to Postgres (EpochTerm), only on
// connections whose server was identified before the first command (ConnGuard). It checks every 500 ms
// whether this still holds (Supervisor). These findings mean that a partition is lost:
//
//	it has no epoch                        FLUSHALL, a restart without persistence, an empty replica
//	it has an older epoch                  data from before an earlier loss was restored
//	its server is another one              a restart or a failover: its data may be older and have the same
//	                                       epoch. A server that has started a new history unobserved counts
//	                                       as another one
//	scripts find corruption for 5 s        a record that cannot be parsed, or a key of another type, which was
//	                                       not repaired in place (see holds.ErrCorrupt)
//
// A partition of a cluster that was moved to another server, key by key, has lost nothing, provided that
// both servers answered at each check meanwhile and stayed the same (layout.movedByResharding). A server
// that does not answer says nothing about its partitions, and delays the check of no other one.
//
// # How Redis is rebuilt
//
// The worker that detects the loss first removes the epochs of the lost partitions from Redis and then
// from Postgres. From then on no script and no payment is decided under them, even by workers that have
// not detected the loss yet. Then one worker, while it holds a lease of these partitions in Postgres,
// rebuilds them under a new epoch (rebuild.go). It goes on deciding in the others. Different workers may
// rebuild partitions of different servers at once. All steps concern the lost partitions only:
//
//	mark     Each partition gets "<new epoch> rebuilding" as its epoch. The scripts of the rebuild are
//	         given this mark. A slow rebuilder that was replaced finds another mark and stops. So does
//	         one of whose partitions one is lost again.
//	read     The rebuilder reads the outcomes as far back as one can matter (HOLDFAST_HOLD_LIFETIME_MAX for
//	         holds, and HOLDFAST_REQUEST_KEY_TTL more for answers), and meanwhile removes the old keys.
//	         It waits 5 s, until no worker publishes decisions of the epoch before, and reads the rest.
//	query    It reads from Postgres which holds are reservations, and from the inbound stream which
//	         payments and cancellations have no answer yet.
//	write    It writes fences from a new base, then records, answers and what follows from them
//	         (lua/rebuild.lua). Each write is idempotent.
//	verify   It compares sums and numbers of what was written, computed independently, resource by
//	         resource. Then it checks whether more was published meanwhile.
//	seal     It replaces the mark by the epoch, and completes the epoch with the server's name in Postgres.
//
// The rebuilder may be killed, or Redis lost again, between any two of these steps and within each: the
// next attempt starts from the beginning with another epoch. No worker uses an epoch before Postgres has
// it as complete. The rebuilder needs about twice as much memory as Redis, see the benchmark in
// cmd/worker.
//
// # What differs after a rebuild
//
// A hold that is live after a rebuild was live before it, so the live holds never exceed the capacity of
// then: Projection.resolve says how decisions that were not published are resolved. When capacity was
// cut meanwhile, holds stay, no request is granted on their slots until they have ended, and Postgres
// decides which payment comes first. What differs:
//
//   - What was decided and not published is decided again when its event is delivered again. A hold that
//     was not published gets another id. An extension counts from the new decision, if the hold has not
//     expired. An extension of a hold that was paid meanwhile is rejected (confirmed): the payment counts,
//     and its confirmed_at may be later than any deadline that was published. What was published is
//     remembered, and answered the same.
//   - A hold whose payment was stored by JetStream before its deadline, and has no answer yet, does not
//     expire (confirmed_at is the time at which the payment was stored), unless something was granted on
//     the resource after that deadline: then it may have expired before the loss, and is expired. A hold
//     whose cancellation was stored before its deadline is released at that time. A payment that was
//     dead-lettered as poison, and so never has an answer, keeps its hold until the hold is paid.
//   - A payment that Postgres has decided is what Postgres says, whether or not it was published, settled
//     or late. What a late payment had only claimed is free again, and is claimed again when the payment
//     is delivered.
//   - rev, fence and locks start again. A worker that has read rev or holds a lock does so under the epoch
//     before, and its script refuses. Fencing tokens continue from a higher base of Postgres, one for
//     all partitions of a rebuild (there are 131,071 bases). Times in the agenda may have been earlier. Tombstones and
//     answers end later or earlier, by up to the time that it took to announce or settle the end of their
//     hold.
//   - For outcomes of workers that did not store RebuildMetadata yet, the answer to a key matches any
//     content, a replayed answer is a replay for every event, and a payment may be started a second time.
//   - Outcomes that are missing from the outbound stream are forgotten: when it was purged, has a limit
//     that is too low, or was recreated. The log and `worker rebuild` report from when on it has outcomes.
//     No event waits for it: the slots of a forgotten hold may be granted again, and its payment ends in
//     refund_required. When both streams were lost together the gap cannot be detected.
//
// # What remains
//
//   - A worker that is stopped, or cut off from NATS, between its check that it may publish and the moment
//     at which it has sent the outcome, for longer than Redis takes to be lost and rebuilt. The outcome is
//     stored then, and Redis does not know its hold: the slots may be granted again, and its payment ends
//     in refund_required. The same happens when NATS takes more than a second to store an outcome that it
//     has received, and stores nothing else meanwhile. Otherwise no outcome is stored late: it is published
//     within 2 s of Postgres' statement, sent within 2 s more, and not buffered while NATS is away; a
//     rebuild includes what is stored until Redis is sealed.
//   - A server that follows older data, becomes master again, and forgets both between two checks or within
//     30 s of a check. Its repl-backlog-ttl must be longer than that; the default is an hour.
//   - Keys that are removed, or numbers that are changed to other numbers, without the workers' scripts and
//     with the epoch unchanged. No script detects that; `worker audit` does, and `worker rebuild` repairs it.
//   - Two servers that both claim to be master, and workers that disagree which one is: each takes the
//     other's for a loss. One of them is rebuilt, then the other, again and again. Only the one that
//     Postgres names is used at a time, so nothing is sold twice, and little is decided at all.
package recovery
