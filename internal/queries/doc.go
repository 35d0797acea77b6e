// Package queries answers what services and operators ask of a namespace: which slots are available,
// which holds are live, what happened to a hold, which resources exist, and how much waits. It changes
// nothing.
//
// # Where an answer comes from
//
//   - Redis and Postgres, through the interfaces Querier and Ledger.
//   - The stored streams of package events: the history of a hold, recent outcomes, and statistics.
//
// # Who gets it
//
// HTTP and the console call Inquiry. On NATS, Service answers the same queries, and dry runs of events. A query has
// the same parameters everywhere (parameters.go), and the same Problem when it fails.
//
// # Limits
//
// Each answer reads a bounded amount, and lists have pages. A Service answers at most queriesMax
// queries at a time, and refuses more at once.
package queries
