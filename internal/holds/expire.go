package holds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// The bounds of the sweep.
const (
	sweepTick     = 250 * time.Millisecond // longest wait for the next look at the agenda
	sweepRetry    = time.Second            // rest of a resource that could not be swept
	restingMax    = 1024                   // resources that rest at a time: of more, some fail in each round
	dueMax        = 128                    // resources of a partition swept in one round
	expireMax     = 1024                   // resources swept in one round trip
	failuresMax   = 20                     // failures of one round trip that are logged
	announceQueue = 64                     // swept batches that wait to be announced
	announceMax   = 512                    // hold.expired on their way at a time
	agendaTimeout = time.Second            // of one read of the agenda
	allPartitions = -1
)

// ExpirerOptions switch off what makes a lapsed hold noticed, for tests: even with both off,
// place.lua and claim.lua lapse what is due before they decide.
type ExpirerOptions struct {
	NoTimer         bool
	NoNotifications bool
}

// Expirer gives back what lapsed holds took and announces each of them once it is stored.
// Any number of them, in any number of workers, may work on the same holds: expire.lua restores
// each hold once and hands it out for announcement to one at a time.
//
//	timer ──────────┐
//	notifications ──┼─► sweep: expire.lua ──► announce: hold.expired stored ──► forget.lua
//	subscribed ─────┘
type Expirer struct {
	service   *Service
	announcer Announcer
	options   ExpirerOptions
	log       zerolog.Logger

	toAnnounce chan expiredBatch

	mu              sync.Mutex
	requested       map[int]struct{} // partitions to look at now
	wake            chan struct{}    // has one element when due is not empty
	notificationErr error            // why there are no notifications, nil when there are
}

// expiredBatch is the hold.expired of what a Service has restored.
type expiredBatch struct {
	service  *Service
	outcomes []Outcome
}

// NewExpirer returns an Expirer. Its Sweep, Watch and Announce loops must all run.
func NewExpirer(s *Service, a Announcer, o ExpirerOptions, log zerolog.Logger) *Expirer {
	return &Expirer{
		service: s, announcer: a, options: o, log: log,
		toAnnounce:      make(chan expiredBatch, announceQueue),
		requested:       make(map[int]struct{}),
		wake:            make(chan struct{}, 1),
		notificationErr: errors.New("not subscribed yet"),
	}
}

// requestSweep asks the sweep to look at a partition now.
func (e *Expirer) requestSweep(partition int) {
	e.mu.Lock()
	e.requested[partition] = struct{}{}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// takeRequested returns the partitions that were nudged since the last call.
func (e *Expirer) takeRequested() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	partitions := make([]int, 0, len(e.requested))
	for p := range e.requested {
		if p == allPartitions {
			partitions = everyPartition()
			break
		}
		partitions = append(partitions, p)
	}
	clear(e.requested)
	return partitions
}

func everyPartition() []int {
	partitions := make([]int, record.Partitions)
	for p := range partitions {
		partitions[p] = p
	}
	return partitions
}

// NotificationError tells why keyspace notifications cannot be had, or nil. Without them lapsed holds
// are noticed by the timer.
func (e *Expirer) NotificationError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.notificationErr
}

func (e *Expirer) setNotificationError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notificationErr = err
}

// Sweep reads the agenda whenever its earliest deadline has come, at least every 250 ms, and the
// part of a partition when it is nudged, until ctx is over. Neither nudges nor failures put off the
// next read of all partitions: a resource that fails rests alone, and one that always has more due
// takes its turn with the others.
func (e *Expirer) Sweep(ctx context.Context) error {
	sw := newSweeper(e)
	all := time.Now()    // when to read all partitions
	var unfinished []int // partitions that had more due than one round expires
	for e.service.WaitReady(ctx) == nil {
		var timer <-chan time.Time
		if !e.options.NoTimer {
			timer = time.After(time.Until(all))
		}
		partitions := unfinished
		if len(unfinished) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-timer:
			case <-e.wake:
			}
		}
		if now := time.Now(); !e.options.NoTimer && !now.Before(all) {
			partitions, all = everyPartition(), now.Add(sweepTick)
		} else {
			partitions = union(partitions, e.takeRequested())
		}
		left, next, err := sw.round(ctx, partitions)
		unfinished = left
		if ctx.Err() == nil && (err != nil || len(partitions) == record.Partitions) {
			sw.log(err)
		}
		if earlier := time.Now().Add(next); earlier.Before(all) {
			all = earlier
		}
	}
	return nil
}

func union(some, others []int) []int {
	all := slices.Concat(some, others)
	slices.Sort(all)
	return slices.Compact(all)
}

// sweeper is what the sweep remembers from one round to the next. One goroutine uses it.
type sweeper struct {
	*Expirer
	restFor       time.Duration        // of a resource that could not be swept
	agendaTimeout time.Duration        // of one read of the agenda
	resting       map[string]time.Time // such resources, and when each is swept again; at most restingMax
	saturated     map[string]bool      // resources that reached the limit of their run in the last round
	lastLogged    string               // the last failure that was logged
}

func newSweeper(e *Expirer) *sweeper {
	return &sweeper{Expirer: e, restFor: sweepRetry, agendaTimeout: agendaTimeout, resting: make(map[string]time.Time)}
}

// round expires what is due in some partitions, at most sweepMax holds of each run of expire.lua, and
// passes it on to be announced. It returns the partitions that have more due, and how long nothing
// else is due in the others. err joins the failures that are new; the others are not touched by them.
func (sw *sweeper) round(ctx context.Context, partitions []int) (unfinished []int, next time.Duration, err error) {
	s, err := sw.service.forCurrentEpoch()
	if err != nil {
		return nil, sweepTick, err
	}
	due, more, next, err := sw.readAgenda(ctx, s, partitions)
	// Calls of one partition share a run and its limit. Who reached it in the last round comes last in this one.
	slices.SortStableFunc(due, func(a, b string) int { return boolToInt(sw.saturated[a]) - boolToInt(sw.saturated[b]) })
	sw.saturated = make(map[string]bool)
	failed, done := []error{err}, make(map[int]bool)
	for batch := range slices.Chunk(due, expireMax) {
		failed = append(failed, sw.expire(ctx, s, batch, more, done))
	}
	for p := range more {
		if done[p] { // else what is due there is what fails
			unfinished = append(unfinished, p)
		}
	}
	return unfinished, next, errors.Join(failed...)
}

func boolToInt(on bool) int {
	if on {
		return 1
	}
	return 0
}

// readAgenda returns the resources that have something due and do not rest, the partitions that have
// more of them, and how long nothing else is due. A partition that fails, or does not answer within
// sw.within, has nothing due until the next round.
func (sw *sweeper) readAgenda(ctx context.Context, s *Service, partitions []int) (due []string, more map[int]bool, wait time.Duration, err error) {
	now, restingIn := time.Now(), make(map[int]int)
	for resource := range sw.resting {
		restingIn[record.Partition(resource)]++
	}
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &lua.Call{
			Script: scriptAgenda,
			Keys:   []string{s.keys.Epoch(p)},
			Args:   []any{s.epochArg, "", "", dueMax + restingIn[p]},
		}
	}
	s.runWithin(ctx, sw.agendaTimeout, calls...)
	wait, more = sweepTick, make(map[int]bool)
	failed := 0
	for i, c := range calls {
		waitMS, callErr := int64(0), c.Expect(1)
		if callErr == nil {
			waitMS, callErr = strconv.ParseInt(c.Reply[0], 10, 64)
		}
		if callErr != nil {
			failed++
			err = fmt.Errorf("read agenda of partition %d and %d more: %w", partitions[i], failed-1, callErr)
			continue
		}
		if waitMS >= 0 {
			wait = min(wait, time.Duration(waitMS)*time.Millisecond)
		}
		for _, resource := range c.Reply[1:] {
			if !sw.resting[resource].After(now) {
				due = append(due, resource)
			}
		}
		if len(c.Reply) > dueMax+restingIn[partitions[i]] {
			more[partitions[i]] = true
		}
	}
	return due, more, wait, err
}

// expire expires what is due on some resources and passes it on. It notes in more the partitions in which
// a limit was reached, and in done those of which a resource did not fail.
func (sw *sweeper) expire(ctx context.Context, s *Service, resources []string, more, done map[int]bool) error {
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = s.newCall(scriptExpire, resource, s.requestKeyTTLMS(), sweepMax, announceLease.Milliseconds())
	}
	s.run(ctx, calls...)
	failpoint.Hit("expire.restored")
	var batch []Outcome
	var failed []error
	for i, c := range calls {
		resource := resources[i]
		expired, err := parseExpired(resource, c)
		batch = append(batch, expired...)
		if err != nil {
			if sw.noteFailure(resource, err) && len(failed) < failuresMax {
				failed = append(failed, fmt.Errorf("expire holds on %s: %w", resource, err))
			}
			continue
		}
		delete(sw.resting, resource)
		done[record.Partition(resource)] = true
		if c.Reply[0] != "0" {
			more[record.Partition(resource)] = true
			sw.saturated[resource] = c.Reply[0] == "1"
		}
	}
	if len(batch) > 0 {
		select {
		case sw.toAnnounce <- expiredBatch{s, batch}:
		default:
			// Announcing is behind. Restoring must not wait for it; they are handed out again.
		}
	}
	return errors.Join(failed...)
}

// parseExpired returns the outcomes of what expire.lua has handed out, also when one of them cannot be read.
func parseExpired(resource string, c *lua.Call) (expired []Outcome, err error) {
	if err := c.Expect(1); err != nil {
		return nil, err
	}
	for i := 1; i+1 < len(c.Reply); i += 2 {
		hold, unread := parseRecord(HoldID{resource, c.Reply[i]}, c.Reply[i+1])
		if unread != nil {
			err = unread
			continue
		}
		expired = append(expired, hold.expiredOutcome())
	}
	return expired, err
}

// noteFailure has a resource rest, and reports whether it has not failed before. That data is lost is not
// the resource's failure.
func (sw *sweeper) noteFailure(resource string, err error) (first bool) {
	if errors.Is(err, ErrDataLost) {
		return true
	}
	now := time.Now()
	if _, known := sw.resting[resource]; !known {
		first = true
		if len(sw.resting) >= restingMax { // those that have rested are forgotten, and remembered when they fail again
			maps.DeleteFunc(sw.resting, func(_ string, until time.Time) bool { return until.Before(now) })
		}
		if len(sw.resting) >= restingMax {
			return true
		}
	}
	sw.resting[resource] = now.Add(sw.restFor)
	return first
}

// log logs a failure once, and again when it is another. The Keeper reports that data is lost.
func (sw *sweeper) log(err error) {
	switch {
	case err == nil:
		sw.lastLogged = ""
	case errors.Is(err, ErrDataLost) || sw.service.Epoch() == "":
	case err.Error() != sw.lastLogged:
		sw.lastLogged = err.Error()
		sw.Expirer.log.Error().Err(err).Msg("sweep failed, will be retried")
	}
}

func (h Hold) expiredOutcome() Outcome {
	return Outcome{
		Event: EventHoldExpired, Resource: h.ID.Resource, Hold: h.ID, At: h.EndedAt,
		Data: HoldExpired{HoldData: h.data(), ExpiresAt: h.ExpiresAt, RestoredAt: h.EndedAt},
	}
}

// Announce announces what the sweep has lapsed and then forgets it, until ctx is over. What
// could not be announced is handed out again by expire.lua after a while.
func (e *Expirer) Announce(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-e.toAnnounce:
			for batch := range slices.Chunk(d.outcomes, announceMax) {
				if err := e.announce(ctx, d.service, batch); err != nil && ctx.Err() == nil && !errors.Is(err, ErrDataLost) {
					e.log.Error().Err(err).Int("holds", len(batch)).Msg("announcing lapsed holds failed, will be repeated")
				}
			}
		}
	}
}

func (e *Expirer) announce(ctx context.Context, s *Service, batch []Outcome) error {
	if err := s.Verify(ctx, s.epoch); err != nil {
		return err
	}
	if err := e.announcer.Announce(ctx, batch); err != nil {
		return err
	}
	failpoint.Hit("expire.announced")
	byResource := make(map[string][]any)
	for _, o := range batch {
		byResource[o.Resource] = append(byResource[o.Resource], o.Hold.UUID)
	}
	calls := make([]*lua.Call, 0, len(byResource))
	for resource, ids := range byResource {
		calls = append(calls, s.newCall(scriptForget, resource, append([]any{s.requestKeyTTLMS()}, ids...)...))
	}
	s.run(ctx, calls...)
	failpoint.Hit("expire.forgotten")
	for _, c := range calls {
		if err := c.Expect(0); err != nil {
			return fmt.Errorf("forget lapsed holds: %w", err)
		}
	}
	return nil
}
