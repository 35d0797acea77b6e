package holds

import (
	"context"
	"errors"
	"fmt"

	"holdfast/internal/failpoint"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// staleRoundsMax bounds the reads of Postgres for one group while rev keeps changing.
const staleRoundsMax = 100

// placeLocked decides requests in two steps and calls done once for each: it locks every group, and
// then reads its rows and decides. It waits for locks that other owners hold, up to the policy's
// LockWait, and repeats what was not decided.
func (w *work) placeLocked(ctx context.Context, waiting []*placing, done answerFunc) {
	acquisition := w.service.locker.NewAcquisition("", w.policy.LockWait)
	defer acquisition.Close(ctx)
	for len(waiting) > 0 {
		groups, later := groupByResource(waiting)
		before := len(waiting)
		locked, blocked, err := w.service.lockGroups(ctx, acquisition, groups, done)
		if err != nil {
			fail(waiting, err, done)
			return
		}
		failpoint.Hit("place.locked")
		retry := w.decideGroups(ctx, locked, done)

		waiting = append(retry, later...)
		for _, g := range blocked {
			waiting = append(waiting, g.requests...)
		}
		sortByIndex(waiting)
		if len(waiting) < before {
			continue // at least one request was decided
		}
		// Other owners hold the locks, or have taken them over.
		if err := acquisition.Wait(ctx); errors.Is(err, locking.ErrTimeout) {
			fail(waiting, fmt.Errorf("%w: %w", ErrBusy, err), done)
			return
		} else if err != nil {
			fail(waiting, err, done)
			return
		}
	}
}

// lockGroups tries to lock every group once, all in one round trip. It calls done for the requests
// of a group whose attempt alone has failed.
func (s *Service) lockGroups(
	ctx context.Context, a *locking.Acquisition, groups []*group, done answerFunc,
) (locked, blocked []*group, err error) {
	sets := make([]locking.KeySet, len(groups))
	for i, g := range groups {
		sets[i] = lockKeys(s.keys, g.resource, g.names)
	}
	locks, err := a.TryLock(ctx, sets)
	if err != nil {
		return nil, nil, err
	}
	for i, g := range groups {
		switch g.lock = locks[i]; {
		case g.lock.Err != nil:
			fail(g.requests, g.lock.Err, done)
		case g.lock.Held:
			locked = append(locked, g)
		default:
			blocked = append(blocked, g)
		}
	}
	return locked, blocked, nil
}

// decideGroups decides locked groups. It returns the requests of the groups that were not decided
// because they lost their lock or an optimistic conflict.
func (w *work) decideGroups(ctx context.Context, groups []*group, done answerFunc) (retry []*placing) {
	if len(groups) == 0 {
		return nil
	}
	defer func() { w.service.unlockGroups(ctx, groups) }() // the undecided groups, also after a panic
	lockedCtx, stop := w.service.locker.WithContext(ctx, locksOf(groups)...)
	defer stop()
	for round := 0; len(groups) > 0; round++ {
		calls, err := w.prepare(lockedCtx, groups)
		if err != nil {
			lost := errors.Is(context.Cause(lockedCtx), locking.ErrLost)
			for _, g := range groups {
				if lost {
					retry = append(retry, g.requests...)
				} else {
					fail(g.requests, err, done)
				}
			}
			return retry
		}
		failpoint.Hit("place.read")
		w.service.locker.Exec(ctx, locksOf(groups), calls)
		failpoint.Hit("place.decided")

		var rereadGroups, undecided []*group
		for i, g := range groups {
			c := calls[i]
			w.classifyReply(c)
			if c.Err != nil || c.Status != "ok" {
				w.service.rows.drop(g.resource)
			}
			switch {
			case c.Err == nil && (c.Status == locking.StatusLockLost || c.Status == locking.StatusConflict):
				undecided = append(undecided, g)
				retry = append(retry, g.requests...)
			case c.Err == nil && (c.Status == "more" || c.Status == "stale" && round < staleRoundsMax):
				rereadGroups = append(rereadGroups, g)
			case c.Err == nil && c.Status == "stale":
				undecided = append(undecided, g)
				fail(g.requests, fmt.Errorf("inventory keeps changing: %w", ErrBusy), done)
			case !g.deliverReply(c, done):
				undecided = append(undecided, g)
			}
		}
		w.service.unlockGroups(ctx, undecided)
		groups = rereadGroups
	}
	return retry
}

// prepare reads rev and Postgres and returns a call of place.lua for each locked group. ctx ends
// when one of the groups loses its lock.
func (w *work) prepare(ctx context.Context, groups []*group) ([]*lua.Call, error) {
	if w.service.dry { // a dry script cannot expire due holds before it decides
		for _, g := range groups {
			if _, err := w.heldCounts(ctx, g.resource, g.names); err != nil {
				return nil, err
			}
		}
	}
	if err := w.readRows(ctx, groups); err != nil {
		return nil, err
	}
	calls := make([]*lua.Call, len(groups))
	for i, g := range groups {
		// The validity counts from now, and the age from the read of the clock, which was before.
		age := min(readAge, g.lock.Validity())
		calls[i] = w.placeCall(g, g.lock.Token, age)
	}
	return calls, nil
}

// unlockGroups releases the locks of groups that were not decided, even after ctx is done.
func (s *Service) unlockGroups(ctx context.Context, groups []*group) {
	ctx, cancel := locking.CleanUpContext(ctx)
	defer cancel()
	// An error is ignored: a lock that is not released ends with its lease.
	_ = s.locker.Unlock(ctx, locksOf(groups)...)
}

func locksOf(groups []*group) []*locking.Lock {
	locks := make([]*locking.Lock, len(groups))
	for i, g := range groups {
		locks[i] = g.lock
	}
	return locks
}
