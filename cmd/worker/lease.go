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
	leaseFirst = 5 * time.Second  // the lease of auto until enough was measured
	leaseEvery = 10 * time.Second // how often auto reads the metrics
)

// leaser chooses the lease of locks. With --lock-lease auto it derives the lease from the metrics.
type leaser struct {
	lease    locking.LeaseFunc
	auto     *locking.AutoLease // nil when the lease is fixed
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

// runOnce chooses the leases from all section times measured so far.
func (x *leaser) runOnce(context.Context) error {
	families, err := x.gatherer.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	sections, err := lockDurations(families, locking.MetricSections)
	if err != nil {
		return err
	}
	for _, s := range x.auto.Observe(sections) {
		// The actual margin: the bounds of a lease can make it differ from the intended one.
		margin := math.Round(10*float64(s.Lease)/float64(s.P99)) / 10
		x.log.Info().Str(locking.LabelSlots, s.Class).Dur("lease_ms", s.Lease).Dur("p99_ms", s.P99).
			Int("samples", s.Samples).Float64("margin", margin).Msg("lock lease chosen from measurement")
	}
	return nil
}
