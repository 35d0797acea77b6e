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

// The intervals and timeouts of a Supervisor.
const (
	checkInterval        = 500 * time.Millisecond // between two checks
	postgresCheckTimeout = 5 * time.Second
	redisCheckTimeout    = time.Second // below termValidity: outcomes are still published during a check
	// publishDelayMax is the longest time from the moment at which an outcome may be published until it is
	// stored, or never will be: a connection that accepts no data delays a publisher for 2 s.
	publishDelayMax           = 3 * time.Second
	rebuildLease              = 10 * time.Second // of a rebuilder: after its end another worker takes over
	leaseRenewInterval        = time.Second
	corruptionRebuildInterval = time.Minute // between two rebuilds for corruption, which may return at once
	// historyChangeWindow is how long after a check the server may have started a new history of its own.
	// Later it may just as well have followed another server and forgotten it since: Redis forgets after
	// repl-backlog-ttl, which is an hour by default.
	historyChangeWindow = 30 * time.Second
)

// OutcomeLog reads the published outcomes and the unanswered events.
type OutcomeLog interface {
	// Outcomes calls each for the outcomes that were stored since a time and after a sequence, up to
	// the last one at the time of the call. It returns the sequence of that last one. Several goroutines
	// may call each.
	Outcomes(
		ctx context.Context, since time.Time, after uint64,
		each func(holds.StoredOutcome) error, progress func(done, all uint64),
	) (last uint64, err error)
	// Gaps describes for operators which of the outcomes stored since a time are missing, "" when none is.
	Gaps(ctx context.Context, since time.Time) (what string, err error)
	// Unacknowledged calls payment and cancel for the payments and the cancellations of bookings that are
	// not acknowledged yet, and for some that are, each kind in the order in which they were stored.
	Unacknowledged(
		ctx context.Context,
		payment func(r holds.ConfirmRequest, storedAt holds.Time), cancel func(r holds.ReleaseRequest, storedAt holds.Time),
	) error
}

// SupervisorOptions are the dependencies of a Supervisor.
type SupervisorOptions struct {
	Namespace string
	Name      string // of this process, shown to others
	Policy    holds.Policy
	Term      *EpochTerm
	Guard     *ConnGuard // of the worker's Redis client; nil when it has none
	// Redis returns the options of the Redis clients that the Supervisor creates.
	Redis      func() *redis.Options
	EpochStore EpochStore
	Inventory  holds.Inventory
	OutcomeLog OutcomeLog
	History    *HistoryChecker                      // of Postgres; nil when the caller decides nothing
	Fence      func(context.Context) (int64, error) // returns a number above all fencing tokens so far
	Log        zerolog.Logger
	Metrics    *Metrics // nil when nothing is measured
}

// Supervisor detects that Redis has lost acknowledged writes, stops all workers from deciding on what
// is left, and rebuilds Redis. One of the workers rebuilds while the others wait.
//
//	            Postgres: epoch complete                  epoch not complete: no worker decides
//	check ──► Redis has it, on the same server ──── else ──► invalidate ──► begin ──► rebuild ──► complete
//	  ▲               │ term, guard: open                    term, guard: closed  │          │          │
//	  └──── 500 ms ───┘                                     another worker begins └─ lease ──┘          │
//	  ▲                                                                                                 │
//	  └─────────────────────────────────────────────────────────────────────────────────────────────────┘
//
// One goroutine uses it.
type Supervisor struct {
	SupervisorOptions

	// Tests change these before the first use.
	Drain          time.Duration // how long after a loss outcomes that were decided before may still be published
	InspectTimeout time.Duration // of one inspection of Redis
	Clock          int64         // ms, see holds.CurrentEpoch

	history             *HistoryChecker // nil when the caller decides nothing
	keys                record.Keyspace
	inspectClient       *redis.Client // nil until the first inspection
	lostEpoch           string        // the last invalid epoch that was read from Postgres
	lostAt              time.Time     // when lostEpoch was first read
	corruptionRebuiltAt time.Time     // the last rebuild for corruption
	verifiedServer      string        // the server that had all data at the last inspection
	verifiedServerAt    time.Time
	reconnectedFor      string // the last epoch for which a reconnect was logged
	policyMismatch      string // between the stored policy and Policy, as last logged
	lastFailure         string // of a check, as last logged
}

// NewSupervisor returns a Supervisor.
func NewSupervisor(o SupervisorOptions) *Supervisor {
	if o.Guard == nil {
		o.Guard = NewConnGuard()
	}
	return &Supervisor{
		SupervisorOptions: o, keys: record.Keyspace(o.Namespace),
		Drain: termValidity + publishDelayMax, InspectTimeout: redisCheckTimeout,
	}
}

// CheckHistory makes each check begin with one of the history of Postgres.
func (s *Supervisor) CheckHistory(c *HistoryChecker) {
	s.history = c
	c.beforeCompared = s.afterLostCommits
	c.Drain = s.Drain
}

// Run checks and rebuilds until ctx ends. It returns an error when only newer programs know the
// format of Redis or the schema of Postgres: then nothing is decided any more, and the process must
// end.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.closeInspectClient()
	for ctx.Err() == nil {
		err := s.runOnce(ctx)
		if errors.Is(err, ErrUnknownFormat) || errors.Is(err, ErrUnknownSchema) {
			s.Term.end(err.Error())
			s.Guard.Block(err.Error())
			s.Log.Error().Err(err).Msg("stored data is newer than this worker, start a newer version")
			return err
		}
		if ctx.Err() == nil {
			s.logFailure(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
	return nil
}

// logFailure logs a failure once, and again when it changes.
func (s *Supervisor) logFailure(err error) {
	switch {
	case err == nil:
		s.lastFailure = ""
	case err.Error() != s.lastFailure:
		s.lastFailure = err.Error()
		s.Log.Error().Err(err).Msg("redis integrity check failed, will retry")
	}
}

func (s *Supervisor) runOnce(ctx context.Context) error {
	e, err := s.Check(ctx)
	if err == nil && s.history != nil {
		if err := s.history.Maintain(ctx); err != nil {
			s.Log.Debug().Err(err).Msg("commit marker not written, will retry")
		}
	}
	if err != nil || e.Complete {
		return err
	}
	r, err := s.rebuild(ctx, false, func(string) {})
	s.Metrics.ended(e.Why, r, err)
	if errors.Is(err, ErrEpochChanged) {
		return nil // another worker rebuilds
	}
	if err == nil {
		r.log(s.Log, e.Why)
		_, err = s.Check(ctx)
	}
	return err
}

// Check reads Postgres and inspects Redis once, and allows or blocks decisions accordingly. It returns
// the row of the epoch after that.
func (s *Supervisor) Check(ctx context.Context) (Epoch, error) {
	if s.history != nil { // first: the row of the epoch is one of the rows that may be too old
		if err := s.history.Check(ctx); err != nil {
			return Epoch{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	checkedAt := time.Now()
	e, err := s.EpochStore.Epoch(ctx)
	if err != nil {
		return e, err
	}
	if !e.Complete {
		s.blockDecisions(e)
		return e, nil
	}
	policies, err := s.EpochStore.Policies(ctx)
	if err != nil {
		return e, err
	}
	// What Redis has answered may be published even while Redis does not answer any more.
	current := s.Term.isCurrent(e.Name)
	if current {
		s.allowDecisions(e, policies, checkedAt)
	}
	if s.Term.takeMismatch(e.Name) {
		s.reconnect(e)
	}
	e.Why, err = s.inspect(ctx, e)
	corrupt := s.Term.takeCorruption(e.Name)
	if corrupt != nil && err == nil && e.Why == "" && time.Since(s.corruptionRebuiltAt) > corruptionRebuildInterval {
		s.corruptionRebuiltAt = time.Now()
		e.Why = corrupt.Error()
	}
	switch {
	case errors.Is(err, errForeign):
		s.Term.end(err.Error())
	case err == nil && e.Why != "":
		if err = s.invalidate(ctx, e); err == nil {
			e.Complete, e.Lost = false, e.Name
			s.blockDecisions(e)
		}
	case err == nil && !current:
		s.allowDecisions(e, policies, checkedAt)
	}
	return e, err
}

// allowDecisions lets the worker decide under an epoch that Redis has.
func (s *Supervisor) allowDecisions(e Epoch, policies holds.Policies, checkedAt time.Time) {
	s.Guard.Allow(e.Server)
	s.Term.begin(e.Name, e.Server, policies, checkedAt)
	if mismatch := policies.Mismatch(s.Policy); mismatch != s.policyMismatch {
		s.policyMismatch = mismatch
		if mismatch != "" {
			s.Log.Warn().Str("policy_mismatch", mismatch).Msg("worker settings ignored, stored policy differs")
		}
	}
}

// reconnect closes all connections, so that each server is verified again: the connection on which a
// script has not found the epoch may lead to another server.
func (s *Supervisor) reconnect(e Epoch) {
	if s.reconnectedFor != e.Name {
		s.reconnectedFor = e.Name
		s.Log.Warn().Str("epoch", e.Name).Msg("epoch mismatch, reconnecting to redis")
	}
	s.closeInspectClient()
	s.Guard.Reconnect()
}

// blockDecisions keeps the worker from deciding.
func (s *Supervisor) blockDecisions(e Epoch) {
	if s.lostAt.IsZero() || s.lostEpoch != e.Lost {
		s.lostEpoch, s.lostAt = e.Lost, time.Now()
	}
	progress := "waiting for a worker to rebuild it"
	if e.Progress != "" {
		progress = e.Rebuilder + ": " + e.Progress
	}
	if e.Why != "" {
		progress += "; why: " + e.Why
	}
	s.Term.end(progress)
	s.Guard.Block(progress)
}

// inspect checks whether Redis still has what was written under an epoch. It returns the reason why it
// has not, "" when it has. It confirms a loss on a new connection: the existing one may lead to a
// server that was replaced.
func (s *Supervisor) inspect(ctx context.Context, e Epoch) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.InspectTimeout)
	defer cancel()
	for range 2 {
		var state redisState
		if state, err = readState(ctx, s.Namespace, s.client()); err != nil {
			s.closeInspectClient()
			return "", err
		}
		if why, err = s.findLoss(ctx, e, state); why == "" && err == nil {
			return "", s.checkFormat(ctx, state.format)
		}
		s.closeInspectClient()
	}
	return why, err
}

// checkFormat returns ErrUnknownFormat when the stored format is one that this program does not know.
// When the format is missing or lower it writes this program's, so that older programs stop: Redis may
// have lost the key.
func (s *Supervisor) checkFormat(ctx context.Context, stored string) error {
	if stored != "" {
		if format, err := parseFormat(stored); err != nil || format == Format {
			return err
		}
	}
	_, err := WriteFormat(ctx, s.Namespace, s.client())
	return err
}

// findLoss returns the reason why Redis lacks data of an epoch, "" when it has all of it.
func (s *Supervisor) findLoss(ctx context.Context, e Epoch, state redisState) (why string, err error) {
	for _, found := range state.epochs {
		switch {
		case found != "" && lineage(found) != lineage(e.Name):
			return "", errUntouched
		case found == "":
			why = "epoch missing: data was removed, or not persisted across a restart"
		case found != e.Name && why == "":
			why = "older epoch: the data is from before an earlier loss"
		}
	}
	switch {
	case why != "":
		return why, nil
	case !s.isServer(e, state.server):
		return anotherServer, nil
	case e.Server != state.server.name():
		err = s.EpochStore.SetEpochServer(ctx, e.Name, state.server.name(), e.Server)
		if errors.Is(err, ErrEpochChanged) {
			err = nil // another worker has stored it
		}
	}
	if err == nil {
		s.verifiedServer, s.verifiedServerAt = state.server.name(), time.Now()
	}
	return "", err
}

// errUntouched is an errForeign with the remedy.
var errUntouched = fmt.Errorf("%w: nothing was changed; if that database is gone, run worker rebuild", errForeign)

// isServer reports whether a server has had an epoch without interruption.
func (s *Supervisor) isServer(e Epoch, found server) bool {
	return e.Server == "" || e.Server == found.name() ||
		found.is(e.Server) && s.verifiedServer == e.Server && time.Since(s.verifiedServerAt) < historyChangeWindow
}

// invalidate ends an epoch: first in Redis, so that the scripts of all workers refuse at once even
// when Postgres cannot be reached, then in Postgres.
func (s *Supervisor) invalidate(ctx context.Context, e Epoch) error {
	s.Log.Warn().Str("why", e.Why).Str("epoch", e.Name).Msg("redis data loss detected, paused until rebuilt")
	progress := "loss detected; why: " + e.Why
	s.Term.end(progress)
	s.Guard.Block(progress)
	failpoint.Hit("rebuild.noticed")
	if _, err := replaceEpoch(ctx, s.keys, s.client(), e.Name, ""); err != nil {
		s.Log.Warn().Err(err).Msg("epoch not invalidated in redis")
	}
	failpoint.Hit("rebuild.told")
	if err := s.EpochStore.InvalidateEpoch(ctx, e.Name, e.Why); err != nil && !errors.Is(err, ErrEpochChanged) {
		return err
	}
	failpoint.Hit("rebuild.condemned")
	return nil
}

// client returns the client for inspections. It has one connection.
func (s *Supervisor) client() *redis.Client {
	if s.inspectClient == nil {
		options := s.Redis()
		options.PoolSize = 1
		s.inspectClient = redis.NewClient(options)
	}
	return s.inspectClient
}

func (s *Supervisor) closeInspectClient() {
	if s.inspectClient != nil {
		_ = s.inspectClient.Close() // no command is in progress
		s.inspectClient = nil
	}
}
