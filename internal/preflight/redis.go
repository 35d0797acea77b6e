package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

// redisMin is the first version of Redis with script flags and sharded pub/sub.
const redisMin = "7.0"

// The reasons for which a server that works may not be reached now.
const (
	notAnswering = "it does not answer"
	stillLoading = "it is loading its data"
)

// connect returns the fields of INFO of a Redis server. When that fails it adds a check with status bad, which is Fail, or
// Warn for a lock server, without which the majority can work, and returns nil.
func (r *report) connect(ctx context.Context, name string, client *redis.Client, bad Status) map[string]string {
	text, err := client.Info(ctx).Result()
	found := recovery.InfoFields(text)
	loading := found["loading"] == "1"
	if err == nil && !loading {
		return found
	}
	why, fix := notAnswering, "start it, or correct its URL"
	switch {
	case loading:
		err = errors.New("loading:1 in INFO")
		why, fix = stillLoading, "wait until it has loaded"
	case redis.HasErrorPrefix(err, "NOPERM"):
		why, fix = "its eviction policy is not visible", "allow the user to run INFO: +info"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		why, fix = "authentication failed", "give user and password in the URL: redis://user:password@host:port"
	}
	r.add(name, bad, fmt.Sprintf("%s: %v", client.Options().Addr, err), why, fix)
	return nil
}

// redis checks the Redis that stores the holds. It returns its clock.
func (r *report) redis(ctx context.Context, t Target) clock {
	client := redis.NewClient(t.Redis)
	defer func() { _ = client.Close() }() // all commands have ended
	const reachable = "redis.reachable"
	names := []string{
		redisLink, "redis.version", "redis.role", "redis.maxmemory_policy",
		RedisWrites, "redis.notifications", RedisFormat, RedisCommands, RedisPrivileges,
	}
	found := r.connect(ctx, reachable, client, Fail)
	if found == nil {
		r.skipAll(reachable+" failed", names...)
		return clock{of: "redis", err: errUnreachable}
	}
	user, err := client.Do(ctx, "ACL", "WHOAMI").Text()
	if err != nil {
		user = "unknown (" + err.Error() + ")"
	}
	r.ok(reachable, fmt.Sprintf("%s, user %s", t.Redis.Addr, user))
	r.redisLink(ctx, client)
	r.version("redis.version", "Redis", found["redis_version"], redisMin,
		"no script flags before Redis 7: full memory could stop a script between two writes, and leave a hold half written",
		"use Redis 7 or newer")
	r.redisRole(found)
	r.redisMemory(found)
	may := readPermissions(ctx, client, t.Namespace)
	r.redisWrites(ctx, client, found, user, may)
	r.redisNotifications(ctx, client, user, may)
	r.redisFormat(ctx, t, client)
	r.redisCommands(t, user, may)
	r.redisPrivileges(t, user, may)
	return readClock(ctx, "redis", func(ctx context.Context) (time.Time, error) { return client.Time(ctx).Result() })
}

func (r *report) redisRole(found map[string]string) {
	const name = "redis.role"
	if role := found["role"]; role != "master" {
		r.fail(name, role+" of "+found["master_host"], "it accepts no writes, and its data may be out of date",
			"give the URL of the primary")
		return
	}
	r.ok(name, "primary, with "+found["connected_slaves"]+" replicas")
}

func (r *report) redisMemory(found map[string]string) {
	const name, want = "redis.maxmemory_policy", "noeviction"
	policy, shown := found["maxmemory_policy"]
	if !shown {
		r.unknown(name, "INFO has no maxmemory_policy",
			"ask the provider of this Redis: with any other policy than noeviction granted holds would be evicted")
		return
	}
	if policy != want {
		r.fail(name, fmt.Sprintf("%s, with maxmemory %s", policy, found["maxmemory_human"]),
			"when its memory is full it would evict granted holds, and their slots would be sold again",
			"redis-cli config set maxmemory-policy noeviction\nand the same in redis.conf")
		return
	}
	r.ok(name, want)
}

// scriptWrites writes nothing. Redis refuses it for the same reasons as a script that grants a hold: its memory is full
// (OOM), it has too few replicas (NOREPLICAS), or it cannot save its data (MISCONF).
//
// Returns ok
var scriptWrites = lua.New("writes", "", "return {'ok'}")

// redisWrites checks that Redis accepts writes, and that its memory is not almost full.
func (r *report) redisWrites(ctx context.Context, client *redis.Client, found map[string]string, user string, may permissions) {
	if found["role"] != "master" {
		r.skipAll("it is no primary", RedisWrites)
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
		c := &lua.Call{Script: scriptWrites}
		lua.Run(ctx, client, []*lua.Call{c})
		err = c.Expect(0)
	}
	switch {
	case redis.HasErrorPrefix(err, "OOM"), !allowed && limit > 0 && used >= limit && !evicts:
		r.fail(RedisWrites, memory, full, raise)
	case redis.HasErrorPrefix(err, "NOREPLICAS"):
		r.fail(RedisWrites,
			fmt.Sprintf("%v Connected: %s, good: %s", err, found["connected_slaves"], found["min_slaves_good_slaves"]),
			"Redis refuses all writes: no event is answered",
			"start the replicas or repair their connections (INFO replication). To do without them:\n"+
				"redis-cli config set min-replicas-to-write 0\nand the same in redis.conf")
	case redis.HasErrorPrefix(err, "MISCONF"):
		r.fail(RedisWrites, err.Error(), "Redis refuses all writes: no event is answered",
			"make room on its disk, and read its log; with appendonly yes and save \"\" it needs no snapshots")
	case limit > 0 && used >= limit-limit/nearShare && !evicts:
		r.warn(RedisWrites, memory, full, raise)
	case !allowed && may.err == nil:
		r.unknown(RedisWrites, "user "+user+" may not run scripts that write", "run worker preflight as the worker's user")
	case err != nil:
		r.unknown(RedisWrites, err.Error(), "check again")
	default:
		r.ok(RedisWrites, "accepted; "+memory)
	}
}

func (r *report) redisNotifications(ctx context.Context, client *redis.Client, user string, may permissions) {
	const (
		name   = "redis.notifications"
		option = "notify-keyspace-events"
		fix    = "notify-keyspace-events Ex\nin redis.conf, or allow the user to set it: +config|set +config|get"
		why    = "expired holds are detected by the timer alone, which suffices for all promises"
	)
	var values map[string]string
	err := fmt.Errorf("user %s may not read settings (config|get)", user) // not tried: a refusal adds to ACL LOG
	if may.err != nil || may.do[configGet] {
		values, err = client.ConfigGet(ctx, option).Result()
	}
	flags := values[option]
	on := strings.Contains(flags, "E") && strings.ContainsAny(flags, "xA")
	switch {
	case err != nil:
		r.unknown(name, err.Error(), "redis-cli config get notify-keyspace-events\n"+
			"as an administrator: want Ex; a running worker reports in /readyz whether notifications arrive")
	case on:
		r.ok(name, flags)
	case may.err != nil:
		r.unknown(name, "off, and it is unknown whether the worker may switch them on: "+may.err.Error(), fix)
	case !may.do[configSet]:
		r.warn(name, fmt.Sprintf("off (%q), and user %s may not switch them on (config|set)", flags, user), why, fix)
	default:
		r.ok(name, "off; the worker switches them on")
	}
}

func (r *report) redisFormat(ctx context.Context, t Target, client *redis.Client) {
	switch format, err := recovery.ReadFormat(ctx, t.Namespace, client); {
	case errors.Is(err, recovery.ErrUnknownFormat):
		r.fail(RedisFormat, err.Error(), "this program would misread holds",
			"run the version of the worker that wrote it, or a newer one")
	case redis.HasErrorPrefix(err, "MOVED"):
		r.ok(RedisFormat, "on another server of the cluster")
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		r.fail(RedisFormat, err.Error(), "the worker cannot read its own keys",
			"wait until CLUSTER INFO says cluster_state:ok on this server, and start the worker again")
	case isTimeout(err):
		r.fail(RedisFormat, err.Error(), slow, slowFix)
	case err != nil:
		r.fail(RedisFormat, err.Error(), "the worker cannot read its own keys", "allow the user the keys ~"+t.Namespace+":*")
	case format == 0:
		r.ok(RedisFormat, "not set yet")
	default:
		r.ok(RedisFormat, strconv.Itoa(format))
	}
}

// allRedis checks the Redis that stores the holds, in a cluster each of its primaries. It returns the
// clock of the first one that answers.
func (r *report) allRedis(ctx context.Context, t Target) clock {
	if t.Primaries == nil {
		return r.redis(ctx, t)
	}
	servers, err := t.Primaries(ctx)
	if err != nil {
		r.fail(RedisCluster, err.Error(), "no server of the cluster says where the partitions are",
			"start the servers, or correct the URL; the user needs +cluster|info +cluster|slots")
		return clock{of: "redis", err: errUnreachable}
	}
	r.redisCluster(ctx, servers)
	if len(servers) == 0 { // they answer, and no partition has been given to one of them
		return clock{of: "redis", err: errUnreachable}
	}
	reports, clocks := make([]report, len(servers)), make([]clock, len(servers))
	var checking sync.WaitGroup
	for i, server := range servers {
		checking.Go(func() {
			one := t
			one.Redis = server.Options()
			clocks[i] = reports[i].redis(ctx, one)
		})
	}
	checking.Wait()
	first := max(0, slices.IndexFunc(clocks, func(c clock) bool { return c.err == nil }))
	if clocks[first].err == nil {
		excuseSilent(reports)
	}
	for i := range reports[0].checks {
		r.checks = append(r.checks, worst(servers, reports, i))
	}
	return clocks[first]
}

// excuseSilent turns the failure of a primary that does not answer into a warning, because another one answers:
// a worker can start, and only the partitions of that primary wait.
func excuseSilent(reports []report) {
	for _, one := range reports {
		if c := &one.checks[0]; c.Status == Fail && (c.Impact == notAnswering || c.Impact == stillLoading) {
			c.Status, c.Impact = Warn, c.Impact+": its partitions wait, the others are decided"
		}
	}
}

// worst returns one check of all servers: that with the worst status, and on which server it is.
func worst(servers []recovery.Server, reports []report, i int) Check {
	rank := map[Status]int{Fail: 3, Warn: 2, Unknown: 1}
	check, at, others := reports[0].checks[i], 0, false
	for k := range reports {
		its := reports[k].checks[i]
		others = others || its.Found != check.Found
		if rank[its.Status] > rank[check.Status] {
			check, at = its, k
		}
	}
	if len(servers) > 1 && rank[check.Status] > 0 {
		check.Found = servers[at].Addr + ": " + check.Found
	} else if others {
		check.Found = fmt.Sprintf("%s; and %d servers like it", check.Found, len(servers)-1)
	}
	return check
}

// redisCluster checks that every partition has a server, and that one that fails concerns no others.
func (r *report) redisCluster(ctx context.Context, servers []recovery.Server) {
	var served record.PartitionSet
	for _, server := range servers {
		served |= server.Partitions
	}
	if missing := record.AllPartitions &^ served; missing != 0 {
		r.fail(RedisCluster, missing.String()+" have no server", "nothing is decided in these partitions",
			"redis-cli --cluster fix HOST:PORT")
		return
	}
	const option = "cluster-require-full-coverage"
	for _, server := range servers {
		client := redis.NewClient(server.Options())
		values, err := client.ConfigGet(ctx, option).Result()
		_ = client.Close() // the command has ended
		if err == nil && values[option] != "no" {
			r.warn(RedisCluster, fmt.Sprintf("%s: %s %s", server.Addr, option, values[option]),
				"when one primary has no replica that can replace it, all others refuse to work too",
				"redis-cli -c config set "+option+" no\non each server, and the same in redis.conf")
			return
		}
	}
	r.ok(RedisCluster, fmt.Sprintf("%d primaries have all partitions", len(servers)))
}

// lockServers checks the lock servers of Redlock.
func (r *report) lockServers(ctx context.Context, t Target) {
	runs := make(map[string]int) // numbers of the servers by run id
	answering := 0
	for i, options := range t.LockServers {
		name := fmt.Sprintf("lock_redis.%d", i+1)
		client := redis.NewClient(options)
		found := r.connect(ctx, name, client, Warn)
		_ = client.Close() // all commands have ended
		if found == nil {
			continue
		}
		other, duplicate := runs[found["run_id"]]
		runs[found["run_id"]] = i + 1
		const majority = "a majority needs independent servers: else the loss of one server grants the same lock twice"
		switch {
		case duplicate:
			r.fail(name, fmt.Sprintf("%s is the same server as number %d", options.Addr, other), majority,
				"give a different server")
		case found["role"] != "master":
			r.fail(name, fmt.Sprintf("%s is a replica of %s", options.Addr, found["master_host"]), majority,
				"give servers that do not replicate to each other")
		case found["maxmemory_policy"] != "noeviction":
			r.warn(name, fmt.Sprintf("%s has maxmemory-policy %s", options.Addr, found["maxmemory_policy"]),
				"it may evict locks when its memory is full: work is then repeated, and the results stay correct",
				"redis-cli config set maxmemory-policy noeviction\nand the same in redis.conf")
			answering++
		default:
			r.ok(name, fmt.Sprintf("%s, %s", options.Addr, found["redis_version"]))
			answering++
		}
	}
	if all := len(t.LockServers); all > 0 && answering <= all/2 {
		r.fail("lock_redis", fmt.Sprintf("%d of %d are usable", answering, all),
			"without a majority there are no locks, and no request is decided", "start the others, or correct their URLs")
	}
}
