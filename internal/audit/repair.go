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
)

// Result is what became of the repair of a finding.
type Result string

// The results of a repair. Unsafe is only said by a Reconciler: it lowers a counter only where
// nothing else says that a hold is missing.
const (
	Done       Result = "done"
	Gone       Result = "gone"       // it was not there any more
	Changed    Result = "changed"    // it is another difference now: look again
	Unsafe     Result = "unsafe"     // nothing was done
	Impossible Result = "impossible" // nothing was done: there is more than one way to mend it
	large      Result = "large"      // nothing was done yet: the resource is too large for one step
)

// resolved reports whether a difference is gone.
func (r Result) resolved() bool { return r == Done || r == Gone }

// The bounds of a step of a repair.
const (
	repairBatch      = 200                   // differences of a resource
	repairRecordsMax = 2 * inspectRecordsMax // records that are added up in one step
	// For how long one repairs counters of a large resource alone, at most: much longer than it takes.
	adjustLease     = 10 * time.Second
	adjustPerRecord = time.Millisecond
)

// Repair mends what is Automatic among findings and sets the Result of each. Each difference is
// looked at again in the same step in which it is mended, and left alone unless it is the one that
// was found. memory is for how long ended holds and answers are remembered.
func Repair(ctx context.Context, backends Backends, findings []*Finding, memory time.Duration) error {
	err := repair(ctx, backends, findings, memory)
	if redis.HasErrorPrefix(err, "NOPERM") || isRefused(err) {
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
	l := &inspector{Backends: backends, keys: newKeyspace(backends.Namespace), wait: func(ctx context.Context, _ int) error { return ctx.Err() }}
	var err error
	if l.epoch, err = backends.readEpoch(ctx); err != nil {
		return err
	}
	for resource, its := range inRedis {
		if err := l.repairResource(ctx, resource, its, memory, false); err != nil {
			return err
		}
	}
	return nil
}

// repairResource mends differences of one resource in Redis. onlySafe is for who has asked nobody.
func (l *inspector) repairResource(ctx context.Context, resource string, findings []*Finding, memory time.Duration, onlySafe bool) error {
	// A key of a wrong type comes first: the others are mended in what is made in its place.
	slices.SortStableFunc(findings, func(a, b *Finding) int { return flag(b.Kind == WrongType) - flag(a.Kind == WrongType) })
	head := []any{memory.Milliseconds(), flag(onlySafe), repairRecordsMax}
	if err := l.repairEach(ctx, scriptRepair, resource, head, findings); err != nil {
		return err
	}
	var counted []*Finding
	for _, f := range findings {
		switch {
		case f.Result == large && f.Kind == WrongType:
			f.Result = Impossible // all that it counts would have to be written in one step
		case f.Result == large:
			counted = append(counted, f)
		}
	}
	if len(counted) == 0 {
		return nil
	}
	return l.adjust(ctx, resource, counted, onlySafe)
}

// repairEach has a script repair differences, some in each step, and sets their results. head comes before them.
func (l *inspector) repairEach(ctx context.Context, script lua.Script, resource string, head []any, findings []*Finding) error {
	for chunk := range slices.Chunk(findings, repairBatch) {
		args := slices.Clone(head)
		for _, f := range chunk {
			args = append(args, f.difference.what, f.difference.name, f.difference.found, f.difference.expected)
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

// repairStep runs a script that repairs, and returns what it says besides its status.
func (l *inspector) repairStep(ctx context.Context, script lua.Script, resource string, args ...any) (words []string, err error) {
	c := l.newCall(script, resource, args...)
	lua.Run(ctx, l.Redis, []*lua.Call{c})
	if c.Err == nil && c.Status == statusLost {
		return nil, fmt.Errorf("repair %s: %w, or is being filled again", resource, holds.ErrDataLost)
	}
	if err := c.Expect(0); err != nil {
		return nil, fmt.Errorf("repair %s: %w", resource, err)
	}
	return c.Reply, nil
}

// adjust repairs counters of a resource that is too large to be added up in one step: it reads them once more, page by
// page, and takes off by how much each is wrong then, if it was wrong by as much before. It has a mark, without
// which nothing is changed: another that repairs the same would take it off twice.
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
	now, err := l.large(ctx, resource, false)
	if err != nil || now.lost {
		return err
	}
	var planned []*Finding
	for _, f := range findings {
		if f.Result = now.resultOf(f.difference, onlySafe); f.Result == large {
			planned = append(planned, f)
		}
	}
	return l.repairEach(ctx, scriptAdjust, resource, []any{"adjust", token}, planned)
}

// resultOf returns what becomes of the repair of a counter: large if it is to be adjusted.
func (l inspection) resultOf(planned difference, onlySafe bool) Result {
	for _, d := range l.differences {
		switch {
		case d.what != planned.what || d.name != planned.name:
		case !d.same(planned):
			return Changed
		case onlySafe && d.lowers() && !l.nothingMissing(d.what):
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

// nothingMissing reports whether the deadlines, and those counters that are of another kind, have no more holds than there
// are records.
func (l inspection) nothingMissing(kind string) bool {
	return !l.unsure && !slices.ContainsFunc(l.differences, func(d difference) bool {
		return d.what == string(Due) || d.unknowable() || d.what == "type" ||
			d.what != kind && (d.what == string(Counter) || d.what == string(Users))
	})
}

// repairReserved sets what is reserved of a slot to what its reservations say. The row is locked before
// they are summed up: a payment that comes meanwhile adds to what is set here.
func (s *Backends) repairReserved(ctx context.Context, f *Finding) (result Result, err error) {
	result = Gone
	err = pgx.BeginFunc(ctx, s.Postgres, func(tx pgx.Tx) error {
		var now difference
		var reserved, reservations int64
		if err := tx.QueryRow(ctx, queryReservedLock, f.Resource, f.difference.name).Scan(&reserved); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, queryReservedSum, f.Resource, f.difference.name).Scan(&reservations); err != nil {
			return err
		}
		now = difference{f.difference.what, f.difference.name, fmt.Sprint(reserved), fmt.Sprint(reservations)}
		switch {
		case reserved == reservations:
			return nil
		case !now.same(f.difference):
			result = Changed
			return nil
		}
		_, err := tx.Exec(ctx, queryReservedSet, f.Resource, f.difference.name, reservations)
		result = Done
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Gone, nil
	}
	if isViolation(err) {
		return Impossible, nil // more is reserved than may be sold: that is for people
	}
	if err == nil && result == Done && holds.ResourcePattern.MatchString(f.Resource) {
		// Whoever has read the old number decides again.
		err = s.bumpRev(ctx, newKeyspace(s.Namespace).Rev(f.Resource))
	}
	return result, err
}

// revKept is how long rev stays after its last change.
const revKept = time.Hour

// bumpRev counts a change of what is reserved. A rev that has ended begins with a time, so that no value comes back.
func (s *Backends) bumpRev(ctx context.Context, rev string) error {
	pipe := s.Redis.Pipeline()
	pipe.SetNX(ctx, rev, time.Now().UnixMicro(), revKept)
	bumped := pipe.Incr(ctx, rev)
	pipe.PExpire(ctx, rev, revKept)
	_, _ = pipe.Exec(ctx) // whether it was counted is what matters
	return bumped.Err()
}
