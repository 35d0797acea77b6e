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
)

// storedResource is what Redis has of a resource that was filled in.
type storedResource struct {
	records, counts, users map[string]string // users with the index beside them
	due, ended             int64
}

// verifyBatch reads the records that some resources have now and compares what they add up to, counted here
// apart from the plan, with the counts and the numbers that there are.
func (a *rebuild) verifyBatch(ctx context.Context, batch []*plan) error {
	pipe := a.client.Pipeline()
	reading := make([]func(context.Context) (storedResource, error), len(batch))
	for i, one := range batch {
		reading[i] = a.startRead(ctx, pipe, one)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("count what was written: %w", err)
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

// startRead has a pipe read what a resource has or, where that is much, has it read afterwards, a bounded part
// at a time.
func (a *rebuild) startRead(ctx context.Context, pipe redis.Pipeliner, one *plan) func(context.Context) (storedResource, error) {
	prefix := a.keys.Prefix(one.resource)
	due, departing, tombstones := pipe.ZCard(ctx, prefix+"due"), pipe.ZCard(ctx, prefix+"departing"), pipe.ZCard(ctx, prefix+"tombstones")
	if len(one.records)/2 > scanMax {
		return func(ctx context.Context) (storedResource, error) {
			hashes, err := a.readHashes(ctx, prefix+"records", prefix+"counts", prefix+"users")
			if err != nil {
				return storedResource{}, err
			}
			return storedResource{hashes[0], hashes[1], hashes[2], due.Val(), departing.Val() + tombstones.Val()}, nil
		}
	}
	records, counts, users := pipe.HGetAll(ctx, prefix+"records"), pipe.HGetAll(ctx, prefix+"counts"), pipe.HGetAll(ctx, prefix+"users")
	return func(context.Context) (storedResource, error) {
		return storedResource{records.Val(), counts.Val(), users.Val(), due.Val(), departing.Val() + tombstones.Val()}, nil
	}
}

// verify compares what there is with what the records add up to, and with their number in the plan.
func (w storedResource) verify(one *plan) error {
	add := &tally{live: newLiveTotals()}
	for id, line := range w.records {
		if err := add.add(id, line); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		what        string
		found, want int64
	}{
		{"records", int64(len(w.records)), int64(len(one.records) / 2)},
		{"holds that can lapse", w.due, add.held},
		{"holds that have ended", w.ended, add.ended},
	} {
		if n.found != n.want {
			return fmt.Errorf("%d %s, want %d: %w", n.found, n.what, n.want, holds.ErrCorrupt)
		}
	}
	users, index := splitUsers(w.users)
	if !maps.Equal(index, add.live.index) {
		return fmt.Errorf("not all live holds are found by their users and slots: %w", holds.ErrCorrupt)
	}
	return errors.Join(checkSums("count of slot ", w.counts, add.live.counts), checkSums("live holds of user ", users, add.live.users))
}

// splitUsers divides the fields of a hash of users: how many live holds each has, and the index of those.
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

// readHashes reads hashes, a bounded part at a time. What has changed meanwhile may be in it or not.
func (a *rebuild) readHashes(ctx context.Context, keys ...string) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	for i, key := range keys {
		all[i] = make(map[string]string)
		for cursor := uint64(0); ; {
			pairs, next, err := a.client.HScan(ctx, key, cursor, "", scanMax).Result()
			if err != nil {
				return nil, fmt.Errorf("read what redis has: %w", err)
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

// tally is what records add up to.
type tally struct {
	live        *liveTotals
	held, ended int64
}

func (t *tally) add(id, line string) error {
	words := strings.SplitN(line, " ", 10)
	if len(words) != 10 {
		return fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	switch holds.State(words[0]) {
	case holds.Held:
		t.held++
	case holds.Confirming:
	default:
		t.ended++
		return nil
	}
	quantity, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil {
		return fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	t.live.add(id, words[6], words[8], quantity)
	return nil
}

func checkSums(what string, found map[string]string, want map[string]int64) error {
	for name, sum := range want {
		if found[name] != strconv.FormatInt(sum, 10) {
			return fmt.Errorf("%s%s is %s, want %d: %w", what, name, found[name], sum, holds.ErrCorrupt)
		}
	}
	if len(found) != len(want) {
		return fmt.Errorf("%d of %s, want %d: %w", len(found), what, len(want), holds.ErrCorrupt)
	}
	return nil
}
