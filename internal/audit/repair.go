package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/postgres"
)

// Result is the result of the repair of a finding.
type Result string

// The results of a repair. Only a Reconciler gets Unsafe: it lowers a counter only if nothing else
// suggests that a hold is missing.
const (
	Done       Result = "done"
	Gone       Result = "gone"       // it no longer existed
	Changed    Result = "changed"    // it is a different one now: audit again
	Unsafe     Result = "unsafe"     // nothing was changed
	Impossible Result = "impossible" // nothing was changed: there is more than one possible repair
	large      Result = "large"      // nothing was changed yet: the resource is too large for one step
)

// resolved reports whether the difference no longer exists.
func (r Result) resolved() bool { return r == Done || r == Gone }

// The bounds of a step of a repair.
const (
	repairBatch      = 200                   // differences of a resource
	adjustBatch      = 10_000                // counters of a large resource
	adjustAllMax     = 200_000               // the same when their key is missing; more take a rebuild
	repairRecordsMax = 2 * inspectRecordsMax // records that are summed up in one step
	adjustPerRecord  = time.Millisecond      // added to adjustLease
)

// adjustLease is how long a repair of a large resource excludes others, at most: much longer than a repair takes. A constant,
// except in tests.
var adjustLease = 10 * time.Second

// Repair repairs the findings that are Automatic and sets the Result of each. It checks each difference
// again in the same step in which it repairs it, and leaves it alone if it has changed. memory is how
// long ended holds and answers are remembered, 0 for the stored policy.
func Repair(ctx context.Context, backends Backends, findings []*Finding, memory time.Duration) error {
	err := repair(ctx, backends, findings, memory)
	if redis.HasErrorPrefix(err, "NOPERM") ||
		postgres.HasCode(err, postgres.CodeInsufficientPrivilege, postgres.CodeReadOnly) {
		return fmt.Errorf("%w: repair with the worker's Redis and Postgres URLs", err)
	}
	return err
}

func repair(ctx context.Context, backends Backends, findings []*Finding, memory time.Duration) error {
	inRedis := make(map[string][]*Finding)
	for _, f := range findings {
		switch {
		case !f.Automatic:
		case f.Kind == Reserved:
			result, err := backends.repairReserved(ctx, f)
			if err != nil {
				return fmt.Errorf("repair what is reserved of slot %s of %s: %w", f.Item, f.Resource, err)
			}
			f.Result = result
		default:
			inRedis[f.Resource] = append(inRedis[f.Resource], f)
		}
	}
	l := newInspector(backends)
	var err error
	if l.epochs, err = backends.readEpochs(ctx); err != nil {
		return err
	}
	if memory == 0 {
		if memory, err = backends.storedMemory(ctx); err != nil {
			return err
		}
	}
	for resource, its := range inRedis {
		if err := l.repairResource(ctx, resource, its, memory, false); err != nil {
			return err
		}
	}
	return nil
}

// repairResource repairs differences of one resource in Redis. onlySafe restricts it to repairs
// that need no confirmation by an operator.
func (l *inspector) repairResource(
	ctx context.Context, resource string, findings []*Finding, memory time.Duration, onlySafe bool,
) error {
	// Keys of a wrong type come first: the other repairs write to the keys that replace them.
	slices.SortStableFunc(findings,
		func(a, b *Finding) int { return flag(b.Kind == WrongType) - flag(a.Kind == WrongType) })
	head := []any{memory.Milliseconds(), flag(onlySafe), repairRecordsMax}
	if err := l.repairEach(ctx, scriptRepair, resource, head, findings, repairBatch); err != nil {
		return err
	}
	var counted []*Finding
	for _, f := range findings {
		switch {
		case f.Result == large && f.Kind == WrongType:
			f.Result = Impossible // the key would have to be written in one step
		case f.Result == large:
			counted = append(counted, f)
		}
	}
	if len(counted) == 0 {
		return nil
	}
	return l.adjust(ctx, resource, counted, onlySafe)
}

// repairEach runs a script that repairs differences, a batch in each step, and sets their results.
// head comes before them in the arguments, batch is their maximum number in a step.
func (l *inspector) repairEach(
	ctx context.Context, script lua.Script, resource string, head []any, findings []*Finding, batch int,
) error {
	for chunk := range slices.Chunk(findings, batch) {
		args := slices.Clone(head)
		for _, f := range chunk {
			args = append(args, string(f.Kind), f.difference.name, f.difference.found, f.difference.expected)
		}
		words, err := l.repairStep(ctx, script, resource, args...)
		if err == nil && len(words) < len(chunk) {
			err = fmt.Errorf("repair %s: %d results of %d differences", resource, len(words), len(chunk))
		}
		if err != nil {
			return err
		}
		for i, f := range chunk {
			f.Result = Result(words[i])
		}
	}
	return nil
}

// repairStep runs a script that repairs, and returns its reply after the status.
func (l *inspector) repairStep(
	ctx context.Context, script lua.Script, resource string, args ...any,
) (words []string, err error) {
	c := l.newCall(script, resource, args...)
	lua.Run(ctx, l.Redis, []*lua.Call{c})
	if c.Err == nil && c.Status == statusLost {
		return nil, fmt.Errorf("repair %s: %w, or redis is being rebuilt", resource, holds.ErrDataLost)
	}
	if err := c.Expect(0); err != nil {
		return nil, fmt.Errorf("repair %s: %w", resource, err)
	}
	return c.Reply, nil
}

// adjust repairs counters of a resource that is too large to be summed up in one step. It reads
// them once more, page by page, and subtracts the difference of each counter that was found with
// the same difference before. A mark in Redis, without which the script changes nothing, excludes
// others: two repairs would subtract the same difference twice.
func (l *inspector) adjust(ctx context.Context, resource string, findings []*Finding, onlySafe bool) (err error) {
	sizes, err := l.sizes(ctx, []string{resource})
	if err != nil {
		return err
	}
	token, lease := uuid.NewString(), adjustLease+time.Duration(sizes[0])*adjustPerRecord
	begun, err := l.repairStep(ctx, scriptAdjust, resource, "begin", token, lease.Milliseconds())
	if err != nil {
		return err
	}
	for _, f := range findings {
		f.Result = Changed
	}
	if len(begun) == 0 || begun[0] != "begun" {
		return nil // another repairs it
	}
	defer func() {
		_, ended := l.repairStep(ctx, scriptAdjust, resource, "end", token)
		err = errors.Join(err, ended)
	}()
	atOnce := *l
	atOnce.wait = context.Context.Err // else the mark could expire before the last page is read
	now, err := atOnce.large(ctx, resource, false)
	if err != nil || now.lost {
		return err
	}
	planned, all := l.plan(now, findings, onlySafe)
	batch := adjustBatch
	if all {
		batch = len(planned)
	}
	return l.repairEach(ctx, scriptAdjust, resource, []any{"adjust", token, flag(all)}, planned, batch)
}

// plan sets the results of findings and returns those that have to be adjusted, whose result is large. The next grant
// takes a missing counter for zero. So when the key of the counters is missing, plan adds all other counters that live
// holds take, whether or not they were found before, and returns true.
func (l *inspector) plan(now inspection, findings []*Finding, onlySafe bool) (planned []*Finding, all bool) {
	counters := make(map[string]bool)
	for _, f := range findings {
		if f.Result = now.resultOf(f.difference, onlySafe); f.Result != large {
			continue
		}
		planned = append(planned, f)
		if f.Kind == Counter {
			counters[f.difference.name] = true
		}
	}
	if len(counters) == 0 || !now.noCounts || now.unsure || len(now.differences) > adjustAllMax {
		return planned, false
	}
	for _, d := range now.differences {
		if d.kind == Counter && !counters[d.name] {
			planned = append(planned, l.keys.describe(now.resource, d))
		}
	}
	return planned, true
}

// resultOf returns the result for a counter, large if it has to be adjusted.
func (l inspection) resultOf(planned difference, onlySafe bool) Result {
	for _, d := range l.differences {
		switch {
		case d.kind != planned.kind || d.name != planned.name:
		case !d.same(planned):
			return Changed
		case onlySafe && (d.lowers() || l.noCounts && d.kind == Counter) && !l.nothingMissing(d.kind):
			return Unsafe
		default:
			return large
		}
	}
	if l.unsure {
		return Changed
	}
	return Gone
}

// lowers reports whether the repair of a counter lowers it.
func (d difference) lowers() bool {
	delta, isNumber := d.delta()
	return d.found != "-" && (!isNumber || delta > 0)
}

// nothingMissing reports whether the deadlines and the counters of the other kind contain no more
// holds than the records. While holds begin or end it does not know.
func (l inspection) nothingMissing(kind Kind) bool {
	return !l.unsure && !l.moved && !slices.ContainsFunc(l.differences, func(d difference) bool {
		return d.kind == Due || d.unknowable() || d.kind == WrongType ||
			d.kind != kind && (d.kind == Counter || d.kind == Users)
	})
}

// repairReserved sets inventory.reserved of a slot to the sum of its reservations. It locks the row
// before it sums them up, so a payment that comes meanwhile adds to the result. Workers are notified of the change as
// of one by SQL, and then refuse decisions on the old number.
func (s *Backends) repairReserved(ctx context.Context, f *Finding) (result Result, err error) {
	result = Gone
	err = explain(pgx.BeginFunc(ctx, s.Postgres, func(tx pgx.Tx) error {
		var reserved, reservations int64
		if err := tx.QueryRow(ctx, query("reserved_lock"), f.resourceID, f.difference.name).Scan(&reserved); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, query("reserved_sum"), f.resourceID, f.difference.name).Scan(&reservations); err != nil {
			return err
		}
		now := difference{f.Kind, f.difference.name, fmt.Sprint(reserved), fmt.Sprint(reservations)}
		switch {
		case reserved == reservations:
			return nil
		case !now.same(f.difference):
			result = Changed
			return nil
		}
		_, err := tx.Exec(ctx, query("reserved_set"), f.resourceID, f.difference.name, reservations)
		result = Done
		return err
	}))
	if errors.Is(err, pgx.ErrNoRows) {
		return Gone, nil
	}
	if postgres.HasCode(err, postgres.CodeCheckViolation) {
		return Impossible, nil // more is reserved than the capacity: an operator decides
	}
	return result, err
}
