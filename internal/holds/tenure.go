package holds

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// LostError is an ErrDataLost that knows what is being done about it.
type LostError struct{ Progress string }

func (e *LostError) Error() string { return fmt.Sprintf("%v: %s", ErrDataLost, e.Progress) }

// Is makes it an ErrDataLost.
func (*LostError) Is(target error) bool { return target == ErrDataLost }

// trustFor is how long Postgres' word that an epoch is the current one is relied on: for so long
// after an epoch was condemned there may be workers who publish what was decided under it.
const trustFor = 2 * time.Second

// Damage of one resource is left to whoever heals it in place (see Service.OnDamage), which keeps only its own
// events waiting. Redis is filled again for it, which keeps all waiting, when it is still found after
// healWithin. What was not found for damageForgotten is healed: events come back sooner.
const (
	healWithin      = 5 * time.Second
	damageForgotten = 15 * time.Second
	damagedMax      = 1000 // resources that are kept in mind: of more, some are in the way again later
)

// damage is what was found of a resource.
type damage struct {
	epoch       string // under which it was
	first, last time.Time
	err         error // the last
}

// Tenure is under which epoch a worker decides, and for how long it may rely on it: one for all
// parts of the worker. Its Keeper writes it.
type Tenure struct {
	mu       sync.Mutex
	epoch    string             // "" = Redis must not be used now
	history  string             // of the server that has it, "" = it is not known
	progress string             // what is done about it
	trusted  string             // the last epoch that there was
	until    time.Time          // when the trust in it ends
	damaged  map[string]*damage // by resource, "" = of no resource
	doubted  string             // the last epoch that a script did not find
	forever  bool               // nobody asks Postgres
	policies Policies           // as Postgres has them, nil = it was not asked
	changed  chan struct{}      // closed and replaced with each change
}

// Always returns a Tenure that nobody keeps: an epoch on a server is always relied on.
func Always(epoch, server string) *Tenure {
	t := NewTenure()
	t.epoch, t.history, t.trusted, t.forever = epoch, historyOf(server), epoch, true
	return t
}

// NewTenure returns a Tenure without an epoch.
func NewTenure() *Tenure {
	return &Tenure{progress: "not looked at yet", damaged: make(map[string]*damage), changed: make(chan struct{})}
}

// Current returns the epoch, or a *LostError while there is none.
func (t *Tenure) Current() (string, error) {
	epoch, _, err := t.current()
	return epoch, err
}

// current is Current, and tells the history of the server that has the epoch, "" = it is not known.
func (t *Tenure) current() (epoch, history string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == "" {
		return "", "", &LostError{t.progress}
	}
	return t.epoch, t.history, nil
}

// trustsIn reports whether an epoch is the one that the worker decides under.
func (t *Tenure) trustsIn(epoch string) bool {
	current, err := t.Current()
	return err == nil && current == epoch
}

// Await returns when there is an epoch to decide under, or ctx is over.
func (t *Tenure) Await(ctx context.Context) error {
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

// Policies returns the stored policies, nil when there are none.
func (t *Tenure) Policies() Policies {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.policies
}

// termMark divides a term into an epoch and the version of the stored policies.
const termMark = "@"

// term returns the epoch and the version of the stored policies, "" while there is no epoch.
func (t *Tenure) term() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == "" || t.policies == nil {
		return t.epoch
	}
	return t.epoch + termMark + t.policies.version()
}

// errPolicyChanged is an ErrBusy.
var errPolicyChanged = fmt.Errorf("another policy was stored meanwhile: %w", ErrBusy)

// Trust returns nil if what was decided in a term, or in no matter which of an epoch, may be published
// at this moment: Postgres has said within trustFor that the epoch is the current one, and that no
// other policy was stored. That may be so also after Redis was lost: who fills it again waits for
// what is published until then. Trust waits for Postgres as long. It returns ErrDataLost when there
// is another epoch, and ErrBusy when there is another policy.
func (t *Tenure) Trust(ctx context.Context, term string) error {
	epoch, version, versioned := strings.Cut(term, termMark)
	ctx, cancel := context.WithTimeoutCause(ctx, trustFor, fmt.Errorf("postgres has not said for %v whether redis has all that was written to it", trustFor))
	defer cancel()
	for {
		t.mu.Lock()
		trusted := epoch != "" && t.trusted == epoch && (t.forever || time.Now().Before(t.until))
		lost, changed := t.epoch != epoch || epoch == "", t.changed
		current := t.policies.version()
		t.mu.Unlock()
		switch {
		case trusted && versioned && version != current:
			return errPolicyChanged
		case trusted:
			return nil
		case lost:
			return ErrDataLost
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
func (t *Tenure) begin(epoch, server string, policies Policies, asked time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.history, t.trusted, t.until = epoch, historyOf(server), epoch, asked.Add(trustFor)
	t.policies = policies
	t.tell()
}

// end says that there is no epoch now, and why.
func (t *Tenure) end(progress string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch, t.progress = "", progress
	t.tell()
}

// doubt tells the Keeper that a script has not found an epoch, or not the history of the server that has it.
func (t *Tenure) doubt(epoch string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doubted = epoch
}

// takeDoubt reports whether an epoch was doubted since the last call.
func (t *Tenure) takeDoubt(epoch string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	doubted := t.doubted == epoch
	t.doubted = ""
	return doubted
}

// noteDamage tells the Keeper of damage that was found at a resource under an epoch.
func (t *Tenure) noteDamage(epoch, resource string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	d := t.damaged[resource]
	if d == nil || d.epoch != epoch {
		if d == nil && len(t.damaged) >= damagedMax {
			return
		}
		d = &damage{epoch: epoch, first: now}
		t.damaged[resource] = d
	}
	d.last, d.err = now, err
}

// takeDamage returns damage that was found under an epoch and that nobody has healed, nil when there is none.
// It forgets what was healed, and what was found under another epoch: Redis was filled again since.
func (t *Tenure) takeDamage(epoch string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource, d := range t.damaged {
		switch {
		case d.epoch != epoch, time.Since(d.last) > damageForgotten:
			delete(t.damaged, resource)
		case d.last.Sub(d.first) >= healWithin:
			return d.err
		}
	}
	return nil
}

func (t *Tenure) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}
