package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// The pace of a Keeper.
const (
	checkInterval        = 500 * time.Millisecond // between two looks at Postgres and Redis
	postgresCheckTimeout = 5 * time.Second        // of a look at Postgres
	redisCheckTimeout    = time.Second            // of one at Redis, less than termValidity: what it has said is published meanwhile
	// publishDelayMax is what it may take from the moment at which an outcome may be published until it
	// is stored, or never is: whoever publishes may be held up for 2 s by a connection that takes nothing.
	publishDelayMax           = 3 * time.Second
	rebuildLease              = 10 * time.Second // after which the next begins, when one who fills Redis was killed
	leaseRenewInterval        = time.Second      // between two words of one who does
	corruptionRebuildInterval = time.Minute      // damage that comes back at once is not mended by filling Redis again and again
	// historyChangeWindow is how long after a look the server may have begun a new history of its own. Later
	// it may as well have followed another, and have forgotten that since: it does after repl-backlog-ttl,
	// an hour unless that is set.
	historyChangeWindow = 30 * time.Second
)

// OutcomeLog tells what was published.
type OutcomeLog interface {
	// Outcomes hands to each the outcomes that were stored since a time, and after a sequence,
	// up to the last that there is when it begins. It returns the sequence of that one. each may
	// be called by several goroutines.
	Outcomes(ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error, progress func(done, all uint64)) (last uint64, err error)
	// Gaps tells what there is not any more of the outcomes that were stored since a time, for
	// people, "" = there are all.
	Gaps(ctx context.Context, since time.Time) (what string, err error)
	// Unacknowledged hands on the payments and the cancellations of bookings that are not acknowledged
	// yet, and some that are, each kind in the order in which they were stored.
	Unacknowledged(ctx context.Context, payment func(r holds.ConfirmRequest, storedAt holds.Time), cancel func(r holds.ReleaseRequest, storedAt holds.Time)) error
}

// SupervisorOptions are what a Keeper works with.
type SupervisorOptions struct {
	Namespace string
	Name      string // of this process, where others see it
	Policy    holds.Policy
	Term      *EpochTerm
	Guard     *ConnGuard // of the worker's client of Redis, nil = there is none
	// Redis returns the options of a client of Redis. The Keeper makes clients of its own of it.
	Redis      func() *redis.Options
	EpochStore EpochStore
	Inventory  holds.Inventory
	OutcomeLog OutcomeLog
	Fence      func(context.Context) (int64, error) // returns a higher one than all fencing tokens that there were
	Log        zerolog.Logger
}

// Supervisor notices that Redis has not what was written to it, keeps everybody from deciding on what
// is left, and has it filled again from what was told: by one of the workers, while the others
// wait.
//
//	            Postgres: epoch written             not written: nobody decides
//	check ──► Redis has it, the server is the same ──── else ──► condemn ──► begin ──► fill ──► written
//	  ▲                 │ Tenure, Guard: open            Tenure, Guard: closed  │         │        │
//	  └──── 500 ms ─────┘                                   the next begins anew └─ lease ─┘        │
//	  ▲                                                                                            │
//	  └────────────────────────────────────────────────────────────────────────────────────────────┘
type Supervisor struct {
	SupervisorOptions

	// Tests change these before the first use.
	Drain          time.Duration // how long after a loss something may be published that was decided before
	InspectTimeout time.Duration // of one look at Redis
	Clock          int64         // ms, see holds.CurrentEpoch

	keys                record.Keyspace
	inspectClient       *redis.Client // nil until the first look
	lostEpoch           string        // the epoch that is not written any more, as Postgres said
	lostAt              time.Time     // first then
	corruptionRebuiltAt time.Time     // when Redis was last filled again for damage
	verifiedServer      string        // the server that had all that was written to it when it was last looked at
	verifiedServerAt    time.Time
	reconnectedFor      string // the last epoch for which connections were made anew
	policyMismatch      string // of the stored policy and Policy, as it was logged last
	lastFailure         string // the last that was told of a check that failed
}

// NewSupervisor returns a Keeper. It is used by one goroutine.
func NewSupervisor(o SupervisorOptions) *Supervisor {
	if o.Guard == nil {
		o.Guard = NewConnGuard()
	}
	return &Supervisor{SupervisorOptions: o, keys: record.Keyspace(o.Namespace), Drain: termValidity + publishDelayMax, InspectTimeout: redisCheckTimeout}
}

// Run keeps watch until ctx is over. It returns an error when Redis or Postgres has what only newer programs
// understand: then nothing is decided any more, and the process must end.
func (k *Supervisor) Run(ctx context.Context) error {
	defer k.closeInspectClient()
	for ctx.Err() == nil {
		err := k.runOnce(ctx)
		if errors.Is(err, ErrUnknownFormat) || errors.Is(err, ErrUnknownSchema) {
			k.Term.end(err.Error())
			k.Guard.Block(err.Error())
			k.Log.Error().Err(err).Msg("a newer version has changed what is stored: start this worker again in that version, or a newer one")
			return err
		}
		if ctx.Err() == nil {
			k.logFailure(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
	return nil
}

// logFailure logs a failure once, and again when it is another.
func (k *Supervisor) logFailure(err error) {
	switch {
	case err == nil:
		k.lastFailure = ""
	case err.Error() != k.lastFailure:
		k.lastFailure = err.Error()
		k.Log.Error().Err(err).Msg("it is not known now whether redis has all that was written to it, will be repeated")
	}
}

func (k *Supervisor) runOnce(ctx context.Context) error {
	e, err := k.Check(ctx)
	if err != nil || e.Complete {
		return err
	}
	r, err := k.rebuild(ctx, false, func(string) {})
	if errors.Is(err, ErrEpochChanged) {
		return nil // another worker is at it
	}
	if err == nil {
		r.log(k.Log, e.Why)
		_, err = k.Check(ctx)
	}
	return err
}

// Check looks once at Postgres and Redis, and opens or closes the way to Redis by what it finds.
// It returns the entry as it is then.
func (k *Supervisor) Check(ctx context.Context) (Epoch, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	checkedAt := time.Now()
	e, err := k.EpochStore.Epoch(ctx)
	if err != nil {
		return e, err
	}
	if !e.Complete {
		k.blockDecisions(e)
		return e, nil
	}
	policies, err := k.EpochStore.Policies(ctx)
	if err != nil {
		return e, err
	}
	// What Redis has said may be published while it does not answer any more.
	current := k.Term.isCurrent(e.Name)
	if current {
		k.allowDecisions(e, policies, checkedAt)
	}
	if k.Term.takeMismatch(e.Name) {
		k.reconnect(e)
	}
	e.Why, err = k.inspect(ctx, e)
	if corruption := k.Term.takeCorruption(e.Name); corruption != nil && err == nil && e.Why == "" && time.Since(k.corruptionRebuiltAt) > corruptionRebuildInterval {
		k.corruptionRebuiltAt = time.Now()
		e.Why = corruption.Error()
	}
	switch {
	case errors.Is(err, errForeign):
		k.Term.end(err.Error())
	case err == nil && e.Why != "":
		if err = k.invalidate(ctx, e); err == nil {
			e.Complete, e.Lost = false, e.Name
			k.blockDecisions(e)
		}
	case err == nil && !current:
		k.allowDecisions(e, policies, checkedAt)
	}
	return e, err
}

// allowDecisions lets the worker decide under an epoch that Redis has.
func (k *Supervisor) allowDecisions(e Epoch, policies holds.Policies, checkedAt time.Time) {
	k.Guard.Allow(e.Server)
	k.Term.begin(e.Name, e.Server, policies, checkedAt)
	if mismatch := policies.Mismatch(k.Policy); mismatch != k.policyMismatch {
		k.policyMismatch = mismatch
		if mismatch != "" {
			k.Log.Warn().Str("policy_mismatch", mismatch).
				Msg("the stored policy differs from the settings of this worker, the stored one is used")
		}
	}
}

// reconnect has all connections made anew, each of which asks who is there: the one on which a script has not found
// the epoch may lead elsewhere.
func (k *Supervisor) reconnect(e Epoch) {
	if k.reconnectedFor != e.Name {
		k.reconnectedFor = e.Name
		k.Log.Warn().Str("epoch", e.Name).
			Msg("a script did not find the epoch, or the history of its server, where it should be: connections to redis are made anew")
	}
	k.closeInspectClient()
	k.Guard.Reconnect()
}

// blockDecisions keeps the worker from deciding.
func (k *Supervisor) blockDecisions(e Epoch) {
	if k.lostAt.IsZero() || k.lostEpoch != e.Lost {
		k.lostEpoch, k.lostAt = e.Lost, time.Now()
	}
	progress := "waiting for one who fills it again"
	if e.Progress != "" {
		progress = e.Rebuilder + ": " + e.Progress
	}
	if e.Why != "" {
		progress += "; why: " + e.Why
	}
	k.Term.end(progress)
	k.Guard.Block(progress)
}

// inspect looks whether Redis still has what was written under an epoch. It returns why not, "" when
// it has. What speaks against it is looked at again on a new connection: the one that there was may
// lead to a server that has been replaced.
func (k *Supervisor) inspect(ctx context.Context, e Epoch) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.InspectTimeout)
	defer cancel()
	for range 2 {
		var state redisState
		if state, err = readState(ctx, k.Namespace, k.client()); err != nil {
			k.closeInspectClient()
			return "", err
		}
		if why, err = k.findLoss(ctx, e, state); why == "" && err == nil {
			return "", k.checkFormat(ctx, state.format)
		}
		k.closeInspectClient()
	}
	return why, err
}

// checkFormat returns ErrUnknownFormat when a format is noted that this program does not know. Where none, or a lower
// one, is noted it notes its own, so that older programs stop: Redis may have lost what was noted.
func (k *Supervisor) checkFormat(ctx context.Context, noted string) error {
	if noted != "" {
		if format, err := knownFormat(noted); err != nil || format == Format {
			return err
		}
	}
	_, err := WriteFormat(ctx, k.Namespace, k.client())
	return err
}

// findLoss says why what was seen is not what was written under an epoch, "" when it is.
func (k *Supervisor) findLoss(ctx context.Context, e Epoch, state redisState) (why string, err error) {
	for _, found := range state.epochs {
		switch {
		case found != "" && lineage(found) != lineage(e.Name):
			return "", fmt.Errorf("%w: it is not touched; if that other one is gone: worker rebuild", errForeign)
		case found == "":
			why = "the epoch is gone: the data was removed, or not kept over a restart"
		case found != e.Name && why == "":
			why = "the epoch is an older one: this is the data of before an earlier loss"
		}
	}
	switch {
	case why != "":
		return why, nil
	case !k.isServer(e, state.server):
		return anotherServer, nil
	case e.Server != state.server.name():
		err = k.EpochStore.SetEpochServer(ctx, e.Name, state.server.name(), e.Server)
		if errors.Is(err, ErrEpochChanged) {
			err = nil // somebody else has noted it
		}
	}
	if err == nil {
		k.verifiedServer, k.verifiedServerAt = state.server.name(), time.Now()
	}
	return "", err
}

// isServer reports whether a server is the one that has an epoch, and has had it all the time.
func (k *Supervisor) isServer(e Epoch, s server) bool {
	return e.Server == "" || e.Server == s.name() ||
		s.is(e.Server) && k.verifiedServer == e.Server && time.Since(k.verifiedServerAt) < historyChangeWindow
}

// invalidate ends an epoch. First Redis is told, so that scripts refuse at once whoever has sent them,
// also if Postgres cannot be reached.
func (k *Supervisor) invalidate(ctx context.Context, e Epoch) error {
	k.Log.Warn().Str("why", e.Why).Str("epoch", e.Name).
		Msg("redis has not all that was written to it, nothing is decided until it is filled again")
	k.Term.end("just noticed; why: " + e.Why)
	k.Guard.Block("just noticed; why: " + e.Why)
	failpoint.Hit("rebuild.noticed")
	if _, err := replaceEpoch(ctx, k.keys, k.client(), e.Name, ""); err != nil {
		k.Log.Warn().Err(err).Msg("redis could not be told, postgres is")
	}
	failpoint.Hit("rebuild.told")
	if err := k.EpochStore.InvalidateEpoch(ctx, e.Name, e.Why); err != nil && !errors.Is(err, ErrEpochChanged) {
		return err
	}
	failpoint.Hit("rebuild.condemned")
	return nil
}

// client returns the client for looks, which has one connection.
func (k *Supervisor) client() *redis.Client {
	if k.inspectClient == nil {
		options := k.Redis()
		options.PoolSize = 1
		k.inspectClient = redis.NewClient(options)
	}
	return k.inspectClient
}

func (k *Supervisor) closeInspectClient() {
	if k.inspectClient != nil {
		_ = k.inspectClient.Close() // nothing is on its way
		k.inspectClient = nil
	}
}
