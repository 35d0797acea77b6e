// Package client is what a publisher needs of Holdfast. It talks to workers over NATS only.
//
//	file            what it does
//	event.go        builds an inbound event
//	client.go       publishes an event, waits for its reply, follows all outcomes
//	bulk.go         publishes many events, a bounded number at a time
//	query.go        queries a worker: availability, dry run
//	deadletters.go  finds, reads and removes dead letters
//	replay.go       publishes the events of dead letters again
//	runs.go         records who replayed, edited or discarded which dead letters
//
// # Replies
//
// A publisher that waits for the outcome of an event sets the header Holdfast-Reply-To to an inbox. A worker sends the
// outcome there once it is stored, or a short notice when the event is dead-lettered. A reply that is lost or late is
// no loss: the event is stored, and its outcome will be too.
//
// # At least once
//
// Each method that publishes returns when JetStream has stored the event. When its PubAck is lost, the event may be
// stored a second time. That is the same event: it has the same id, source and content, and gets the same outcome.
//
// # Replays
//
// A replay stores the event of a dead letter in the inbound stream and then removes the dead letter. A process that is
// killed between the two steps leaves both. The next replay of that dead letter uses the same message id
// (Replayer.MessageID), so JetStream drops the copy within its duplicate window. After the window, a resumed run finds
// the events that it stored itself (Replayer.Resume).
//
// A run is the record of such work: it says who did what to which dead letters, when, why, and with which results. It
// is a sequence of records in the runs stream, written as the work proceeds, so that a killed run can be resumed. Each
// record expects to follow the last one that its process wrote. Two processes can therefore not work on one run: the
// slower one gets ErrRunLocked.
package client
