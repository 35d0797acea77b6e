package events

import (
	"sync"

	"github.com/rs/zerolog"
)

// Process is what the consumers of one process share: its name, where poison is recorded, and the outage that they
// wait for, which is logged once when it begins and once when it ends.
type Process struct {
	worker string
	poison PoisonRegister
	log    zerolog.Logger

	mu        sync.Mutex
	consumers []*Consumer
	outage    *outage // nil = none
}

// NewProcess returns a Process; worker is its name in dead letters.
func NewProcess(worker string, poison PoisonRegister, log zerolog.Logger) *Process {
	return &Process{worker: worker, poison: poison, log: log}
}

// add adds a consumer.
func (p *Process) add(c *Consumer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.consumers = append(p.consumers, c)
}
