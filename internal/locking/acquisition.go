package locking

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/lua"
)

// OwnerPattern matches the names of owners.
const OwnerPattern = `^[A-Za-z0-9_./-]{2,64}$`

var ownerPattern = regexp.MustCompile(OwnerPattern)

// Acquisition is a series of attempts to get locks. It keeps its place in the queue and learns of
// releases. One goroutine uses it, from NewAcquisition to Close.
//
//	for {
//		locks, err := a.TryLock(ctx, sets) // take the free sets, without waiting
//		...                                // work under the locks that are held
//		err = a.Wait(ctx)                  // until another attempt may succeed
//	}
type Acquisition struct {
	locker    *Locker
	order     int64 // lower for older acquisitions of this process
	id        string
	owner     string
	deadline  time.Time
	tries     int
	requested int                  // number of sets of the last TryLock
	since     map[string]time.Time // first key of a set -> when it was first blocked

	blocked   []*Lock           // of the last TryLock
	uncertain []*Lock           // locks of failed attempts, which the server may have granted
	channels  map[string]uint64 // channel -> number of messages received before the last TryLock
	waiter    *waiter           // set from Wait until the next TryLock
}

var acquisitions atomic.Int64

// NewAcquisition begins an acquisition that may wait for the duration wait and keeps its place in
// the queue for this time. An owner that is not "" must match OwnerPattern, else every attempt fails.
func (l *Locker) NewAcquisition(owner string, wait time.Duration) *Acquisition {
	return &Acquisition{
		locker: l, order: acquisitions.Add(1), id: newID(), owner: cmp.Or(owner, noOwner), deadline: time.Now().Add(wait),
		since: make(map[string]time.Time), channels: make(map[string]uint64),
	}
}

// noOwner is the owner of an acquisition that has none. OwnerPattern does not match it.
const noOwner = "-"

// newID returns 128 random bits as letters and digits.
func newID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// TryLock tries to lock each set once, without waiting, in as few round trips as the strategy
// allows. The sets must not overlap. It returns a Lock for each set; Lock.Held says whether it is
// held, and Lock.Err whether only its attempt has failed. After an error no lock is held. If a reply was lost,
// Close releases what the server granted.
func (a *Acquisition) TryLock(ctx context.Context, sets []KeySet) ([]*Lock, error) {
	if a.owner != noOwner && !ownerPattern.MatchString(a.owner) {
		return nil, fmt.Errorf("lock owner %q does not match %s", a.owner, OwnerPattern)
	}
	locks := make([]*Lock, len(sets))
	now := time.Now()
	for i, set := range sets {
		set.Names = slices.Compact(slices.Sorted(slices.Values(set.Names)))
		locks[i] = &Lock{KeySet: set, id: a.id, began: now}
	}
	a.tries++
	a.requested = len(sets)
	a.blocked = a.blocked[:0]
	queue := a.locker.strategy.waitQueue()
	queue.beforeTry(a)
	attempted := slices.DeleteFunc(slices.Clone(locks), func(l *Lock) bool { return queue.blockedByOlder(a, l) })
	err := a.locker.strategy.try(ctx, a, attempted)
	if err == nil && len(locks) > 0 && !slices.ContainsFunc(locks, func(l *Lock) bool { return l.Err == nil }) {
		err = locks[0].Err // every attempt has failed
	}
	if err != nil {
		a.uncertain = append(a.uncertain, attempted...)
		queue.stopWaiting(a) // before the id changes, by which other waiters find it
		a.id = newID()       // so that Close does not release a lock that a later attempt gets
		for _, lock := range attempted {
			a.locker.metrics.attempted(len(lock.KeySet.Names), resultFailed)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, lua.WrapError(err)
	}
	for _, lock := range locks {
		since, waited := a.since[lock.KeySet.first()]
		result := resultHeld
		switch {
		case lock.Err != nil:
			result = resultFailed
			a.uncertain = append(a.uncertain, lock)
			a.requested--
		case !lock.Held:
			result = resultBlocked
			a.blocked = append(a.blocked, lock)
			if !waited {
				a.since[lock.KeySet.first()] = now
			}
		case waited:
			a.locker.metrics.waited(lock, since)
			delete(a.since, lock.KeySet.first())
		}
		a.locker.metrics.attempted(len(lock.KeySet.Names), result)
	}
	queue.afterTry(a, locks)
	return locks, nil
}

// Wait waits until another attempt for the blocked sets may succeed: a blocking key was released,
// its lease has expired, or the waiter ahead has stopped waiting.
//
// When no such event can come (a lock that was held was lost or had a conflict, or the strategy
// does not notify waiters), Wait sleeps. The random sleep becomes longer with each attempt, so that
// contenders do not collide again.
//
// It returns ErrTimeout when the time of the acquisition is over, or the cause of ctx.
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

// Close ends the acquisition. It leaves the queues and releases locks that a server may have
// granted in an attempt that failed, even after ctx is done. Locks that are held stay held.
func (a *Acquisition) Close(ctx context.Context) {
	ctx, cancel := CleanUpContext(ctx)
	defer cancel()
	for _, lock := range a.blocked {
		a.locker.metrics.waited(lock, a.since[lock.KeySet.first()])
	}
	a.locker.strategy.cleanUp(ctx, a)
	a.locker.strategy.waitQueue().leave(a)
}

// cleanUpTimeout bounds the release of locks whose caller has gone. A lock that is not released by
// then ends with its lease, a place in a queue with its wait. Tests set a longer time.
var cleanUpTimeout = time.Second

// CleanUpContext returns a context for what has to be done in Redis after the work, as the release of locks, within a
// second. It goes on when ctx is done. A server that has timed out within ctx (see lua.TimeOutOnce) is asked too, because
// it may have granted a lock.
func CleanUpContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(lua.TimeOutOnce(context.WithoutCancel(ctx)), cleanUpTimeout)
}

// backoff returns a random time to wait after a number of tries. Its bound doubles with each try,
// up to 256 ms. ("Full jitter", M. Brooker, Exponential Backoff And Jitter, 2015.)
func backoff(tries int) time.Duration {
	const base, doublings = time.Millisecond, 8
	return rand.N(base<<min(tries, doublings)) + base/10
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
