// Package stack starts the servers that Holdfast stands on (NATS with
// JetStream, Redis and Postgres), all of them real, for `worker dev`,
// `worker run --embedded` and the tests.
//
// NATS runs in this process. Redis and Postgres are child processes that die
// with it, even when it is killed with SIGKILL (on Linux; elsewhere only Close
// ends them). Everything listens on 127.0.0.1 only, on free ports that may
// differ from run to run, and nobody has to log in: whoever has an account on
// this machine can use these servers. They are for development, tests and a
// single node, not for a machine that is shared with people you do not trust.
//
// # Life of a child
//
//	find ──► (install) ──► lock ──► start ──► ready ──► stop
//	                        ▲         │ port lost: again, another port
//	                        └─────────┘
//
// A child holds the lock file of its own data (redis.lock, postgres.lock)
// through an inherited descriptor: the lock is free exactly when the last
// process that could write there is gone. The stack holds one for the whole
// directory (lock), which is free when the parent is gone, and one for the
// directory of its endpoints file.
//
// # Directories
//
//	DIR/lock, redis.lock, postgres.lock
//	DIR/nats       JetStream's store
//	DIR/redis      append-only file
//	DIR/postgres   data directory, owned by the user that runs postgres
//
// Without Options.Dir, DIR is a new directory in os.TempDir. Close removes it;
// those of processes that could not close are removed by the next Start.
package stack
