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
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"holdfast/internal/holds"
)

// The pace of a Reconciler: its rounds take reconcileShare of the time, so they cost all servers and
// the worker together that much of one core at most. What it did not use is kept for later, up to
// reconcileSaved of work: a small installation is looked through at once.
const (
	reconcileShare = 0.005
	reconcileSaved = 500 * time.Millisecond
	reconcilePause = 10 * time.Second // between two rounds
	reconcileRetry = 5 * time.Second  // after a failure
	reconcileRows  = 20               // resources whose reservations are summed up in one query
	corruptMax     = 1000             // resources that wait to be looked at at once
	corruptRest    = 20               // times that a look at a resource took, for which it rests when nothing was healed
	corruptRestMin = 5 * time.Second
	loggedMax      = 20 // differences of one resource that are logged one by one
)

// ReconcilerOptions say what a Reconciler does about differences.
type ReconcilerOptions struct {
	// Heal mends what follows from the records and takes nothing away from anybody.
	Heal   bool
	Memory time.Duration // for how long ended holds and answers are remembered
	Name   string        // of this process, where people see it
	Share  float64       // of the time that rounds take, 0 = reconcileShare
}

// Reconciler reads all resources in turn, a few at a time, for as long as it runs: what Redis
// has of each, and the sums of Postgres. It does not read the streams; an audit does.
//
// One worker at a time does so, the one that has the lease. What a script finds corrupt is read and
// healed by the worker that has run it, at once and at full speed, whoever has the lease: each repair
// checks again, in the step in which it writes, what it repairs.
//
// What it heals it heals at once, because a resource whose counter is damaged grants nothing any more,
// and those who could look are asleep: numbers and entries that are derived from the records are made
// anew from them, in one step with the look. It lowers a counter only where the deadlines and the
// users say too that no record is missing, and leaves alone what could be the trace of a lost
// hold. All of it is logged and counted.
//
// Nothing is looked at while Redis has not all that was written to it: that is the Keeper's, who fills it
// again. It needs no JetStream.
type Reconciler struct {
	inspector *inspector // of rounds
	healer    *inspector // of what was found corrupt
	term      holds.Term
	options   ReconcilerOptions
	metrics   *Metrics
	log       zerolog.Logger
	pause     time.Duration
	lease     lease
	budget    *rate.Limiter // of rounds, in microseconds of work
	resumed   time.Time     // when the work began that is not paid for yet

	round map[string]*Finding // what is there and was not healed, in this round
	known map[string]*Finding // and in the one before

	mu      sync.Mutex
	corrupt map[string]struct{}
	resting map[string]time.Time // until when what was reported is not looked at again
	nudged  chan struct{}        // has one element when damaged is not empty
}

// NewReconciler returns a Reconciler. tenure says what Redis must have.
func NewReconciler(
	backends Backends, leases Leases, term holds.Term, o ReconcilerOptions, m *Metrics, log zerolog.Logger,
) *Reconciler {
	if o.Share == 0 {
		o.Share = reconcileShare
	}
	r := &Reconciler{
		term: term, options: o, metrics: m, log: log, pause: reconcilePause,
		lease:  lease{leases: leases, holder: o.Name + "/" + uuid.NewString(), every: leaseEvery},
		budget: rate.NewLimiter(rate.Limit(o.Share*float64(time.Second/time.Microsecond)), int(reconcileSaved/time.Microsecond)),
		round:  make(map[string]*Finding), known: make(map[string]*Finding),
		corrupt: make(map[string]struct{}), resting: make(map[string]time.Time), nudged: make(chan struct{}, 1),
	}
	keys := newKeyspace(backends.Namespace)
	r.inspector = &inspector{Backends: backends, keys: keys, wait: func(ctx context.Context, _ int) error { return r.throttle(ctx) }}
	r.healer = &inspector{Backends: backends, keys: keys, wait: func(ctx context.Context, _ int) error { return ctx.Err() }}
	return r
}

// RecheckSoon asks for a look at a resource now: a script has found it damaged. It never waits.
func (r *Reconciler) RecheckSoon(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.resting[resource]) || len(r.corrupt) >= corruptMax {
		return // it is reported again as long as it is damaged
	}
	r.corrupt[resource] = struct{}{}
	r.nudge()
}

func (r *Reconciler) takeCorrupt() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	resources := slices.Sorted(maps.Keys(r.corrupt))
	clear(r.corrupt)
	return resources
}

// Run reconciles until ctx is over. What fails is retried: an outage is for others to report.
func (r *Reconciler) Run(ctx context.Context) error {
	for r.term.WaitReady(ctx) == nil && ctx.Err() == nil {
		had := !r.lease.until.IsZero()
		pause, err := r.pause, r.lease.keep(ctx)
		if err == nil {
			had, err = true, r.Round(ctx)
		}
		switch {
		case errors.Is(err, errNotMine):
			if had || len(r.round) > corruptMax {
				r.forget()
			}
			pause = r.lease.next()
		case err != nil:
			r.logFailure(ctx, err, "looking for differences failed, will be repeated")
			pause = reconcileRetry
		}
		_ = r.rest(ctx, pause) // whether the lease is held is asked again
	}
	if err := r.lease.release(ctx); err != nil {
		r.log.Warn().Err(err).Msg("lease of the reconciler not released, another worker waits for its end")
	}
	return nil
}

// forget forgets what was found in rounds: they are another worker's now.
func (r *Reconciler) forget() {
	r.round, r.known = make(map[string]*Finding), make(map[string]*Finding)
	r.metrics.setLeft(nil)
}

// throttle rests for as long as the work since it last rested costs. It returns an error when the lease is not held
// any more.
func (r *Reconciler) throttle(ctx context.Context) error {
	worked := min(time.Since(r.resumed), reconcileSaved)
	err := r.rest(ctx, r.budget.ReserveN(time.Now(), int(worked/time.Microsecond)).Delay())
	r.resumed = time.Now()
	return err
}

// logFailure logs a failure. That Redis has lost its data is the Keeper's to tell.
func (r *Reconciler) logFailure(ctx context.Context, err error, message string) {
	if _, lost := r.term.Current(); lost == nil && ctx.Err() == nil && !errors.Is(err, holds.ErrDataLost) {
		r.log.Warn().Err(err).Msg(message)
	}
}

// rest heals what is damaged, and keeps the lease if it is held, for some time. It returns an error, before
// that time is over, when the lease is not held any more.
func (r *Reconciler) rest(ctx context.Context, pause time.Duration) error {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		var keep <-chan time.Time
		if !r.lease.until.IsZero() {
			keep = time.After(r.lease.next())
		}
		select {
		case <-r.nudged:
			if err := r.inspectCorrupt(ctx); err != nil {
				r.logFailure(ctx, err, "looking at a damaged resource failed, will be repeated")
			}
			continue
		default: // first of all
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
		case <-r.nudged:
			r.nudge()
		}
	}
}

// nudge wakes what looks at damaged resources.
func (r *Reconciler) nudge() {
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

// inspectCorrupt looks at each resource that was reported, under the epoch that is the current one now:
// Redis may have been filled again since the damage was found, or since the round began that it
// interrupts. One that it has not healed rests before it is looked at again.
func (r *Reconciler) inspectCorrupt(ctx context.Context) error {
	current, err := r.term.Current()
	if err != nil {
		return err
	}
	r.healer.epoch = current.Name
	for _, resource := range r.takeCorrupt() {
		if !holds.ResourcePattern.MatchString(resource) {
			continue
		}
		began := time.Now()
		healed, err := r.reconcile(ctx, r.healer, []string{resource}, nil)
		if err != nil {
			return err
		}
		if healed == 0 {
			r.restFor(resource, max(corruptRest*time.Since(began), corruptRestMin))
		}
	}
	return nil
}

// restFor has reports of a resource ignored for some time. Not more than corruptMax rest at a time.
func (r *Reconciler) restFor(resource string, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.resting, func(_ string, until time.Time) bool { return until.Before(now) })
	if len(r.resting) < corruptMax {
		r.resting[resource] = now.Add(pause)
	}
}

// Round looks at everything once.
func (r *Reconciler) Round(ctx context.Context) error {
	current, err := r.term.Current()
	if err != nil {
		return err
	}
	r.inspector.epoch = current.Name
	r.round, r.resumed = make(map[string]*Finding), time.Now()
	if err := r.roundOfRedis(ctx); err != nil {
		return err
	}
	if err := r.roundOfPostgres(ctx); err != nil {
		return err
	}
	left := make(map[Kind]int)
	for _, f := range r.round {
		left[f.Kind]++
	}
	r.known = r.round
	r.metrics.setLeft(left)
	r.metrics.countRound()
	return nil
}

func (r *Reconciler) roundOfRedis(ctx context.Context) error {
	seen := make(map[string]struct{})
	for cursor := uint64(0); ; {
		keys, next, err := r.inspector.scan(ctx, cursor, r.inspector.keys.pattern(""))
		if err != nil {
			return err
		}
		names := make(map[string][]string)
		var fresh []string
		for _, k := range keys {
			if !k.ours || k.resource == "" {
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
		if err := r.inspector.wait(ctx, len(keys)); err != nil {
			return err
		}
		stray, err := r.inspector.strays(ctx, names)
		if err != nil {
			return err
		}
		if _, err := r.reconcile(ctx, r.inspector, fresh, stray); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// reconcile looks at resources, a second time where something differs, and heals and tells what is
// there both times. stray is what differs among their other keys, or those of other resources. It returns how many
// differences it has healed.
func (r *Reconciler) reconcile(ctx context.Context, l *inspector, resources []string, stray map[string][]difference) (healed int, err error) {
	first := make(map[string][]difference)
	collect := func(into map[string][]difference) func(inspection) error {
		return func(found inspection) error {
			if len(found.differences) > 0 {
				into[found.resource] = found.differences
			}
			return nil
		}
	}
	if err := l.inspect(ctx, resources, false, collect(first)); err != nil {
		return healed, err
	}
	r.metrics.countInspected(len(resources))
	second := make(map[string][]difference)
	if err := l.inspect(ctx, slices.Sorted(maps.Keys(first)), false, collect(second)); err != nil {
		return healed, err
	}
	found := make(map[string][]*Finding)
	for name, differences := range second {
		for _, d := range both(first[name], differences) {
			found[name] = append(found[name], l.keys.describe(name, d))
		}
	}
	for name, differences := range stray { // each was judged in one step
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

// healAndReport heals what it may of a resource, and tells. It returns how many differences it has healed.
func (r *Reconciler) healAndReport(ctx context.Context, l *inspector, resource string, found []*Finding) (healed int, err error) {
	if r.options.Heal {
		healing := slices.DeleteFunc(slices.Clone(found), func(f *Finding) bool { return !f.safeToHeal() })
		if err := l.repairResource(ctx, resource, healing, r.options.Memory, true); err != nil {
			return 0, err
		}
	}
	for _, f := range found {
		healed += flag(f.Result.resolved())
	}
	r.report(resource, found)
	return healed, nil
}

// safeToHeal reports whether mending a difference takes nothing away from anybody, whatever
// else is lost. Of counters the script sees to it.
func (f *Finding) safeToHeal() bool {
	switch d := f.difference; d.what {
	case string(Counter), string(Users), string(Departing), string(Tombstone), string(Index), string(HoldKey), string(Agenda), string(Rev):
		return true
	case string(WrongType):
		return d.name != "records"
	case string(Due):
		return d.expected != "-" // who sweeps takes out the others
	case string(Residue):
		return d.found != "there is no such hold"
	}
	return false
}

// report logs and counts differences, those that are left once as long as they are there.
func (r *Reconciler) report(resource string, found []*Finding) {
	logged := 0
	for _, f := range found {
		healed := f.Result.resolved()
		if healed {
			r.metrics.countHealed(f)
		} else {
			reported := r.known[f.key()] != nil || r.round[f.key()] != nil
			r.round[f.key()] = f
			if reported {
				continue
			}
		}
		r.metrics.countFound(f)
		if logged++; logged <= loggedMax {
			item, where := f.Item, f.Where
			if f.personal {
				item, where = "a user", "see worker audit"
			}
			r.log.Error().Str("kind", string(f.Kind)).Str("resource_id", resource).Str("item", item).Str("where", where).
				Str("found", f.Found).Str("expected", f.Expected).Bool("healed", healed).
				Msg("what is kept differs from what it should be")
		}
	}
	if logged > loggedMax {
		r.log.Error().Str("resource_id", resource).Int("more", logged-loggedMax).Msg("more differs on this resource, see worker audit")
	}
}

// roundOfPostgres compares what is reserved with the reservations.
func (r *Reconciler) roundOfPostgres(ctx context.Context) error {
	for last := ""; ; {
		rows, err := r.inspector.Postgres.Query(ctx, queryResources, last, reconcileRows)
		if err != nil {
			return fmt.Errorf("read the resources of postgres: %w", err)
		}
		resources, err := pgx.CollectRows(rows, pgx.RowTo[string])
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
		if err := r.inspector.wait(ctx, len(resources)); err != nil {
			return err
		}
		last = resources[len(resources)-1]
	}
}
