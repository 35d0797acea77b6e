package locking

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

// KeySet is the set of keys that one lock covers. All keys that it names are in one hash slot.
type KeySet struct {
	Names   []string // of the keys in the scope, without spaces; at least one, in any order, with or without repeats
	Fence   string   // key of the counter of the partition's locks
	Version string   // key that changes with everything the work must not miss; Optimistic watches it
	Scope   string   // prefix of the keys that waiters share; the same for sets that overlap
}

// Key returns the key of a name in the scope.
func (s KeySet) Key(name string) string { return s.Scope + "lock:" + name }

func (s KeySet) first() string { return s.Key(s.Names[0]) }

// Lock is the result of an attempt to lock a set.
type Lock struct {
	KeySet KeySet // with sorted and distinct names
	// Held says whether the set is locked. Token and Fence are valid only if it is.
	Held bool
	// Err is why the attempt for this set failed while those for others, on other shards of a Redis Cluster, did
	// not. The set is not held.
	Err error
	// Token proves that the lock is held. While it is, the hash <scope>locks contains for each name
	// of the set this token, a space and the end of the lease in milliseconds. Token is "" for a
	// strategy that writes nothing to the Redis where the script runs. (If an owner locks a key
	// again with Locker.Lock, the value in the hash becomes longer than the token.)
	Token string
	// Fence is the fencing token. It is higher than the fence of every earlier lock of the
	// partition, and 0 for a strategy without fencing tokens. This holds even after Redis has lost
	// all its data. If Redis comes back with older data, its fences must be raised with
	// FenceBase.Next before it is used again: until the next check of the supervisor they may repeat.
	// A system that is written to under the lock can refuse a write with a lower fence than the highest
	// that it has received.
	Fence int64

	id              string // of its acquisition
	began           time.Time
	lease           time.Duration
	validUntil      atomic.Pointer[time.Time] // nil for no end
	over            atomic.Bool               // released, or about to be released by its work
	lossCounted     atomic.Bool
	sectionMeasured atomic.Bool
	blocker         blocker
	tx              *transaction     // of Optimistic
	mutexes         []*redsync.Mutex // of Redlock
}

// blocker describes what prevented the locking of a set.
type blocker struct {
	name       string        // of the key, "" when it is not known
	remaining  time.Duration // time after which it ends at the latest; 0 when it is not known
	ahead      string        // id of the first acquisition in the queue; "" when the key is locked
	olderWaits bool          // an older acquisition of this process waits for the key, so no attempt was sent
}

// Validity returns for how long the lock is certainly held, without asking a server. It ends at the
// start of the attempt plus the lease, minus the possible difference between clocks. It is zero or
// negative after that.
func (l *Lock) Validity() time.Duration {
	if until := l.validUntil.Load(); until != nil {
		return time.Until(*until)
	}
	return math.MaxInt64
}

func (l *Lock) released() bool { return l.over.Load() }

// setValidity sets the end of the validity for a lease that was requested at start.
func (l *Lock) setValidity(start time.Time, lease time.Duration) {
	const margin = 2 * time.Millisecond // Redis counts in whole milliseconds
	l.lease = lease
	until := start.Add(lease - lease/100 - margin)
	l.validUntil.Store(&until)
}

// The statuses with which Exec, or a script that runs under a lock, refuses the work. Nothing was
// written.
const (
	StatusLockLost = "lock_lost" // the script did not find the token of the lock
	StatusConflict = "conflict"  // the version changed, see Optimistic
	StatusBlocked  = "blocked"   // another owner holds a key, see ExecInOneStep
)

// ErrLost says that a lock ended, or may have ended, before it was released.
var ErrLost = errors.New("lock lost")

// ErrTimeout says that an acquisition did not get a lock within the time that it may wait.
var ErrTimeout = errors.New("lock wait timed out")

// LostError is an ErrLost with the keys that the lock no longer held.
type LostError struct{ Keys []string }

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: %s", ErrLost, strings.Join(e.Keys, " "))
}

// Is reports whether target is ErrLost.
func (*LostError) Is(target error) bool { return target == ErrLost }

// Strategy is a method of locking: Range, Redlock, Optimistic or None.
type Strategy interface {
	// try tries to lock each set once, completely or not at all, without waiting. After an error no
	// lock is held. If a reply was lost, a server may still have granted one; cleanUp then releases
	// it.
	try(ctx context.Context, a *Acquisition, locks []*Lock) error
	// exec runs calls[i] under locks[i].
	exec(ctx context.Context, locks []*Lock, calls []*lua.Call)
	// renew and unlock process every key of every lock, even after an error. They return a
	// *LostError with the keys that were lost.
	renew(ctx context.Context, locks []*Lock) error
	unlock(ctx context.Context, locks []*Lock) error
	// cleanUp releases what failed attempts of an acquisition may have left on servers, and removes
	// the acquisition from the queues there.
	cleanUp(ctx context.Context, a *Acquisition)
	// oneStepToken returns the token for ExecInOneStep, and whether the strategy allows
	// ExecInOneStep.
	oneStepToken() (token string, can bool)
	// waitQueue returns the queue that is notified of releases. It returns nil if waiters can only
	// retry.
	waitQueue() *waitQueue
	// close closes what the strategy itself has opened.
	close() error
}

// baseStrategy has the default methods of a strategy: it runs the work on client, has no wait
// queue, and leaves nothing to clean up.
type baseStrategy struct{ client redis.UniversalClient }

func (p baseStrategy) exec(ctx context.Context, _ []*Lock, calls []*lua.Call) {
	lua.Run(ctx, p.client, calls)
}
func (baseStrategy) oneStepToken() (string, bool)          { return "", false }
func (baseStrategy) waitQueue() *waitQueue                 { return nil }
func (baseStrategy) cleanUp(context.Context, *Acquisition) {}
func (baseStrategy) close() error                          { return nil }

// Locker locks sets of keys with a strategy and records metrics. It is safe for concurrent use.
type Locker struct {
	strategy Strategy
	metrics  *Metrics
	renewMax time.Duration
}

// Options are the options that all strategies have in common.
type Options struct {
	// RenewMax is the time for which WithContext renews a lock. With 0 it does not renew: work that
	// exceeds its lease should fail visibly, and the lease should be chosen by measurement.
	RenewMax time.Duration
	Metrics  *Metrics // nil for no metrics
}

// New returns a Locker.
func New(s Strategy, o Options) *Locker {
	return &Locker{strategy: s, metrics: o.Metrics, renewMax: o.RenewMax}
}

// Close closes what the strategy has opened. The Locker must not be used afterwards.
func (l *Locker) Close() error { return l.strategy.close() }

// Lock locks one set and waits up to wait for it. It returns ErrTimeout after that. An owner that
// is not "" may lock a set again that it already holds (only Range supports this). Each Lock needs
// its own Unlock.
func (l *Locker) Lock(ctx context.Context, owner string, wait time.Duration, set KeySet) (*Lock, error) {
	a := l.NewAcquisition(owner, wait)
	defer a.Close(ctx)
	for {
		locks, err := a.TryLock(ctx, []KeySet{set})
		if err != nil {
			return nil, err
		}
		if locks[0].Held {
			return locks[0], nil
		}
		if err := a.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Exec runs calls[i], the work under locks[i], in as few round trips as possible.
//
// The script must check the token of its lock, if the lock has one, in the same step in which it
// writes. It answers StatusLockLost without writing, or it releases the lock as unlock.lua does and
// answers ok. It must also refuse when more time has passed since the call was sent than the
// Validity of the lock was then. A lock whose call answers ok is released. The caller must unlock
// the others.
func (l *Locker) Exec(ctx context.Context, locks []*Lock, calls []*lua.Call) {
	for _, lock := range locks {
		lock.over.Store(true) // the script may release the lock before the reply arrives
	}
	l.strategy.exec(ctx, locks, calls)
	var elsewhere []*Lock // locks on other servers, which the script cannot release
	for i, lock := range locks {
		done := calls[i].Err == nil && calls[i].Status == "ok"
		lock.over.Store(done)
		switch {
		case calls[i].Err != nil:
		case calls[i].Status == StatusLockLost:
			l.metrics.lost(lock)
			l.metrics.section(lock)
		case calls[i].Status == StatusConflict:
			l.metrics.conflict(lock)
		case done:
			l.metrics.section(lock)
			if lock.Token == "" {
				elsewhere = append(elsewhere, lock)
			}
		}
	}
	if len(elsewhere) > 0 {
		ctx, cancel := CleanUpContext(ctx)
		defer cancel()
		_ = l.strategy.unlock(ctx, elsewhere) // the work is done; on an error the lock ends with its lease
	}
}

// OneStepToken returns the token that a script gets instead of a lock's token when ExecInOneStep
// runs it, and whether the strategy allows ExecInOneStep.
func (l *Locker) OneStepToken() (token string, can bool) { return l.strategy.oneStepToken() }

// ExecInOneStep runs calls without locking first. keys[i] is the number of keys that calls[i] locks. The script takes
// the lock, works and releases the lock in one atomic step, so the lock is never visible. The script must
// answer StatusBlocked while another owner holds one of the keys. A caller that is blocked uses an
// Acquisition.
func (l *Locker) ExecInOneStep(ctx context.Context, keys []int, calls []*lua.Call) {
	l.strategy.exec(ctx, nil, calls)
	for i, c := range calls {
		switch {
		case c.Err != nil:
			l.metrics.attempted(keys[i], resultFailed)
		case c.Status == StatusBlocked:
			l.metrics.attempted(keys[i], resultBlocked)
		case c.Status == "ok":
			l.metrics.attempted(keys[i], resultHeld) // and no critical section: no lock was held that could be lost
		}
	}
}

// Unlock releases held locks. It returns an ErrLost if some keys were lost; the other keys are
// released.
func (l *Locker) Unlock(ctx context.Context, locks ...*Lock) error {
	if len(locks) == 0 {
		return nil
	}
	for _, lock := range locks {
		lock.over.Store(true)
		if lock.Validity() <= 0 { // the work was stopped, or would be refused
			l.metrics.lost(lock)
			l.metrics.section(lock)
		}
	}
	return l.countLost(l.strategy.unlock(ctx, locks), locks)
}

// countLost counts the locks that err reports as lost, and returns err.
func (l *Locker) countLost(err error, locks []*Lock) error {
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return err
	}
	for _, lock := range locks {
		if slices.ContainsFunc(lock.KeySet.Names, func(name string) bool {
			return slices.Contains(lost.Keys, lock.KeySet.Key(name))
		}) {
			l.metrics.lost(lock)
		}
	}
	return err
}

func lostKeys(keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	return &LostError{keys}
}
