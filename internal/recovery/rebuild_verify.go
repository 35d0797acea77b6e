package recovery

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// verifyBatch reads the records of some resources and compares their sums, which it computes
// independently of the plan, with what is stored beside them. It returns holds.ErrCorrupt when they differ.
func (a *rebuild) verifyBatch(ctx context.Context, batch []writtenResource) error {
	pipe := a.client.Pipeline()
	reading := make([]func(context.Context) error, len(batch))
	for i, one := range batch {
		reading[i] = a.startRead(ctx, pipe, one)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	for i, one := range batch {
		if err := reading[i](ctx); err != nil {
			return fmt.Errorf("resource %s: %w", one.id, err)
		}
	}
	return nil
}

// startRead adds the reads of a resource to a pipe. The function that it returns completes the read and compares;
// it reads the hashes of a large resource a bounded part at a time, each once.
func (a *rebuild) startRead(
	ctx context.Context, pipe redis.Pipeliner, one writtenResource,
) func(context.Context) error {
	prefix := a.keys.Prefix(one.id)
	due := pipe.ZCard(ctx, prefix+"due")
	departing, tombstones := pipe.ZCard(ctx, prefix+"departing"), pipe.ZCard(ctx, prefix+"tombstones")
	read := a.scanTally
	if one.records <= scanMax {
		records := pipe.HGetAll(ctx, prefix+"records")
		counts, users := pipe.HGetAll(ctx, prefix+"counts"), pipe.HGetAll(ctx, prefix+"users")
		read = func(context.Context, string) (*tally, error) {
			return tallyOf(records.Val(), counts.Val(), users.Val())
		}
	}
	return func(ctx context.Context) error {
		t, err := read(ctx, prefix)
		if err != nil {
			return err
		}
		return t.verify(one, due.Val(), departing.Val()+tombstones.Val())
	}
}

// tallyOf returns the tally of a resource whose hashes were read.
func tallyOf(records, counts, users map[string]string) (*tally, error) {
	t := newTally()
	for id, line := range records {
		field, err := t.addRecord(id, line)
		if err == nil && field != "" {
			err = t.addIndex(id, field, users[field])
		}
		if err != nil {
			return nil, err
		}
	}
	for slot, count := range counts {
		if err := t.takeCount(slot, count); err != nil {
			return nil, err
		}
	}
	for name, value := range users {
		if err := t.takeUser(name, value); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// scanTally returns the tally of a large resource.
func (a *rebuild) scanTally(ctx context.Context, prefix string) (*tally, error) {
	t := newTally()
	err := a.scanHash(ctx, prefix+"records", func(pairs []string) error {
		var ids, fields []string // of the live ones
		for pair := range slices.Chunk(pairs, 2) {
			field, err := t.addRecord(pair[0], pair[1])
			if err != nil {
				return err
			}
			if field != "" {
				ids, fields = append(ids, pair[0]), append(fields, field)
			}
		}
		if len(ids) == 0 {
			return nil
		}
		found, err := a.client.HMGet(ctx, prefix+"users", fields...).Result()
		if err != nil {
			return fmt.Errorf("read hash: %w", err)
		}
		for i, id := range ids {
			named, _ := found[i].(string) // nil when missing
			if err := t.addIndex(id, fields[i], named); err != nil {
				return err
			}
		}
		return nil
	})
	each := func(take func(name, value string) error) func(pairs []string) error {
		return func(pairs []string) error {
			for pair := range slices.Chunk(pairs, 2) {
				if err := take(pair[0], pair[1]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if err == nil {
		err = a.scanHash(ctx, prefix+"counts", each(t.takeCount))
	}
	if err == nil {
		err = a.scanHash(ctx, prefix+"users", each(t.takeUser))
	}
	return t, err
}

// scanHash calls each for the fields and values of a hash, page by page.
func (a *rebuild) scanHash(ctx context.Context, key string, each func(pairs []string) error) error {
	return eachPage(func(cursor uint64) *redis.ScanCmd { return a.client.HScan(ctx, key, cursor, "", scanMax) }, each)
}

// tally adds up the records of a resource and takes away what is stored beside them: nothing is left when they
// agree. In normal operation holds/lua/place.lua writes these fields, and end_holds of holds/lua/prelude.lua removes
// them. It keeps nothing of a single user, because a resource may have a million: users is a sum of hashes.
type tally struct {
	records, held, ended int64            // number of records
	counts               map[string]int64 // what live holds take, by slot, less the stored count
	users                uint64           // for each live hold the hash of its user, less as many as are stored
	index                int64            // pairs of a user and slots with a live hold, less those stored
}

// userSeed is the seed of the hashes of users. Wrong numbers add up to the right sum once in 2^64 times.
var userSeed = maphash.MakeSeed()

func newTally() *tally { return &tally{counts: make(map[string]int64)} }

// addRecord adds a record. It returns the field of the users that must name the hold, "" when it is not live.
func (t *tally) addRecord(id, line string) (indexField string, err error) {
	r, err := record.Parse(line)
	if err != nil {
		return "", fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	t.records++
	switch holds.State(r.State) {
	case holds.Held:
		t.held++
	case holds.Confirming:
	default:
		t.ended++
		return "", nil
	}
	tail, err := record.ParseTail(r.Tail)
	if err != nil {
		return "", fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	for slot := range strings.SplitSeq(tail.Slots, ",") {
		t.counts[slot] += r.Quantity
	}
	t.users += maphash.String(userSeed, tail.User)
	return record.IndexField(tail.User, tail.Slots), nil
}

// addIndex adds what the index names for a live hold. A user with two holds on the same slots should not exist: the
// index names the older one then.
func (t *tally) addIndex(id, field, named string) error {
	switch {
	case named == id:
		t.index++
	case named == "" || named > id:
		return fmt.Errorf("users has %q for %s, want %s: %w", named, field, id, holds.ErrCorrupt)
	}
	return nil
}

// takeCount takes away a stored count.
func (t *tally) takeCount(slot, count string) error {
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 || t.counts[slot] != n {
		return fmt.Errorf("counts has %q for %s, want %d: %w", count, slot, t.counts[slot], holds.ErrCorrupt)
	}
	delete(t.counts, slot)
	return nil
}

// takeUser takes away a stored number of live holds, or a field of the index.
func (t *tally) takeUser(name, value string) error {
	if strings.Contains(name, " ") {
		t.index--
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 {
		return fmt.Errorf("users has %q for %s: %w", value, name, holds.ErrCorrupt)
	}
	t.users -= uint64(n) * maphash.String(userSeed, name)
	return nil
}

// verify returns holds.ErrCorrupt unless nothing is left, and there are as many records and entries as planned.
func (t *tally) verify(one writtenResource, due, ended int64) error {
	for _, n := range []struct {
		what        string
		found, want int64
	}{
		{"records", t.records, int64(one.records)},
		{"entries in due", due, t.held},
		{"entries in departing and tombstones", ended, t.ended},
		{"fields of the index that name no hold", -t.index, 0},
		{"counts missing", int64(len(t.counts)), 0},
	} {
		if n.found != n.want {
			return fmt.Errorf("%d %s, want %d: %w", n.found, n.what, n.want, holds.ErrCorrupt)
		}
	}
	if t.users != 0 {
		return fmt.Errorf("users has other numbers than the holds: %w", holds.ErrCorrupt)
	}
	return nil
}
