package locking

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

//go:embed lua/lock.lua
var lockSource string

//go:embed lua/unlock.lua
var unlockSource string

var (
	lockScript   = lua.New("lock", "", lockSource)
	unlockScript = lua.New("unlock", "", unlockSource)
)

// Range locks a whole set of keys with one script, all of it or nothing: there is no order in
// which two takers could wait for each other, and a taker costs one round trip however many
// keys it wants. Every lock has an owner token that no other lock has, and a fencing token
// that is higher than that of every earlier lock of its partition.
//
// A lock ends with its lease. Work that outlives its lease fails where the token is checked
// (place.lua does so in the step that writes), it is not renewed.
type Range struct {
	client redis.UniversalClient
	lease  time.Duration
}

// NewRange returns a Range whose locks end after lease, at least a millisecond.
func NewRange(client redis.UniversalClient, lease time.Duration) *Range {
	return &Range{client: client, lease: max(lease, time.Millisecond)}
}

// TryLock tries to take each set once, all sets in one round trip. The keys of a set are sorted
// and distinct and share a hash slot with their fence. tokens[i] is "" when set i is blocked;
// waits[i] is then what remains of the lease in the way. After an error some locks may have
// been taken; they end with their lease.
func (r *Range) TryLock(ctx context.Context, fences []string, sets [][]string) (tokens []string, waits []time.Duration, err error) {
	owner := uuid.NewString()
	calls := make([]*lua.Call, len(sets))
	for i, set := range sets {
		calls[i] = &lua.Call{
			Script: lockScript,
			Keys:   append([]string{fences[i]}, set...),
			Args:   []any{owner, r.lease.Milliseconds()},
		}
	}
	lua.Run(ctx, r.client, calls)
	tokens, waits = make([]string, len(sets)), make([]time.Duration, len(sets))
	for i, c := range calls {
		if c.Err == nil && c.Status == "blocked" && len(c.Reply) == 2 {
			remaining, _ := strconv.ParseInt(c.Reply[1], 10, 64) // 0 when it just ended
			waits[i] = max(time.Duration(remaining)*time.Millisecond, time.Millisecond)
			continue
		}
		if err := c.Expect(1); err != nil {
			return nil, nil, fmt.Errorf("lock set %d of %d: %w", i+1, len(sets), err)
		}
		tokens[i] = c.Reply[0]
	}
	return tokens, waits, nil
}

// Unlock gives back every key that still has its token, all sets in one round trip.
func (r *Range) Unlock(ctx context.Context, sets [][]string, tokens []string) error {
	calls := make([]*lua.Call, len(sets))
	for i, set := range sets {
		calls[i] = &lua.Call{Script: unlockScript, Keys: set, Args: []any{tokens[i]}}
	}
	lua.Run(ctx, r.client, calls)
	for i, c := range calls {
		if err := c.Expect(1); err != nil {
			return fmt.Errorf("unlock set %d of %d: %w", i+1, len(sets), err)
		}
	}
	return nil
}
