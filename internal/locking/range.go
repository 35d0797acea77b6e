package locking

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// packMax is how many sets one run of a script locks.
const packMax = 32

// ScriptCommands are the commands that the scripts of a Range give, see holds.ScriptCommands.
func ScriptCommands() []string {
	return lua.Commands(prelude + lockSource + unlockSource + renewSource)
}

// Fencing tokens are counted by Redis, from a base that a sequence in Postgres gives each time
// that Redis has lost its count: base n is n * fenceBlock, so a partition can count to
// fenceBlock before it would meet the next base, and fenceBases of them fit in what Lua counts
// exactly.
const (
	fenceBlock = 1 << 36
	fenceBases = 1 << 17
)

// FenceBase returns a number that it has never returned before and that is higher than all of
// those, at least 1. It is asked only when a partition's fence is gone.
type FenceBase func(ctx context.Context) (int64, error)

// Next returns what a fence counts from with a new base: it is higher than all tokens that there were.
func (draw FenceBase) Next(ctx context.Context) (int64, error) {
	base, err := draw(ctx)
	if err != nil {
		return 0, fmt.Errorf("base of fencing tokens: %w", err)
	}
	if base < 1 || base >= fenceBases {
		return 0, fmt.Errorf("base of fencing tokens: %d is not from 1 to %d", base, fenceBases-1)
	}
	return base * fenceBlock, nil
}

// RangeOptions are the options of a Range.
type RangeOptions struct {
	Lease     LeaseFunc // after how long a lock ends by itself
	FenceBase FenceBase // required
	// Fair makes waiters queue: nobody is overtaken for ever. It costs a command a key for
	// each attempt.
	Fair bool
}

// Range locks a whole set of keys with one script, all of it or nothing: there is no order in
// which two takers could wait for each other, and a taker costs one round trip however many keys
// it wants. A lock ends with its lease: the script that writes under it must find its token.
type Range struct {
	baseStrategy
	options RangeOptions
	queue   *waitQueue
}

// NewRange returns a Range on one Redis.
func NewRange(client redis.UniversalClient, o RangeOptions) *Range {
	return &Range{baseStrategy{client}, o, newWaitQueue(client, o.Fair)}
}

// oneStepToken is not allowed where waiters queue: it would overtake them.
func (r *Range) oneStepToken() (string, bool) { return "*", !r.options.Fair }

func (r *Range) waitQueue() *waitQueue { return r.queue }
func (r *Range) close() error          { return r.queue.close() }

// fenceTriesMax bounds how often a base is drawn for one lock: each time Redis must have lost
// its fence once more.
const fenceTriesMax = 3

func (r *Range) try(ctx context.Context, a *Acquisition, locks []*Lock) error {
	wait := ""
	if r.options.Fair {
		wait = strconv.FormatInt(max(time.Until(a.deadline).Milliseconds(), 0), 10)
	}
	calls := make([]*lua.Call, len(locks))
	leases := make([]time.Duration, len(locks))
	mark := newID()
	for i, l := range locks {
		leases[i] = r.options.Lease(len(l.KeySet.Keys))
		calls[i] = &lua.Call{
			Script: lockScript,
			Keys:   []string{l.KeySet.Fence, l.KeySet.locksKey()},
			Args:   l.KeySet.argsWithNames(a.owner, l.id, leases[i].Milliseconds(), l.KeySet.Scope, wait, fenceBlock, mark, "", ""),
		}
	}
	start := time.Now()
	lua.Run(ctx, r.client, calls)
	if again := unconfirmed(calls); len(again) > 0 && ctx.Err() == nil {
		lua.Run(ctx, r.client, again) // what was done before is found to be this acquisition's
	}
	for range fenceTriesMax {
		again := unfenced(calls)
		if len(again) == 0 {
			break
		}
		base, err := r.options.FenceBase.Next(ctx)
		if err != nil {
			return err
		}
		mark = newID()
		for _, c := range again {
			c.Args[6], c.Args[7], c.Args[8] = mark, base, c.Reply[0]
		}
		lua.Run(ctx, r.client, again)
	}
	for i, c := range calls {
		l := locks[i]
		switch {
		case c.Err == nil && c.Status == "blocked" && len(c.Reply) == 2:
			l.blocker = blocker{key: blockingKey(l, c), remaining: parseRemaining(c.Reply[1])}
		case c.Err == nil && c.Status == "behind" && len(c.Reply) == 3:
			l.blocker = blocker{key: blockingKey(l, c), remaining: parseRemaining(c.Reply[1]), ahead: c.Reply[2]}
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

// unconfirmed returns the calls of which nobody knows whether they were done.
func unconfirmed(calls []*lua.Call) (unknown []*lua.Call) {
	for _, c := range calls {
		var refused redis.Error
		if c.Err != nil && !errors.As(c.Err, &refused) {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// unfenced returns the calls that found no fence.
func unfenced(calls []*lua.Call) (unfenced []*lua.Call) {
	for _, c := range calls {
		if c.Err == nil && c.Status == "no_fence" && len(c.Reply) == 1 {
			unfenced = append(unfenced, c)
		}
	}
	return unfenced
}

// parseRemaining reads a time that remains. One that is over, or has no end, is a moment.
func parseRemaining(word string) time.Duration {
	n, _ := strconv.ParseInt(word, 10, 64) // our own script wrote it
	return max(time.Duration(n)*time.Millisecond, time.Millisecond)
}

func (r *Range) renew(ctx context.Context, locks []*Lock) error {
	start := time.Now()
	leases := make([]time.Duration, len(locks))
	calls := make([]*lua.Call, len(locks))
	for i, l := range locks {
		leases[i] = r.options.Lease(len(l.KeySet.Keys))
		calls[i] = &lua.Call{Script: renewScript, Keys: []string{l.KeySet.locksKey()}, Args: l.KeySet.argsWithNames(l.Fence, l.id, leases[i].Milliseconds())}
	}
	err := r.runEach(ctx, "renew", locks, calls)
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
		calls[i] = &lua.Call{Script: unlockScript, Keys: []string{l.KeySet.locksKey()}, Args: l.KeySet.argsWithNames(l.Fence, l.id, l.KeySet.Scope, "0", "0")}
	}
	return r.runEach(ctx, "unlock", locks, calls)
}

// runEach runs calls that answer with the numbers of the keys that were lost, and returns those as a
// *RebuildingError. All are run, also when one of them fails.
func (r *Range) runEach(ctx context.Context, verb string, locks []*Lock, calls []*lua.Call) (err error) {
	var lost []string
	lua.Run(ctx, r.client, calls)
	for i, c := range calls {
		if e := c.Expect(0); e != nil {
			err = errors.Join(err, fmt.Errorf("%s set %d of %d: %w", verb, i+1, len(calls), e))
			continue
		}
		for _, word := range c.Reply {
			n, _ := strconv.Atoi(word) // our own script wrote it
			lost = append(lost, locks[i].KeySet.Keys[n-1])
		}
	}
	return errors.Join(lostKeys(lost), err)
}

// lateAttemptMax is how long an attempt that nobody waits for any more may be on its way to Redis.
const lateAttemptMax = time.Minute

func (r *Range) cleanUp(ctx context.Context, a *Acquisition) {
	var calls []*lua.Call
	leave := func(locks []*Lock, goneFor time.Duration) {
		for _, l := range locks {
			args := l.KeySet.argsWithNames("", l.id, l.KeySet.Scope, "1", goneFor.Milliseconds())
			calls = append(calls, &lua.Call{Script: unlockScript, Keys: []string{l.KeySet.locksKey()}, Args: args})
		}
	}
	if r.options.Fair {
		leave(a.uncertain, lateAttemptMax)
		leave(a.blocked, 0)
	} else {
		leave(a.uncertain, 0) // what comes late ends with its lease
	}
	lua.Run(ctx, r.client, calls) // what cannot be given back ends with its lease, or its wait
}

// blockingKey returns the key of a lock whose number is the first value of a reply.
func blockingKey(l *Lock, c *lua.Call) string {
	n, _ := strconv.Atoi(c.Reply[0]) // our own script wrote it
	return l.KeySet.Keys[n-1]
}

// locksKey is the hash that has which of the set's keys are locked.
func (s KeySet) locksKey() string { return s.Scope + "locks" }

// Names returns what the set's keys are called within their scope: the fields of the hash <scope>locks.
func (s KeySet) Names() []string {
	names := make([]string, len(s.Keys))
	for i, key := range s.Keys {
		names[i] = strings.TrimPrefix(key, s.Key(""))
	}
	return names
}

// argsWithNames returns arguments of a script, followed by the set's names.
func (s KeySet) argsWithNames(args ...any) []any {
	args = slices.Grow(args, len(s.Keys))
	for _, name := range s.Names() {
		args = append(args, name)
	}
	return args
}
