package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"holdfast/internal/locking"
)

const (
	leaseFirst = 5 * time.Second  // of auto, until there is evidence
	leaseEvery = 10 * time.Second // how often auto looks at the evidence
)

// leaser says how long locks last. With --lock-lease auto it learns it from the metrics.
type leaser struct {
	lease    locking.LeaseFunc
	auto     *locking.AutoLease // nil = the lease is fixed
	gatherer prometheus.Gatherer
	log      zerolog.Logger
}

func newLeaser(c Config, r *prometheus.Registry, log zerolog.Logger) *leaser {
	x := &leaser{lease: locking.FixedLease(time.Duration(c.LockLease)), gatherer: r, log: log}
	if c.LockLease == leaseAuto {
		x.auto = locking.NewAutoLease(leaseFirst)
		x.lease = x.auto.Lease
	}
	return x
}

// run learns until ctx is over.
func (x *leaser) run(ctx context.Context) error {
	if x.auto == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(leaseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := x.runOnce(); err != nil {
				x.log.Warn().Err(err).Msg("lock leases stay as they are")
			}
		}
	}
}

// runOnce chooses the leases anew from all that was measured.
func (x *leaser) runOnce() error {
	families, err := x.gatherer.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	sections, err := lockDurations(families, locking.MetricSections)
	if err != nil {
		return err
	}
	for _, s := range x.auto.Observe(sections) {
		// The margin is as it came out: the bounds of a lease can make it more or less than was wanted.
		margin := math.Round(10*float64(s.Lease)/float64(s.P99)) / 10
		x.log.Info().Str(locking.LabelSlots, s.Class).Dur("lease_ms", s.Lease).Dur("p99_ms", s.P99).
			Int("samples", s.Samples).Float64("margin", margin).Msg("lock lease chosen from measurement")
	}
	return nil
}
