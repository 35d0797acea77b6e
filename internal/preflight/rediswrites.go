package preflight

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
)

// scriptWrites writes nothing. Redis refuses it for the same reasons as a script that grants a hold: its memory is full
// (OOM), it has too few replicas (NOREPLICAS), or it cannot save its data (MISCONF).
//
// Returns ok
var scriptWrites = lua.New("writes", "", "return {'ok'}")

// redisWrites checks that Redis accepts writes, and that its memory is not almost full.
func (r *report) redisWrites(ctx context.Context, client *redis.Client, found map[string]string, user string, may permissions) {
	const name = RedisWrites
	if found["role"] != "master" {
		r.skipAll("it is no primary", name)
		return
	}
	number := func(field string) int64 {
		n, _ := strconv.ParseInt(found[field], 10, 64) // 0 when a provider's INFO has no such field
		return n
	}
	limit, used := number("maxmemory"), number("used_memory")-number("mem_not_counted_for_evict")
	memory := fmt.Sprintf("%d bytes of memory in use, with maxmemory %d", used, limit)
	evicts := found["maxmemory_policy"] != "noeviction"
	raise := fmt.Sprintf("redis-cli config set maxmemory %d\nand the same in redis.conf, if the machine has the memory",
		2*max(used, limit))
	const full = "when memory is full Redis refuses each grant: no request is answered"

	allowed := may.do["eval"] && may.do["evalsha"]
	err := may.err
	if allowed {
		err = mayWrite(ctx, client)
	}
	switch {
	case redis.HasErrorPrefix(err, "OOM"), !allowed && limit > 0 && used >= limit && !evicts:
		r.fail(name, memory, full, raise)
	case redis.HasErrorPrefix(err, "NOREPLICAS"):
		r.fail(name,
			fmt.Sprintf("%v Connected: %s, good: %s", err, found["connected_slaves"], found["min_slaves_good_slaves"]),
			"Redis refuses all writes: no event is answered",
			"start the replicas or repair their connections (INFO replication). To do without them:\n"+
				"redis-cli config set min-replicas-to-write 0\nand the same in redis.conf")
	case redis.HasErrorPrefix(err, "MISCONF"):
		r.fail(name, err.Error(), "Redis refuses all writes: no event is answered",
			"make room on its disk, and read its log; with appendonly yes and save \"\" it needs no snapshots")
	case limit > 0 && used >= limit-limit/nearShare && !evicts:
		r.warn(name, memory, full, raise)
	case !allowed && may.err == nil:
		r.unknown(name, "user "+user+" may not run scripts that write", "run worker preflight as the worker's user")
	case err != nil:
		r.unknown(name, err.Error(), "check again")
	default:
		r.ok(name, "accepted; "+memory)
	}
}

// mayWrite returns why Redis refuses scripts that write.
func mayWrite(ctx context.Context, client *redis.Client) error {
	c := &lua.Call{Script: scriptWrites}
	lua.Run(ctx, client, []*lua.Call{c})
	return c.Expect(0)
}
