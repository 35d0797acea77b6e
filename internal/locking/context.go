package locking

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// errLeaseExpired is the cause of a context that WithContext returned when the lease of a lock has
// expired.
var errLeaseExpired = fmt.Errorf("%w: lease expired", ErrLost)

// WithContext returns a context for the work under locks. The context ends, with ErrLost as its
// cause, when one of the locks is no longer valid. This is not a guarantee: a process that was
// paused may continue for a moment before it notices. Therefore a write must go through Exec, which
// refuses it.
//
// If Options.RenewMax is set, WithContext renews the locks after each third of their lease, until
// RenewMax is over or stop is called. The caller must call stop.
func (l *Locker) WithContext(ctx context.Context, locks ...*Lock) (work context.Context, stop func()) {
	validity := validityOf(locks)
	if validity == math.MaxInt64 {
		return context.WithCancel(ctx)
	}
	if l.renewMax == 0 {
		return context.WithDeadlineCause(ctx, time.Now().Add(validity), errLeaseExpired)
	}
	work, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(l.renewUntilLost(work, locks))
	}()
	return work, func() {
		cancel(context.Canceled)
		<-done
	}
}

// validityOf returns the shortest validity of the locks that are not released.
func validityOf(locks []*Lock) time.Duration {
	validity := time.Duration(math.MaxInt64)
	for _, lock := range locks {
		if !lock.released() {
			validity = min(validity, lock.Validity())
		}
	}
	return validity
}

// renewUntilLost renews locks after each third of the shortest lease. It returns the reason for
// which one of them is no longer valid, or the cause of ctx.
func (l *Locker) renewUntilLost(ctx context.Context, locks []*Lock) error {
	every := locks[0].lease / 3
	for _, lock := range locks {
		every = min(every, lock.lease/3)
	}
	enough := time.Now().Add(l.renewMax)
	for {
		validity := validityOf(locks)
		if validity <= 0 {
			return errLeaseExpired
		}
		if err := sleep(ctx, min(validity, every)); err != nil {
			return err
		}
		if validity = validityOf(locks); validity <= 0 || !time.Now().Before(enough) {
			continue
		}
		live := slices.DeleteFunc(slices.Clone(locks), (*Lock).released)
		renewing, cancel := context.WithTimeout(ctx, validity)
		err := l.strategy.renew(renewing, live)
		cancel()
		if lost := lostAmong(err, live); len(lost) > 0 {
			return l.countLost(&LostError{lost}, live)
		}
		// Retry after any other error: it may end before the validity does.
	}
}

// lostAmong returns the keys that err reports as lost and whose locks were not released meanwhile.
func lostAmong(err error, locks []*Lock) (keys []string) {
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return nil
	}
	for _, lock := range locks {
		for _, name := range lock.KeySet.Names {
			if key := lock.KeySet.Key(name); !lock.released() && slices.Contains(lost.Keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
