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

// termValidity is how long Postgres' word that an epoch is the current one is relied on: for so long
// after an epoch was condemned there may be workers who publish what was decided under it.
const termValidity = 2 * time.Second

// Damage of one resource is left to whoever heals it in place (see Service.OnCorruption), which keeps only its own
// events waiting. Redis is filled again for it, which keeps all waiting, when it is still found after
// healWithin. What was not found for corruptionForgottenAfter is healed: events come back sooner.
const (
	healWithin               = 5 * time.Second
	corruptionForgottenAfter = 15 * time.Second
	corruptionsMax           = 1000 // resources that are kept in mind: of more, some are in the way again later
)

// corruption is what was found of a resource.
type corruption struct {
	epoch       string // under which it was
	first, last time.Time
	err         error // the last
}

// EpochTerm is under which epoch a worker decides, and for how long it may rely on it: one for all
// parts of the worker. Its Keeper writes it.
type EpochTerm struct {
	mu            sync.Mutex
	epoch         string                 // "" = Redis must not be used now
	history       string                 // of the server that has it, "" = it is not known
	progress      string                 // what is done about it
	verifiedEpoch string                 // the last epoch that there was
	verifiedUntil time.Time              // when the trust in it ends
	corruptions   map[string]*corruption // by resource, "" = of no resource
	mismatched    string                 // the last epoch that a script did not find
	static        bool                   // nobody asks Postgres
	policies      holds.Policies         // as Postgres has them, nil = it was not asked
	changed       chan struct{}          // closed and replaced with each change
}

// StaticTerm returns a Tenure that nobody keeps: an epoch on a server is always relied on.
func StaticTerm(epoch, server string) *EpochTerm {
	t := NewEpochTerm()
	t.epoch, t.history, t.verifiedEpoch, t.static = epoch, historyOf(server), epoch, true
	return t
}

// NewEpochTerm returns a Tenure without an epoch.
func NewEpochTerm() *EpochTerm {
	return &EpochTerm{progress: "not looked at yet", corruptions: make(map[string]*corruption), changed: make(chan struct{})}
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

// isCurrent reports whether an epoch is the one that the worker decides under.
func (t *EpochTerm) isCurrent(epoch string) bool {
	current, err := t.Current()
	return err == nil && current.Name == epoch
}

// WaitReady returns when there is an epoch to decide under, or ctx is over.
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

// termSeparator divides a term into an epoch and the version of the stored policies.
const termSeparator = "@"

// errPolicyChanged is an ErrBusy.
var errPolicyChanged = fmt.Errorf("another policy was stored meanwhile: %w", holds.ErrBusy)

// Verify returns nil if what was decided in a term, or in no matter which of an epoch, may be published
// at this moment: Postgres has said within termValidity that the epoch is the current one, and that no
// other policy was stored. That may be so also after Redis was lost: who fills it again waits for
// what is published until then. Trust waits for Postgres as long. It returns ErrDataLost when there
// is another epoch, and ErrBusy when there is another policy.
func (t *EpochTerm) Verify(ctx context.Context, term string) error {
	epoch, version, versioned := strings.Cut(term, termSeparator)
	ctx, cancel := context.WithTimeoutCause(ctx, termValidity, fmt.Errorf("postgres has not said for %v whether redis has all that was written to it", termValidity))
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

// begin says that at asked, or later, Postgres has said that an epoch is the current one, which server
// has it, and which policies are stored.
func (t *EpochTerm) begin(epoch, server string, policies holds.Policies, checkedAt time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.history, t.verifiedEpoch, t.verifiedUntil = epoch, historyOf(server), epoch, checkedAt.Add(termValidity)
	t.policies = policies
	t.notify()
}

// end says that there is no epoch now, and why.
func (t *EpochTerm) end(progress string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.progress = "", progress
	t.notify()
}

// Report implements holds.Term. A mismatch is that a script has not found an epoch, or not the history of the server that
// has it.
func (t *EpochTerm) Report(epoch, resource string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, holds.ErrDataLost) {
		t.mismatched = epoch
		return
	}
	now := time.Now()
	d := t.corruptions[resource]
	if d == nil || d.epoch != epoch {
		if d == nil && len(t.corruptions) >= corruptionsMax {
			return
		}
		d = &corruption{epoch: epoch, first: now}
		t.corruptions[resource] = d
	}
	d.last, d.err = now, err
}

// takeMismatch reports whether an epoch was doubted since the last call.
func (t *EpochTerm) takeMismatch(epoch string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	doubted := t.mismatched == epoch
	t.mismatched = ""
	return doubted
}

// takeCorruption returns damage that was found under an epoch and that nobody has healed, nil when there is none.
// It forgets what was healed, and what was found under another epoch: Redis was filled again since.
func (t *EpochTerm) takeCorruption(epoch string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource, d := range t.corruptions {
		switch {
		case d.epoch != epoch, time.Since(d.last) > corruptionForgottenAfter:
			delete(t.corruptions, resource)
		case d.last.Sub(d.first) >= healWithin:
			return d.err
		}
	}
	return nil
}

func (t *EpochTerm) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}
