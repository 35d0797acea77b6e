package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
	"holdfast/internal/telemetry"
)

// The intervals and timeouts of a Supervisor.
const (
	checkInterval        = 500 * time.Millisecond // between two checks
	recoveryInterval     = 250 * time.Millisecond // the same while partitions are recovered
	postgresCheckTimeout = 5 * time.Second
	redisCheckTimeout    = time.Second // one and a half times this is below termValidity: during a check outcomes are published
	// publishDelayMax is the longest time from the moment at which an outcome may be published until it is
	// stored, or never will be: a connection that accepts no data delays a publisher for 2 s.
	publishDelayMax           = 3 * time.Second
	rebuildLease              = 10 * time.Second // of a rebuilder: after its end another worker takes over
	leaseRenewInterval        = time.Second
	retryAfter                = 2 * recoveryInterval // see Supervisor.RetryAfter
	corruptionRebuildInterval = time.Minute          // between two rebuilds for corruption, which may return at once
	// historyChangeWindow is how long after a check the server may have started a new history of its own.
	// Later it may just as well have followed another server and forgotten it since: Redis forgets after
	// repl-backlog-ttl, which is an hour by default.
	historyChangeWindow = 30 * time.Second
)

// OutcomeLog reads the published outcomes and the unanswered events.
type OutcomeLog interface {
	// Outcomes calls each for the outcomes that were stored since a time, unless that is zero, and after a sequence, up to
	// the last one at the time of the call, one after the other and in no particular order. It returns the sequence of
	// that last one.
	Outcomes(
		ctx context.Context, since time.Time, after uint64,
		each func(holds.StoredOutcome) error, progress func(done, all uint64),
	) (last uint64, err error)
	// Position returns the position of the last outcome that is stored.
	Position(ctx context.Context) (holds.LogPosition, error)
	// MissingAfter describes for operators why outcomes that were stored after a position may be missing, "" when
	// all of them are stored.
	MissingAfter(ctx context.Context, after holds.LogPosition) (what string, err error)
	// Gaps describes for operators which of the outcomes stored since a time are missing, "" when none is.
	Gaps(ctx context.Context, since time.Time) (what string, err error)
	// OldestPayment returns when the first payment that is not acknowledged was stored, zero when there is none.
	OldestPayment(ctx context.Context) (time.Time, error)
	// Unacknowledged calls payment and cancel for the payments and the cancellations of bookings that are
	// not acknowledged yet, and for those acknowledged ones that follow the first of them, each kind in the order in
	// which they were stored: those stored after a sequence of the inbound stream. It returns the last sequence at the time
	// of the call. It keeps none of them in memory, and ends with the first error that a call returns.
	Unacknowledged(
		ctx context.Context, after uint64, payment func(r holds.ConfirmRequest, storedAt holds.Time) error,
		cancel func(r holds.ReleaseRequest, storedAt holds.Time) error,
	) (last uint64, err error)
}

// Server is a Redis server and the partitions that it has.
type Server struct {
	Addr       string                // identifies it among the servers, "" when there is only one
	Options    func() *redis.Options // of a client that the Supervisor creates
	Partitions record.PartitionSet
}

// runner returns what runs scripts with a client of the server.
func (s *Server) runner(client *redis.Client) redis.UniversalClient {
	if s.Addr == "" {
		return client
	}
	return lua.ClusterNode{Client: client}
}

// LoneServer returns a SupervisorOptions.Servers for one server that has all partitions.
func LoneServer(options func() *redis.Options) func(context.Context) ([]Server, error) {
	server := []Server{{Options: options, Partitions: record.AllPartitions}}
	return func(context.Context) ([]Server, error) { return server, nil }
}

// SupervisorOptions are the dependencies of a Supervisor.
type SupervisorOptions struct {
	Namespace string
	Name      string // of this process, shown to others
	Policy    holds.Policy
	Term      *EpochTerm
	Guard     *ConnGuard // of the worker's Redis client
	// Servers returns the Redis servers. A partition that has none for the moment is left out. It is
	// called for each check, by one goroutine, and the caller does not change the result.
	Servers    func(context.Context) ([]Server, error)
	EpochStore EpochStore
	Inventory  holds.Inventory
	OutcomeLog OutcomeLog
	Fence      func(context.Context) (int64, error) // returns a number above all fencing tokens so far
	Log        zerolog.Logger
	Metrics    *Metrics // NewSupervisor sets it when it is nil
}

// Supervisor detects that Redis has lost acknowledged writes, stops all workers from deciding on what
// is left, and rebuilds the partitions concerned, while the workers go on with the others. One of the
// workers rebuilds a partition while the others wait for it.
//
//	            Postgres: epoch complete                  epoch not complete: no worker decides
//	check ──► Redis has it, on the same server ──── else ──► invalidate ──► begin ──► rebuild ──► complete
//	  ▲               │ term, guard: open                    term, guard: closed  │          │          │
//	  └──── 500 ms ───┘                                     another worker begins └─ lease ──┘          │
//	  ▲                                                                                                 │
//	  └─────────────────────────────────────────────────────────────────────────────────────────────────┘
//
// One goroutine uses it. A rebuild has a goroutine of its own.
type Supervisor struct {
	SupervisorOptions

	// Tests change these before the first use.
	Drain          time.Duration // how long after a loss any worker may still publish outcomes that it decided before
	InspectTimeout time.Duration // of the first read of all servers; to confirm a loss may take half as much more
	Clock          int64         // ms, see holds.CurrentEpochs
	CutBytes       int           // of outcomes, about, that a rebuild adds to Redis together
	ResumeBytes    int           // of outcomes and of what Redis has of their holds, about, that a resume has in memory
	RetryAfter     time.Duration // how long a worker whose rebuild has failed leaves the next one to others, who check more often

	Now func() time.Time // the clock of this machine, which a rebuild does not rely on

	id            string          // of this worker, in the register
	drained       []string        // as last stored, see drain
	recovering    bool            // the last check has found epochs that are not complete
	history       *HistoryChecker // nil when the caller decides nothing
	keys          record.Keyspace
	inspectors    serverClients            // for inspections, those of the last check
	servers       atomic.Pointer[[]Server] // of the last check
	seen          layout                   // what the checks until now have found
	verifiedAt    map[string]moment        // when a server with a name last had all data
	lost          [record.Partitions]loss  // the last invalid epoch that was read from Postgres
	rebuiltAt     map[int]time.Time        // the last rebuild of a partition for corruption
	rebuilding    record.PartitionSet      // of the rebuild by this worker that runs, 0 when none does
	rebuilds      int                      // number of attempts
	rebuilt       chan rebuildEnd          // the end of the rebuild that runs
	reconnected   string                   // the epoch for which a reconnect was logged last
	mismatch      string                   // between the stored policy and Policy, as last logged
	failedCheck   failure                  // of a check
	silent        map[string]bool          // by address: the servers of a cluster that do not answer, as logged
	evictions     map[string]evictionWatch // by address
	failedRebuild failure                  // of a rebuild
	retryAt       time.Time                // no rebuild begins before, see RetryAfter
}

// loss is an epoch that is not valid any more.
type loss struct {
	epoch string
	at    time.Time // when it was first read
}

// rebuildEnd is the end of an attempt to rebuild partitions.
type rebuildEnd struct {
	why    string
	begun  bool // false when it was none, mostly because another worker rebuilds them
	result RebuildResult
	err    error
}

// NewSupervisor returns a Supervisor.
func NewSupervisor(o SupervisorOptions) *Supervisor {
	o.Metrics = cmp.Or(o.Metrics, NewMetrics(telemetry.NewSet()))
	return &Supervisor{
		SupervisorOptions: o, id: workerID(o.Name), keys: record.Keyspace(o.Namespace),
		Drain: termValidity + publishDelayMax, InspectTimeout: redisCheckTimeout, CutBytes: cutBytes, ResumeBytes: resumeBytes,
		RetryAfter: retryAfter, Now: time.Now,
		inspectors: make(serverClients), verifiedAt: make(map[string]moment),
		rebuiltAt: make(map[int]time.Time), rebuilt: make(chan rebuildEnd, 1), silent: make(map[string]bool),
	}
}

// CheckHistory makes each check begin with one of the history of Postgres.
func (s *Supervisor) CheckHistory(c *HistoryChecker) {
	s.history = c
	c.supervisor, c.lostRetryEvery = s, lostRetryEvery
}

// Run checks and rebuilds until ctx ends. It returns an error when only newer programs know the
// format of Redis or the schema of Postgres: then nothing is decided any more, and the process must
// end.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.inspectors.closeAll()
	ctx, stop := context.WithCancel(ctx)
	defer s.awaitRebuild()
	defer s.startLoops(ctx)()
	defer stop()
	for ctx.Err() == nil {
		epochs, err := s.Check(ctx)
		if errors.Is(err, ErrUnknownFormat) || errors.Is(err, ErrUnknownSchema) {
			s.Term.end(record.AllPartitions, holds.RebuildingError{Progress: err.Error()})
			s.Guard.Block(err.Error())
			s.Log.Error().Err(err).Msg("stored data is newer than this worker, start a newer version")
			return err
		}
		if err == nil && s.history != nil {
			if err := s.history.Maintain(ctx); err != nil {
				s.Log.Debug().Err(err).Msg("commit marker not written, will retry")
			}
		}
		if ctx.Err() == nil {
			if err == nil && s.failedCheck.text != "" {
				s.Log.Info().Msg("integrity check recovered")
			}
			s.logFailure(&s.failedCheck, err, "integrity check failed, will retry")
			s.startRebuild(ctx, &epochs)
		}
		s.pause(ctx)
	}
	return nil
}

// startLoops starts to write markers, on the servers that the checks find, and to put lost commits back. The
// function that it returns waits for the end of that.
func (s *Supervisor) startLoops(ctx context.Context) (wait func()) {
	options := s.SupervisorOptions
	options.Servers = func(context.Context) ([]Server, error) {
		if servers := s.servers.Load(); servers != nil {
			return *servers, nil
		}
		return nil, nil
	}
	var loops sync.WaitGroup
	loops.Go(func() { NewMarker(options).Run(ctx) })
	if s.history != nil {
		loops.Go(func() { s.history.retryLost(ctx) })
	}
	return loops.Wait
}

// pause waits until the next check: at once after a rebuild.
func (s *Supervisor) pause(ctx context.Context) {
	interval := checkInterval
	if s.recovering {
		interval = recoveryInterval
	}
	next := time.After(interval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-next:
			return
		case end := <-s.rebuilt:
			if s.endRebuild(ctx, end) {
				return
			}
		}
	}
}

// logFailure logs a failure once, and again when it changes, see failure.
func (s *Supervisor) logFailure(last *failure, err error, message string) {
	if last.isNew(err) {
		s.Log.Error().Err(err).Msg(message)
	}
}

// startRebuild starts to rebuild the invalid partitions of one server that answers, unless this worker
// rebuilds already, or has failed just now. Servers take turns.
func (s *Supervisor) startRebuild(ctx context.Context, epochs *Epochs) {
	invalid := record.AllPartitions &^ epochs.Complete()
	if s.rebuilding != 0 || invalid == 0 || *epochs == (Epochs{}) || time.Now().Before(s.retryAt) {
		return
	}
	servers, err := s.serversOf(ctx, invalid)
	if err != nil || len(servers) == 0 {
		s.logFailure(&s.failedRebuild, err, rebuildFailed)
		return
	}
	server := servers[s.rebuilds%len(servers)]
	s.rebuilds++
	s.rebuilding = server.Partitions
	a := s.newRebuild(server, false, func(string) {})
	why := epochs[server.Partitions.Sorted()[0]].Why
	go func() {
		r, err := a.attempt(ctx)
		s.rebuilt <- rebuildEnd{why, a.epoch != "", r, err}
	}()
}

// serversOf returns the servers that have some of the given partitions, with these only.
func (s *Supervisor) serversOf(ctx context.Context, partitions record.PartitionSet) (some []Server, err error) {
	servers, err := s.Servers(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the redis servers: %w", err)
	}
	for _, server := range servers {
		if server.Partitions &= partitions; server.Partitions != 0 {
			some = append(some, server)
		}
	}
	return some, nil
}

// rebuildFailed is the message of an attempt that has failed, also of one that another worker has taken over: workers may
// take it from each other for as long as each of them is too slow for its lease.
const rebuildFailed = "recovery of redis failed, will retry"

// endRebuild ends the rebuild that ran, and reports whether it has succeeded.
func (s *Supervisor) endRebuild(ctx context.Context, end rebuildEnd) bool {
	s.rebuilding = 0
	s.Metrics.ended(end)
	switch {
	case end.err != nil && ctx.Err() != nil, !end.begun && errors.Is(end.err, ErrEpochChanged): // another worker rebuilds
	case end.err != nil:
		s.retryAt = time.Now().Add(s.RetryAfter)
		s.logFailure(&s.failedRebuild, end.err, rebuildFailed)
	default:
		s.failedRebuild = failure{}
		end.result.log(s.Log, end.why)
	}
	return end.err == nil
}

// awaitRebuild waits for the end of the rebuild that runs.
func (s *Supervisor) awaitRebuild() {
	if s.rebuilding != 0 {
		<-s.rebuilt
		s.rebuilding = 0
	}
}

// Check reads Postgres and inspects Redis once, and allows or blocks decisions in each partition
// accordingly. It returns the rows of the epochs after that. A server that does not answer delays no
// other one.
func (s *Supervisor) Check(ctx context.Context) (epochs Epochs, err error) {
	postgresAnswered, redisAnswered := false, false
	defer func(running context.Context) {
		if running.Err() == nil {
			s.Term.setUnreachable(err, postgresAnswered, redisAnswered)
		}
	}(ctx)
	state, readAt, err := s.readPostgres(ctx)
	if err != nil {
		return Epochs{}, err
	}
	postgresAnswered, epochs = true, state.Epochs
	if s.history != nil {
		s.Term.lostCommits.Store(int64(s.history.known.Lost))
	}
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	complete := epochs.Complete()
	s.recovering = complete != record.AllPartitions
	s.block(&epochs, record.AllPartitions&^complete)
	if err := s.drain(ctx, &epochs); err != nil {
		s.Log.Debug().Err(err).Msg("not stored that this worker publishes nothing more, will retry")
	}
	if complete == 0 {
		return epochs, nil
	}
	// What Redis has answered may be published even while Redis does not answer any more.
	current := s.Term.under(&epochs) & complete
	s.allow(&epochs, current, state.Policies, readAt)
	mismatched := s.Term.takeMismatches(&epochs) & complete
	if mismatched != 0 {
		s.inspectors.closeAll() // their connections, too, may lead to another server than before
	}
	found, err := s.inspect(ctx, &epochs, complete)
	_, refused := errors.AsType[redis.Error](err)
	redisAnswered = found.silent != complete || refused
	if mismatched &^= found.moved; mismatched != 0 {
		s.reconnect(&epochs, mismatched)
	}
	s.addCorrupt(&epochs, &found)
	if found.foreign != 0 {
		s.Term.end(found.foreign, holds.RebuildingError{Progress: errUntouched.Error()})
	}
	if len(found.servers) > 1 {
		s.endSilent(&epochs, &found)
	}
	if found.lost != 0 {
		err = errors.Join(err, s.invalidate(ctx, &epochs, found.lost, found.servers))
	}
	s.allow(&epochs, found.whole&^current|found.whole&found.moved, state.Policies, readAt)
	return epochs, err
}

// serverSilent is the reason for which a worker decides nothing in the partitions of one server, followed by its address.
const serverSilent = "the redis server of these partitions does not answer"

// endSilent keeps the worker from deciding in the partitions of servers that do not answer, while it goes on with those
// of others. With one server it tries on, which reports the outage.
func (s *Supervisor) endSilent(epochs *Epochs, found *findings) {
	for _, server := range found.servers {
		if its := server.Partitions & found.silent; its != 0 {
			s.end(epochs, its, holds.RebuildingError{Progress: serverSilent + ": " + server.Addr, Silent: true})
		}
	}
}

// addCorrupt adds to the losses the partitions in which scripts have found corruption that was not
// healed.
func (s *Supervisor) addCorrupt(epochs *Epochs, found *findings) {
	for p, corrupt := range s.Term.takeCorruptions(epochs) {
		if found.whole.Has(p) && time.Since(s.rebuiltAt[p]) > corruptionRebuildInterval {
			s.rebuiltAt[p] = time.Now()
			epochs[p].Why = corrupt.Error()
			found.lost.Add(p)
			found.whole &^= found.lost
		}
	}
}

// allow lets the worker decide in partitions whose epochs Redis has.
func (s *Supervisor) allow(epochs *Epochs, of record.PartitionSet, policies holds.Policies, readAt time.Time) {
	if of == 0 {
		return
	}
	s.allowServers(epochs, of|s.Term.under(epochs))
	commits := ""
	if s.history != nil {
		commits = s.history.known.ID
	}
	s.Term.begin(of, epochs, policies, commits, readAt)
	if mismatch := policies.Mismatch(s.Policy); mismatch != s.mismatch {
		s.mismatch = mismatch
		if mismatch != "" {
			s.Log.Warn().Str("policy_mismatch", mismatch).Msg("worker settings ignored, stored policy differs")
		}
	}
}

// allowServers permits connections to the servers that have some partitions, and to no others.
func (s *Supervisor) allowServers(epochs *Epochs, of record.PartitionSet) {
	names := epochs.groupBy(of, func(e *Epoch) string { return e.Server })
	s.Guard.Allow(slices.Collect(maps.Keys(names))...)
}

// end keeps the worker from deciding in partitions, and from using servers on which it decides nothing.
func (s *Supervisor) end(epochs *Epochs, of record.PartitionSet, why holds.RebuildingError) {
	s.Term.end(of, why)
	if ready := s.Term.under(epochs); ready != 0 {
		s.allowServers(epochs, ready)
	} else {
		s.Guard.Block(why.Progress)
	}
}

// reconnect closes all connections to the servers of partitions, so that each server is verified again:
// the connection on which a script has not found the epoch may lead to another server.
func (s *Supervisor) reconnect(epochs *Epochs, mismatched record.PartitionSet) {
	for epoch, partitions := range epochs.groupBy(mismatched, func(e *Epoch) string { return e.Name }) {
		if s.reconnected != epoch {
			s.reconnected = epoch
			s.Log.Warn().Str("epoch", epoch).Stringer("partitions", partitions).
				Msg("epoch mismatch, reconnecting to redis")
		}
	}
	servers := epochs.groupBy(mismatched, func(e *Epoch) string { return e.Server })
	s.Guard.Reconnect(slices.Collect(maps.Keys(servers))...)
}

// block keeps the worker from deciding in partitions that are not complete.
func (s *Supervisor) block(epochs *Epochs, of record.PartitionSet) {
	now := time.Now()
	for p := range epochs {
		switch l := &s.lost[p]; {
		case epochs[p].Complete:
			*l = loss{} // an older state of Postgres may have the same epoch as lost again
		case l.at.IsZero() || l.epoch != epochs[p].Lost:
			*l = loss{epochs[p].Lost, now}
		}
	}
	of &^= s.rebuilding &^ s.Term.Current().Ready // this worker's own rebuild reports its progress
	for progress, partitions := range epochs.groupBy(of, (*Epoch).progress) {
		s.end(epochs, partitions, holds.RebuildingError{Progress: progress})
	}
}

// lostAt returns when the last of some partitions was found to be lost.
func (s *Supervisor) lostAt(of record.PartitionSet) (last time.Time) {
	for p := range of.Each() {
		if at := s.lost[p].at; at.After(last) {
			last = at
		}
	}
	return last
}

// checkFormat returns ErrUnknownFormat when the stored format is one that this program does not know.
// When the format is missing or lower it writes this program's, so that older programs stop: Redis may
// have lost the key.
func (s *Supervisor) checkFormat(ctx context.Context, stored string, client *redis.Client) error {
	if stored == strconv.Itoa(Format) {
		return nil
	}
	return WriteFormat(ctx, s.Namespace, client)
}

// errUntouched is an errForeign with the remedy.
var errUntouched = fmt.Errorf("%w: nothing was changed; if that database is gone, run worker rebuild", errForeign)

// invalidate ends the epochs of partitions for the reasons in epochs: first in Redis, so that the
// scripts of all workers refuse at once even when Postgres cannot be reached, then in Postgres. It
// changes epochs accordingly.
func (s *Supervisor) invalidate(
	ctx context.Context, epochs *Epochs, lost record.PartitionSet, servers []Server,
) error {
	for why, partitions := range epochs.groupBy(lost, func(e *Epoch) string { return e.Why }) {
		s.Log.Warn().Str("why", why).Stringer("partitions", partitions).Str("epoch", epochs[partitions.Sorted()[0]].Name).
			Msg("redis may lack data, paused until recovered")
		s.end(epochs, partitions, holds.RebuildingError{Progress: "loss detected; why: " + why})
	}
	failpoint.Hit("rebuild.noticed")
	for _, server := range servers {
		_, err := replaceEpochs(ctx, s.keys, server.runner(s.inspectors.of(server)), server.Partitions&lost,
			func(p int) (from, to string) {
				if epochs[p].Why == anotherServer { // the data may be that of an earlier moment
					to = epochs[p].Name + lostSuffix
				}
				return epochs[p].Name, to
			})
		if err != nil {
			s.Log.Warn().Err(err).Msg("epoch not invalidated in redis")
		}
	}
	failpoint.Hit("rebuild.told")
	if _, err := s.EpochStore.InvalidateEpochs(ctx, lost, epochs); err != nil && !errors.Is(err, ErrEpochChanged) {
		return err
	}
	failpoint.Hit("rebuild.condemned")
	for p := range lost.Each() {
		epochs[p].Complete, epochs[p].Lost = false, epochs[p].Name
	}
	s.block(epochs, lost)
	return nil
}
