package audit

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Leases lets one of several workers do work that must not be done by all.
type Leases interface {
	// KeepLease takes or renews a lease for holder, for a time. It reports whether holder has the
	// lease now.
	KeepLease(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error)
	// ReleaseLease ends a lease if holder has it.
	ReleaseLease(ctx context.Context, name, holder string) error
}

// The lease of the worker that reconciles. Another worker takes over leaseFor after it was killed,
// or leaseEvery after it was stopped.
const (
	leaseName    = "reconcile"
	leaseFor     = 20 * time.Second
	leaseEvery   = 5 * time.Second
	releaseLimit = time.Second
)

// errNotMine means that another worker reconciles.
var errNotMine = errors.New("another worker has the lease")

// lease is a Reconciler's view of its lease. Only one goroutine uses it.
type lease struct {
	leases      Leases
	holder      string
	every       time.Duration // between two attempts to renew it
	lastAttempt time.Time
	failed      error     // of the last attempt
	until       time.Time // it is held until then at least, zero when it is not held
}

// keep takes or renews the lease if the last attempt is old enough. It returns errNotMine while
// another worker has it, and another error while it is unknown whether it is still held.
func (l *lease) keep(ctx context.Context) error {
	now := time.Now()
	if now.Sub(l.lastAttempt) < l.every {
		return l.held(now)
	}
	l.lastAttempt = now
	bounded, cancel := context.WithTimeout(ctx, leaseEvery)
	defer cancel()
	var held bool
	held, l.failed = l.leases.KeepLease(bounded, leaseName, l.holder, leaseFor)
	switch {
	case held:
		l.until = now.Add(leaseFor)
	case l.failed == nil:
		l.until = time.Time{}
	}
	return l.held(time.Now())
}

// held returns nil while the lease is held. Else it returns the error of the last attempt, or errNotMine if there was
// none.
func (l *lease) held(now time.Time) error {
	if now.Before(l.until) {
		return nil
	}
	return cmp.Or(l.failed, errNotMine)
}

// next returns the time until the next attempt.
func (l *lease) next() time.Duration { return max(0, time.Until(l.lastAttempt.Add(l.every))) }

// release ends the lease, so that another worker takes it at once.
func (l *lease) release(ctx context.Context) error {
	if l.until.IsZero() {
		return nil
	}
	l.until = time.Time{}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	return l.leases.ReleaseLease(bounded, leaseName, l.holder)
}
