// Package stack starts the servers that Holdfast needs (NATS with JetStream, Redis and Postgres) for
// `worker dev`, `worker run --embedded` and the tests. They are the real servers.
//
// # Who can use the servers
//
// The servers listen on 127.0.0.1 only, without passwords, on free ports that may differ between runs.
// Every user of the machine can connect to them. They are for development, tests and a single node,
// not for a machine with users whom you do not trust.
//
// # Life of a server
//
// NATS runs in this process. Redis and Postgres are child processes. On Linux they die with this
// process, even when it is killed with SIGKILL; elsewhere only Close ends them.
//
//	find ──► (install) ──► lock ──► start ──► ready ──► stop
//	                        ▲         │ port taken: try another port
//	                        └─────────┘
//
// # Locks
//
//	DIR/redis.lock, postgres.lock   held by the child through an inherited descriptor, so free only
//	                                when the last process that can write there has ended
//	DIR/lock                        held by this process, for the whole directory
//	lock beside endpoints.env       held by this process, if that is another directory
//
// The empty lock files stay.
//
// # Directories
//
//	DIR/nats       JetStream's store
//	DIR/redis      append-only file; DIR/redis-lock-1/redis that of a lock server
//	DIR/postgres   data directory, owned by the user that runs postgres
//
// Without Options.Dir, DIR is a new directory in os.TempDir. Close removes it. A later Start removes the
// directories of processes that were killed before Close.
package stack
