package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"holdfast/internal/holds"
)

// The pace of a Reconciler. Its rounds take reconcileShare of the time, so they cost all servers
// and the worker together at most that share of one core. Unused time is saved, up to
// reconcileSaved of work, so a small installation is checked soon. Saved work too takes at most
// reconcilePeak of the time: done at once, it delayed all requests of a busy machine by 200 ms.
const (
	reconcileShare = 0.005
	reconcileSaved = 100 * time.Millisecond
	reconcilePeak  = 0.1
	// A query may take long. More than this is no work but a process that was suspended: it must not rest for days.
	reconcileChargeMax = 10 * time.Second

	reconcilePause = 10 * time.Second // between two rounds
	reconcileRetry = 5 * time.Second  // after a failure
	reconcileRows  = 20               // resources whose reservations are summed up in one query
	corruptMax     = 1000             // reported resources that wait for an inspection
	// a resource that was not healed rests this many times the duration of its inspection
	corruptRest    = 20
	corruptRestMin = 5 * time.Second
	loggedMax      = 20 // differences of one resource that are logged one by one
)

// ReconcilerOptions configure a Reconciler.
type ReconcilerOptions struct {
	// Heal repairs what follows from the records and frees nothing that may belong to a hold.
	Heal  bool
	Name  string  // of this process, for operators
	Share float64 // share of the time that rounds take, 0 for reconcileShare
}

// Reconciler checks all resources in turn, a few at a time, for as long as it runs: the data of
// each in Redis, and the sums of Postgres. It does not read the streams; an audit does. It needs no
// JetStream.
//
// One worker at a time runs rounds over all resources, the one with the lease. A worker whose
// script finds corrupt data of a resource, which then grants nothing, checks and heals that resource at
// once and at full speed, with or without the lease.
//
// It derives counters and entries from the records, in one step with the check. It lowers
// a counter only if the deadlines and the users also show that no record is missing. It lowers one of
// a resource that is read in pages only if no hold changed it meanwhile. It leaves alone what could be
// the trace of a lost hold. It logs and counts everything that it finds. A record whose quantity or slots were
// changed by hand looks like any other in Redis, so counters follow it; only an audit finds the difference.
//
// It skips partitions that lack data that was written to them: the supervisor recovers these.
type Reconciler struct {
	inspector *inspector // of rounds
	term      holds.Term
	options   ReconcilerOptions
	metrics   *Metrics
	log       zerolog.Logger
	pause     time.Duration
	lease     lease
	budget    *rate.Limiter // of rounds, in microseconds of work
	resumed   time.Time     // when the work began that the budget has not been charged for yet
	failing   bool          // a failure is logged, and nothing has succeeded since; used by Run only
	leads     bool          // it has run a round since it has taken over; used by Run only

	round map[string]*Finding // found and not healed in this round
	known map[string]*Finding // found and not healed in the previous round

	reported chan string // resources that wait for an inspection
	mu       sync.Mutex
	waiting  map[string]struct{}  // the resources in reported
	resting  map[string]time.Time // until when reports of a resource are ignored
}

// NewReconciler returns a Reconciler. term has the epoch that Redis must have.
func NewReconciler(
	backends Backends, leases Leases, term holds.Term, o ReconcilerOptions, m *Metrics, log zerolog.Logger,
) *Reconciler {
	if o.Share == 0 {
		o.Share = reconcileShare
	}
	r := &Reconciler{
		term: term, options: o, metrics: m, log: log, pause: reconcilePause,
		lease: lease{leases: leases, holder: o.Name + "/" + uuid.NewString(), every: leaseEvery},
		budget: rate.NewLimiter(rate.Limit(o.Share*float64(time.Second/time.Microsecond)),
			int(reconcileSaved/time.Microsecond)),
		round: make(map[string]*Finding), known: make(map[string]*Finding),
		reported: make(chan string, corruptMax),
		waiting:  make(map[string]struct{}), resting: make(map[string]time.Time),
	}
	r.inspector = newInspector(backends)
	r.inspector.wait = r.throttle
	return r
}

// RecheckSoon requests an inspection of a resource whose data a script has found corrupt. It never
// waits.
func (r *Reconciler) RecheckSoon(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, waits := r.waiting[resource]; waits || time.Now().Before(r.resting[resource]) {
		return
	}
	select {
	case r.reported <- resource:
		r.waiting[resource] = struct{}{}
	default: // scripts report it again while it is corrupt
	}
}

// Run reconciles until ctx is done. It retries what fails. It logs the first failure of an outage,
// and its end when a round succeeds or another worker runs the rounds.
func (r *Reconciler) Run(ctx context.Context) error {
	for r.term.WaitReady(ctx) == nil && ctx.Err() == nil {
		pause, err := r.pause, r.lease.keep(ctx)
		if err == nil {
			r.leads, err = true, r.Round(ctx)
		}
		switch {
		case errors.Is(err, errNotMine):
			r.logRecovery()
			if r.leads || len(r.round) > corruptMax {
				r.forget()
			}
			pause = r.lease.next()
		case err != nil:
			r.logFailure(ctx, err, "reconciliation round failed, will retry")
			pause = reconcileRetry
		default:
			r.logRecovery()
		}
		_ = r.rest(ctx, pause) // the next attempt to keep the lease returns the same error
	}
	if err := r.lease.release(ctx); err != nil {
		r.log.Warn().Err(err).Msg("reconciler lease not released, another worker takes over when it ends")
	}
	return nil
}

// forget drops the findings of earlier rounds: another worker runs the rounds now.
func (r *Reconciler) forget() {
	r.leads, r.round, r.known = false, make(map[string]*Finding), make(map[string]*Finding)
	r.metrics.setLeft(nil)
}

// throttle rests for as long as the budget requires after the work since the last rest. It returns
// an error when the lease is lost.
func (r *Reconciler) throttle(ctx context.Context) error {
	err := r.rest(ctx, r.restAfter(time.Since(r.resumed)))
	r.resumed = time.Now()
	return err
}

// restAfter returns for how long a round rests after some work. More than reconcileChargeMax counts as that.
func (r *Reconciler) restAfter(worked time.Duration) time.Duration {
	worked = min(worked, reconcileChargeMax)
	peak := max(r.options.Share, reconcilePeak)
	rest := time.Duration(float64(worked) * (1/peak - 1))
	for ; worked > 0; worked -= reconcileSaved { // a reservation is limited to what can be saved
		rest = max(rest, r.budget.ReserveN(time.Now(), int(min(worked, reconcileSaved)/time.Microsecond)).Delay())
	}
	return rest
}

// logFailure logs the first failure of an outage. It ignores a loss of data, which the supervisor
// logs.
func (r *Reconciler) logFailure(ctx context.Context, err error, message string) {
	if r.term.Current().Ready == 0 || ctx.Err() != nil || errors.Is(err, holds.ErrDataLost) {
		return
	}
	if !r.failing {
		r.failing = true
		r.log.Warn().Err(err).Msg(message)
	}
}

// logRecovery logs the end of an outage.
func (r *Reconciler) logRecovery() {
	if r.failing {
		r.failing = false
		r.log.Info().Msg("reconciliation recovered")
	}
}

// rest waits for a time. Meanwhile it heals reported resources and renews the lease if it is held.
// It returns an error early when ctx is done or the lease is lost.
func (r *Reconciler) rest(ctx context.Context, pause time.Duration) error {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		var keep <-chan time.Time
		if !r.lease.until.IsZero() {
			keep = time.After(r.lease.next())
		}
		select {
		case resource := <-r.reported: // reports come before the other cases
			r.inspectReported(ctx, resource)
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over.C:
			return nil
		case <-keep:
			if err := r.lease.keep(ctx); err != nil {
				return err
			}
		case resource := <-r.reported:
			r.inspectReported(ctx, resource)
		}
	}
}

// inspectReported inspects a reported resource under the current epoch: Redis may have been rebuilt since the report, or
// since the round began that this interrupts. What was not healed rests before it is inspected again.
func (r *Reconciler) inspectReported(ctx context.Context, resource string) {
	r.mu.Lock()
	delete(r.waiting, resource) // what is reported from now on may have come after the inspection
	r.mu.Unlock()
	current := r.term.Current()
	if current.Err() != nil || !holds.ResourcePattern.MatchString(resource) {
		return
	}
	healer := newInspector(r.inspector.Backends) // unlike that of rounds, it does not rest
	healer.epochs = epochsOf(current)
	began := time.Now()
	healed, err := r.reconcile(ctx, healer, []string{resource}, nil)
	switch {
	case err != nil:
		r.logFailure(ctx, err, "inspection of a corrupt resource failed, will retry")
	case healed == 0:
		r.restFor(resource, max(corruptRest*time.Since(began), corruptRestMin))
	}
}

// restFor ignores reports of a resource for a time. At most corruptMax resources rest at a time.
func (r *Reconciler) restFor(resource string, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.resting, func(_ string, until time.Time) bool { return until.Before(now) })
	if len(r.resting) < corruptMax {
		r.resting[resource] = now.Add(pause)
	}
}

// Round checks all resources once. Those of a shard of a Redis Cluster that fails are left out: then Round
// returns an error that names the shard, after it has checked the others. After an error, what was found before
// counts as still there.
func (r *Reconciler) Round(ctx context.Context) error {
	current := r.term.Current()
	if err := current.Err(); err != nil {
		return err
	}
	r.inspector.epochs = epochsOf(current)
	r.inspector.unreached = make(map[string]error)
	r.round, r.resumed = make(map[string]*Finding), time.Now()
	err := r.roundOfRedis(ctx)
	if err == nil {
		err = r.roundOfPostgres(ctx)
	}
	if err == nil {
		err = r.unreached()
	}
	if err != nil { // what was found before may still be so, where nothing was checked now
		maps.Copy(r.known, r.round)
		r.round = r.known
	}
	left := make(map[Kind]int)
	for _, f := range r.round {
		left[f.Kind]++
	}
	r.known = r.round
	r.metrics.setLeft(left)
	if err == nil {
		r.metrics.rounds.Add(1)
	}
	return err
}

// unreached returns an error that names the shards that the round has left out, nil when there are none.
func (r *Reconciler) unreached() error {
	var failed []error
	for _, shard := range slices.Sorted(maps.Keys(r.inspector.unreached)) {
		failed = append(failed, fmt.Errorf("redis shard %s not checked: %w", shard, r.inspector.unreached[shard]))
	}
	return errors.Join(failed...)
}

func (r *Reconciler) roundOfRedis(ctx context.Context) error {
	seen := make(map[string]struct{})
	for keys, err := range r.inspector.scan(ctx, r.inspector.keys.pattern("")) {
		if err != nil {
			return err
		}
		names := make(map[string][]string)
		var fresh []string
		for _, k := range keys {
			if !k.ours || k.resource == "" || !r.inspector.decides(k.resource) {
				continue
			}
			if _, known := seen[k.resource]; !known {
				seen[k.resource] = struct{}{}
				fresh = append(fresh, k.resource)
			}
			if !isOwn(k.name) {
				names[k.resource] = append(names[k.resource], k.name)
			}
		}
		if err := r.inspector.wait(ctx); err != nil {
			return err
		}
		stray, err := r.inspector.strays(ctx, names)
		if err != nil {
			return err
		}
		if _, err := r.reconcile(ctx, r.inspector, fresh, stray); err != nil {
			return err
		}
	}
	return nil
}

// reconcile checks resources, and checks those that differ a second time. It heals and reports the
// differences that both checks show. stray has differences among other keys, also of other
// resources. It returns how many differences it has healed.
func (r *Reconciler) reconcile(
	ctx context.Context, l *inspector, resources []string, stray map[string][]difference,
) (healed int, err error) {
	var first, second []*Finding
	collect := func(into *[]*Finding) func(inspection) {
		return func(found inspection) {
			for _, d := range found.differences {
				*into = append(*into, l.keys.describe(found.resource, d))
			}
		}
	}
	if err := l.inspect(ctx, resources, false, collect(&first)); err != nil {
		return healed, err
	}
	r.metrics.resources.Add(len(resources))
	if err := l.inspect(ctx, resourcesOf(first), false, collect(&second)); err != nil {
		return healed, err
	}
	found := make(map[string][]*Finding)
	for _, f := range both(first, second) {
		found[f.Resource] = append(found[f.Resource], f)
	}
	for name, differences := range stray { // each was checked in one step
		for _, d := range differences {
			found[name] = append(found[name], l.keys.describe(name, d))
		}
	}
	for name, its := range found {
		n, err := r.healAndReport(ctx, l, name, its)
		if err != nil {
			return healed, err
		}
		healed += n
	}
	return healed, nil
}

// healAndReport heals the differences of a resource as far as the options allow, and reports all of
// them. It returns how many it has healed.
func (r *Reconciler) healAndReport(
	ctx context.Context, l *inspector, resource string, found []*Finding,
) (healed int, err error) {
	if r.options.Heal {
		healing := slices.DeleteFunc(slices.Clone(found), func(f *Finding) bool { return !f.safeToHeal() })
		if err := l.repairResource(ctx, resource, healing, r.memory(), true); err != nil && !l.leaveOut(err) {
			return 0, err
		}
	}
	for _, f := range found {
		healed += flag(f.Result.resolved())
	}
	r.report(resource, found)
	return healed, nil
}

// memory returns how long ended holds and answers are remembered, by the stored policy that is in force.
func (r *Reconciler) memory() time.Duration {
	if policies := r.term.Current().Policies; policies != nil {
		return policies.At(time.Now()).RequestKeyTTL
	}
	return defaultMemory
}

// safeToHeal reports whether the repair of a difference frees nothing, whatever else is lost. For
// counters the script makes sure of that.
func (f *Finding) safeToHeal() bool {
	switch d := f.difference; d.kind {
	case Counter, Users, Departing, Tombstone, Index, HoldKey, Agenda, Rev:
		return true
	case WrongType:
		return d.name != "records"
	case Due:
		return d.expected != "-" // the sweep removes the others
	case Residue:
		return d.found != "there is no such hold"
	default:
		return false
	}
}

// report logs and counts differences. It reports one that is not healed once while it lasts.
func (r *Reconciler) report(resource string, found []*Finding) {
	logged := 0
	for _, f := range found {
		healed := f.Result.resolved()
		if healed {
			r.metrics.healed.With(string(f.Kind)).Add(1)
			delete(r.known, f.key()) // also when this round fails
		} else {
			reported := r.known[f.key()] != nil || r.round[f.key()] != nil
			r.round[f.key()] = f
			if reported {
				continue
			}
		}
		r.metrics.found.With(string(f.Kind)).Add(1)
		if logged++; logged <= loggedMax {
			item, where := f.Item, f.Where
			if f.personal {
				item, where = "a user", "see worker audit"
			}
			r.log.Error().Str("kind", string(f.Kind)).Str("resource_id", resource).Str("item", item).Str("where",
				where).
				Str("found", f.Found).Str("expected", f.Expected).Bool("healed", healed).Str("result", string(f.Result)).
				Msg("data inconsistency found")
		}
	}
	if logged > loggedMax {
		r.log.Error().Str("resource_id", resource).Int("more",
			logged-loggedMax).Msg("further differences omitted, see worker audit")
	}
}

// roundOfPostgres compares inventory.reserved with the sums of the reservations.
func (r *Reconciler) roundOfPostgres(ctx context.Context) error {
	for last := ""; ; {
		var resources []string
		var name string
		err := forEachRow(ctx, r.inspector.Postgres, query("resources"), []any{last, reconcileRows}, []any{&name},
			func() error { resources = append(resources, name); return nil })
		if err != nil {
			return fmt.Errorf("read the resources of postgres: %w", err)
		}
		if len(resources) == 0 {
			return nil
		}
		found, _, err := r.inspector.checkReserved(ctx, resources)
		if err != nil {
			return err
		}
		for _, f := range found {
			r.report(f.Resource, []*Finding{f})
		}
		if err := r.inspector.wait(ctx); err != nil {
			return err
		}
		last = resources[len(resources)-1]
	}
}
