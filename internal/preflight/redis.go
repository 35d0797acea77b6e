package preflight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/recovery"
)

// redisMajorMin is the first Redis that knows the flags of scripts and sharded pub/sub.
const redisMajorMin = 7

// info is what INFO tells.
type info map[string]string

func readInfo(ctx context.Context, client *redis.Client) (info, error) {
	text, err := client.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	found := make(info)
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), ":"); is {
			found[name] = value
		}
	}
	return found, nil
}

// connect asks a Redis what it is, and says so when it does not tell: as a failure, or as a warning
// where others can do without it.
func (r *report) connect(ctx context.Context, name string, client *redis.Client, bad Status) (found info, answers bool) {
	found, err := readInfo(ctx, client)
	if err == nil {
		return found, true
	}
	why, fix := "it does not answer", "start it, or correct its URL"
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		why, fix = "whether it evicts what it should keep cannot be seen", "allow the user to say INFO: +info"
	case redis.HasErrorPrefix(err, "LOADING"):
		why, fix = "it still reads its data", "wait until it has"
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"):
		why, fix = "the worker is not let in", "give user and password in the URL: redis://user:password@host:port"
	}
	r.add(name, bad, fmt.Sprintf("%s: %v", client.Options().Addr, err), why, fix)
	return nil, false
}

// redis looks at the Redis that holds the holds. It returns its clock.
func (r *report) redis(ctx context.Context, t Target) clock {
	client := redis.NewClient(t.Redis)
	defer func() { _ = client.Close() }() // nothing is under way
	const reachable = "redis.reachable"
	names := []string{
		"redis.version", "redis.role", "redis.maxmemory_policy",
		"redis.notifications", RedisFormat, RedisCommands, RedisPrivileges,
	}
	found, answers := r.connect(ctx, reachable, client, Fail)
	if !answers {
		r.skipAll(reachable+" failed", names...)
		return clock{of: "redis", err: errors.New("it could not be asked")}
	}
	user, err := client.Do(ctx, "ACL", "WHOAMI").Text()
	if err != nil {
		user = "unknown (" + err.Error() + ")"
	}
	r.ok(reachable, fmt.Sprintf("%s, user %s", t.Redis.Addr, user))
	r.redisVersion("redis.version", found)
	r.redisRole("redis.role", found)
	r.redisMemory(found)
	may := readPermissions(ctx, client, t.Namespace)
	config := func(name string) (string, error) {
		if may.err == nil && !may.do[configGet] {
			return "", fmt.Errorf("user %s may not read settings (config|get)", user) // a refusal would be noted in ACL LOG
		}
		values, err := client.ConfigGet(ctx, name).Result()
		return values[name], err
	}
	r.redisNotifications(config, may, user)
	r.redisFormat(ctx, t, client)
	r.redisCommands(t, user, may)
	r.redisPrivileges(t, user, may)
	return readClock(ctx, "redis", func(ctx context.Context) (time.Time, error) { return client.Time(ctx).Result() })
}

func (r *report) redisVersion(name string, found info) {
	version := found["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil:
		r.unknown(name, fmt.Sprintf("it says it is %.20q", version), "see that it is Redis 7 or newer")
	case n < redisMajorMin:
		r.fail(name, version, "its scripts know no flags: one could be stopped in its midst by a full memory, and leave a hold half made", "use Redis 7 or newer")
	default:
		r.ok(name, version)
	}
}

func (r *report) redisRole(name string, found info) {
	if role := found["role"]; role != "master" {
		r.fail(name, role+" of "+found["master_host"], "it takes no writes, and what it has may be old", "give the URL of the primary")
		return
	}
	r.ok(name, "primary, with "+found["connected_slaves"]+" replicas")
}

func (r *report) redisMemory(found info) {
	const name, want = "redis.maxmemory_policy", "noeviction"
	if policy := found["maxmemory_policy"]; policy != want {
		r.fail(name, fmt.Sprintf("%s, with maxmemory %s", policy, found["maxmemory_human"]),
			"when its memory is full it would drop holds that were granted, and sell their slots again",
			"redis-cli config set maxmemory-policy noeviction\nand the same in redis.conf")
		return
	}
	r.ok(name, want)
}

func (r *report) redisNotifications(config func(string) (string, error), may permissions, user string) {
	const (
		name   = "redis.notifications"
		option = "notify-keyspace-events"
		fix    = "notify-keyspace-events Ex\nin redis.conf, or let the user set it: +config|set +config|get"
		why    = "lapsed holds are noticed by the timer alone, which is in time for all promises"
	)
	flags, err := config(option)
	on := strings.Contains(flags, "E") && strings.ContainsAny(flags, "xA")
	switch {
	case err != nil:
		r.unknown(name, err.Error(), "redis-cli config get notify-keyspace-events\nby an administrator: want Ex; the worker itself finds out when one comes, see /readyz")
	case on:
		r.ok(name, flags)
	case may.err != nil:
		r.unknown(name, "off, and whether the worker may switch them on is not known: "+may.err.Error(), fix)
	case !may.do[configSet]:
		r.warn(name, fmt.Sprintf("off (%q), and user %s may not switch them on (config|set)", flags, user), why, fix)
	default:
		r.ok(name, "off; the worker switches them on")
	}
}

func (r *report) redisFormat(ctx context.Context, t Target, client *redis.Client) {
	const name = RedisFormat
	switch format, err := recovery.ReadFormat(ctx, t.Namespace, client); {
	case errors.Is(err, recovery.ErrUnknownFormat):
		r.fail(name, err.Error(), "holds would be misread", "run the version of the worker that wrote it, or a newer one")
	case err != nil:
		r.fail(name, err.Error(), "the worker may not read its own keys", "allow the user the keys ~"+t.Namespace+":*")
	case format == 0:
		r.ok(name, "none is noted yet")
	default:
		r.ok(name, strconv.Itoa(format))
	}
}

// lockServers looks at the servers that Redlock locks on.
func (r *report) lockServers(ctx context.Context, t Target) {
	runs := make(map[string]int) // the run id of a server -> its number
	answering := 0
	for i, options := range t.LockServers {
		name := fmt.Sprintf("lock_redis.%d", i+1)
		client := redis.NewClient(options)
		found, answers := r.connect(ctx, name, client, Warn)
		_ = client.Close() // nothing is under way
		if !answers {
			continue
		}
		other, duplicate := runs[found["run_id"]]
		runs[found["run_id"]] = i + 1
		const majority = "a majority must be of independent servers, or the loss of one gives the same lock twice"
		switch {
		case duplicate:
			r.fail(name, fmt.Sprintf("%s is the same server as number %d", options.Addr, other), majority, "give servers of their own")
		case found["role"] != "master":
			r.fail(name, fmt.Sprintf("%s is a replica of %s", options.Addr, found["master_host"]), majority, "give servers that replicate nothing to each other")
		case found["maxmemory_policy"] != "noeviction":
			r.warn(name, fmt.Sprintf("%s has maxmemory-policy %s", options.Addr, found["maxmemory_policy"]),
				"locks may be dropped when its memory is full: work is repeated then, the results stay right", "redis-cli config set maxmemory-policy noeviction\nand the same in redis.conf")
			answering++
		default:
			r.ok(name, fmt.Sprintf("%s, %s", options.Addr, found["redis_version"]))
			answering++
		}
	}
	if all := len(t.LockServers); all > 0 && answering <= all/2 {
		r.fail("lock_redis", fmt.Sprintf("%d of %d can be used", answering, all), "without a majority no lock is had, and no request is decided", "start the others, or correct their URLs")
	}
}
