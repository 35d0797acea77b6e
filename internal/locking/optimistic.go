package locking

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"holdfast/internal/lua"
)

// Optimistic locks nothing. It watches the versions of the sets (WATCH) and runs the work in a
// transaction (MULTI, EXEC) that Redis refuses if a version has changed since. The first commit
// wins, and the others must begin again. It suits keys that are rarely in use twice at the same
// time.
//
// The sets of an acquisition share at most transactionsMax transactions, each on its own
// connection. After a conflict on one set, all sets in the same transaction are retried. Optimistic
// needs a single server, because a Redis Cluster has no transactions over several hash slots.
type Optimistic struct {
	baseStrategy
	pool  *redis.Client       // provides the connections that watch
	turns *semaphore.Weighted // of the connections that may watch at the same time
}

// NewOptimistic returns an Optimistic on one Redis. It watches on at most half of the connections
// of the client's pool, which must have at least two. The others are for reads under the lock.
func NewOptimistic(client *redis.Client) *Optimistic {
	return &Optimistic{baseStrategy{client}, client, semaphore.NewWeighted(int64(max(client.Options().PoolSize/2, 1)))}
}

// transactionsMax is the maximum number of connections of one acquisition.
const transactionsMax = 4

// transaction is a connection that watches.
type transaction struct {
	conn    *redis.Conn
	locks   []*Lock
	over    bool
	refused bool // a version had changed
}

// begin begins up to n transactions. It waits for the first connection until the deadline of the
// acquisition; then it returns none. It takes more connections only if they are free at once. If it
// waited for them, acquisitions could wait for each other.
func (o *Optimistic) begin(ctx context.Context, a *Acquisition, n int) ([]*transaction, error) {
	if !o.turns.TryAcquire(1) {
		waiting, cancel := context.WithDeadline(ctx, a.deadline)
		defer cancel()
		if o.turns.Acquire(waiting, 1) != nil {
			return nil, context.Cause(ctx) // nil when only the deadline has passed
		}
	}
	all := []*transaction{{conn: o.pool.Conn()}}
	for len(all) < n && o.turns.TryAcquire(1) {
		all = append(all, &transaction{conn: o.pool.Conn()})
	}
	return all, nil
}

// end returns the connection of a transaction to the pool.
func (o *Optimistic) end(t *transaction) error {
	err := t.conn.Close()
	o.turns.Release(1)
	return err
}

func (o *Optimistic) try(ctx context.Context, a *Acquisition, locks []*Lock) error {
	transactions, err := o.begin(ctx, a, min(len(locks), transactionsMax))
	if err != nil || len(transactions) == 0 {
		return err
	}
	for i, l := range locks {
		l.tx = transactions[i%len(transactions)]
		l.tx.locks = append(l.tx.locks, l)
	}
	errs := make([]error, len(transactions))
	var all sync.WaitGroup
	for i, t := range transactions {
		all.Go(func() {
			watch := []any{"watch"}
			for _, l := range t.locks {
				watch = append(watch, l.KeySet.Version)
			}
			errs[i] = t.conn.Do(ctx, watch...).Err()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return errors.Join(fmt.Errorf("watch: %w", err), o.unlock(ctx, locks))
	}
	for _, l := range locks {
		l.Held = true
	}
	return nil
}

// exec runs the calls of each transaction and ends the transaction. A second exec under one of its
// locks is a conflict, because the versions are no longer watched.
func (o *Optimistic) exec(ctx context.Context, locks []*Lock, calls []*lua.Call) {
	work := make(map[*transaction][]*lua.Call)
	for i, l := range locks {
		if l.tx.over {
			calls[i].Status, calls[i].Reply, calls[i].Err = StatusConflict, nil, nil
			continue
		}
		work[l.tx] = append(work[l.tx], calls[i])
	}
	var all sync.WaitGroup
	for t, calls := range work {
		t.over = true
		all.Go(func() {
			t.refused = lua.RunTransaction(ctx, t.conn, calls, StatusConflict)
			_ = o.end(t) // it fails only for a broken connection, for which the calls have errors too
		})
	}
	all.Wait()
}

func (*Optimistic) renew(context.Context, []*Lock) error { return nil }

func (o *Optimistic) unlock(ctx context.Context, locks []*Lock) error {
	var errs []error
	for _, l := range locks {
		if t := l.tx; !t.over {
			t.over = true
			errs = append(errs, t.conn.Do(ctx, "unwatch").Err(), o.end(t))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unwatch: %w", err)
	}
	return nil
}
