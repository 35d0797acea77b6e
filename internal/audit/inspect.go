package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// The bounds of one round trip to Redis, which does nothing else meanwhile. A record takes Redis
// about 30 µs, a key 10 µs.
const (
	inspectRecordsMax   = 300  // records of a resource that is read in one step, and of all resources in one round trip
	inspectResourcesMax = 64   // resources in one round trip
	pageSize            = 200  // records, counters or members of a sorted set in one page of a larger resource
	straysMax           = 500  // keys
	scanCount           = 1000 // keys
)

// difference is a contradiction between Redis and holds/doc.go.
type difference struct {
	kind                  Kind
	name, found, expected string
}

// delta returns by how much a number differs. ok is false when the difference is not one of
// numbers.
func (d difference) delta() (delta int64, ok bool) {
	if d.kind != Counter && d.kind != Users && d.kind != Reserved {
		return 0, false
	}
	found, err := number(d.found)
	expected, _ := number(d.expected)
	return found - expected, err == nil
}

func number(text string) (int64, error) {
	if text == "-" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// same reports whether two readings have found the same difference. A number that changed by as
// much as its expected value is the same difference.
func (d difference) same(other difference) bool {
	if d.kind != other.kind || d.name != other.name {
		return false
	}
	mine, isNumber := d.delta()
	its, isToo := other.delta()
	return d.found == other.found && d.expected == other.expected || isNumber && isToo && mine == its
}

// inspection is the result of reading a resource in Redis.
type inspection struct {
	resource    string
	lost        bool  // Redis has lost its data or is being rebuilt: nothing was checked
	now         int64 // by Redis' clock
	differences []difference
	records     []holdRecord // empty unless requested
	unsure      bool         // it is uncertain whether some counters are wrong
	moved       bool         // a wrong counter changed between its reading and that of the records
	noCounts    bool         // the key counts was missing at first; only of a resource that is read in pages
}

// inspector reads resources in Redis and compares their data.
type inspector struct {
	Backends
	keys   keyspace
	epochs epochs // what the partitions of Redis must have, else nothing is checked
	// wait returns when more work may be done. It bounds the load.
	wait func(ctx context.Context) error
	// unreached has the errors of the shards of a Redis Cluster that were left out, by address. It is nil when
	// such an error ends the work.
	unreached map[string]error
}

// newInspector returns an inspector that does not wait.
func newInspector(backends Backends) *inspector {
	return &inspector{Backends: backends, keys: newKeyspace(backends.Namespace), wait: context.Context.Err}
}

// leaveOut reports whether an error is that of one shard, without which the work goes on, and remembers it.
func (l *inspector) leaveOut(err error) bool {
	shard, is := errors.AsType[*lua.ShardError](err)
	if is && l.unreached != nil {
		l.unreached[shard.Shard()] = err
		return true
	}
	return false
}

// decides reports whether something is decided in the partition of a resource. The others are not checked.
func (l *inspector) decides(resource string) bool { return l.epochs[record.Partition(resource)] != "" }

// inspect reads resources and passes each to take, with its records if requested.
func (l *inspector) inspect(ctx context.Context, resources []string, records bool, take func(inspection)) error {
	for batch := range slices.Chunk(resources, inspectResourcesMax) {
		sizes, err := l.sizes(ctx, batch)
		if err != nil {
			return err
		}
		for len(batch) > 0 {
			n, walked := 1, sizes[0]
			for n < len(batch) && walked+sizes[n] <= inspectRecordsMax {
				walked += sizes[n]
				n++
			}
			if err := l.inspectBatch(ctx, batch[:n], records, take); err != nil {
				return err
			}
			if err := l.wait(ctx); err != nil {
				return err
			}
			batch, sizes = batch[n:], sizes[n:]
		}
	}
	return nil
}

// sizes returns how many records resources have.
func (l *inspector) sizes(ctx context.Context, resources []string) ([]int, error) {
	pipe := l.Redis.Pipeline()
	lengths := make([]*redis.IntCmd, len(resources))
	for i, resource := range resources {
		lengths[i] = pipe.HLen(ctx, l.keys.Prefix(resource)+"records")
	}
	if err := lua.Exec(ctx, pipe); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	sizes := make([]int, len(resources))
	for i, resource := range resources {
		err := lua.OfShard(ctx, l.Redis, l.keys.Prefix(resource), lengths[i].Err())
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") && !l.leaveOut(err) { // the inspection reports it
			return nil, fmt.Errorf("inspect %s: %w", resource, err)
		}
		sizes[i] = int(lengths[i].Val())
	}
	return sizes, nil
}

// inspectBatch reads resources in one round trip, and those that are too large in pages.
func (l *inspector) inspectBatch(
	ctx context.Context, resources []string, records bool, take func(inspection),
) error {
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = l.newCall(scriptInspect, resource, inspectRecordsMax, flag(records))
	}
	lua.Run(ctx, l.Redis, calls)
	for i, c := range calls {
		var found inspection
		var err error
		if c.Err == nil && c.Status == "large" {
			found, err = l.large(ctx, resources[i], records)
		} else {
			found, err = readInspection(resources[i], c)
		}
		if l.leaveOut(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("inspect %s: %w", resources[i], err)
		}
		take(found)
	}
	return nil
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

func readInspection(resource string, c *lua.Call) (inspection, error) {
	if c.Err == nil && c.Status == statusLost {
		return inspection{resource: resource, lost: true}, nil
	}
	if err := c.Expect(2); err != nil {
		return inspection{}, err
	}
	w := &words{left: c.Reply}
	found := inspection{resource: resource, now: w.number()}
	found.differences, found.records = w.differences(), w.records()
	return found, w.err
}

// unknowable reports whether a difference prevents the counters from being checked.
func (d difference) unknowable() bool {
	return d.kind == RecordCorrupt || d.kind == WrongType && d.name == "records"
}

// strays checks keys of resources. names has what follows the prefix of each key, by resource. It
// returns the differences by resource.
func (l *inspector) strays(ctx context.Context, names map[string][]string) (map[string][]difference, error) {
	found := make(map[string][]difference)
	var calls []*lua.Call
	requested := 0
	for resource, its := range names {
		for chunk := range slices.Chunk(its, straysMax) {
			args := make([]any, len(chunk))
			for i, name := range chunk {
				args[i] = name
			}
			calls = append(calls, l.newCall(scriptStrays, resource, args...))
			if requested += len(chunk); requested < straysMax {
				continue
			}
			if err := l.runStrays(ctx, calls, found); err != nil {
				return nil, err
			}
			calls, requested = nil, 0
		}
	}
	return found, l.runStrays(ctx, calls, found)
}

func (l *inspector) runStrays(ctx context.Context, calls []*lua.Call, found map[string][]difference) error {
	lua.Run(ctx, l.Redis, calls)
	for _, c := range calls {
		if c.Err == nil && c.Status == statusLost {
			continue
		}
		resource, _ := c.Args[1].(string) // set by newCall
		if err := c.Expect(2); l.leaveOut(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("inspect keys of %s: %w", resource, err)
		}
		w := &words{left: c.Reply}
		_ = w.number() // the time
		differences := w.differences()
		if w.err != nil {
			return fmt.Errorf("inspect keys of %s: %w", resource, w.err)
		}
		if len(differences) > 0 {
			found[resource] = append(found[resource], differences...)
		}
	}
	return nil
}

// scan returns the namespace's keys that match a pattern, page by page, of one server after another.
func (l *inspector) scan(ctx context.Context, pattern string) iter.Seq2[[]key, error] {
	return func(yield func([]key, error) bool) {
		servers, err := lua.Primaries(ctx, l.Redis)
		if err != nil {
			yield(nil, fmt.Errorf("scan redis: %w", err))
			return
		}
		for _, server := range servers {
			for cursor := uint64(0); ; {
				names, next, err := server.Scan(ctx, cursor, pattern, scanCount).Result()
				if err != nil && len(servers) > 1 && l.unreached != nil && ctx.Err() == nil {
					l.unreached[server.Options().Addr] = err
					break
				}
				if err != nil {
					yield(nil, fmt.Errorf("scan redis: %w", err))
					return
				}
				keys := make([]key, len(names))
				for i, name := range names {
					keys[i] = l.keys.parse(name)
				}
				if !yield(keys, nil) {
					return
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
	}
}
