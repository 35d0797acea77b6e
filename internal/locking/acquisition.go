package locking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/lua"
)

// OwnerPattern is what the name of an owner may be.
const OwnerPattern = `^[A-Za-z0-9_./-]{2,64}$`

var ownerPattern = regexp.MustCompile(OwnerPattern)

// Acquisition is one caller's way to its locks, over all attempts: it keeps the place in the
// queue, and hears of releases. It is used by one goroutine, from Begin to End.
//
//	for {
//		locks, err := a.TryLock(ctx, sets) // take what can be had, without waiting
//		...                                // work under locks that are held
//		err = a.Wait(ctx)                  // until what is blocked is worth another try
//	}
type Acquisition struct {
	locker    *Locker
	order     int64 // older acquisitions have lower ones
	id        string
	owner     string // "-" = none
	deadline  time.Time
	tries     int
	requested int                  // sets of the last TryLock
	since     map[string]time.Time // first key of a set -> when it was first blocked

	blocked   []*Lock           // of the last TryLock
	uncertain []*Lock           // those that may be held although nobody knows
	channels  map[string]uint64 // channel -> how much had been heard on it before the last TryLock
	waiter    *waiter           // nil unless it has waited and not tried since
}

// acquisitions counts those of this process.
var acquisitions atomic.Int64

// NewAcquisition begins an acquisition that may wait, and keep its place in the queue, for wait.
func (l *Locker) NewAcquisition(owner string, wait time.Duration) (*Acquisition, error) {
	switch {
	case owner == "":
		owner = "-"
	case !ownerPattern.MatchString(owner):
		return nil, fmt.Errorf("lock owner %q does not match %s", owner, OwnerPattern)
	}
	return &Acquisition{
		locker: l, order: acquisitions.Add(1), id: newID(), owner: owner, deadline: time.Now().Add(wait),
		since: make(map[string]time.Time), channels: make(map[string]uint64),
	}, nil
}

// newID returns 128 random bits as letters and digits.
func newID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// TryLock tries to lock each set once, without waiting, all in as few round trips as the
// strategy has. The sets do not overlap. It returns a Lock for each, held or not. After an
// error no lock is held; what a lost reply has left behind is given back by End.
func (a *Acquisition) TryLock(ctx context.Context, sets []KeySet) ([]*Lock, error) {
	locks := make([]*Lock, len(sets))
	now := time.Now()
	for i, set := range sets {
		set.Keys = slices.Compact(slices.Sorted(slices.Values(set.Keys)))
		locks[i] = &Lock{KeySet: set, id: a.id, began: now}
	}
	a.tries++
	a.requested = len(sets)
	a.blocked = a.blocked[:0]
	queue := a.locker.strategy.waitQueue()
	queue.beforeTry(a)
	attempted := slices.DeleteFunc(slices.Clone(locks), func(l *Lock) bool { return queue.blockedByOlder(a, l) })
	if err := a.locker.strategy.try(ctx, a, attempted); err != nil {
		a.uncertain = append(a.uncertain, attempted...)
		queue.stopWaiting(a) // others in line look at its id
		a.id = newID()       // else End could take a later success for what this has left
		a.locker.metrics.failed(attempted)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, lua.WrapError(err)
	}
	for _, lock := range locks {
		since, waited := a.since[lock.KeySet.Keys[0]]
		switch {
		case !lock.Held:
			a.blocked = append(a.blocked, lock)
			if !waited {
				a.since[lock.KeySet.Keys[0]] = now
			}
		case waited:
			a.locker.metrics.waited(lock, since)
			delete(a.since, lock.KeySet.Keys[0])
		}
	}
	a.locker.metrics.tried(locks)
	queue.afterTry(a)
	return locks, nil
}

// Wait returns nil when it is worth while to try again what the last TryLock did not get:
// something in the way was released, or its lease or its wait in the queue is over. When there is
// no word to wait for (a lock that was held was lost or in conflict, or the strategy has no
// wake-ups) it waits a little longer each time, and at random, so that contenders do not meet
// again. It returns ErrTimeout when the acquisition's wait is over.
func (a *Acquisition) Wait(ctx context.Context) error {
	left := time.Until(a.deadline)
	if left <= 0 {
		return ErrTimeout
	}
	queue := a.locker.strategy.waitQueue()
	if queue == nil || len(a.blocked) < a.requested {
		return sleep(ctx, min(left, backoff(a.tries)))
	}
	return queue.wait(ctx, a, left)
}

// Close ends the acquisition: it leaves the queues and gives back what a lost reply may have left
// behind, also when ctx is over. Locks that are held stay so.
func (a *Acquisition) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	for _, lock := range a.blocked {
		a.locker.metrics.waited(lock, a.since[lock.KeySet.Keys[0]])
	}
	a.locker.strategy.cleanUp(ctx, a)
	a.locker.strategy.waitQueue().leave(a)
}

// cleanUpTimeout bounds what is done for locks whose caller has gone. What is not done by then
// is done by the lease.
const cleanUpTimeout = time.Second

// backoff returns how long to wait after so many tries: at random up to a bound that doubles,
// from 1 ms to 256 ms. ("Full jitter", M. Brooker, Exponential Backoff And Jitter, 2015.)
func backoff(tries int) time.Duration {
	const base, doublings = time.Millisecond, 8
	return rand.N(base<<min(tries, doublings)) + base/10
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
