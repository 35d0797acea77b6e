package holds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

const (
	sweepTick     = 500 * time.Millisecond // longest time between two reads of the agenda; below the least TTL, a second
	sweepPause    = 50 * time.Millisecond  // least time between two rounds, unless more is due than one expires
	sweepRetry    = time.Second            // pause before a failed resource is swept again
	restingMax    = 1024                   // resources that pause at a time; more of them are retried in each round
	dueMax        = 128                    // resources of a partition swept in one round
	expireMax     = 1024                   // resources swept in one round trip
	failuresMax   = 20                     // failures of one round trip that are logged
	agendaTimeout = time.Second            // of one read of the agenda
)

// Sweep expires due holds until ctx is done. It reads the agenda of all partitions when the
// earliest deadline has come, at least every 500 ms, and that of one partition when its sweep is
// requested. It begins a round at most every 50 ms, unless more is due than one round expires: else
// each deadline would cost every worker a read of all partitions. Neither requests nor failures delay
// the next read of all partitions.
func (e *Expirer) Sweep(ctx context.Context) error {
	sw := newSweeper(e)
	all := time.Now()                  // when to read all partitions
	var began time.Time                // of the last round
	var unfinished record.PartitionSet // with more due than one round expires
	for e.service.WaitReady(ctx) == nil {
		var timer <-chan time.Time
		if !e.options.NoTimer {
			timer = time.After(time.Until(all))
		}
		if unfinished == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-timer:
			case <-e.wake:
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Until(began.Add(sweepPause))):
			}
		}
		began = time.Now()
		var partitions record.PartitionSet
		if !e.options.NoTimer && !began.Before(all) {
			partitions, all, sw.trigger = record.AllPartitions, began.Add(sweepTick), triggerTimer
		} else {
			partitions, sw.trigger = unfinished|e.takeRequested(), triggerNotification
			if unfinished != 0 {
				sw.trigger = triggerBacklog
			}
		}
		left, next, err := sw.round(ctx, partitions)
		unfinished = left
		if ctx.Err() == nil && (err != nil || partitions == record.AllPartitions) {
			sw.logFailures(err)
		}
		if earlier := time.Now().Add(next); earlier.Before(all) {
			all = earlier
		}
	}
	return nil
}

// sweeper is the state that Sweep keeps between two rounds. Only one goroutine uses it.
type sweeper struct {
	expirer       *Expirer
	restFor       time.Duration        // pause of a resource whose sweep failed
	agendaTimeout time.Duration        // of one read of the agenda
	resting       map[string]time.Time // when to sweep each failed resource again; at most restingMax
	saturated     map[string]bool      // resources that reached the limit of their run in the last round
	failing       bool                 // an outage was logged, and its end was not
	failedAt      time.Time            // of the last failure other than corrupt data
	trigger       string               // of this round
}

func newSweeper(e *Expirer) *sweeper {
	return &sweeper{expirer: e, restFor: sweepRetry, agendaTimeout: agendaTimeout, resting: make(map[string]time.Time)}
}

// round expires what is due in some partitions, at most sweepMax holds for each run of expire.lua,
// and passes the expired holds to Announce. It returns the partitions that have more due, and the
// time until something else is due in the others. err joins the new failures. A failure affects its own
// resource or partition only.
func (sw *sweeper) round(
	ctx context.Context, partitions record.PartitionSet,
) (unfinished record.PartitionSet, next time.Duration, err error) {
	w := sw.expirer.service.beginWork()
	if err := w.epochs.Err(); err != nil {
		return 0, sweepTick, err
	}
	due, more, next, err := sw.readAgenda(ctx, w, (partitions & w.epochs.Ready).Sorted())
	// The calls of one partition share a run and its limit. A resource that reached the limit in
	// the last round comes last in this one.
	slices.SortStableFunc(due, func(a, b string) int { return boolToInt(sw.saturated[a]) - boolToInt(sw.saturated[b]) })
	sw.saturated = make(map[string]bool)
	failed, done := []error{err}, record.PartitionSet(0)
	for batch := range slices.Chunk(due, expireMax) {
		earliest, err := sw.expire(ctx, w, batch, &more, &done)
		next, failed = min(next, earliest), append(failed, err)
	}
	// In a partition that is not done, all that is due belongs to failing resources.
	return more & done, next, errors.Join(failed...)
}

func boolToInt(on bool) int {
	if on {
		return 1
	}
	return 0
}

// readAgenda returns the resources that have something due and do not pause, the partitions that
// have more of them, and the time until something else is due. A partition that fails, or does not
// answer within sw.agendaTimeout, is skipped until the next round.
func (sw *sweeper) readAgenda(
	ctx context.Context, w *work, partitions []int,
) (due []string, more record.PartitionSet, wait time.Duration, err error) {
	now, restingIn := time.Now(), make(map[int]int)
	for resource := range sw.resting {
		restingIn[record.Partition(resource)]++
	}
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = w.newPartitionCall(p, scriptAgenda, dueMax+restingIn[p])
	}
	w.runWithin(ctx, sw.agendaTimeout, calls...)
	wait = sweepTick
	failed := 0
	for i, c := range calls {
		earliest, callErr := time.Duration(0), c.Expect(1)
		if callErr == nil {
			earliest, callErr = parseWait(c.Reply[0])
		}
		if callErr != nil {
			failed++
			err = fmt.Errorf("read agenda of partition %d and %d more: %w", partitions[i], failed-1, callErr)
			continue
		}
		wait = min(wait, earliest)
		for _, resource := range c.Reply[1:] {
			if !sw.resting[resource].After(now) {
				due = append(due, resource)
			}
		}
		if len(c.Reply) > dueMax+restingIn[partitions[i]] {
			more.Add(partitions[i])
		}
	}
	return due, more, wait, err
}

// parseWait parses the milliseconds until an entry of the agenda is due, -1 when there is none, and returns them, at most
// sweepTick.
func parseWait(word string) (time.Duration, error) {
	ms, err := strconv.ParseInt(word, 10, 64)
	if ms < 0 || ms > sweepTick.Milliseconds() {
		return sweepTick, err
	}
	return time.Duration(ms) * time.Millisecond, err
}

// expire expires what is due on some resources and passes it to Announce. It adds to more the
// partitions in which a limit was reached, and to done the partitions in which at least one
// resource did not fail. It returns the time until more is due on one of the others.
func (sw *sweeper) expire(
	ctx context.Context, w *work, resources []string, more, done *record.PartitionSet,
) (next time.Duration, err error) {
	calls := make([]*lua.Call, len(resources))
	announceLimit := sw.expirer.announceLimit(len(calls))
	for i, resource := range resources {
		calls[i] = w.newCall(scriptExpire, resource,
			w.requestKeyTTLMS(), sweepMax, announceLease.Milliseconds(), announceLimit)
	}
	w.run(ctx, calls...)
	takenAt := time.Now()
	failpoint.Hit("expire.restored")
	next = sweepTick
	var taken []Outcome
	var failed []error
	for i, c := range calls {
		resource := resources[i]
		wait, expired, err := parseExpired(resource, c)
		taken = append(taken, expired...)
		if err != nil {
			w.reportUnread(resource, c.Err, err)
			if sw.noteFailure(resource, err) && len(failed) < failuresMax {
				failed = append(failed, fmt.Errorf("expire holds on %s: %w", resource, err))
			}
			continue
		}
		delete(sw.resting, resource)
		done.Add(record.Partition(resource))
		if c.Reply[0] != "0" {
			more.Add(record.Partition(resource))
			sw.saturated[resource] = c.Reply[0] == "1"
		} else {
			next = min(next, wait)
		}
	}
	for batch := range slices.Chunk(taken, announceMax) {
		select {
		// A clone: the array of all would stay in memory until the last batch is announced.
		case sw.expirer.toAnnounce <- expiredBatch{w, slices.Clone(batch), sw.trigger, takenAt}:
		default: // announceLimit prevents it; Sweep must not wait for Announce, and expire.lua hands the holds out again
		}
	}
	return next, errors.Join(failed...)
}

// parseExpired returns the time until more is due on a resource, and the outcomes of the holds that expire.lua has
// handed out. When one of them cannot be parsed, it returns the others and an error.
func parseExpired(resource string, c *lua.Call) (wait time.Duration, expired []Outcome, err error) {
	if err := c.Expect(2); err != nil {
		return 0, nil, err
	}
	if wait, err = parseWait(c.Reply[1]); err != nil {
		return 0, nil, err
	}
	for i := 2; i+1 < len(c.Reply); i += 2 {
		hold, unread := parseRecord(HoldID{resource, c.Reply[i]}, c.Reply[i+1])
		if unread != nil {
			err = unread
			continue
		}
		expired = append(expired, hold.expiredOutcome())
	}
	return wait, expired, err
}

func (h Hold) expiredOutcome() Outcome {
	return Outcome{
		Event: EventHoldExpired, Resource: h.ResourceID, Hold: h.HoldID, At: h.EndedAt,
		Data: HoldExpired{HoldData: h.HoldData, ExpiresAt: h.ExpiresAt, RestoredAt: h.EndedAt},
	}
}

// noteFailure makes a resource pause, and reports whether this failure is new. ErrDataLost is not a
// failure of the resource and makes nothing pause.
func (sw *sweeper) noteFailure(resource string, err error) (first bool) {
	if errors.Is(err, ErrDataLost) {
		return true
	}
	now := time.Now()
	if !errors.Is(err, ErrCorrupt) {
		sw.failedAt = now
	}
	if _, known := sw.resting[resource]; !known {
		first = true
		if len(sw.resting) >= restingMax { // remove those whose pause is over
			maps.DeleteFunc(sw.resting, func(_ string, until time.Time) bool { return until.Before(now) })
		}
		if len(sw.resting) >= restingMax {
			return true
		}
	}
	sw.resting[resource] = now.Add(sw.restFor)
	return first
}

// logFailures logs the new failures of a round: corrupt data of each resource, and an outage when
// it begins and when it ends. An outage ends when every failed resource has had two more attempts
// without a failure. logFailures ignores a loss of data, which the supervisor logs.
func (sw *sweeper) logFailures(err error) {
	switch {
	case err == nil:
		if sw.failing && time.Since(sw.failedAt) > 2*sw.restFor {
			sw.failing = false
			sw.expirer.log.Info().Msg("sweep recovered")
		}
	case errors.Is(err, ErrDataLost) || !sw.expirer.service.Ready():
	case errors.Is(err, ErrCorrupt):
		sw.expirer.log.Error().Err(err).Msg("sweep failed, will retry")
	default:
		sw.failedAt = time.Now()
		if !sw.failing {
			sw.failing = true
			sw.expirer.log.Error().Err(err).Msg("sweep failed, will retry")
		}
	}
}
