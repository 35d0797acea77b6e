package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// The reasons for which epochs are invalidated.
const (
	lostCommitsWhy = "postgres lost a payment: redis has it as settled, and it was not published"
	notComparedWhy = "postgres may have lost commits, and redis could not be read to compare it with them"
)

// afterLostCommits makes Redis agree with a Postgres that lacks commits, before anything is decided on both. It counts
// the comparison in each partition that it reads. It invalidates the epoch of a partition in which Redis has settled a
// payment whose commit is lost and whose outcome was not published. A rebuild that runs may have read that commit before:
// it starts again.
//
// It also invalidates the epochs of partitions that it cannot read: their server does not answer or accepts no writes, or
// resharding moves them. It returns an error when it can read none.
func (s *Supervisor) afterLostCommits(ctx context.Context) error {
	defer s.inspectors.closeAll()
	servers, err := s.Servers(ctx)
	if err != nil {
		return fmt.Errorf("find the redis servers: %w", err)
	}
	silent := record.AllPartitions
	var answered []Server
	var failed []error
	for _, server := range servers {
		state, err := readState(ctx, s.Namespace, s.inspectors.of(server), server.Partitions)
		if err != nil { // the connection may have ended
			s.inspectors.close(server.Addr)
			state, err = readState(ctx, s.Namespace, s.inspectors.of(server), server.Partitions)
		}
		if err == nil {
			state.partitions, err = s.countComparison(ctx, server, state.partitions)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		server.Partitions = state.partitions // without those that resharding moves or has moved elsewhere
		answered, silent = append(answered, server), silent&^server.Partitions
	}
	if silent == record.AllPartitions {
		return errors.Join(append([]error{errors.New("no partition can be read in redis")}, failed...)...)
	}
	if silent != 0 {
		s.Log.Error().Err(errors.Join(failed...)).Stringer("partitions", silent).
			Msg("partitions not read in redis to compare postgres, they will be rebuilt")
	}
	if err := s.history.Store.EndRebuilds(ctx); err != nil {
		return err
	}
	// Before that a rebuild may have completed partitions.
	epochs, err := s.EpochStore.Epochs(ctx)
	if err != nil {
		return err
	}
	lost, err := s.lostSettledPayments(ctx, answered, s.inspectors.of, record.AllPartitions&^silent)
	for p := range lost.Each() {
		epochs[p].Why = lostCommitsWhy
	}
	for p := range silent.Each() {
		epochs[p].Why = notComparedWhy
	}
	lost |= silent
	if lost &= epochs.Complete(); err != nil || lost == 0 {
		return err
	}
	return s.invalidate(ctx, &epochs, lost, answered)
}

// countComparison increases the key compared of some partitions. settle.lua then refuses payments that were claimed
// before, because Postgres may have lost their decisions. It returns the partitions without those that resharding moves.
func (s *Supervisor) countComparison(
	ctx context.Context, on Server, of record.PartitionSet,
) (counted record.PartitionSet, err error) {
	partitions := of.Sorted()
	calls := make([]*lua.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &lua.Call{Script: scriptCompared, Keys: []string{s.keys.Compared(p)}}
	}
	lua.Run(ctx, on.runner(s.inspectors.of(on)), calls)
	for i, c := range calls {
		if isElsewhere(c.Err) {
			continue
		}
		if err := c.Expect(0); err != nil {
			return 0, fmt.Errorf("count the comparison: %w", err)
		}
		counted.Add(partitions[i])
	}
	return counted, nil
}

// lostSettledPayments returns those of some partitions in which Redis has settled a payment that is not
// acknowledged, and Postgres does not have its reservation.
func (s *Supervisor) lostSettledPayments(
	ctx context.Context, servers []Server, client func(Server) *redis.Client, of record.PartitionSet,
) (lost record.PartitionSet, err error) {
	_, err = s.eachUnacknowledged(ctx, of, 0, func(some pendingEvents) error {
		settled, err := s.settledBy(ctx, servers, client, some.payments)
		if err != nil || len(settled) == 0 {
			return err
		}
		there := make(map[holds.HoldID]bool)
		err = s.EpochStore.Reservations(ctx, settled, func(r Reservation) { there[r.Hold] = true })
		for _, id := range settled {
			if err == nil && !there[id] {
				lost.Add(record.Partition(id.Resource))
			}
		}
		return err
	})
	return lost, err
}

// settledBy returns the holds that Redis has as confirmed by these payments. It asks each server once.
func (s *Supervisor) settledBy(
	ctx context.Context, servers []Server, client func(Server) *redis.Client, payments []holds.Payment,
) (settled []holds.HoldID, err error) {
	for _, server := range servers {
		pipe, reads := client(server).Pipeline(), make(map[int]*redis.SliceCmd)
		for i, p := range payments {
			if server.Partitions.Has(record.Partition(p.Hold.Resource)) {
				reads[i] = pipe.HMGet(ctx, s.keys.Prefix(p.Hold.Resource)+"records", p.Hold.UUID, latePrefix+p.Hold.UUID)
			}
		}
		// Exec has the first error of all commands. One of a single hold is handled below.
		if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("read holds: %w", err)
		}
		for i, read := range reads {
			lines, err := read.Result()
			if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // scripts find that corruption
				return nil, fmt.Errorf("read hold %s: %w", payments[i].Hold, err)
			}
			if slices.ContainsFunc(lines, func(line any) bool {
				text, _ := line.(string)
				return isSettledBy(text, payments[i].PaymentID)
			}) {
				settled = append(settled, payments[i].Hold)
			}
		}
	}
	return settled, nil
}
