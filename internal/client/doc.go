// Package client publishes events to Holdfast, waits for their outcomes, queries workers and manages
// dead letters. It uses NATS only. Each file has one task:
//
//	file            what it does
//	event.go        builds an inbound event, and shows the body of one
//	client.go       publishes an event, passes its reply to who waits for it, follows all outcomes
//	bulk.go         publishes many events, a bounded number at a time
//	query.go        queries a worker: availability, dry run
//	deadletters.go  finds, reads and removes dead letters
//	replay.go       publishes the events of dead letters again
//	stored.go       finds the outcomes of events that another process published
//	process.go      processes the dead letters of a run
//	runs.go         records who replayed, edited or discarded which dead letters, and the limits of a run
//	moment.go       parses the times that operators give
//	workers.go      finds the running workers
//
// # Replies
//
// A publisher that waits for the outcome of an event sets the header Holdfast-Reply-To to an inbox.
// A worker sends the outcome there once it is stored, or a short notice when the event is
// dead-lettered. A reply can be lost or late. The event is stored nevertheless, and its outcome will
// be stored in the outbound stream.
//
// # At least once
//
// An event is published when JetStream has stored it and its PubAck has arrived. When the PubAck is
// lost, the event is published again and may be stored twice. Both are the same event, with the same
// id, source and content, and get the same outcome.
//
// # Replays
//
// A replay stores the event of a dead letter in the inbound stream and then removes the dead
// letter. A process that is killed between the two steps leaves both. The next replay of that dead
// letter uses the same message id (replayer.messageID), so JetStream drops the copy within its
// duplicate window. After the window, a resumed run finds the events that it stored itself
// (DeadLetters.ReplayWork). The reply to such an event went to the process that published it: its outcome is
// read from the streams.
//
// A run is the record of such work: it says who did what to which dead letters, when, why, and with
// which results. It is a sequence of records in the runs stream, written as the work proceeds, so
// that a killed run can be resumed. Each record expects to follow the last one that its process
// wrote. Two processes can therefore not work on one run: the slower one gets ErrRunLocked.
package client
