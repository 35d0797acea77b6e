package locking

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

var (
	//go:embed lua/prelude.lua
	prelude string
	//go:embed lua/lock.lua
	lockSource string
	//go:embed lua/unlock.lua
	unlockSource string
	//go:embed lua/renew.lua
	renewSource string

	lockScript   = lua.NewPacked("lock", "", packMax, prelude+lockSource)
	unlockScript = lua.NewPacked("unlock", "allow-oom", packMax, prelude+unlockSource)
	renewScript  = lua.NewPacked("renew", "allow-oom", packMax, prelude+renewSource)
)

// packMax is the maximum number of sets that one run of a script locks.
const packMax = 32

// ScriptCommands returns the Redis commands that the scripts of a Range use. The Redis user of a
// worker needs all of them.
func ScriptCommands() []string {
	return lua.Commands(prelude + lockSource + unlockSource + renewSource)
}

// Redis counts fencing tokens. When it has lost the count, it continues from a new base, which
// comes from a sequence in Postgres. Base n stands for n * fenceBlock, so a partition can take
// fenceBlock locks before it reaches the next base. fenceBases bases fit in the integers that Lua
// represents exactly.
const (
	fenceBlock = 1 << 36
	fenceBases = 1 << 17
)

// FenceBase returns a number that is at least 1 and higher than every number that it has returned
// before. It is called only when the fence of a partition is missing.
type FenceBase func(ctx context.Context) (int64, error)

// Next draws a new base and returns the number from which a fence counts on. It is higher than all
// earlier fencing tokens.
func (draw FenceBase) Next(ctx context.Context) (int64, error) {
	base, err := draw(ctx)
	if err != nil {
		return 0, fmt.Errorf("draw base of fencing tokens: %w", err)
	}
	if base < 1 || base >= fenceBases {
		return 0, fmt.Errorf("base of fencing tokens: %d is not from 1 to %d", base, fenceBases-1)
	}
	return base * fenceBlock, nil
}

// LeaseMax is the longest lease. No lock of a Range blocks others for longer after its last renewal, even if
// Redis' clock is set back.
const LeaseMax = time.Minute

// RangeOptions are the options of a Range.
type RangeOptions struct {
	Lease     LeaseFunc // at most LeaseMax
	FenceBase FenceBase // required
	// Fair makes waiters queue in the order of arrival, so that no waiter is overtaken for ever. It
	// costs one command for each key in each attempt.
	Fair bool
}

// Range locks a whole set of keys with one script, completely or not at all. So two acquisitions
// cannot deadlock, and an attempt costs one round trip for any number of keys. A lock ends with its
// lease: the script that writes under it must check its token.
type Range struct {
	baseStrategy
	options RangeOptions
	queue   *waitQueue
}

// NewRange returns a Range on one Redis.
func NewRange(client redis.UniversalClient, o RangeOptions) *Range {
	return &Range{baseStrategy{client}, o, newWaitQueue(client, o.Fair)}
}

// oneStepToken does not allow one-step calls with Fair, because they would overtake the queue.
func (r *Range) oneStepToken() (string, bool) { return "*", !r.options.Fair }

func (r *Range) waitQueue() *waitQueue { return r.queue }
func (r *Range) close() error          { return r.queue.close() }

// waitMax is the longest time for which a waiter that may be dead stays in a queue. One that waits for longer
// queues again.
const waitMax = time.Minute

// fenceTriesMax bounds the bases that are drawn for one lock. A second base is needed only if Redis
// loses the fence again meanwhile.
const fenceTriesMax = 3

func (r *Range) try(ctx context.Context, a *Acquisition, locks []*Lock) error {
	wait := ""
	if r.options.Fair {
		wait = strconv.FormatInt(min(max(time.Until(a.deadline), 0), waitMax).Milliseconds(), 10)
	}
	calls := make([]*lua.Call, len(locks))
	leases := make([]time.Duration, len(locks))
	mark := newID()
	for i, l := range locks {
		leases[i] = r.options.Lease(len(l.KeySet.Names))
		args := []any{a.owner, l.id, leases[i].Milliseconds(), l.KeySet.Scope, wait, fenceBlock, mark, "", ""}
		calls[i] = &lua.Call{
			Script: lockScript, Keys: []string{l.KeySet.Fence, l.KeySet.locksKey()}, Args: l.KeySet.appendNames(args),
		}
	}
	start := time.Now()
	lua.Run(ctx, r.client, calls)
	if retry := unconfirmed(calls); len(retry) > 0 && ctx.Err() == nil {
		lua.Run(ctx, r.client, retry) // the script recognizes a lock of the same acquisition
	}
	for range fenceTriesMax {
		retry := unfenced(calls)
		if len(retry) == 0 {
			break
		}
		base, err := r.options.FenceBase.Next(ctx)
		if err != nil {
			return err
		}
		mark = newID()
		for _, c := range retry {
			c.Args[6], c.Args[7], c.Args[8] = mark, base, c.Reply[0]
		}
		lua.Run(ctx, r.client, retry)
	}
	for i, c := range calls {
		l := locks[i]
		switch {
		case isShards(c.Err):
			l.Err = fmt.Errorf("lock set %d of %d: %w", i+1, len(locks), c.Err)
		case c.Err == nil && c.Status == "blocked" && len(c.Reply) == 2:
			l.blocker = blocker{name: blockingName(l, c), remaining: parseRemaining(c.Reply[1])}
		case c.Err == nil && c.Status == "behind" && len(c.Reply) == 3:
			l.blocker = blocker{name: blockingName(l, c), remaining: parseRemaining(c.Reply[1]), ahead: c.Reply[2]}
		case c.Expect(1) != nil:
			return fmt.Errorf("lock set %d of %d: %w", i+1, len(locks), c.Err)
		default:
			fence, err := strconv.ParseInt(c.Reply[0], 10, 64)
			if err != nil {
				return fmt.Errorf("fencing token: %w", err)
			}
			l.Held, l.Fence = true, fence
			l.Token = fmt.Sprintf("%s:%d.%s", a.owner, fence, l.id)
			l.setValidity(start, leases[i])
		}
	}
	return nil
}

// isShards reports whether only one shard of a Redis Cluster is to blame for an error.
func isShards(err error) bool { _, is := errors.AsType[*lua.ShardError](err); return is }

// unconfirmed returns the calls that the server may or may not have run, because their replies were
// lost.
func unconfirmed(calls []*lua.Call) (unknown []*lua.Call) {
	for _, c := range calls {
		var refused redis.Error
		if c.Err != nil && !errors.As(c.Err, &refused) {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// unfenced returns the calls that did not find the fence of their partition.
func unfenced(calls []*lua.Call) (unfenced []*lua.Call) {
	for _, c := range calls {
		if c.Err == nil && c.Status == "no_fence" && len(c.Reply) == 1 {
			unfenced = append(unfenced, c)
		}
	}
	return unfenced
}

// parseRemaining parses a remaining time in milliseconds. It returns at least 1 ms.
func parseRemaining(word string) time.Duration {
	n, _ := strconv.ParseInt(word, 10, 64) // our own script wrote it
	return max(time.Duration(n)*time.Millisecond, time.Millisecond)
}

func (r *Range) renew(ctx context.Context, locks []*Lock) error {
	start := time.Now()
	leases := make([]time.Duration, len(locks))
	calls := make([]*lua.Call, len(locks))
	for i, l := range locks {
		leases[i] = r.options.Lease(len(l.KeySet.Names))
		calls[i] = l.call(renewScript, l.Fence, l.id, leases[i].Milliseconds())
	}
	err := r.runEach(ctx, locks, calls)
	for i, l := range locks {
		if calls[i].Err == nil && len(calls[i].Reply) == 0 {
			l.setValidity(start, leases[i])
		}
	}
	return err
}

func (r *Range) unlock(ctx context.Context, locks []*Lock) error {
	calls := make([]*lua.Call, len(locks))
	for i, l := range locks {
		calls[i] = l.call(unlockScript, l.Fence, l.id, l.KeySet.Scope, "0", "0")
	}
	return r.runEach(ctx, locks, calls)
}

// call returns a call of a script on the locks of the scope. The names of the set follow args.
func (l *Lock) call(script lua.Script, args ...any) *lua.Call {
	return &lua.Call{Script: script, Keys: []string{l.KeySet.locksKey()}, Args: l.KeySet.appendNames(args)}
}

// runEach runs calls that return the numbers of the lost keys, and returns these keys as a
// *LostError. It runs all calls, even if one of them fails.
func (r *Range) runEach(ctx context.Context, locks []*Lock, calls []*lua.Call) (err error) {
	var lost []string
	lua.Run(ctx, r.client, calls)
	for i, c := range calls {
		if e := c.Expect(0); e != nil {
			err = errors.Join(err, fmt.Errorf("%s set %d of %d: %w", c.Script.Name, i+1, len(calls), e))
			continue
		}
		for _, word := range c.Reply {
			n, _ := strconv.Atoi(word) // our own script wrote it
			lost = append(lost, locks[i].KeySet.Key(locks[i].KeySet.Names[n-1]))
		}
	}
	return errors.Join(lostKeys(lost), err)
}

// lateAttemptMax is the maximum time after which an abandoned attempt may still reach Redis.
const lateAttemptMax = time.Minute

func (r *Range) cleanUp(ctx context.Context, a *Acquisition) {
	var calls []*lua.Call
	leave := func(locks []*Lock, goneFor time.Duration) {
		for _, l := range locks {
			calls = append(calls, l.call(unlockScript, "", l.id, l.KeySet.Scope, "1", goneFor.Milliseconds()))
		}
	}
	if r.options.Fair {
		leave(a.uncertain, lateAttemptMax)
		leave(a.blocked, 0)
	} else {
		leave(a.uncertain, 0) // a lock of a late attempt ends with its lease
	}
	lua.Run(ctx, r.client, calls) // on an error a lock ends with its lease, a place in a queue with its wait
}

// blockingName returns the name whose number is the first value of a reply.
func blockingName(l *Lock, c *lua.Call) string {
	n, _ := strconv.Atoi(c.Reply[0]) // our own script wrote it
	return l.KeySet.Names[n-1]
}

// locksKey returns the key of the hash with the locks of the scope.
func (s KeySet) locksKey() string { return s.Scope + "locks" }

// appendNames appends the names of the set, which are the fields of the hash, to the arguments of a script.
func (s KeySet) appendNames(args []any) []any {
	args = slices.Grow(args, len(s.Names))
	for _, name := range s.Names {
		args = append(args, name)
	}
	return args
}
