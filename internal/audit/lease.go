package audit

import (
	"context"
	"errors"
	"time"
)

// Leases has one of several workers do what one is enough for.
type Leases interface {
	// KeepLease takes a lease for holder, or keeps it, for a time. It reports whether holder has it now.
	KeepLease(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error)
	// ReleaseLease ends a lease if holder has it.
	ReleaseLease(ctx context.Context, name, holder string) error
}

// The lease of the worker that reconciles. Another takes over leaseFor after it was killed, and
// leaseEvery after it was stopped.
const (
	leaseName    = "reconcile"
	leaseFor     = 20 * time.Second
	leaseEvery   = 5 * time.Second
	releaseLimit = time.Second
)

// errNotMine says that another worker reconciles.
var errNotMine = errors.New("another worker has the lease")

// lease is what a Reconciler knows of its lease. One goroutine uses it.
type lease struct {
	leases      Leases
	holder      string
	every       time.Duration // between two attempts to keep it
	lastAttempt time.Time     // of the last attempt
	until       time.Time     // until when it is held at least, zero = it is not held
}

// keep keeps the lease, or takes it, where the last attempt was some time ago. It returns errNotMine while
// another has it, and another error while it is not known whether it is still held.
func (l *lease) keep(ctx context.Context) error {
	now := time.Now()
	if now.Sub(l.lastAttempt) < l.every {
		return l.held(now, nil)
	}
	l.lastAttempt = now
	held, err := l.leases.KeepLease(ctx, leaseName, l.holder, leaseFor)
	switch {
	case held:
		l.until = now.Add(leaseFor)
	case err == nil:
		l.until = time.Time{}
	}
	return l.held(time.Now(), err)
}

// held returns nil while the lease is held, else why it is not.
func (l *lease) held(now time.Time, err error) error {
	switch {
	case now.Before(l.until):
		return nil
	case err != nil:
		return err
	}
	return errNotMine
}

// next returns how long it is until the next attempt.
func (l *lease) next() time.Duration { return max(0, time.Until(l.lastAttempt.Add(l.every))) }

// release gives the lease up, so that another worker takes it at once.
func (l *lease) release(ctx context.Context) error {
	if l.until.IsZero() {
		return nil
	}
	l.until = time.Time{}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	return l.leases.ReleaseLease(bounded, leaseName, l.holder)
}
