// Package robustness injects faults into servers, workers and connections while a load runs, and
// checks that every promise of README.md holds. It has tests only; docs/faults.md describes the
// faults and the checks.
//
//	load ──► proxy ──► NATS (1 or 3 processes) ◄── proxy ◄── worker ──► proxy ──► Redis (1, 2 or 6), Postgres (1 or 2)
//	  │                   │                                   × 3, each with its own proxies
//	  │                   └── without proxies ──► recorder, audit, sampler
//	  └─────────────────────────────────────────► recorder: what was published
//
// A run consists of rounds. Each round has its own namespace, workers and load. A round consists of
// bursts: a burst injects up to three faults, repairs them, waits until everything is answered, and
// checks.
//
//	Servers   real servers as child processes: killed, paused, restarted   servers, cluster, sentinel, postgres_pair, nats_node, clock_shim
//	Worker    a worker process that restarts whenever it ends              workers
//	Proxy     cuts, stalls, delays, slices, refuses, drops                 internal/stack/stacktest
//	Load      publishes requests, payments, cancellations                  load
//	Recorder  records what was published and what was answered             recorder
//	history   records the operations on one slot, for porcupine            history, slot_model
//	Fault     one kind of failure and its repair                           faults*
//	Run       runs the rounds, checks them and reports                     run, check, report
//
// The seed determines the plan: which faults strike, when and for how long, and what each customer
// intends. It does not determine the results, which depend on timing.
package robustness
