package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// termValidity is how long a worker relies on Postgres' statement that an epoch is current. For that
// long after an epoch was invalidated, workers may publish what they decided under it.
const termValidity = 2 * time.Second

// Corruption of one resource is first left to a repair in place (see holds.Service.OnCorruption),
// which delays only events of that resource. Its partition is rebuilt for it, which delays all events of
// the partition, when the corruption is still found after healWithin. Corruption that was not found again for
// corruptionForgottenAfter counts as healed: its events come back sooner.
const (
	healWithin               = 5 * time.Second
	corruptionForgottenAfter = 15 * time.Second
	corruptionsMax           = 1000 // resources that are remembered; those beyond it are reported again later
)

// corruption is what was reported of a resource.
type corruption struct {
	epoch       string // under which it was found
	first, last time.Time
	err         error // the last one
}

// place is a resource, or "" for a whole partition.
type place struct {
	partition int
	resource  string
}

// partitionTerm is the term of one partition.
type partitionTerm struct {
	epoch         string                 // "" while the partition must not be used
	history       string                 // of the server that has the epoch, "" when unknown
	paused        *holds.RebuildingError // says why there is no epoch, and how far the rebuild is
	verifiedEpoch string                 // the last epoch
	verified      moment                 // when verifiedEpoch was the stored one last
	mismatched    string                 // the last epoch that a script did not find
}

// moment is a time by both clocks of the machine. The one by which Go compares times stands still while the machine
// is suspended. The wall clock goes on, but may be set back.
type moment struct{ monotonic, wall time.Time }

// momentAt returns the moment of a time that time.Now has returned.
func momentAt(t time.Time) moment { return moment{t, t.Round(0)} }

// since returns how long ago m was, by the clock by which it is longer.
func (m moment) since() time.Duration {
	now := time.Now()
	return max(now.Sub(m.monotonic), now.Round(0).Sub(m.wall))
}

// EpochTerm implements holds.Term: the epochs under which a worker decides, one for each partition, and
// how long it may rely on them. All parts of a worker share one; its Supervisor begins and ends the
// epochs. It is safe for concurrent use.
type EpochTerm struct {
	current     atomic.Pointer[holds.CurrentEpochs]    // what follows from partitions and policies
	unreachable atomic.Pointer[holds.UnreachableError] // see Unreachable
	eviction    atomic.Pointer[string]                 // see Eviction
	lostCommits atomic.Int64                           // see LostCommits

	mu           sync.Mutex
	partitions   [record.Partitions]partitionTerm
	corruptions  map[place]*corruption
	publications publications
	policies     holds.Policies // as stored in Postgres, nil when they were not read
	commits      string         // the ID of Postgres' history, "" when it is not checked
	changed      chan struct{}  // closed and replaced with each change
}

// StaticTerm returns a term without a Supervisor: the epoch of all partitions on the server is relied
// on without end.
func StaticTerm(epoch, server string) *EpochTerm {
	t := NewEpochTerm()
	var epochs Epochs
	for p := range epochs {
		epochs[p] = Epoch{Name: epoch, Complete: true, Server: server}
	}
	t.begin(record.AllPartitions, &epochs, nil, "", time.Now().AddDate(100, 0, 0))
	return t
}

// NewEpochTerm returns a term without an epoch.
func NewEpochTerm() *EpochTerm {
	t := &EpochTerm{
		corruptions: make(map[place]*corruption), publications: publications{open: make(map[uint64]struct{})},
		changed: make(chan struct{}),
	}
	t.eviction.Store(new(string))
	t.end(record.AllPartitions, holds.RebuildingError{Progress: notCheckedYet})
	return t
}

// Current implements holds.Term.
func (t *EpochTerm) Current() *holds.CurrentEpochs { return t.current.Load() }

// Paused returns nil when the worker decides in every partition, else errors that name the others and say
// why: a *holds.RebuildingError, or one that is no loss for those whose server does not answer.
func (t *EpochTerm) Paused() error {
	paused := make(map[holds.RebuildingError]record.PartitionSet)
	t.mu.Lock()
	for p := range t.partitions {
		if its := &t.partitions[p]; its.epoch == "" {
			paused[*its.paused] |= record.PartitionSetOf(p)
		}
	}
	t.mu.Unlock()
	var lost, silent []string
	for why, partitions := range paused {
		if text := partitions.String() + ": " + why.Progress; why.Silent {
			silent = append(silent, text)
		} else {
			lost = append(lost, text)
		}
	}
	slices.Sort(lost)
	slices.Sort(silent)
	var all []error
	if lost != nil {
		all = append(all, &holds.RebuildingError{Progress: strings.Join(lost, "; ")})
	}
	if silent != nil {
		all = append(all, errors.New(strings.Join(silent, "; ")))
	}
	return errors.Join(all...)
}

// under returns the partitions in which the worker decides under these epochs.
func (t *EpochTerm) under(epochs *Epochs) (same record.PartitionSet) {
	current := t.Current()
	for p := range current.Ready.Each() {
		if current.Partition(p).Name == epochs[p].Name {
			same.Add(p)
		}
	}
	return same
}

// WaitReady implements holds.Term.
func (t *EpochTerm) WaitReady(ctx context.Context) error {
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		if t.Current().Ready != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// Unreachable implements holds.Term.
func (t *EpochTerm) Unreachable() error {
	if err := t.unreachable.Load(); err != nil {
		return err
	}
	return nil // not the pointer, which would be an error
}

// Eviction describes for operators which Redis servers evict keys, or have evicted some, "" when none has.
func (t *EpochTerm) Eviction() string { return *t.eviction.Load() }

// LostCommits returns the number of published outcomes whose commits Postgres has lost and that could not be put back, at
// the last check.
func (t *EpochTerm) LostCommits() int { return int(t.lostCommits.Load()) }

// errVersionChanged is a holds.ErrBusy.
var errVersionChanged = fmt.Errorf("policy, or history of postgres, changed concurrently: %w", holds.ErrBusy)

// version names the stored policies and the history of Postgres. The caller holds the lock.
func (t *EpochTerm) version() string {
	if t.commits == "" {
		return t.policies.Version()
	}
	return t.policies.Version() + " " + t.commits
}

// setUnreachable records how a check has ended, and which servers have answered, see Unreachable. Redis comes last.
func (t *EpochTerm) setUnreachable(err error, postgresAnswered, redisAnswered bool) {
	if err == nil || redisAnswered {
		t.unreachable.Store(nil)
	} else {
		t.unreachable.Store(&holds.UnreachableError{Postgres: !postgresAnswered, Err: err})
	}
}

// Verify implements holds.Term. It returns nil when Postgres has said within termValidity that the
// epoch is current in its partition, that no other policy is stored, and that it has the history of
// commits under which the worker has decided. That can still be so after the
// partition was lost; a rebuild therefore waits for what is published until then. Verify waits for
// Postgres up to termValidity.
func (t *EpochTerm) Verify(ctx context.Context, term string) error {
	id, version, versioned := strings.Cut(term, "@")
	number, epoch, found := strings.Cut(id, " ")
	p, err := strconv.Atoi(number)
	if !found || err != nil || p < 0 || p >= record.Partitions || epoch == "" {
		return holds.ErrDataLost
	}
	var timeout <-chan time.Time
	for {
		t.mu.Lock()
		its := &t.partitions[p]
		verified := its.verifiedEpoch == epoch && its.verified.since() < termValidity
		lost, changed := its.epoch != epoch, t.changed
		now := t.version()
		t.mu.Unlock()
		switch {
		case verified && versioned && version != now:
			return errVersionChanged
		case verified:
			return nil
		case lost:
			return holds.ErrDataLost
		}
		if timeout == nil {
			timeout = time.After(termValidity)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			if cause := t.Unreachable(); cause != nil {
				return fmt.Errorf("%w: %v", errNotConfirmed, cause) //nolint:errorlint // another error than that of the event
			}
			return errNotConfirmed
		case <-changed:
		}
	}
}

// errNotConfirmed is returned while Postgres does not answer.
var errNotConfirmed = fmt.Errorf("epoch not confirmed by postgres within %v", termValidity)

// begin starts or renews the terms of partitions. Postgres has said at readAt, or later, that their
// epochs are current, which servers have them, which policies are stored, and which history of commits it has.
func (t *EpochTerm) begin(
	of record.PartitionSet, epochs *Epochs, policies holds.Policies, commits string, readAt time.Time,
) {
	if of == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	other := (t.policies == nil) != (policies == nil) || t.policies.Version() != policies.Version() ||
		t.commits != commits
	for p := range of.Each() {
		its, e := &t.partitions[p], &epochs[p]
		its.verifiedEpoch, its.verified = e.Name, momentAt(readAt)
		if history := historyOf(e.Server); its.epoch != e.Name || its.history != history {
			its.epoch, its.history, its.paused, other = e.Name, history, nil, true
		}
	}
	t.policies, t.commits = policies, commits
	t.notify(other)
}

// end ends the terms of partitions. why says why, and how far a rebuild is.
func (t *EpochTerm) end(of record.PartitionSet, why holds.RebuildingError) {
	if of == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	other := false
	for p := range of.Each() {
		its := &t.partitions[p]
		if its.epoch != "" || its.paused == nil || *its.paused != why {
			its.epoch, its.history, its.paused, other = "", "", &why, true
		}
	}
	t.notify(other)
}

// report replaces the progress of partitions that have no epoch.
func (t *EpochTerm) report(of record.PartitionSet, progress string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	paused := &holds.RebuildingError{Progress: progress}
	for p := range of.Each() {
		if its := &t.partitions[p]; its.epoch == "" {
			its.paused = paused
		}
	}
	t.notify(true)
}

// notify wakes who waits for a change. other says that Current has changed. The caller holds the lock.
func (t *EpochTerm) notify(other bool) {
	if other {
		var partitions [record.Partitions]holds.CurrentEpoch
		for p := range t.partitions {
			its := &t.partitions[p]
			partitions[p] = holds.CurrentEpoch{Name: its.epoch, History: its.history}
			if its.epoch == "" {
				partitions[p].Err = its.paused
			}
		}
		t.current.Store(holds.NewCurrentEpochs(partitions, t.policies, t.version()))
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// Report implements holds.Term. The Supervisor takes what was reported with takeMismatches and
// takeCorruptions.
func (t *EpochTerm) Report(partition int, epoch, resource string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, holds.ErrDataLost) {
		t.partitions[partition].mismatched = epoch
		return
	}
	now, where := time.Now(), place{partition, resource}
	c := t.corruptions[where]
	if c == nil || c.epoch != epoch {
		if c == nil && len(t.corruptions) >= corruptionsMax {
			return
		}
		c = &corruption{epoch: epoch, first: now}
		t.corruptions[where] = c
	}
	c.last, c.err = now, err
}

// takeMismatches returns the partitions of which a script has not found the epoch, or not the history
// of its server, since the last call.
func (t *EpochTerm) takeMismatches(epochs *Epochs) (mismatched record.PartitionSet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.partitions {
		its := &t.partitions[p]
		if its.mismatched != "" && its.mismatched == epochs[p].Name {
			mismatched.Add(p)
		}
		its.mismatched = ""
	}
	return mismatched
}

// takeCorruptions returns, by partition, a corruption that was found under the epoch and not healed
// within healWithin. It forgets what was healed, and what was found under another epoch: the partition
// was rebuilt since.
func (t *EpochTerm) takeCorruptions(epochs *Epochs) map[int]error {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[int]error)
	for where, c := range t.corruptions {
		switch {
		case c.epoch != epochs[where.partition].Name, time.Since(c.last) > corruptionForgottenAfter:
			delete(t.corruptions, where)
		case c.last.Sub(c.first) >= healWithin:
			found[where.partition] = c.err
		}
	}
	return found
}
