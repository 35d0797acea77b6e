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

// KeySet is what one lock covers. All keys that it names share a hash slot.
type KeySet struct {
	Keys    []string // to be locked, of Key, in any order, repeats allowed, at least one
	Fence   string   // counts the locks of the partition
	Version string   // must change with whatever work under the lock must not miss; Optimistic watches it
	Scope   string   // begins the names that waiters share; sets that overlap have the same
}

// Key returns a key of the scope from its name there, which has no space in it.
func (s KeySet) Key(name string) string { return s.Scope + "lock:" + name }

// Lock is what came of the attempt to lock a set.
type Lock struct {
	KeySet KeySet // with its keys sorted and distinct
	// Held says whether the set was locked; what follows is only meaningful if it was.
	Held bool
	// Token is what a script can find of each of the set's names in the hash <scope>locks, followed by
	// a space and the lease's end in ms, for as long as the lock is held; "" for a strategy that leaves
	// nothing where the script runs. (Only Locker.Lock with an owner that locks a key again makes the
	// value longer; then only the owner can tell.)
	Token string
	// Fence is higher than that of every earlier lock of the partition, 0 for a strategy that
	// has none. It stays so when Redis loses all its data; when it comes back with older data, its
	// fences must be raised before it is used again (FenceBase.Next; package holds does so). Whoever
	// writes elsewhere under the lock can have the write refused there when a higher one has been seen.
	Fence int64

	id              string // of its acquisition
	began           time.Time
	lease           time.Duration
	validUntil      atomic.Int64 // nanoseconds after began, 0 = no end
	over            atomic.Bool  // it is released, or about to be by its work
	lossCounted     atomic.Bool  // it was counted
	sectionMeasured atomic.Bool  // its section was measured
	blocker         blocker
	tx              *transaction     // of Optimistic
	mutexes         []*redsync.Mutex // of Redlock
}

// blocker is what kept a set from being locked.
type blocker struct {
	key        string        // "" = not known
	remaining  time.Duration // after which it is gone at the latest, 0 = not known
	ahead      string        // the acquisition that is first in the queue, "" = the key is locked
	olderWaits bool          // somebody older of this process waits for the key; the server was not asked
}

// Validity returns for how long the lock can still be relied on without asking a server: until the
// attempt's start plus the lease, less what clocks may differ by. Not positive when that is over.
func (l *Lock) Validity() time.Duration {
	until := l.validUntil.Load()
	if until == 0 {
		return math.MaxInt64
	}
	return time.Duration(until) - time.Since(l.began)
}

func (l *Lock) released() bool { return l.over.Load() }

// setValidity sets the end of trust, for a lease that was asked for at start.
func (l *Lock) setValidity(start time.Time, lease time.Duration) {
	const margin = 2 * time.Millisecond // Redis counts in whole milliseconds
	l.lease = lease
	l.setValidUntil(start.Add(lease - lease/100 - margin))
}

func (l *Lock) setValidUntil(end time.Time) {
	until := int64(end.Sub(l.began))
	if until == 0 {
		until = -1 // 0 would be without end
	}
	l.validUntil.Store(until)
}

// The statuses by which a script that runs under a lock, or Commit itself, says that its work
// was refused. Nothing was written.
const (
	StatusLockLost = "lock_lost" // the script did not find the lock's token
	StatusConflict = "conflict"  // the version changed, see Optimistic
	StatusBlocked  = "blocked"   // another holds a key, see ExecInOneStep
)

// ErrLost says that a lock has ended before it was released, as far as anyone can know.
var ErrLost = errors.New("lock lost")

// ErrTimeout says that a lock was not had within the time that its acquisition may wait.
var ErrTimeout = errors.New("the wait for the lock is over")

// RebuildingError is an ErrLost that knows which keys were not the lock's any more.
type LostError struct{ Keys []string }

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: %s", ErrLost, strings.Join(e.Keys, " "))
}

// Is makes it an ErrLost.
func (*LostError) Is(target error) bool { return target == ErrLost }

// Strategy is a way to keep others out: Range, Redlock, Optimistic or None.
type Strategy interface {
	// try tries to lock each set once, all or nothing of each, without waiting for any. After an
	// error no lock is held, unless a reply was lost; leave then gives it back.
	try(ctx context.Context, a *Acquisition, locks []*Lock) error
	// exec runs calls[i] under locks[i].
	exec(ctx context.Context, locks []*Lock, calls []*lua.Call)
	// renew and unlock go through the locks key by key, do what they can for each, and return a
	// *RebuildingError with those that were lost.
	renew(ctx context.Context, locks []*Lock) error
	unlock(ctx context.Context, locks []*Lock) error
	// cleanUp gives back what an acquisition may have left on servers without holding it.
	cleanUp(ctx context.Context, a *Acquisition)
	// oneStepToken returns the token of ExecInOneStep, and whether there can be such a commit.
	oneStepToken() (token string, can bool)
	// waitQueue returns the hub that hears of releases, nil if waiters can only try again.
	waitQueue() *waitQueue
	// close closes what the strategy has opened itself.
	close() error
}

// baseStrategy is what a strategy does that has nothing better to do: it runs the work on client, hears
// of no releases, and leaves nothing behind.
type baseStrategy struct{ client redis.UniversalClient }

func (p baseStrategy) exec(ctx context.Context, _ []*Lock, calls []*lua.Call) {
	lua.Run(ctx, p.client, calls)
}
func (baseStrategy) oneStepToken() (string, bool)          { return "", false }
func (baseStrategy) waitQueue() *waitQueue                 { return nil }
func (baseStrategy) cleanUp(context.Context, *Acquisition) {}
func (baseStrategy) close() error                          { return nil }

// Locker locks sets of keys by a strategy, and measures it. It is safe for concurrent use.
type Locker struct {
	strategy Strategy
	metrics  *Metrics
	renewMax time.Duration
}

// Options are what all strategies have in common.
type Options struct {
	// RenewMax is for how long Keep renews a lock. 0 = it does not: work that outlives its lease
	// should fail visibly, and the lease be measured.
	RenewMax time.Duration
	Metrics  *Metrics // nil = none
}

// New returns a Locker.
func New(s Strategy, o Options) *Locker {
	return &Locker{strategy: s, metrics: o.Metrics, renewMax: o.RenewMax}
}

// Close closes what the strategy has opened. Nobody uses the Locker any more.
func (l *Locker) Close() error { return l.strategy.close() }

// Lock locks one set, waiting up to wait for it. An owner that is not "" may lock again what it
// has locked (only Range knows how); each Lock needs an Unlock of its own. It returns
// ErrTimeout when the wait is over.
func (l *Locker) Lock(ctx context.Context, owner string, wait time.Duration, set KeySet) (*Lock, error) {
	a, err := l.NewAcquisition(owner, wait)
	if err != nil {
		return nil, err
	}
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

// Exec runs calls[i], each the work that locks[i] was taken for, in as few round trips as
// there can be. A script must check the token of its lock, if it has one, in the same step in
// which it writes, and answer ok, having released it as unlock.lua does, or StatusLockLost. It
// must refuse as well when it runs later after it was sent than the lock's Trust was then. A lock
// whose call was answered ok is released; the others are still to be unlocked.
func (l *Locker) Exec(ctx context.Context, locks []*Lock, calls []*lua.Call) {
	for _, lock := range locks {
		lock.over.Store(true) // from the work's end on, before its answer is here
	}
	l.strategy.exec(ctx, locks, calls)
	var elsewhere []*Lock // where the script cannot release them
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
		defer cancel()
		_ = l.strategy.unlock(ctx, elsewhere) // the work is done; what cannot be released ends with its lease
	}
}

// OneStepToken returns the token that a script finds in place of a lock's when ExecInOneStep runs it, and whether the strategy
// allows that.
func (l *Locker) OneStepToken() (token string, can bool) { return l.strategy.oneStepToken() }

// ExecInOneStep runs calls[i], which takes the lock of sets[i], works and releases it in one step of its script, without
// an attempt before. So no other sees the lock. The script must refuse with StatusBlocked while another holds one of
// the keys. A caller that is blocked begins an Acquisition and waits as others do.
func (l *Locker) ExecInOneStep(ctx context.Context, sets []KeySet, calls []*lua.Call) {
	locks := make([]*Lock, len(sets))
	for i, set := range sets {
		locks[i] = &Lock{KeySet: set, began: time.Now()}
	}
	l.strategy.exec(ctx, locks, calls)
	for i, lock := range locks {
		lock.Held = calls[i].Err == nil && calls[i].Status == "ok"
		switch {
		case lock.Held:
			l.metrics.tried([]*Lock{lock})
			l.metrics.section(lock)
		case calls[i].Err != nil:
			l.metrics.failed([]*Lock{lock})
		case calls[i].Status == StatusBlocked:
			l.metrics.tried([]*Lock{lock})
		}
	}
}

// Renew makes the leases of held locks begin anew. It returns an ErrLost if some had ended;
// what is left of them stays locked.
func (l *Locker) Renew(ctx context.Context, locks ...*Lock) error {
	return l.countLost(l.strategy.renew(ctx, locks), locks)
}

// Unlock releases held locks. It returns an ErrLost if some had ended; the rest is released.
func (l *Locker) Unlock(ctx context.Context, locks ...*Lock) error {
	if len(locks) == 0 {
		return nil
	}
	for _, lock := range locks {
		lock.over.Store(true)
		if lock.Validity() <= 0 { // its work was cut off, or it is too late for it
			l.metrics.lost(lock)
			l.metrics.section(lock)
		}
	}
	return l.countLost(l.strategy.unlock(ctx, locks), locks)
}

// countLost counts the locks that err says were lost.
func (l *Locker) countLost(err error, locks []*Lock) error {
	lost, ok := errors.AsType[*LostError](err)
	if !ok {
		return err
	}
	for _, lock := range locks {
		if slices.ContainsFunc(lock.KeySet.Keys, func(key string) bool { return slices.Contains(lost.Keys, key) }) {
			l.metrics.lost(lock)
		}
	}
	return err
}

// lostKeys returns a *RebuildingError for keys, nil when there are none.
func lostKeys(keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	return &LostError{keys}
}
