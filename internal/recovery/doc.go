// Package recovery detects that Redis has lost acknowledged writes, stops all workers from deciding on
// what is left, and recovers Redis from the outbound stream and Postgres: it brings the data of an earlier
// moment up to date, or rebuilds everything. All of this concerns partitions: when one is lost, or the shard
// of a cluster that has some of them, the workers go on deciding in the others.
//
//	Supervisor      checks Postgres and Redis, and invalidates and recovers
//	Marker          writes to Redis how far the outcome log reached
//	EpochTerm       the epochs under which a worker decides, and how long it may rely on them
//	ConnGuard       refuses connections to servers that may lack data
//	HistoryChecker  detects that Postgres has lost commits, and puts them back
//	Projection      computes from the published outcomes what Redis must have
//
// To read the code, begin with Supervisor.Run and Check (supervisor.go): they read Postgres (readPostgres in drain.go),
// inspect Redis (inspect.go), and begin or end the term of each partition (term.go). Then follow rebuild.attempt and run
// (rebuild.go): to resume.go, or to rebuildAll, which folds outcomes (rebuild_fold.go), plans what a resource must have
// (projection_plan.go), writes it (rebuild_write.go) and verifies it (rebuild_verify.go).
//
// # How a loss is detected
//
// Every script is given the epoch of its partition, and refuses when the partition has another one or
// none (holds.ErrDataLost). Postgres stores for each partition the same epoch, and the name of the
// server to which it was written. The name consists of the ids that Redis changes with each start and each promotion. Scripts
// that decide are given the second of these ids too, the replication history, and refuse on another
// history: a server may follow older data and become primary again between two checks, while connections
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
//	it has a newer epoch                   Postgres was restored, or its standby was behind
//	its server is another one              a restart or a failover: its data may be older and have the same
//	                                       epoch. A server that has started a new history unobserved counts
//	                                       as another one
//	scripts find corruption for 5 s        a record that cannot be parsed, or a key of another type, which was
//	                                       not repaired in place (see holds.ErrCorrupt)
//
// A partition of a cluster that was moved to another server, key by key, has lost nothing, provided that
// both servers answered at each check meanwhile, stayed the same and lost nothing else (layout.movedByResharding).
// The last check before the move counts for that, although the epoch may be moved last. A server
// that does not answer says nothing about its partitions, and delays the check of no other one.
//
// The worker that detects the loss first removes the epochs of the lost partitions from Redis and then
// from Postgres. From then on no script and no payment is decided under them, even by workers that have
// not detected the loss yet. Then one worker, while it holds a lease of these partitions in Postgres,
// recovers them under a new epoch. It goes on deciding in the others. Different workers may recover
// partitions of different servers at once. All steps concern the lost partitions only.
//
// # How Redis is brought up to date
//
// After a restart or a failover Redis usually has everything but the last writes. Every 500 ms one worker
// writes a marker to each partition: the epoch, and the position of the outcome log as it was read before
// (marker.go). A worker publishes an outcome only after Redis has the change behind it, and the append-only
// file, snapshots and replication keep the writes in their order. So a server that shows a marker has every
// change behind the outcomes up to it, and perhaps later ones. The script that writes markers checks the
// epoch and the replication history in the same step: on a server that has taken over older data no marker is
// written. In a cluster a partition may be moved key by key, and then its new server may lose some of the
// keys: so the marker must have been written on that server, or on the one whose history it continues. When that one
// failed in the middle of a move, its replica lacks the moved keys and may have the marker: so no other primary may
// have keys of the partition (rebuild.checkNotMoved). A primary of a cluster that was restarted has another history,
// so its partitions are rebuilt.
// Recovery is then (resume.go):
//
//	mark     Each partition gets "<new epoch> resuming" as its epoch, and keeps its marker. Each must have the lost
//	         epoch, also one that was marked as lost or resuming, and a marker of it and of the present outbound
//	         stream, which must have its outcome, stored at the same time, and everything after it. When Postgres
//	         was restored, the lost epoch may be one that it does not know any more. Then the server must have run on
//	         since the marker: else a later epoch may have been on another one.
//	read     The worker reads the outcomes after the marker, also those that are being published (as in a
//	         rebuild).
//	query    It reads from the inbound stream which payments and cancellations have no answer yet, from Redis
//	         the records and answers of the holds that all these concern, and from Postgres their payments.
//	unmark   It removes the markers: from now on the data is that of no moment.
//	write    It replaces the records that differ, with all that follows from them (lua/replay.lua), and writes the
//	         answers.
//	seal     As for a rebuild, after a check whether more was published meanwhile.
//
// The Projection that computes a rebuild also computes this: it begins with the stored records of the holds
// concerned, and applies only the later outcomes. It works hold by hold: what is read and written is in proportion to
// what was lost, also when each resource has many live holds.
//
// Because the data is that of one moment after the marker, a record that has ended there has ended for ever,
// and a claim there is a claim until the outcome or Postgres says that its payment was rejected. A hold that
// Redis does not have was created later, and lost: Redis forgets a hold only HOLDFAST_REQUEST_KEY_TTL after it
// was created, and outcomes that are older than half of that lead to a rebuild. A grant among the outcomes has
// expired what was due before it, so that is loaded and expired too.
//
// Everything is rebuilt when the reason is another one than a restart, a failover or a Postgres that was restored, when a
// partition has no such marker, when the worker has seen its server evict keys, when an outcome after the marker is missing, when a
// script finds corruption, when records and outcomes contradict each other, when the outcomes after the marker and
// what Redis has of their holds take more than 64 MiB, or more than 100,000 payments and cancellations are above
// the ack floors, all of which a resume would keep in memory, or when an outcome is stored after all were read. A
// worker that is killed leaves the markers until the step unmark, so the next one resumes, and none afterwards, so
// the next one rebuilds.
//
// When Postgres and both streams were restored, Redis may be all that is left of the last hours: its epochs are newer than
// those of Postgres, the outbound stream has lost what the markers name, and since then the server was neither started nor
// promoted. Then its data is kept as it is, under a new epoch (rebuild.keep), unless it has settled a payment that waits and
// that Postgres lacks. Payments that the inbound stream has lost, too, are beyond recovery: an audit finds their holds.
//
// What Redis had written before the marker is trusted, with these exceptions. Locks of the epoch before may
// seem held until their leases end; no script decides under them. rev may have had its value before, but only
// under another epoch, and workers drop what they have read under another epoch. primary names a history that
// the server does not have any more. The agenda has no time that is too late.
//
// # How Redis is rebuilt
//
// One worker rebuilds everything of the lost partitions (rebuild.go):
//
//	mark     Each partition gets "<new epoch> rebuilding" as its epoch, and loses its marker in the same
//	         step. This replaces only the epoch that the rebuilder has read while it had the lease. The
//	         scripts of the rebuild are given this mark. A slow rebuilder that was replaced finds another
//	         epoch or mark and stops. So does a rebuilder when one of its partitions is lost again.
//	         Partitions that resharding moves are left to a later attempt.
//	wipe     The rebuilder removes the old keys.
//	read     It reads the outcomes as far back as one can matter (HOLDFAST_HOLD_LIFETIME_MAX for holds, and
//	         HOLDFAST_REQUEST_KEY_TTL more for answers, both before the oldest payment that waits). It waits
//	         until no worker publishes decisions of the epoch before, and reads the rest: until each
//	         registered worker has said so (drain.go), or for 5 s. A hold that was created before all this, and is
//	         in it only because an answer about it was repeated, stays forgotten (Projection.endForgotten).
//	fold     Meanwhile it writes to Redis what it reads: refusals where they are remembered, with the rest of
//	         their time, and what the outcomes say of a hold to the folds of its resource (projection_fold.go).
//	query    It reads from the inbound stream which payments and cancellations have no answer yet, and from
//	         Postgres its decisions about these payments.
//	write    It reads the folds, and from Postgres which of their holds without an end are reservations, and
//	         writes records, answers and what follows from them (lua/rebuild.lua). Each write is idempotent.
//	verify   It compares sums and numbers of what was written, computed independently, resource by
//	         resource, and removes the folds. Then it checks whether more was published meanwhile.
//	seal     It makes the fences count from a new base, replaces the marks by the epoch, and completes the
//	         epoch with the server's name in Postgres.
//
// The last three steps take eight partitions at a time: these are used while the others are written.
//
// The rebuilder may be killed, or Redis lost again, between any two of these steps and within each: the
// next attempt starts from the beginning with another epoch, for the partitions that are not sealed. So does
// the same rebuilder, with the same epoch, when more of these was published meanwhile. No worker uses an epoch
// before Postgres has it as complete.
//
// The rebuilder has in memory only what it has just read: about ten cuts of 1 MiB of outcomes, and then about
// as many pages of 1,000 folds, however many holds are live and however much is remembered. Redis has the rest,
// and a fold takes less than what is written from it. Several goroutines write cuts, and several workers have
// stored the outcomes, so parts of a hold come in any order, some of them twice. Therefore a fold is a list of
// parts whose order does not matter (holdFacts.merge), a record that exists is not added to the counts
// again, and of two answers to a request key the later one replaces the other, never the reverse. What remains
// in memory in proportion to the traffic are the payments without an answer, and the cancellations above the ack floor
// that were not rejected. One payment that cannot be answered holds that floor for as long as it lasts: the payments
// after it are read, asked of Postgres and forgotten 1,000 at a time.
//
// # What differs after a recovery
//
// The following holds for a rebuild, and for the lost writes of a Redis that was brought up to date. A hold
// that is live after a rebuild was live before it, so the live holds never exceed the capacity of
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
//     the resource after that deadline: then it may have expired before the loss, and is expired. A grant
//     whose outcome was stored before that of the hold does not count: the clock was ahead. A hold
//     whose cancellation was stored before its deadline is released at that time. A payment that was
//     dead-lettered as poison, and so never has an answer, keeps its hold until the hold is paid. A payment that is
//     stored just before the deadline, while a rebuild already writes the partition, may come too late.
//   - A payment that Postgres has decided is what Postgres says, whether or not it was published, settled
//     or late. What a late payment had only claimed is free again, and is claimed again when the payment
//     is delivered.
//   - rev, fence and locks start again. A worker that has read rev or holds a lock does so under the epoch
//     before, and its script refuses. Fencing tokens continue from a higher base of Postgres, one for
//     all partitions of a rebuild that comes as far as its first seal (there are 131,071 bases). Times in the
//     agenda may have been earlier. Tombstones and answers end later or earlier, by up to the time that it took
//     to announce or settle the end of their hold.
//   - For outcomes of workers that did not store RebuildMetadata yet, and for a hold of which only a later outcome
//     was published, the answer to a key matches any content of the same user and slots, a replayed answer is a
//     replay for every event, and a payment may be started a second time.
//   - A payment that Postgres has decided, and whose event was removed from the inbound stream before it was
//     answered, is found by a rebuild only: after a resume its hold may expire in Redis.
//   - Outcomes that are missing from the outbound stream are forgotten: when it was purged, has a limit
//     that is too low, or was recreated. The log and `worker rebuild` report from when on it has outcomes.
//     No event waits for it: the slots of a forgotten hold may be granted again, and its payment ends in
//     refund_required. When both streams were lost together the gap cannot be detected.
//
// # When Postgres has lost commits
//
// A failover to a standby that was behind, and a restore, forget reservations and answers to payments
// that were published. Every connection that decisions use is checked when it opens (HistoryGuard): the
// system identifier, the timeline, and a commit marker, a row that says how far the outbound stream
// reached before it was written. A worker writes it every 500 ms while outcomes are published. Every
// outcome that follows from a commit is published after it, and replication keeps the order of commits:
// a server that shows a marker has all commits behind the outcomes up to it. These findings mean that
// commits may be lost:
//
//	another timeline or system identifier than the row names   a promotion, a restore to a time, a dump
//	a lower marker than this worker has seen                    an older state of the same server
//	outcomes after the marker whose rows are missing            the same, while this worker did not run, did not reach
//	                                                            the server for 10 s, or the server was started
//
// When an older state of the outbound stream is restored, the marker goes back with it (HistoryChecker.Maintain). A
// marker of what the stream has lost, in an older state of Postgres, is recognized by the time at which its outcome was
// stored: everything is compared.
//
// Until one worker has compared the server (HistoryChecker), connections to it are refused, and events
// wait. It reads the outcomes after the marker, waits 5 s until no worker publishes what another server
// committed, and reads the rest. It puts back what is missing. What contradicts the server, mostly because
// the capacity is lower, becomes a lost commit: nothing is granted on its resource until it is put back, or
// an operator removes it. A reservation whose cancellation is lost, too, takes nothing, and is put back whatever the
// capacity is. Payments of holds on that resource go on, under the constraint, but those of the hold
// concerned wait, and so do the cancellation of its reservation, and late payments: no slot seems free.
//
// What a worker has decided before a comparison is not published after it (EpochTerm.Verify): a worker that was
// stopped meanwhile may have committed it on the server before. Nor is it settled in Redis: each comparison increases
// the key compared of each partition, and settle.lua refuses a payment that was claimed before.
//
// Commits that were not published are decided again when their events are delivered again. When Redis has
// settled such a payment, its hold takes no slots in either server. Then Redis is rebuilt: the hold is live,
// and its payment is pending. The partitions of a server of a cluster that does not answer meanwhile are rebuilt
// later, and the others go on.
//
// What remains: capacities that were changed by SQL, reasons of cancellations, and changed policies are in no outcome. A
// primary that was replaced and still accepts writes is another Postgres: what workers that still reach it commit there is
// lost later, and only `worker audit` finds it.
//
// # What remains
//
//   - A worker that is stopped, or cut off from NATS, between its check that it may publish and the moment
//     at which it has sent the outcome, for longer than Redis takes to be lost and rebuilt. The outcome is
//     stored then, and Redis does not know its hold: the slots may be granted again, and its payment ends
//     in refund_required. The same happens when NATS takes more than a second to store an outcome that it
//     has received, and the worker does not get the answer that it is stored. Otherwise no outcome is stored late: it is published
//     within 2 s of Postgres' statement, sent within 2 s more, and not buffered while NATS is away; a
//     rebuild includes what is stored until Redis is sealed.
//   - A server that follows older data, becomes primary again, and forgets both between two checks or within
//     30 s of a check. Its repl-backlog-ttl must be longer than that; the default is an hour.
//   - Keys that are removed, or numbers that are changed to other numbers, without the workers' scripts and
//     with the epoch unchanged. No script detects that; `worker audit` does, and `worker rebuild` repairs it.
//   - Two servers that both claim to be primary, and workers that disagree which one is: each takes the
//     other's for a loss. One of them is rebuilt, then the other, again and again. Only the one that
//     Postgres names is used at a time, so nothing is sold twice, and little is decided at all.
package recovery
