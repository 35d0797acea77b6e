// Package events is how Holdfast listens and speaks: subjects, streams, CloudEvents, the
// consumers that bring inbound events to package holds, the outcomes that leave, and the dead
// letters of what can never be processed.
//
// The way of an event through a consumer, four steps that work at the same time on
// neighbouring batches:
//
//	fetch what waits ──► decode ──┬─► lane: decide (holds) ──► publish, wait for the PubAck, ack
//	                              ├─► lane: ...
//	                              └─► lane: ...
//
// A lane is the way of the events about some of the resources, chosen by a hash of the resource: one a
// processor, four at most. What is about one resource is decided in the order in which it came, and
// never waits for a lock that its own consumer has; what is about others goes on while one of
// them waits. A lane counts the failures of its own events. A consumer fetches no more than inFlightMax events and
// some 32 MiB ahead of what has ended, and says of those that take long that they are in progress.
//
// What cannot be decided now waits at the server, not here, and without a bound: neither a slow lane nor a
// resource whose data is corrupt keeps the events about others waiting. A slow lane gives back what is more than
// its share, and recalls it in its order (deferred.go).
//
// An event is acknowledged only after its one outcome is stored. A crash before that repeats
// it, and repeating it gives the same outcome with the same id.
//
// What tells two things apart:
//
//   - An event: source, id, type, resource and content. The id of its outcome is derived from these, so the same
//     event has the same outcome wherever and however often it is published (outcomeID).
//   - A stored event: the creation time of the inbound stream and the sequence. A stream that is deleted and created
//     again has other events under the same sequences (origin.go).
//   - A stored outcome: its Nats-Msg-Id, which is its id. What JetStream takes for a duplicate is compared with what
//     is stored (duplicate.go).
//
// A durable consumer that is missing goes on with its first event that is not answered (resume.go).
//
// Package client publishes events, and reads and replays dead letters.
package events
