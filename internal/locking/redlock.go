package locking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// ErrNoQuorum says that too few of Redlock's servers answer.
var ErrNoQuorum = errors.New("fewer than a majority of the lock servers answer")

// Redlock locks on a majority of independent Redis servers, one key after the other in ascending
// order (S. Sanfilippo, "Distributed locks with Redis"). It uses redsync. It works while a minority
// of the servers is down or hangs. Each key costs a round trip to all servers.
//
// It has no fencing token, and the server that runs the work cannot check whether a lock is still
// held. The Validity of a lock depends on clocks only, so all clocks must run at about the same
// rate.
type Redlock struct {
	baseStrategy
	servers    []redis.UniversalClient
	hung       *hungServers
	sync       *redsync.Redsync
	lease      LeaseFunc
	timeoutMin time.Duration // timeoutMin, except in tests
}

// NewRedlock returns a Redlock on servers, which must not replicate to each other. The work runs on
// client.
func NewRedlock(client redis.UniversalClient, servers []redis.UniversalClient, lease LeaseFunc) *Redlock {
	r := &Redlock{
		baseStrategy: baseStrategy{client}, servers: servers, hung: newHungServers(servers), lease: lease, timeoutMin: timeoutMin,
	}
	pools := make([]pool.Pool, len(servers))
	for i, server := range servers {
		pools[i] = goredis.NewPool(server)
	}
	r.sync = redsync.New(pools...)
	return r
}

const (
	// driftFactor is the part of a lease by which the clocks of the servers may differ during it.
	driftFactor = 0.01
	// redlockParallelMax is the maximum number of keys, or sets, that one call processes at a time.
	redlockParallelMax = 8
	// timeoutMin is the minimum timeout of a server. It allows for a new connection to another site with TLS, which takes
	// several round trips: an attempt that is late closes its connection, and the next one needs another.
	timeoutMin = 100 * time.Millisecond
)

// timeout returns the timeout of a server for one key of a set. A server that hangs must not
// exhaust the lease: for all keys together it costs a quarter of the lease, but at least timeoutMin
// for each key. If timeoutMin applies, hungServers keeps a minority of the servers from costing that for each key.
func (r *Redlock) timeout(keys int) time.Duration { return max(r.share(keys), r.timeoutMin) }

// share returns the part of the lease that a server may take for one key of a set.
func (r *Redlock) share(keys int) time.Duration { return r.lease(keys) / time.Duration(4*keys) }

// mutex returns redsync's lock on one key.
func (r *Redlock) mutex(l *Lock, key, value string) *redsync.Mutex {
	keys := len(l.KeySet.Names)
	lease, timeout := r.lease(keys), r.timeout(keys)
	return r.sync.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(1), redsync.WithDriftFactor(driftFactor),
		redsync.WithTimeoutFactor(timeout.Seconds()/lease.Seconds()), redsync.WithValue(value),
		redsync.WithGenValueFunc(func() (string, error) { return value, nil }))
}

func (r *Redlock) try(ctx context.Context, _ *Acquisition, locks []*Lock) error {
	errs := make([]error, len(locks))
	parallel(len(locks), func(i int) { errs[i] = r.lock(ctx, locks[i]) })
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	for _, l := range locks {
		if l.Held {
			r.release(ctx, l)
		}
	}
	return err
}

// lock locks the keys of one set in ascending order. After any failure it releases all of them,
// including those that a server has locked without an answer.
func (r *Redlock) lock(ctx context.Context, l *Lock) error {
	value := newID()
	ctx = context.WithValue(ctx, shareOfLease{}, r.share(len(l.KeySet.Names)))
	for _, name := range l.KeySet.Names {
		key := l.KeySet.Key(name)
		m := r.mutex(l, key, value)
		err := m.TryLockContext(ctx)
		if err == nil || ctx.Err() != nil {
			l.mutexes = append(l.mutexes, m) // otherwise redsync has already released this key
		}
		if err != nil {
			r.release(ctx, l)
			if ctx.Err() == nil && r.noQuorum(err) {
				return fmt.Errorf("lock %s: %w: %w", key, ErrNoQuorum, err)
			}
			return context.Cause(ctx)
		}
	}
	until := l.earliestUntil()
	if !time.Now().Before(until) {
		r.release(ctx, l) // locking took longer than the lease
		return nil
	}
	l.Held = true
	l.lease = r.lease(len(l.KeySet.Names))
	l.validUntil.Store(&until)
	return nil
}

// earliestUntil returns the time until which all keys of a lock are valid. For each key redsync
// subtracts the duration of its attempt and the drift from the lease.
func (l *Lock) earliestUntil() time.Time {
	return slices.MinFunc(l.mutexes, func(a, b *redsync.Mutex) int { return a.Until().Compare(b.Until()) }).Until()
}

// noQuorum reports whether the servers that have answered are fewer than a majority.
func (r *Redlock) noQuorum(err error) bool {
	return countUnreachable(err) > (len(r.servers)-1)/2
}

// countUnreachable counts the servers that did not answer according to err.
func countUnreachable(err error) (n int) {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			n += countUnreachable(e)
		}
		return n
	}
	if _, down := errors.AsType[*redsync.RedisError](err); down {
		return 1
	}
	return 0
}

// release releases all keys of a lock that may be locked, even after ctx is done. redsync itself
// stops to clean up when the context of its caller is done.
func (r *Redlock) release(ctx context.Context, l *Lock) {
	// An error is ignored: the lock then ends with its lease.
	_ = r.each(context.WithoutCancel(ctx), []*Lock{l}, (*redsync.Mutex).UnlockContext)
	l.Held = false
}

func (r *Redlock) renew(ctx context.Context, locks []*Lock) error {
	err := r.each(ctx, locks, (*redsync.Mutex).ExtendContext)
	for _, l := range locks {
		until := l.earliestUntil() // a key that was not renewed keeps its earlier end
		l.validUntil.Store(&until)
	}
	return err
}

func (r *Redlock) unlock(ctx context.Context, locks []*Lock) error {
	return r.each(ctx, locks, (*redsync.Mutex).UnlockContext)
}

// each calls do for every key of every lock. It returns a *LostError with the keys that a majority
// of the servers no longer had locked.
func (r *Redlock) each(
	ctx context.Context, locks []*Lock, do func(*redsync.Mutex, context.Context) (bool, error),
) error {
	var mutexes []*redsync.Mutex
	var timeouts []time.Duration
	for _, l := range locks {
		for _, m := range l.mutexes {
			mutexes, timeouts = append(mutexes, m), append(timeouts, r.timeout(len(l.KeySet.Names)))
		}
	}
	var mu sync.Mutex
	var lost []string
	var failed error
	parallel(len(mutexes), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, timeouts[i])
		ok, err := do(mutexes[i], ctx)
		cancel()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case ok:
		case r.noQuorum(err):
			failed = errors.Join(failed, fmt.Errorf("%s: %w: %w", mutexes[i].Name(), ErrNoQuorum, err))
		default:
			lost = append(lost, mutexes[i].Name())
		}
	})
	return errors.Join(lostKeys(lost), failed)
}

// parallel calls do with 0 to n-1, a few at a time.
func parallel(n int, do func(i int)) {
	var all errgroup.Group
	all.SetLimit(redlockParallelMax)
	for i := range n {
		all.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = all.Wait() // always nil
}
