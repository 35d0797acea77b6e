package preflight

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/record"
	"holdfast/internal/recovery"
)

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
