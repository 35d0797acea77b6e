// Package audit looks at all that Holdfast keeps, and finds what is not as it was promised. It is a
// second opinion: it reads the streams, Redis and Postgres by its own code, from what holds/doc.go
// says of them, and runs none of the scripts and queries that it checks.
//
// # What it proves, and what it cannot
//
// Events. Each event in the inbound stream has one outcome or one dead letter, or is not
// acknowledged yet; each outcome and each letter has its event. Dead letters may be removed
// (replayed, edited, discarded): then as many events may be without one.
//
// Capacity. Outcomes tell by Redis' clock when a hold took its slots and when it gave them back, so
// it can be added up how much of a slot was taken at each moment. A hold counts until its deadline,
// whether or not anybody has swept it; a reservation until somebody asked for it to be cancelled.
// That is compared with the highest capacity that was ever told, because capacity may be written by
// SQL, which nobody tells: that a slot was oversold while its capacity was lower for a time can only
// be proved to who knows that nobody does so (Options.CapacityByEvents), and is counted otherwise; that it
// was raised and lowered again by SQL cannot be known. What is taken within the millisecond in
// which something else is given back is taken for later.
//
// Grants and ends. Each hold that is told of was granted, once, lasted to its deadline, and ends once. While it
// is live, no other is granted to its request key, or to its user on the same slots. What Redis remembers of a
// hold is what was told of it. That a request key is not granted again after its hold has ended is not judged: for
// how long it is remembered is only known to workers. Where Redis was filled again, a hold that was paid after
// its deadline may have been extended without anybody being told, if that was asked for in time.
//
// Payments. Each payment has one answer, and OUT, payments and reservations agree about it; the
// inventory has reserved what the reservations say.
//
// Redis. Counters, users, deadline index, agenda and the keys of a hold are what the records say,
// and nothing is left of what is over.
//
// Streams lose their oldest messages, and may be deleted and made anew, as may Redis and Postgres under streams that
// stay. What could have been dropped, and what was told before a stream or the schema was made, is not judged, but
// counted: see Report.Inconclusive and Report.Since. Letters that were removed are not known either: as many events
// without an outcome are taken for theirs, and counted.
//
// # Why workers may go on
//
// Each script sees one state of a resource, and each query one of Postgres, so what they find by
// themselves was so. What is compared across servers is read in this order:
//
//	floors   up to where every event is acknowledged: those have their outcomes
//	streams  what was told by now must be in Redis and Postgres ──────────────┐
//	Postgres                                                                  │
//	Redis    what is here by now is told by the end of the next reading,  ◄───┘
//	floors   or its event is not acknowledged by these: then it is on its way
//	streams  the rest
//
// And what is found is looked at a second time in the same way: only what is there both times is
// told. A number that has changed by as much as what is expected is the same difference.
//
// # What it needs
//
// Memory for 1,000,000 messages of the streams at a time, about 600 MB (measured: 120 MB for 200,000);
// for more it reads the streams again, for another part of the resources each time. Redis is asked for
// 300 records or 500 keys at a time, which takes it about 10 ms. A larger resource is read page by page: its
// counters, then its records, which tell what each counter was when it was read. Counters that seem to be
// wrong are read again, and the records with them; what happened in just that millisecond is not judged. So
// is it repaired: by how much a counter is wrong, by one at a time (adjust.lua).
// 100,000 live holds on 1,000 resources, 300,000 keys and 200,000 messages were audited in 10 s on 4
// busy cores (go test ./internal/audit -bench Audit).
package audit
