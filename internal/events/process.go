package events

import (
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/telemetry"
)

// Process is shared by the consumers of one process. It has the name of the worker, the register of
// poison, and the current outages, each of which is logged once when it begins and once when it ends.
type Process struct {
	Metrics *Metrics          // nil when nothing is measured; set both before the first NewConsumer
	Tracer  *telemetry.Tracer // nil when nothing is traced

	worker string
	poison PoisonRegister
	log    zerolog.Logger
	pace   *Pace // of the outbound stream

	payloadMu   sync.Mutex
	payloadRead time.Time // when the max_payload of NATS was last read, see acceptsNow; payloadMu guards it

	mu        sync.Mutex
	consumers []*Consumer
	outage    *outage                 // nil when there is none
	fetchedAt time.Time               // the last fetch that has not failed, of any consumer
	leftAt    time.Time               // the last leaveServer that has connected to another server
	shards    map[string]*shardOutage // by address; at most one for each server of a Redis Cluster
}

// NewProcess returns a Process. worker is its name in dead letters.
func NewProcess(worker string, poison PoisonRegister, log zerolog.Logger) *Process {
	return &Process{worker: worker, poison: poison, log: log, pace: NewPace(), shards: make(map[string]*shardOutage)}
}
