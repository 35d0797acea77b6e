package recovery

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
	sums          *tally            // of its records
	counts, users map[string]string // users contains the index too
	due, ended    int64             // entries
}

// verifyUsersMax is how many live holds of one resource are compared with the users and the index at once.
const verifyUsersMax = 50_000

// verifyBatch reads the records of some resources and compares their sums, which it computes
// independently of the plan, with the stored counts. It returns holds.ErrCorrupt when they differ.
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
// for a large resource it reads the hashes, a bounded part at a time.
func (a *rebuild) startRead(
	ctx context.Context, pipe redis.Pipeliner, one writtenResource,
) func(context.Context) error {
	prefix := a.keys.Prefix(one.id)
	due := pipe.ZCard(ctx, prefix+"due")
	departing, tombstones := pipe.ZCard(ctx, prefix+"departing"), pipe.ZCard(ctx, prefix+"tombstones")
	if one.records > scanMax {
		return func(ctx context.Context) error {
			parts := uint32(one.live/verifyUsersMax + 1)
			for part := range parts {
				found, err := a.readPart(ctx, prefix, part, parts)
				if err != nil {
					return err
				}
				found.due, found.ended = due.Val(), departing.Val()+tombstones.Val()
				if err := found.verify(one); err != nil {
					return err
				}
			}
			return nil
		}
	}
	records := pipe.HGetAll(ctx, prefix+"records")
	counts, users := pipe.HGetAll(ctx, prefix+"counts"), pipe.HGetAll(ctx, prefix+"users")
	return func(context.Context) error {
		sums := newTally(0, 1)
		for id, line := range records.Val() {
			if err := sums.add(id, line); err != nil {
				return err
			}
		}
		found := storedResource{sums, counts.Val(), users.Val(), due.Val(), departing.Val() + tombstones.Val()}
		return found.verify(one)
	}
}

// readPart reads a large resource, a bounded number of fields at a time. It keeps the live holds of some of the
// users: of one of several parts.
func (a *rebuild) readPart(ctx context.Context, prefix string, part, parts uint32) (found storedResource, err error) {
	found = storedResource{
		sums: newTally(part, parts), counts: make(map[string]string), users: make(map[string]string),
	}
	err = a.readHash(ctx, prefix+"records", found.sums.add)
	if err == nil {
		err = a.readHash(ctx, prefix+"counts", func(slot, count string) error {
			found.counts[slot] = count
			return nil
		})
	}
	if err == nil {
		err = a.readHash(ctx, prefix+"users", func(name, value string) error {
			if user, _, _ := strings.Cut(name, " "); found.sums.has(user) {
				found.users[name] = value
			}
			return nil
		})
	}
	return found, err
}

// verify compares the stored counts with the sums of the records, and the number of records with the
// plan.
func (r storedResource) verify(one writtenResource) error {
	sums := r.sums
	for _, n := range []struct {
		what        string
		found, want int64
	}{
		{"records", sums.records, int64(one.records)},
		{"entries in due", r.due, sums.held},
		{"entries in departing and tombstones", r.ended, sums.ended},
	} {
		if n.found != n.want {
			return fmt.Errorf("%d %s, want %d: %w", n.found, n.what, n.want, holds.ErrCorrupt)
		}
	}
	return errors.Join(checkHash("counts", r.counts, sums.counts, nil), checkHash("users", r.users, sums.users, sums.index))
}

// readHash calls each for the fields of a hash, which it reads a bounded part at a time. It may miss concurrent
// changes.
func (a *rebuild) readHash(ctx context.Context, key string, each func(name, value string) error) error {
	for cursor := uint64(0); ; {
		pairs, next, err := a.client.HScan(ctx, key, cursor, "", scanMax).Result()
		if err != nil {
			return fmt.Errorf("read hash: %w", err)
		}
		for pair := range slices.Chunk(pairs, 2) {
			if err := each(pair[0], pair[1]); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// tally sums up records. Of the users and the index it has one of several parts. In normal operation
// holds/lua/place.lua writes these fields, and end_hold of holds/lua/prelude.lua removes them.
type tally struct {
	part, parts          uint32
	counts, users        map[string]int64  // what live holds take, by slot; their number, by user
	index                map[string]string // id by record.IndexField
	records, held, ended int64             // number of records
}

func newTally(part, parts uint32) *tally {
	return &tally{
		part: part, parts: parts, counts: make(map[string]int64), users: make(map[string]int64), index: make(map[string]string),
	}
}

// has reports whether a user belongs to the part.
func (t *tally) has(user string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(user)) // a hash never returns an error
	return h.Sum32()%t.parts == t.part
}

func (t *tally) add(id, line string) error {
	r, err := record.Parse(line)
	if err != nil {
		return fmt.Errorf("record %s: %w", id, holds.ErrCorrupt)
	}
	t.records++
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
	for slot := range strings.SplitSeq(tail.Slots, ",") {
		t.counts[slot] += r.Quantity
	}
	if !t.has(tail.User) {
		return nil
	}
	t.users[tail.User]++
	// A user with two holds on the same slots should not exist. The index then names the older hold.
	field := record.IndexField(tail.User, tail.Slots)
	if other, taken := t.index[field]; !taken || id < other {
		t.index[field] = id
	}
	return nil
}

// checkHash returns holds.ErrCorrupt unless a hash has exactly these sums and ids.
func checkHash(name string, found map[string]string, sums map[string]int64, ids map[string]string) error {
	want := make(map[string]string, len(sums)+len(ids))
	maps.Copy(want, ids)
	for field, sum := range sums {
		want[field] = strconv.FormatInt(sum, 10)
	}
	for field, value := range want {
		if found[field] != value {
			return fmt.Errorf("%s has %q for %s, want %s: %w", name, found[field], field, value, holds.ErrCorrupt)
		}
	}
	if len(found) != len(want) {
		return fmt.Errorf("%s has %d fields, want %d: %w", name, len(found), len(want), holds.ErrCorrupt)
	}
	return nil
}
