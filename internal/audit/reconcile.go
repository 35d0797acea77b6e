package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"holdfast/internal/holds"
)

const (
	reconcileRate  = 5000 // keys, records and rows that are looked at in a second
	reconcileBurst = 2000
	reconcilePause = 10 * time.Second // between two rounds
	reconcileRetry = 5 * time.Second  // after a failure
	reconcileRows  = 500              // resources whose reservations are summed up in one query
	damagedMax     = 1000             // resources that wait to be looked at at once
	loggedMax      = 20               // differences of one resource that are logged one by one
)

// ReconcilerOptions say what a Reconciler does about differences.
type ReconcilerOptions struct {
	// Heal mends what follows from the records and takes nothing away from anybody.
	Heal   bool
	Memory time.Duration // for how long ended holds and answers are remembered
}

// Reconciler looks at all resources in turn, a few at a time, for as long as it runs: at what Redis
// has of each, and at the sums of Postgres. It does not read the streams; an audit does.
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
	looker  *looker
	tenure  *holds.Tenure
	options ReconcilerOptions
	metrics *Metrics
	log     zerolog.Logger
	pause   time.Duration

	round map[string]*Finding // what is there and was not healed, in this round
	known map[string]*Finding // and in the one before

	mu      sync.Mutex
	damaged map[string]struct{}
	nudged  chan struct{} // has one element when damaged is not empty
}

// NewReconciler returns a Reconciler. tenure says what Redis must have.
func NewReconciler(servers Servers, tenure *holds.Tenure, o ReconcilerOptions, m *Metrics, log zerolog.Logger) *Reconciler {
	limit := rate.NewLimiter(reconcileRate, reconcileBurst)
	wait := func(ctx context.Context, n int) error {
		for ; n > 0; n -= reconcileBurst {
			if err := limit.WaitN(ctx, min(n, reconcileBurst)); err != nil {
				return err
			}
		}
		return nil
	}
	return &Reconciler{
		looker: &looker{Servers: servers, keys: keyspace(servers.Namespace), wait: wait}, tenure: tenure, options: o, metrics: m, log: log,
		pause: reconcilePause, damaged: make(map[string]struct{}), nudged: make(chan struct{}, 1),
		round: make(map[string]*Finding), known: make(map[string]*Finding),
	}
}

// Damaged asks for a look at a resource now: a script has found it damaged. It never waits.
func (r *Reconciler) Damaged(resource string) {
	r.mu.Lock()
	if len(r.damaged) < damagedMax {
		r.damaged[resource] = struct{}{}
	}
	r.mu.Unlock()
	select {
	case r.nudged <- struct{}{}:
	default:
	}
}

func (r *Reconciler) takeDamaged() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	resources := slices.Sorted(maps.Keys(r.damaged))
	clear(r.damaged)
	return resources
}

// Run looks until ctx is over. What fails is tried again: an outage is for others to tell.
func (r *Reconciler) Run(ctx context.Context) error {
	for r.tenure.Await(ctx) == nil && ctx.Err() == nil {
		pause := r.pause
		if err := r.Round(ctx); err != nil {
			r.failed(ctx, err, "looking for differences failed, will be repeated")
			pause = reconcileRetry
		}
		r.rest(ctx, pause)
	}
	return nil
}

// failed logs a failure. That Redis has lost its data is the Keeper's to tell.
func (r *Reconciler) failed(ctx context.Context, err error, message string) {
	if _, lost := r.tenure.Current(); lost == nil && ctx.Err() == nil && !errors.Is(err, holds.ErrDataLost) {
		r.log.Warn().Err(err).Msg(message)
	}
}

// rest looks at what is damaged until the next round.
func (r *Reconciler) rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-r.nudged:
			if err := r.lookAtDamaged(ctx); err != nil {
				r.failed(ctx, err, "looking at a damaged resource failed, will be repeated")
			}
		}
	}
}

// lookAtDamaged looks under the epoch that is the current one now: Redis may have been filled again since
// the damage was found, or since the round began that it interrupts.
func (r *Reconciler) lookAtDamaged(ctx context.Context) (err error) {
	if r.looker.epoch, err = r.tenure.Current(); err != nil {
		return err
	}
	resources := slices.DeleteFunc(r.takeDamaged(), func(name string) bool { return !holds.ResourcePattern.MatchString(name) })
	return r.reconcile(ctx, resources, nil)
}

// Round looks at everything once.
func (r *Reconciler) Round(ctx context.Context) (err error) {
	if r.looker.epoch, err = r.tenure.Current(); err != nil {
		return err
	}
	r.round = make(map[string]*Finding)
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
	r.metrics.round()
	return nil
}

func (r *Reconciler) roundOfRedis(ctx context.Context) error {
	seen := make(map[string]struct{})
	for cursor := uint64(0); ; {
		keys, next, err := r.looker.scan(ctx, cursor, r.looker.keys.pattern(""))
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
		if err := r.looker.wait(ctx, len(keys)); err != nil {
			return err
		}
		stray, err := r.looker.strays(ctx, names)
		if err != nil {
			return err
		}
		if err := r.reconcile(ctx, fresh, stray); err != nil {
			return err
		}
		select {
		case <-r.nudged:
			if err := r.lookAtDamaged(ctx); err != nil {
				return err
			}
		default:
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// reconcile looks at resources, a second time where something differs, and heals and tells what is
// there both times. stray is what differs among their other keys, or those of other resources.
func (r *Reconciler) reconcile(ctx context.Context, resources []string, stray map[string][]difference) error {
	first := make(map[string][]difference)
	collect := func(into map[string][]difference) func(looked) error {
		return func(l looked) error {
			if len(l.differences) > 0 {
				into[l.resource] = l.differences
			}
			return nil
		}
	}
	if err := r.looker.look(ctx, resources, false, collect(first)); err != nil {
		return err
	}
	r.metrics.looked(len(resources))
	second := make(map[string][]difference)
	if err := r.looker.look(ctx, slices.Sorted(maps.Keys(first)), false, collect(second)); err != nil {
		return err
	}
	found := make(map[string][]*Finding)
	for name, differences := range second {
		for _, d := range both(first[name], differences) {
			found[name] = append(found[name], r.looker.keys.describe(name, d))
		}
	}
	for name, differences := range stray { // each was judged in one step
		for _, d := range differences {
			found[name] = append(found[name], r.looker.keys.describe(name, d))
		}
	}
	for name, its := range found {
		if err := r.settle(ctx, name, its); err != nil {
			return err
		}
	}
	return nil
}

// settle heals what it may of a resource, and tells.
func (r *Reconciler) settle(ctx context.Context, resource string, found []*Finding) error {
	if r.options.Heal {
		healing := slices.DeleteFunc(slices.Clone(found), func(f *Finding) bool { return !f.takesNothing() })
		if err := r.looker.mend(ctx, resource, healing, r.options.Memory, true); err != nil {
			return err
		}
	}
	r.tell(resource, found)
	return nil
}

// takesNothing reports whether mending a difference takes nothing away from anybody, whatever
// else is lost. Of counters the script sees to it.
func (f *Finding) takesNothing() bool {
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

// tell logs and counts differences, those that are left once as long as they are there.
func (r *Reconciler) tell(resource string, found []*Finding) {
	logged := 0
	for _, f := range found {
		healed := f.Result.mended()
		if healed {
			r.metrics.heals(f)
		} else {
			told := r.known[f.key()] != nil || r.round[f.key()] != nil
			r.round[f.key()] = f
			if told {
				continue
			}
		}
		r.metrics.differs(f)
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
		rows, err := r.looker.Postgres.Query(ctx, queryResources, last, reconcileRows)
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
		found, _, err := r.looker.judgeReserved(ctx, resources)
		if err != nil {
			return err
		}
		for _, f := range found {
			r.tell(f.Resource, []*Finding{f})
		}
		if err := r.looker.wait(ctx, len(resources)); err != nil {
			return err
		}
		last = resources[len(resources)-1]
	}
}
