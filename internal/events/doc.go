// Package events is how Holdfast listens and speaks: subjects, streams, CloudEvents, the
// consumers that bring inbound events to package holds, the outcomes that leave, and the dead
// letters of what can never be processed.
//
// The way of an event through a consumer, three steps that work at the same time on
// neighbouring batches:
//
//	fetch what waits ──► decode, decide (holds) ──► publish, wait for the PubAck, ack
//
// An event is acknowledged only after its one outcome is stored. A crash before that repeats
// it, and repeating it gives the same outcome with the same id.
package events
