// Package robustness breaks servers, workers and what is between them while a load goes on, and sees
// that every promise holds. docs/faults.md says what is broken and what is judged. Only tests use it.
//
//	load ──► proxy ──► NATS (processes, 1 or 3) ◄── proxy ◄── worker ──► proxy ──► Redis, Postgres
//	  │                   │                                      × 3, each with proxies of its own
//	  │                   └── past all proxies ──► Book, audit, sampler: the judges
//	  └─────────────────────────────────────────────► Book: what was published
//
// A run has rounds, each with a namespace, workers and a load of its own. A round has bursts:
// some faults strike, are mended, everything comes to rest, and is judged.
//
//	Proxy    cuts, stalls, delays, slices, refuses, loses requests and replies (proxy.go)
//	Servers  real ones, as child processes: killed, paused, started again (servers.go, nodes.go)
//	Worker   a worker process that is started again whenever it ends (workers.go)
//	Load     what is asked (load.go); Book: what was asked and answered (recorder.go)
//	Fault    one thing that breaks, and how it is mended (faults*.go)
//	history  what was done to one slot, for porcupine (history.go)
//	Run      all of it (run.go), judged (check.go), and told (report.go)
//
// What is random is chosen by a seed: which faults, when and for how long, and what each customer
// means to do. What comes of it is not.
package robustness
