package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// storedResource is what Redis has of a resource after it was written.
type storedResource struct {
	records, counts, users map[string]string // users contains the index too
	due, ended             int64             // entries
}

// verifyBatch reads the records of some resources and compares their sums, which it computes
// independently of the plan, with the stored counts. It returns holds.ErrCorrupt when they differ.
func (a *rebuild) verifyBatch(ctx context.Context, batch []*plan) error {
	pipe := a.client.Pipeline()
	reading := make([]func(context.Context) (storedResource, error), len(batch))
	for i, one := range batch {
		reading[i] = a.startRead(ctx, pipe, one)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for i, one := range batch {
		found, err := reading[i](ctx)
		if err == nil {
			err = found.verify(one)
		}
		if err != nil {
			return fmt.Errorf("resource %s: %w", one.resource, err)
		}
	}
	return nil
}

// startRead adds the reads of a resource to a pipe. The function that it returns completes the read;
// for a large resource it reads the hashes, a bounded part at a time.
func (a *rebuild) startRead(
	ctx context.Context, pipe redis.Pipeliner, one *plan,
) func(context.Context) (storedResource, error) {
	prefix := a.keys.Prefix(one.resource)
	due := pipe.ZCard(ctx, prefix+"due")
	departing, tombstones := pipe.ZCard(ctx, prefix+"departing"), pipe.ZCard(ctx, prefix+"tombstones")
	if len(one.records)/2 > scanMax {
		return func(ctx context.Context) (storedResource, error) {
			hashes, err := a.readHashes(ctx, prefix+"records", prefix+"counts", prefix+"users")
			if err != nil {
				return storedResource{}, err
			}
			return storedResource{hashes[0], hashes[1], hashes[2], due.Val(), departing.Val() + tombstones.Val()}, nil
		}
	}
	records := pipe.HGetAll(ctx, prefix+"records")
	counts, users := pipe.HGetAll(ctx, prefix+"counts"), pipe.HGetAll(ctx, prefix+"users")
	return func(context.Context) (storedResource, error) {
		return storedResource{records.Val(), counts.Val(), users.Val(), due.Val(), departing.Val() + tombstones.Val()}, nil
	}
}

// verify compares the stored counts with the sums of the records, and the number of records with the
// plan.
func (r storedResource) verify(one *plan) error {
	sums := &tally{live: newLiveTotals()}
	for id, line := range r.records {
		if err := sums.add(id, line); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		what        string
		found, want int64
	}{
		{"records", int64(len(r.records)), int64(len(one.records) / 2)},
		{"entries in due", r.due, sums.held},
		{"entries in departing and tombstones", r.ended, sums.ended},
	} {
		if n.found != n.want {
			return fmt.Errorf("%d %s, want %d: %w", n.found, n.what, n.want, holds.ErrCorrupt)
		}
	}
	users, index := splitUsers(r.users)
	if !maps.Equal(index, sums.live.index) {
		return fmt.Errorf("index differs from the live holds: %w", holds.ErrCorrupt)
	}
	return errors.Join(
		checkSums("count of slot ", r.counts, sums.live.counts), checkSums("live holds of user ", users, sums.live.users),
	)
}

// splitUsers splits the users hash into the number of live holds of each user, and the index. See
// record.IndexField.
func splitUsers(fields map[string]string) (users, index map[string]string) {
	users, index = make(map[string]string), make(map[string]string)
	for name, value := range fields {
		if strings.Contains(name, " ") {
			index[name] = value
		} else {
			users[name] = value
		}
	}
	return users, index
}

// readHashes reads hashes, a bounded part at a time. It may miss concurrent changes.
func (a *rebuild) readHashes(ctx context.Context, keys ...string) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	for i, key := range keys {
		all[i] = make(map[string]string)
		for cursor := uint64(0); ; {
			pairs, next, err := a.client.HScan(ctx, key, cursor, "", scanMax).Result()
			if err != nil {
				return nil, fmt.Errorf("read hash: %w", err)
			}
			for pair := range slices.Chunk(pairs, 2) {
				all[i][pair[0]] = pair[1]
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return all, nil
}

// tally sums up records.
type tally struct {
	live        *liveTotals
	held, ended int64 // number of records
}

func (t *tally) add(id, line string) error {
	r, err := record.Parse(line)
	if err != nil {
		return fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	switch holds.State(r.State) {
	case holds.Held:
		t.held++
	case holds.Confirming:
	default:
		t.ended++
		return nil
	}
	tail, err := record.ParseTail(r.Tail)
	if err != nil {
		return fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	t.live.add(id, tail.User, tail.Slots, r.Quantity)
	return nil
}

// checkSums returns holds.ErrCorrupt unless the found values are the wanted ones.
func checkSums(what string, found map[string]string, want map[string]int64) error {
	for name, sum := range want {
		if found[name] != strconv.FormatInt(sum, 10) {
			return fmt.Errorf("%s%s is %s, want %d: %w", what, name, found[name], sum, holds.ErrCorrupt)
		}
	}
	if len(found) != len(want) {
		return fmt.Errorf("%d entries of %q, want %d: %w", len(found), what, len(want), holds.ErrCorrupt)
	}
	return nil
}
