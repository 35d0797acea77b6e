package holds

import (
	"context"

	"holdfast/internal/failpoint"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// placeInOneStep decides each group in one step: place.lua takes the locks, decides, and releases
// the locks. Groups whose inventory rows are cached come first. The rows of the others are read
// without a lock: rev shows the script whether they have changed since. It returns the requests
// that it has not decided, because the strategy or a dry run does not allow one step, rows have changed,
// another owner holds the lock of a slot, too many holds are due, or the group has too many requests.
func (w *work) placeInOneStep(ctx context.Context, waiting []*placing, done answerFunc) []*placing {
	token, can := w.service.locker.OneStepToken()
	if w.service.dry || !can {
		return waiting
	}
	groups, left := groupByResource(waiting)
	cached, unread := make([]*group, 0, len(groups)), []*group(nil)
	for _, g := range groups {
		var found bool
		if g.read, g.rows, found = w.service.rows.get(w.epochName(g.resource), g.resource, g.names); found {
			cached = append(cached, g)
		} else {
			unread = append(unread, g)
		}
	}
	left = append(left, w.decideInOneStep(ctx, token, cached, done)...)
	if len(unread) > 0 {
		err := w.readRows(ctx, unread)
		failpoint.Hit("place.read")
		if err != nil {
			for _, g := range unread {
				fail(g.requests, err, done)
			}
		} else {
			left = append(left, w.decideInOneStep(ctx, token, unread, done)...)
		}
	}
	sortByIndex(left)
	return left
}

// decideInOneStep runs place.lua for groups whose rows were read, in one round trip. It returns the
// requests that were not decided.
func (w *work) decideInOneStep(ctx context.Context, token string, groups []*group, done answerFunc) (left []*placing) {
	if len(groups) == 0 {
		return nil
	}
	calls, keys := make([]*lua.Call, len(groups)), make([]int, len(groups)) // keys of the lock of each
	for i, g := range groups {
		calls[i], keys[i] = w.placeCall(g, token, readAge), len(g.names)
	}
	w.service.locker.ExecInOneStep(ctx, keys, calls)
	failpoint.Hit("place.decided")
	for i, g := range groups {
		c := calls[i]
		w.classifyReply(c)
		undecided := c.Err == nil && (c.Status == "stale" || c.Status == "more" || c.Status == locking.StatusBlocked)
		if c.Err != nil || c.Status == "stale" {
			w.service.rows.drop(g.resource)
		}
		if undecided {
			left = append(left, g.requests...)
			continue
		}
		g.deliverReply(c, done)
	}
	return left
}
