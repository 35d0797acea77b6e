package locking

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// errLeaseExpired is why the context of Keep ends when nobody has taken the lock away.
var errLeaseExpired = fmt.Errorf("%w: its lease is over", ErrLost)

// WithContext returns a context for the work under locks. It ends, with an ErrLost as its cause, when
// one of them can no longer be trusted; a loss stays known there however busy its holder is. Its
// end is no proof: a process that was paused may run a little further before it hears of it, so
// what writes must be refused by Commit.
//
// With Options.RenewMax it renews the leases, a third of a lease after another, until so much
// time is over or stop is called.
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

// validityOf returns for how long all locks that are not released can be trusted.
func validityOf(locks []*Lock) time.Duration {
	validity := time.Duration(math.MaxInt64)
	for _, lock := range locks {
		if !lock.released() {
			validity = min(validity, lock.Validity())
		}
	}
	return validity
}

// renewUntilLost renews locks every so often and returns why one of them cannot be trusted any
// more, or what ended ctx.
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
		// Whatever else went wrong may be over before the trust is.
	}
}

// lostAmong returns the keys that err says were lost, of locks that were not released meanwhile.
func lostAmong(err error, locks []*Lock) (keys []string) {
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return nil
	}
	for _, lock := range locks {
		for _, key := range lock.KeySet.Keys {
			if !lock.released() && slices.Contains(lost.Keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
