package holds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
)

// The bounds of the sweep.
const (
	sweepTick     = 250 * time.Millisecond // longest wait for the next look at the agenda
	sweepRetry    = time.Second            // wait after a look that failed
	dueMax        = 128                    // resources of a partition swept in one round trip
	announceQueue = 64                     // swept batches that wait to be announced
	announceMax   = 512                    // hold.expired on their way at a time
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

	departed chan departure

	mu      sync.Mutex
	due     map[int]struct{} // partitions to look at now
	nudged  chan struct{}    // has one element when due is not empty
	hintErr error            // why there are no notifications, nil when there are
}

// departure is the hold.expired of what a Service has restored.
type departure struct {
	by       *Service
	outcomes []Outcome
}

// NewExpirer returns an Expirer. Its Sweep, Watch and Announce loops must all run.
func NewExpirer(s *Service, a Announcer, o ExpirerOptions, log zerolog.Logger) *Expirer {
	return &Expirer{
		service: s, announcer: a, options: o, log: log,
		departed: make(chan departure, announceQueue),
		due:      make(map[int]struct{}),
		nudged:   make(chan struct{}, 1),
		hintErr:  errors.New("not subscribed yet"),
	}
}

// nudge asks the sweep to look at a partition now.
func (e *Expirer) nudge(partition int) {
	e.mu.Lock()
	e.due[partition] = struct{}{}
	e.mu.Unlock()
	select {
	case e.nudged <- struct{}{}:
	default:
	}
}

// take returns the partitions that were nudged since the last call.
func (e *Expirer) take() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	partitions := make([]int, 0, len(e.due))
	for p := range e.due {
		if p == allPartitions {
			partitions = everyPartition()
			break
		}
		partitions = append(partitions, p)
	}
	clear(e.due)
	return partitions
}

func everyPartition() []int {
	partitions := make([]int, Partitions)
	for p := range partitions {
		partitions[p] = p
	}
	return partitions
}

// HintError tells why keyspace notifications cannot be had, or nil. Without them lapsed holds
// are noticed by the timer.
func (e *Expirer) HintError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hintErr
}

func (e *Expirer) setHintError(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hintErr = err
}

// Sweep looks at the agenda whenever its earliest deadline has come, at least every 250 ms, and
// at a partition when it is nudged, until ctx is over. However many nudges there are, they do
// not put off the look at all partitions.
func (e *Expirer) Sweep(ctx context.Context) error {
	all := time.Now() // when to look at all partitions
	for e.service.Await(ctx) == nil {
		var timer <-chan time.Time
		if !e.options.NoTimer {
			timer = time.After(time.Until(all))
		}
		var partitions []int
		select {
		case <-ctx.Done():
			return nil
		case <-timer:
			partitions = everyPartition()
			all = time.Now().Add(sweepTick)
		case <-e.nudged:
			partitions = e.take()
		}
		next, err := e.sweepOnce(ctx, partitions)
		switch {
		case ctx.Err() != nil: // it is over, whatever became of the sweep
		case err != nil && (errors.Is(err, ErrDataLost) || e.service.Epoch() == ""): // the Keeper tells it
			all = time.Now().Add(sweepRetry)
		case err != nil:
			e.log.Error().Err(err).Msg("sweep failed, will be repeated")
			all = time.Now().Add(sweepRetry)
		case time.Until(all) > next:
			all = time.Now().Add(next)
		}
	}
	return nil
}

// sweepOnce lapses everything that is due in some partitions and passes it on to be announced.
// It returns how long nothing more is due there.
func (e *Expirer) sweepOnce(ctx context.Context, partitions []int) (next time.Duration, err error) {
	next = sweepTick
	s, err := e.service.under()
	if err != nil {
		return 0, err
	}
	var failed []error
	for len(partitions) > 0 {
		resources, again, wait, err := s.readAgenda(ctx, partitions)
		if err != nil {
			return 0, err
		}
		next = min(next, wait)
		full, err := e.expire(ctx, s, resources)
		if err != nil {
			// One damaged resource must not keep the others from being swept.
			failed = append(failed, err)
			if len(full) == 0 {
				break
			}
		}
		for p := range full {
			again[p] = struct{}{}
		}
		partitions = partitions[:0]
		for p := range again {
			partitions = append(partitions, p)
		}
	}
	return next, errors.Join(failed...)
}

// readAgenda returns the resources that have something due, the partitions that have more of
// them, and how long nothing else is due.
func (s *Service) readAgenda(ctx context.Context, partitions []int) (resources []string, more map[int]struct{}, wait time.Duration, err error) {
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &lua.Call{
			Script: scriptAgenda,
			Keys:   []string{s.keys.epoch(p)},
			Args:   []any{s.told(), "", "", dueMax},
		}
	}
	s.run(ctx, calls...)
	wait, more = sweepTick, make(map[int]struct{})
	for i, c := range calls {
		if err := c.Expect(1); err != nil {
			return nil, nil, 0, fmt.Errorf("read agenda of partition %d: %w", partitions[i], err)
		}
		waitMS, err := strconv.ParseInt(c.Reply[0], 10, 64)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("read agenda of partition %d: %w", partitions[i], err)
		}
		if waitMS >= 0 {
			wait = min(wait, time.Duration(waitMS)*time.Millisecond)
		}
		due := c.Reply[1:]
		if len(due) == dueMax {
			more[partitions[i]] = struct{}{}
		}
		resources = append(resources, due...)
	}
	return resources, more, wait, nil
}

// expire lapses what is due on some resources, passes it on, and returns the partitions in
// which a limit was reached.
func (e *Expirer) expire(ctx context.Context, s *Service, resources []string) (full map[int]struct{}, err error) {
	full = make(map[int]struct{})
	if len(resources) == 0 {
		return full, nil
	}
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = s.newCall(scriptExpire, resource, s.memory(), sweepMax, announceLease.Milliseconds())
	}
	s.run(ctx, calls...)
	failpoint.Hit("expire.restored")
	var batch []Outcome
	var failed []error
	for i, c := range calls {
		if err := c.Expect(1); err != nil {
			failed = append(failed, fmt.Errorf("expire holds on %s: %w", resources[i], err))
			continue
		}
		if c.Reply[0] == "1" {
			full[Partition(resources[i])] = struct{}{}
		}
		for j := 1; j+1 < len(c.Reply); j += 2 {
			hold, err := parseRecord(HoldID{resources[i], c.Reply[j]}, c.Reply[j+1])
			if err != nil {
				failed = append(failed, err)
				continue
			}
			batch = append(batch, hold.expired())
		}
	}
	if len(batch) > 0 {
		select {
		case e.departed <- departure{s, batch}:
		default:
			// Announcing is behind. Restoring must not wait for it; they are handed out again.
		}
	}
	return full, errors.Join(failed...)
}

func (h Hold) expired() Outcome {
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
		case d := <-e.departed:
			for batch := range slices.Chunk(d.outcomes, announceMax) {
				if err := e.announce(ctx, d.by, batch); err != nil && ctx.Err() == nil && !errors.Is(err, ErrDataLost) {
					e.log.Error().Err(err).Int("holds", len(batch)).Msg("announcing lapsed holds failed, will be repeated")
				}
			}
		}
	}
}

func (e *Expirer) announce(ctx context.Context, s *Service, batch []Outcome) error {
	if err := s.Trust(ctx, s.epoch); err != nil {
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
		calls = append(calls, s.newCall(scriptForget, resource, append([]any{s.memory()}, ids...)...))
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
