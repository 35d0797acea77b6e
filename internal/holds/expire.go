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
	sweepTick     = 500 * time.Millisecond // longest time between two reads of the agenda; below the least TTL, a second
	sweepRetry    = time.Second            // pause before a failed resource is swept again
	restingMax    = 1024                   // resources that pause at a time; more of them are retried in each round
	dueMax        = 128                    // resources of a partition swept in one round
	expireMax     = 1024                   // resources swept in one round trip
	failuresMax   = 20                     // failures of one round trip that are logged
	announceQueue = 64                     // batches that wait for their announcement
	announceMax   = 512                    // hold.expired events published at a time
	agendaTimeout = time.Second            // of one read of the agenda
	announceLease = 5 * time.Second        // time after which expire.lua hands out an unannounced hold again
	allPartitions = -1
)

// ExpirerOptions disable the triggers of the sweep, for tests. Even without triggers, place.lua
// expires due holds before it decides, and claim.lua the hold that it would claim.
type ExpirerOptions struct {
	NoTimer         bool
	NoNotifications bool
}

// Expirer ends holds whose deadline has come and restores their counts. It announces each of them
// with hold.expired and forgets it when the event is stored. Any number of Expirers, in any number
// of workers, may work on the same holds: expire.lua restores each hold once and hands it out to
// one Expirer at a time.
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

	mu        sync.Mutex
	requested map[int]struct{} // partitions to sweep now
	wake      chan struct{}    // has one element when requested is not empty
	// notificationErrs says for each server to which Watch listens why notifications are unavailable,
	// nil when they are available.
	notificationErrs map[string]error
}

// expiredBatch contains the hold.expired outcomes of holds that a round of a sweep has expired.
type expiredBatch struct {
	work     *work
	outcomes []Outcome
	trigger  string // of the sweep
}

// NewExpirer returns an Expirer. The caller must run all three of Sweep, Watch and Announce.
func NewExpirer(s *Service, a Announcer, o ExpirerOptions, log zerolog.Logger) *Expirer {
	return &Expirer{
		service: s, announcer: a, options: o, log: log,
		toAnnounce:       make(chan expiredBatch, announceQueue),
		requested:        make(map[int]struct{}),
		wake:             make(chan struct{}, 1),
		notificationErrs: make(map[string]error),
	}
}

// requestSweep makes Sweep read the agenda of a partition now.
func (e *Expirer) requestSweep(partition int) {
	e.mu.Lock()
	e.requested[partition] = struct{}{}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// takeRequested returns the partitions that were requested since the last call.
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

// NotificationError returns why keyspace notifications are unavailable, or nil. Without them the
// timer alone starts the sweep.
func (e *Expirer) NotificationError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.notificationErrs) == 0 {
		return errNotSubscribed
	}
	for _, server := range slices.Sorted(maps.Keys(e.notificationErrs)) {
		if err := e.notificationErrs[server]; err != nil {
			return err
		}
	}
	return nil
}

var errNotSubscribed = errors.New("not subscribed yet")

func (e *Expirer) setNotificationError(server string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notificationErrs[server] = err
}

// forgetServer ends what NotificationError says of a server.
func (e *Expirer) forgetServer(server string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.notificationErrs, server)
}

// Sweep expires due holds until ctx is done. It reads the agenda of all partitions when the
// earliest deadline has come, at least every 500 ms, and the agenda of one partition when a sweep
// of it is requested. Neither requests nor failures delay the next read of all partitions: a
// resource that fails pauses alone, and a resource that always has more due takes turns with the
// others.
func (e *Expirer) Sweep(ctx context.Context) error {
	sw := newSweeper(e)
	all := time.Now()    // when to read all partitions
	var unfinished []int // partitions with more due than one round expires
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
		sw.trigger = triggerNotification
		if now := time.Now(); !e.options.NoTimer && !now.Before(all) {
			partitions, all, sw.trigger = everyPartition(), now.Add(sweepTick), triggerTimer
		} else {
			if len(unfinished) > 0 {
				sw.trigger = triggerBacklog
			}
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

// sweeper is the state that Sweep keeps between two rounds. Only one goroutine uses it.
type sweeper struct {
	*Expirer
	restFor       time.Duration        // pause of a resource whose sweep failed
	agendaTimeout time.Duration        // of one read of the agenda
	resting       map[string]time.Time // when to sweep each failed resource again; at most restingMax
	saturated     map[string]bool      // resources that reached the limit of their run in the last round
	failing       bool                 // an outage was logged, and its end was not
	failedAt      time.Time            // of the last failure other than corrupt data
	trigger       string               // of this round
}

func newSweeper(e *Expirer) *sweeper {
	return &sweeper{Expirer: e, restFor: sweepRetry, agendaTimeout: agendaTimeout, resting: make(map[string]time.Time)}
}

// round expires what is due in some partitions, at most sweepMax holds for each run of expire.lua,
// and passes the expired holds to Announce. It returns the partitions that have more due, and the
// time until something is due in the others. err joins the new failures. A failure affects its own
// resource or partition only.
func (sw *sweeper) round(ctx context.Context, partitions []int) (unfinished []int, next time.Duration, err error) {
	w, err := sw.service.beginWork()
	if err != nil {
		return nil, sweepTick, err
	}
	partitions = slices.DeleteFunc(slices.Clone(partitions), func(p int) bool { return !w.epochs.Ready.Has(p) })
	due, more, next, err := sw.readAgenda(ctx, w, partitions)
	// The calls of one partition share a run and its limit. A resource that reached the limit in
	// the last round comes last in this one.
	slices.SortStableFunc(due, func(a, b string) int { return boolToInt(sw.saturated[a]) - boolToInt(sw.saturated[b]) })
	sw.saturated = make(map[string]bool)
	failed, done := []error{err}, make(map[int]bool)
	for batch := range slices.Chunk(due, expireMax) {
		failed = append(failed, sw.expire(ctx, w, batch, more, done))
	}
	for p := range more {
		if done[p] { // otherwise all that is due there belongs to failing resources
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

// readAgenda returns the resources that have something due and do not pause, the partitions that
// have more of them, and the time until something else is due. A partition that fails, or does not
// answer within sw.agendaTimeout, is skipped until the next round.
func (sw *sweeper) readAgenda(
	ctx context.Context, w *work, partitions []int,
) (due []string, more map[int]bool, wait time.Duration, err error) {
	now, restingIn := time.Now(), make(map[int]int)
	for resource := range sw.resting {
		restingIn[record.Partition(resource)]++
	}
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = w.newPartitionCall(p, scriptAgenda, dueMax+restingIn[p])
	}
	w.runWithin(ctx, sw.agendaTimeout, calls...)
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

// expire expires what is due on some resources and passes it to Announce. It adds to more the
// partitions in which a limit was reached, and to done the partitions in which at least one
// resource did not fail.
func (sw *sweeper) expire(ctx context.Context, w *work, resources []string, more, done map[int]bool) error {
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = w.newCall(scriptExpire, resource, w.requestKeyTTLMS(), sweepMax, announceLease.Milliseconds())
	}
	w.run(ctx, calls...)
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
		case sw.toAnnounce <- expiredBatch{w, batch, sw.trigger}:
		default:
			// The queue is full. Sweep must not wait for it: expire.lua hands these holds out
			// again.
		}
	}
	return errors.Join(failed...)
}

// parseExpired returns the outcomes of the holds that expire.lua has handed out. When one of them
// cannot be parsed, it returns the others and an error.
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

// log logs the new failures of a round: corrupt data of each resource, and an outage when it begins
// and when it ends. An outage ends when every failed resource has had two more attempts without a
// failure. log ignores a loss of data, which the supervisor logs.
func (sw *sweeper) log(err error) {
	switch {
	case err == nil:
		if sw.failing && time.Since(sw.failedAt) > 2*sw.restFor {
			sw.failing = false
			sw.Expirer.log.Info().Msg("sweep recovered")
		}
	case errors.Is(err, ErrDataLost) || !sw.service.Ready():
	case errors.Is(err, ErrCorrupt):
		sw.Expirer.log.Error().Err(err).Msg("sweep failed, will retry")
	default:
		sw.failedAt = time.Now()
		if !sw.failing {
			sw.failing = true
			sw.Expirer.log.Error().Err(err).Msg("sweep failed, will retry")
		}
	}
}

func (h Hold) expiredOutcome() Outcome {
	return Outcome{
		Event: EventHoldExpired, Resource: h.ID.Resource, Hold: h.ID, At: h.EndedAt,
		Data: HoldExpired{HoldData: h.data(), ExpiresAt: h.ExpiresAt, RestoredAt: h.EndedAt},
	}
}

// Announce announces the holds that Sweep has expired and then forgets them, until ctx is done.
// expire.lua hands out a hold again, after announceLease, if it was not announced. Announce logs an
// outage when it begins and when it ends.
func (e *Expirer) Announce(ctx context.Context) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-e.toAnnounce:
			for batch := range slices.Chunk(d.outcomes, announceMax) {
				err := e.announce(ctx, d.work, batch)
				e.service.metrics.announced(batch, d.trigger, err)
				switch {
				case err == nil && failing:
					failing = false
					e.log.Info().Msg("announcing expired holds recovered")
				case err == nil, failing, ctx.Err() != nil, errors.Is(err, ErrDataLost):
				default:
					failing = true
					e.log.Error().Err(err).Int("holds", len(batch)).Msg("announcing expired holds failed, will retry")
				}
			}
		}
	}
}

func (e *Expirer) announce(ctx context.Context, w *work, batch []Outcome) error {
	done := w.service.Publishing()
	batch, lost, err := w.verified(ctx, batch)
	sent := err == nil && len(batch) > 0
	if sent {
		err = e.announcer.Announce(ctx, batch)
	}
	done(!sent || err == nil)
	if err != nil {
		return err
	}
	failpoint.Hit("expire.announced")
	byResource := make(map[string][]any)
	for _, o := range batch {
		byResource[o.Resource] = append(byResource[o.Resource], o.Hold.UUID)
	}
	calls := make([]*lua.Call, 0, len(byResource))
	for resource, ids := range byResource {
		calls = append(calls, w.newCall(scriptForget, resource, append([]any{w.requestKeyTTLMS()}, ids...)...))
	}
	w.run(ctx, calls...)
	failpoint.Hit("expire.forgotten")
	for _, c := range calls {
		if err := c.Expect(0); err != nil {
			return fmt.Errorf("forget expired holds: %w", err)
		}
	}
	return lost
}

// verified returns those of the outcomes that may be published now, and as lost why the others may not:
// the epochs of their partitions have ended.
func (w *work) verified(ctx context.Context, batch []Outcome) (valid []Outcome, lost, err error) {
	var checked [record.Partitions]bool
	var ended record.PartitionSet
	valid = make([]Outcome, 0, len(batch))
	for _, o := range batch {
		p := record.Partition(o.Resource)
		if !checked[p] {
			checked[p] = true
			switch err := w.service.Verify(ctx, EpochID(p, w.epochs.Partition(p).Name)); {
			case errors.Is(err, ErrDataLost):
				ended.Add(p)
				lost = err
			case err != nil:
				return nil, nil, err
			}
		}
		if !ended.Has(p) {
			valid = append(valid, o)
		}
	}
	return valid, lost, nil
}
