// Package audit reads all data that Holdfast keeps and finds what contradicts its promises. It is an
// independent check: it reads the streams, Redis and Postgres with its own code, written from the
// description in holds/doc.go, and it runs none of the scripts and queries that it checks. It shares
// the outcome types and the decoding of events with the packages that it checks.
//
// It also computes by itself what follows from the outcomes, although a rebuild computes that too
// (recovery.Projection): an audit is how an operator checks a rebuild, and a fault in shared code would be
// in both (see the mutants rebuilt-*).
//
// [Run] is one audit of everything. [Reconciler] checks Redis and the sums of Postgres all the time, in one
// worker; every worker also checks the resources that its own scripts report. [Repair] repairs what both find.
//
// # What an audit proves, and what it cannot prove
//
// Events. Each event in the inbound stream has one outcome or one dead letter, or is not acknowledged
// yet. Each outcome and each dead letter has its event. Dead letters may be removed (replayed, edited,
// discarded). After that, as many events may lack a dead letter as were removed.
//
// Capacity. Outcomes state by Redis' clock when a hold took its slots and when it gave them back. From
// that the audit computes how much of a slot was taken at each moment. A hold counts until its deadline,
// whether or not it was swept by then. A reservation counts until its cancellation was requested. The
// audit compares the result with the highest capacity that was ever published, because capacity may be
// written by SQL, and no event is published for that:
//
//   - A slot that was oversold while its capacity was lower for a time is a finding only with
//     Options.CapacityByEvents, which states that no capacity is written by SQL. Without it the audit
//     counts the slot as inconclusive.
//   - A capacity that was raised and lowered again by SQL leaves no trace.
//   - Slots that are taken in the millisecond in which others are given back count as taken later.
//
// Grants and ends. Each hold in the outbound stream was granted once, lasted to its deadline, and ends
// once. While it is live, no other hold is granted to its request key, or to its user on the same slots.
// What Redis remembers of a hold agrees with its outcomes. The audit does not check that a request key
// is not granted again after its hold has ended: only workers know for how long they remember it. After
// a rebuild of Redis, a hold that was paid after its deadline may have been extended by an outcome that
// was never published, if the extension was requested in time.
//
// Payments. Each payment has one answer, and the outbound stream, payments and reservations agree about
// it. The inventory has reserved what the reservations take. After a failover or a restore, Postgres may lack what
// workers put back when they start: of what follows the commit marker, the audit says so in place of another remedy.
//
// Redis. Counters, users, the deadline index, the agenda and the keys of a hold agree with the records,
// nothing is left over from holds that have ended, and each answer that is remembered can be read.
//
// Streams lose their oldest messages. They may also be deleted and recreated, as may Redis and Postgres
// beside streams that stay. The audit does not check what could have been dropped, or what was published
// before a stream or the schema was created. It counts it: see Report.Inconclusive and
// Report.StreamStarts. Removed dead letters are unknown too: the audit assumes that as many events
// without an outcome had one, and counts them.
//
// # Why workers may run during an audit
//
// Each script sees one state of a resource, and each query one state of Postgres, so what either finds
// alone was true at that moment. What is compared across servers is read in this order:
//
//	floors   sequences up to which every event is acknowledged, so has its outcome
//	streams  what was published by now must be in Redis and Postgres ─────────┐
//	Postgres                                                                  │
//	Redis    what is here by now is published by the end of the next reading, ◄┘
//	floors   or its event is above these floors and still in progress
//	streams  the rest
//
// The audit then reads everything that has a finding a second time in the same order. It reports only
// what both readings show. A number that changed by as much as its expected value is the same finding.
//
// # What an audit needs
//
// Memory for 1,000,000 messages of the streams, about 1 GB (BenchmarkAudit measured peaks of 159 to 197 MiB
// with 200,000). With more messages it reads the streams several times, each time for another group of resources.
//
// One round trip asks Redis for at most 300 records or 500 keys, which takes Redis about 10 ms. A larger
// resource is read page by page: first its counters, then its records, from which the audit computes what
// each counter was when it was read. It reads counters that seem wrong again, and the records with them.
// It does not check what happened in the same millisecond as a reading, nor a counter of a paid hold that
// was settled meanwhile, unless its tombstone shows whether that was before or after the reading. While a
// hold says that it began later than Redis' clock, which was set back then, no counter of such a resource is
// compared or repaired. A repair of such a resource changes each counter by its difference (adjust.lua). When
// the key of the counters is missing, one step writes all of them, or none: a missing field counts as zero.
//
// Measured on 2 cores that were busy with other work too: 30,000 live holds on 1,000 resources, 90,000 keys
// and 60,000 messages in 12 to 15 s (go test ./internal/audit -bench Audit does it with 100,000 holds).
package audit
