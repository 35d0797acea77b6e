package recovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"holdfast/internal/holds"
)

// termValidity is how long a worker relies on Postgres' statement that an epoch is current. For that
// long after an epoch was invalidated, workers may publish what they decided under it.
const termValidity = 2 * time.Second

// Corruption of one resource is first left to a repair in place (see holds.Service.OnCorruption),
// which delays only events of that resource. Redis is rebuilt for it, which delays all events, when
// the corruption is still found after healWithin. Corruption that was not found again for
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

// EpochTerm implements holds.Term: the epoch under which a worker decides, and how long it may rely
// on it. All parts of a worker share one; its Supervisor begins and ends it. It is safe for
// concurrent use.
type EpochTerm struct {
	mu            sync.Mutex
	epoch         string                 // "" while Redis must not be used
	history       string                 // of the server that has the epoch, "" when unknown
	progress      string                 // of the rebuild while there is no epoch
	verifiedEpoch string                 // the last epoch
	verifiedUntil time.Time              // until when verifiedEpoch is relied on
	corruptions   map[string]*corruption // by resource, "" for a partition
	mismatched    string                 // the last epoch that a script did not find
	static        bool                   // the epoch is relied on without end
	policies      holds.Policies         // as stored in Postgres, nil when they were not read
	changed       chan struct{}          // closed and replaced with each change
}

// StaticTerm returns a term without a Supervisor: the epoch on the server is relied on without end.
func StaticTerm(epoch, server string) *EpochTerm {
	t := NewEpochTerm()
	t.epoch, t.history, t.verifiedEpoch, t.static = epoch, historyOf(server), epoch, true
	return t
}

// NewEpochTerm returns a term without an epoch.
func NewEpochTerm() *EpochTerm {
	return &EpochTerm{progress: notCheckedYet, corruptions: make(map[string]*corruption), changed: make(chan struct{})}
}

// Current implements holds.Term.
func (t *EpochTerm) Current() (holds.CurrentEpoch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == "" {
		return holds.CurrentEpoch{}, &holds.RebuildingError{Progress: t.progress}
	}
	id := t.epoch
	if t.policies != nil {
		id += termSeparator + t.policies.Version()
	}
	return holds.CurrentEpoch{Name: t.epoch, History: t.history, TermID: id, Policies: t.policies}, nil
}

// isCurrent reports whether the worker decides under the epoch.
func (t *EpochTerm) isCurrent(epoch string) bool {
	current, err := t.Current()
	return err == nil && current.Name == epoch
}

// WaitReady implements holds.Term.
func (t *EpochTerm) WaitReady(ctx context.Context) error {
	for {
		t.mu.Lock()
		epoch, changed := t.epoch, t.changed
		t.mu.Unlock()
		if epoch != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// Policies returns the stored policies, nil when they were not read. They stay when the term ends.
func (t *EpochTerm) Policies() holds.Policies {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.policies
}

// termSeparator separates an epoch and the version of the stored policies in a TermID.
const termSeparator = "@"

// errPolicyChanged is a holds.ErrBusy.
var errPolicyChanged = fmt.Errorf("policy changed concurrently: %w", holds.ErrBusy)

// Verify implements holds.Term. The term is a TermID, or an epoch alone for what no policy decides.
// It returns nil when Postgres has said within termValidity that the epoch is current and that no
// other policy is stored. That can still be so after Redis was lost; a rebuild therefore waits for
// what is published until then. Verify waits for Postgres up to termValidity.
func (t *EpochTerm) Verify(ctx context.Context, term string) error {
	epoch, version, versioned := strings.Cut(term, termSeparator)
	ctx, cancel := context.WithTimeoutCause(ctx, termValidity,
		fmt.Errorf("epoch not confirmed by postgres within %v", termValidity))
	defer cancel()
	for {
		t.mu.Lock()
		verified := epoch != "" && t.verifiedEpoch == epoch && (t.static || time.Now().Before(t.verifiedUntil))
		lost, changed := t.epoch != epoch || epoch == "", t.changed
		current := t.policies.Version()
		t.mu.Unlock()
		switch {
		case verified && versioned && version != current:
			return errPolicyChanged
		case verified:
			return nil
		case lost:
			return holds.ErrDataLost
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
	}
}

// begin starts or renews the term of an epoch. Postgres has said at checkedAt, or later, that the
// epoch is current, which server has it, and which policies are stored.
func (t *EpochTerm) begin(epoch, server string, policies holds.Policies, checkedAt time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.history, t.verifiedEpoch, t.verifiedUntil = epoch, historyOf(server), epoch, checkedAt.Add(termValidity)
	t.policies = policies
	t.notify()
}

// end ends the term. Progress says why, and how far a rebuild is.
func (t *EpochTerm) end(progress string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.progress = "", progress
	t.notify()
}

// Report implements holds.Term. The Supervisor takes what was reported with takeMismatch and
// takeCorruption.
func (t *EpochTerm) Report(epoch, resource string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, holds.ErrDataLost) {
		t.mismatched = epoch
		return
	}
	now := time.Now()
	c := t.corruptions[resource]
	if c == nil || c.epoch != epoch {
		if c == nil && len(t.corruptions) >= corruptionsMax {
			return
		}
		c = &corruption{epoch: epoch, first: now}
		t.corruptions[resource] = c
	}
	c.last, c.err = now, err
}

// takeMismatch reports whether a script has not found the epoch, or not the history of its server,
// since the last call.
func (t *EpochTerm) takeMismatch(epoch string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	mismatched := t.mismatched == epoch
	t.mismatched = ""
	return mismatched
}

// takeCorruption returns a corruption that was found under the epoch and not healed within
// healWithin, nil when there is none. It forgets what was healed, and what was found under another
// epoch: Redis was rebuilt since.
func (t *EpochTerm) takeCorruption(epoch string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource, c := range t.corruptions {
		switch {
		case c.epoch != epoch, time.Since(c.last) > corruptionForgottenAfter:
			delete(t.corruptions, resource)
		case c.last.Sub(c.first) >= healWithin:
			return c.err
		}
	}
	return nil
}

func (t *EpochTerm) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}
