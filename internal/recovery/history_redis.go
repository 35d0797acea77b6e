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
		state, err := s.readTwice(ctx, server)
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

// readTwice reads the state of a server, also when the connection to it had ended.
func (s *Supervisor) readTwice(ctx context.Context, server Server) (state redisState, err error) {
	if state, err = readState(ctx, s.Namespace, s.inspectors.of(server), server.Partitions); err != nil {
		s.inspectors.close(server.Addr)
		state, err = readState(ctx, s.Namespace, s.inspectors.of(server), server.Partitions)
	}
	return state, err
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
	pipes, reads := make([]redis.Pipeliner, len(servers)), make([]*redis.SliceCmd, len(payments))
	for i, p := range payments {
		partition := record.Partition(p.Hold.Resource)
		at := slices.IndexFunc(servers, func(server Server) bool { return server.Partitions.Has(partition) })
		if at < 0 {
			return nil, fmt.Errorf("no redis server has partition %d now", partition)
		}
		if pipes[at] == nil {
			pipes[at] = client(servers[at]).Pipeline()
		}
		key := s.keys.Prefix(p.Hold.Resource) + "records"
		reads[i] = pipes[at].HMGet(ctx, key, p.Hold.UUID, "late:"+p.Hold.UUID)
	}
	for _, pipe := range pipes {
		if pipe == nil {
			continue
		}
		// Exec has the first error of all commands. One of a single hold is handled below.
		if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("read holds: %w", err)
		}
	}
	for i, p := range payments {
		lines, err := reads[i].Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue // scripts find the corruption
		}
		if err != nil {
			return nil, fmt.Errorf("read hold %s: %w", p.Hold, err)
		}
		if slices.ContainsFunc(lines, func(line any) bool {
			text, _ := line.(string)
			return isSettledBy(text, p.PaymentID)
		}) {
			settled = append(settled, p.Hold)
		}
	}
	return settled, nil
}
