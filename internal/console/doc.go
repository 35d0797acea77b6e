// Package console serves the web pages of operators: what a worker and its namespace do, who holds
// what until when, what became of a hold, and which events died and why. With Act it also replays,
// edits and discards dead letters and sets capacity. A file has the screen that it is named after;
// console.go, session.go and view.go have what all screens share.
//
// # Reading
//
// The console reads what /v1 and the commands read: queries.Inquiry, client.DeadLetters, and the
// Status of the worker that serves it. It reads nothing while no page is open. All open pages share
// one Status a second. Each request reads a bounded amount within a bounded time.
//
// # Private data
//
// User ids, metadata and the bodies of events are left out unless a page is requested with
// reveal=true. Each such request is logged with the name and the address of the operator.
//
// # Actions
//
// A replay, edit or discard is a recorded run, the same as that of `publisher dlq`: a run that was
// begun here can be resumed there. The worker that began a run processes it. When that worker stops,
// the run ends as stopped; when it is killed, the run stays unfinished. Both can be resumed.
package console
