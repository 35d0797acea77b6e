package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
)

// mended reports whether a difference is gone.
func (r Result) mended() bool { return r == Done || r == Gone }

// repairBatch is how many differences of a resource are mended in one step.
const repairBatch = 200

// Repair mends what is Automatic among findings and sets the Result of each. Each difference is
// looked at again in the same step in which it is mended, and left alone unless it is the one that
// was found. memory is for how long ended holds and answers are remembered.
func Repair(ctx context.Context, servers Servers, findings []*Finding, memory time.Duration) error {
	err := repair(ctx, servers, findings, memory)
	if redis.HasErrorPrefix(err, "NOPERM") || isRefused(err) {
		return fmt.Errorf("%w: repair with the worker's Redis and Postgres URLs", err)
	}
	return err
}

func repair(ctx context.Context, servers Servers, findings []*Finding, memory time.Duration) error {
	inRedis := make(map[string][]*Finding)
	for _, f := range findings {
		switch {
		case !f.Automatic:
		case f.Kind == Reserved:
			result, err := servers.mendReserved(ctx, f)
			if err != nil {
				return fmt.Errorf("repair what is reserved of slot %s of %s: %w", f.Item, f.Resource, err)
			}
			f.Result = result
		default:
			inRedis[f.Resource] = append(inRedis[f.Resource], f)
		}
	}
	l := &looker{Servers: servers, keys: keyspace(servers.Namespace)}
	var err error
	if l.epoch, err = servers.readEpoch(ctx); err != nil {
		return err
	}
	for resource, its := range inRedis {
		if err := l.mend(ctx, resource, its, memory, false); err != nil {
			return err
		}
	}
	return nil
}

// mend mends differences of one resource in Redis. onlySafe is for who has asked nobody.
func (l *looker) mend(ctx context.Context, resource string, findings []*Finding, memory time.Duration, onlySafe bool) error {
	// A key of a wrong type comes first: the others are mended in what is made in its place.
	slices.SortStableFunc(findings, func(a, b *Finding) int { return flag(b.Kind == WrongType) - flag(a.Kind == WrongType) })
	for chunk := range slices.Chunk(findings, repairBatch) {
		args := []any{memory.Milliseconds(), flag(onlySafe)}
		for _, f := range chunk {
			args = append(args, f.difference.what, f.difference.name, f.difference.found, f.difference.expected)
		}
		c := l.newCall(scriptRepair, resource, args...)
		lua.Run(ctx, l.Redis, []*lua.Call{c})
		if c.Err == nil && c.Status == statusLost {
			return fmt.Errorf("repair %s: %w, or is being filled again", resource, holds.ErrDataLost)
		}
		if err := c.Expect(1 + len(chunk)); err != nil {
			return fmt.Errorf("repair %s: %w", resource, err)
		}
		for i, f := range chunk {
			f.Result = Result(c.Reply[1+i])
		}
	}
	return nil
}

// mendReserved sets what is reserved of a slot to what its reservations say. The row is locked before
// they are summed up: a payment that comes meanwhile adds to what is set here.
func (s *Servers) mendReserved(ctx context.Context, f *Finding) (result Result, err error) {
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
		err = s.bumpRev(ctx, keyspace(s.Namespace).prefix(f.Resource)+"rev")
	}
	return result, err
}

// revKept is how long rev stays after its last change.
const revKept = time.Hour

// bumpRev counts a change of what is reserved. A rev that has ended begins with a time, so that no value comes back.
func (s *Servers) bumpRev(ctx context.Context, rev string) error {
	pipe := s.Redis.Pipeline()
	pipe.SetNX(ctx, rev, time.Now().UnixMicro(), revKept)
	bumped := pipe.Incr(ctx, rev)
	pipe.PExpire(ctx, rev, revKept)
	_, _ = pipe.Exec(ctx) // whether it was counted is what matters
	return bumped.Err()
}
