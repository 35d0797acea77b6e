package recovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// The bounds of a rebuild's writes.
const (
	rebuildValuesMax = 2400 // of one call of rebuild.lua, and about of one round trip; a multiple of two, three and four
	rebuildBytesMax  = 128 << 10
	rebuildCallsMax  = 8      // of wipe.lua in one round trip
	rebuildPlansMax  = 10_000 // values of the resources that are written, and then verified, together
	rebuildSenders   = 4      // goroutines
)

// writeBatch writes the planned data of some resources.
func (a *rebuild) writeBatch(ctx context.Context, batch []*plan) error {
	var calls []*lua.Call
	values := 0 // of calls
	for _, one := range batch {
		for _, c := range a.split(one) {
			calls, values = append(calls, c), values+len(c.Args)
			if values < rebuildValuesMax {
				continue
			}
			if err := a.sendPlanned(ctx, calls); err != nil {
				return err
			}
			calls, values = nil, 0
		}
	}
	return a.sendPlanned(ctx, calls)
}

// sendPlanned runs calls that split has returned, and counts the answers that were missing.
func (a *rebuild) sendPlanned(ctx context.Context, calls []*lua.Call) error {
	if err := a.send(ctx, calls); err != nil {
		return err
	}
	for _, c := range calls {
		n, _ := strconv.Atoi(c.Reply[1]) // send has checked the reply
		a.answers[record.Partition(c.Args[1].(string))].Add(int64(n))
	}
	return nil
}

// call returns a call of rebuild.lua for the keys with a prefix. Next is the time (ms) for the agenda,
// "" when there is none.
func (a *rebuild) call(p int, resource, prefix, next string) *lua.Call {
	return &lua.Call{
		Script: scriptRebuild, Keys: []string{a.keys.Epoch(p)},
		Args: []any{holds.ScriptArg(a.epochMark(), "", a.Clock), resource, prefix, next},
	}
}

// writeFences makes partitions count their fencing tokens from a new base. All partitions of an attempt share one,
// and it is drawn last: the number of bases is limited, and an attempt that fails may be repeated all night.
func (a *rebuild) writeFences(ctx context.Context, partitions record.PartitionSet) (err error) {
	if a.fenceBase == 0 {
		if a.fenceBase, err = a.Fence(ctx); err != nil {
			return err
		}
	}
	var calls []*lua.Call
	for p := range partitions.Each() {
		c := a.call(p, "", a.keys.Partition(p), "")
		c.Args = append(c.Args, "fence", 1, a.fenceBase)
		calls = append(calls, c)
	}
	if err := a.send(ctx, calls); err != nil {
		return fmt.Errorf("write fences: %w", err)
	}
	return nil
}

// redisTime returns the time of Redis' clock in ms.
func (a *rebuild) redisTime(ctx context.Context) (now int64, err error) {
	p := a.partitions.Sorted()[0]
	c := a.call(p, "", a.keys.Partition(p), "")
	if err := a.send(ctx, []*lua.Call{c}); err != nil {
		return 0, fmt.Errorf("read the clock of redis: %w", err)
	}
	if now, err = strconv.ParseInt(c.Reply[0], 10, 64); err != nil {
		return 0, fmt.Errorf("read the clock of redis: %w", err)
	}
	return now, nil
}

// senders send batches from several goroutines while the caller adds items.
type senders[T any] struct {
	ctx    context.Context
	group  *errgroup.Group
	send   func(context.Context, []T) error
	next   []T
	weight int // of next
	max    int // weight of a batch
}

// newSenders returns senders that call send for each batch whose weight has reached max. The first
// error cancels the context of the others.
func newSenders[T any](ctx context.Context, max int, send func(context.Context, []T) error) *senders[T] {
	s := &senders[T]{send: send, max: max}
	s.group, s.ctx = errgroup.WithContext(ctx)
	s.group.SetLimit(rebuildSenders)
	return s
}

// add adds an item to the next batch. It returns the error of a batch that has failed.
func (s *senders[T]) add(item T, weight int) error {
	s.next = append(s.next, item)
	if s.weight += weight; s.weight >= s.max {
		s.flush()
	}
	return context.Cause(s.ctx)
}

// flush sends the next batch, when a goroutine is free.
func (s *senders[T]) flush() {
	batch := s.next
	s.next, s.weight = nil, 0
	s.group.Go(func() error {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		return s.send(s.ctx, batch)
	})
}

// wait sends the last batch and waits for all. It returns the first error. It must be called once, also
// after an error.
func (s *senders[T]) wait() error {
	if len(s.next) > 0 {
		s.flush()
	}
	return s.group.Wait()
}

// split returns the calls of rebuild.lua that write a plan.
func (a *rebuild) split(one *plan) (calls []*lua.Call) {
	next := ""
	if one.earliest != 0 {
		next = strconv.FormatInt(one.earliest, 10)
	}
	var c *lua.Call // the last one, nil when it is full
	size := 0
	for _, s := range []struct {
		name   string
		values []string
		group  int // number of values that belong together
	}{
		{"folds", one.folds, 2}, {"records", one.records, recordValues},
		{"answers", one.requests, 3}, {"expiring", one.expiring, 3},
	} {
		for len(s.values) > 0 {
			if c == nil {
				c, size = a.call(record.Partition(one.resource), one.resource, a.keys.Prefix(one.resource), next), 0
				calls = append(calls, c)
			}
			n := 0
			for ; n < len(s.values) && n < rebuildValuesMax && size < rebuildBytesMax; n += s.group {
				for _, value := range s.values[n : n+s.group] {
					size += len(value)
				}
			}
			c.Args = append(c.Args, s.name, n)
			for _, value := range s.values[:n] {
				c.Args = append(c.Args, value)
			}
			s.values = s.values[n:]
			if size >= rebuildBytesMax || len(c.Args) >= rebuildValuesMax {
				c = nil
			}
		}
	}
	return calls
}

// sendTries is how often a call is sent when its reply is lost.
const sendTries = 3

// send runs calls that may be repeated. It returns at once when a script or the server has refused one.
func (a *rebuild) send(ctx context.Context, calls []*lua.Call) error {
	for try := 1; ; try++ {
		lua.Run(ctx, a.to.runner(a.client), calls)
		var failed error
		retry := calls[:0:0]
		for _, c := range calls {
			if holds.SetReplyError(c); c.Expect(0) == nil {
				continue
			}
			var refused redis.Error
			if errors.Is(c.Err, holds.ErrDataLost) || errors.Is(c.Err, holds.ErrCorrupt) || errors.As(c.Err, &refused) {
				return c.Err
			}
			retry, failed = append(retry, c), c.Err
		}
		if failed == nil {
			return nil
		}
		if try == sendTries || ctx.Err() != nil {
			return failed
		}
		calls = retry
	}
}
