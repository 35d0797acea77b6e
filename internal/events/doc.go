// Package events connects Holdfast to NATS: subjects and streams, CloudEvents, the consumers that
// pass inbound events to package holds, the outcomes that they publish, and the dead letters of
// events that can never be processed.
//
// # The steps of a consumer
//
// A consumer has five steps, which work at the same time on neighbouring batches (consumer.go):
//
//	fetch ──► decode ──┬─► lane: decide (holds) ──► publish, wait for the PubAck ──► acknowledge
//	                   ├─► lane: ...
//	                   └─► lane: ...
//
// A lane processes the events of some of the resources, chosen by a hash of the resource. There is
// one lane for each processor, at most four. A lane decides the events of one resource in the order
// in which they were stored, so they never wait for each other's locks. While one lane waits, the
// others go on. Each lane counts the failures of its own events.
//
// # Limits
//
// A consumer has at most inFlightMax events, of about 32 MiB, that are fetched and not yet
// completed (inflight.go). It extends the ack wait of those that take long.
//
// An event that cannot be decided now waits at the server, and any number of events can wait there:
// neither a slow lane nor a resource with corrupt data keeps events of other resources waiting. A
// slow lane returns what exceeds its share to the server, and recalls it in order (deferred.go), unless
// all lanes are slow: then no event would gain by it.
//
// # When an event is acknowledged
//
// An event is acknowledged only after its one outcome is stored. After a crash before that, the
// event is delivered again and has the same outcome, with the same id. When it comes so late that Redis may have forgotten
// its answer, or JetStream the id of its dead letter, and that is stored, it is only acknowledged (redelivery.go).
//
// Where the server syncs every message to disk, many outcomes leave as one atomic batch (outcome_batch.go).
//
// # Identities
//
//   - An event is identified by source, id, type, resource and content. The id of its outcome is
//     derived from them, so the same event has the same outcome wherever and however often it is
//     published (outcomeID).
//   - A stored event is identified by the creation time of the inbound stream and its sequence. A
//     stream that is deleted and recreated has other events under the same sequences (origin.go).
//   - A stored outcome is identified by its Nats-Msg-Id, which is its id. If JetStream reports an
//     outcome as a duplicate, the consumer compares it with the stored one (duplicate.go).
//
// # A missing consumer
//
// If a durable consumer is missing, it is created at its first event without an answer (resume.go).
package events
