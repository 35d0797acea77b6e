package preflight_test

import (
	"bytes"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/audit"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/preflight"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// withoutAnswer is a connection to a Redis that does not answer a command with a word.
type withoutAnswer struct {
	net.Conn
	word []byte
}

func (c withoutAnswer) Write(text []byte) (n int, err error) {
	if bytes.Contains(text, c.word) {
		return len(text), nil
	}
	return c.Conn.Write(text)
}

// TestRedisFormat_NoAnswer_IsNotAPermission reads the format from a Redis that does not answer in time: the advice is not
// about the keys of its user.
func TestRedisFormat_NoAnswer_IsNotAPermission(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	slow := wrapped(func(conn net.Conn) net.Conn {
		return withoutAnswer{conn, []byte("get\r\n$19\r\nholdfast:{0}:format")}
	})
	format := w.expect("a slow Redis", []string{"redis.format fail"}, slow,
		func(t *preflight.Target) { t.Redis.ReadTimeout = 100 * time.Millisecond })["redis.format"]
	if !strings.Contains(format.Impact, "in time") || strings.Contains(format.Fix, "allow") {
		t.Errorf("%+v", format)
	}
}

// TestRedis_PolicyNotInInfo_IsUnknown checks a Redis whose INFO does not show its eviction policy.
func TestRedis_PolicyNotInInfo_IsUnknown(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.expect("a provider's Redis", []string{"redis.maxmemory_policy unknown"}, altered(func(reply []byte) []byte {
		return bytes.ReplaceAll(reply, []byte("maxmemory_policy:"), []byte("xxxxxxxxx_xxxxxx:"))
	}))
}

// TestRedis_Misconfigured_FailsAndFixRepairs changes one setting of Redis after the other. Only its
// check fails, and the fix of the check repairs it.
func TestRedis_Misconfigured_FailsAndFixRepairs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	w.expect("healthy servers", nil)

	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		w.config("maxmemory-policy", policy)
		w.applyFix(w.expect(policy, []string{"redis.maxmemory_policy fail"})["redis.maxmemory_policy"])
		w.expect("after "+policy, nil)
	}
	w.config("appendonly", "no") // it is rebuilt after each restart
	w.expect("no persistence", nil)

	// Notifications: the worker switches them on when it may.
	w.config("notify-keyspace-events", "KEA")
	w.expect("all notifications", nil)
	w.config("notify-keyspace-events", "")
	checks := w.expect("notifications that may not be switched on", []string{"redis.notifications warn"},
		w.user("noset", "-config|set"))
	if found := checks["redis.notifications"].Found; !strings.Contains(found, "config|set") {
		t.Errorf("the check does not name the missing permission: %s", found)
	}
	w.expect("no right to read settings", []string{"redis.notifications unknown"}, w.user("noconfig", "-config"))

	// The permissions of a worker.
	const scripts = "resetchannels -@all +info +time +ping +acl|whoami +client|setname +eval +evalsha +eval_ro +evalsha_ro +spublish +ssubscribe +psubscribe +get +set +mset +mget +del +unlink +exists +incr " +
		"+persist +pexpire +pttl +hget +hset +hdel +hlen +hmget +hincrby +hrandfield +zadd +zrem +zrange " + // and what audits do:
		"+scan +type +pexpiretime +hgetall +hscan +zcard +zscan +zscore &holdfast:* &__keyevent@*__:expired"
	little := []string{"redis.notifications unknown", "redis.privileges ok"}
	w.expect("a user who may little", little, w.user("little", scripts))
	w.expect("a user who may little, and no transactions", append(little, "redis.commands fail"),
		w.user("little", scripts), func(t *preflight.Target) { t.Optimistic = true })
	w.expect("a user who may little, and transactions", little,
		w.user("little", scripts+" +watch +unwatch +multi +exec +script|load"),
		func(t *preflight.Target) { t.Optimistic = true })
	for _, power := range []string{"flushall", "flushdb", "keys", "script|flush", "acl|setuser", "config|set",
		"shutdown", "replicaof"} {
		checks := w.check(w.user("little", scripts+" +"+power))
		if c := checks["redis.privileges"]; c.Status != preflight.Warn || !strings.HasSuffix(c.Found, " may run "+power) {
			t.Errorf("a user who may %s: %+v", power, c)
		}
	}
	checks = w.check(w.user("little", scripts+" ~*"))
	if c := checks["redis.privileges"]; c.Status != preflight.Warn || !strings.Contains(c.Found, "keys") {
		t.Errorf("a user that may read keys of others: %+v", c)
	}
	_, ofAudit := audit.ScriptCommands()
	for _, command := range slices.Concat(holds.ScriptCommands(), recovery.ScriptCommands(), locking.ScriptCommands(), ofAudit,
		[]string{"eval", "evalsha", "scan"}) {
		if command = strings.ToLower(command); command == "spublish" || command == "info" { // a hint; and below
			continue
		}
		c := w.check(w.user("little", scripts+" -"+command))["redis.commands"]
		if c.Status != preflight.Fail || !strings.Contains(c.Found, "may not run "+command+" ") ||
			!strings.HasSuffix(c.Fix, "use the worker's user") {
			t.Errorf("a user who may not %s: %+v", command, c)
		}
		w.applyFix(c)
		w.expect("a user who may "+command+" again", little, redisAt(hostOf(w.RedisURL), "little"))
	}
	for _, hint := range []string{"-spublish", "-ssubscribe", "-psubscribe", "resetchannels &holdfast:*",
		"resetchannels &__keyevent@*__:expired"} {
		c := w.expect("without "+hint, append(little, "redis.commands warn"),
			w.user("little", scripts+" "+hint))["redis.commands"]
		w.applyFix(c)
		w.expect("with "+hint, little, redisAt(hostOf(w.RedisURL), "little"))
	}
	w.expect("a user who may not run scripts",
		append(little, "redis.commands fail", "redis.privileges unknown", "redis.writes unknown"), w.user("little", scripts+" -eval -evalsha -eval_ro -evalsha_ro"))

	// The check runs none of the commands, and adds nothing to ACL LOG.
	stacktest.Must(t, w.redis.Do(ctx, "ACL", "LOG", "RESET").Err())
	w.expect("a user who may little, once more", little, w.user("little", scripts))
	if log := w.redis.Do(ctx, "ACL", "LOG").Val(); len(log.([]any)) > 0 {
		t.Errorf("ACL LOG has %v", log)
	}
	w.expect("a user who may not read its own keys", []string{"redis.format fail", "redis.commands fail"},
		w.user("nokeys", "resetkeys ~other:*"))
	checks = w.expect("no password", append(unreachable("redis"), "clocks unknown"), redisAt(hostOf(w.RedisURL), "stranger"))
	if c := checks["redis.reachable"]; !strings.Contains(c.Found, "WRONGPASS") {
		t.Errorf("an unknown user: %+v", c)
	}
	w.expect("a user who may not say INFO", append(unreachable("redis"), "clocks unknown"), w.user("noinfo", "-info"))

	// Formats.
	const key = "holdfast:{0}:format"
	for _, noted := range []string{"2", "1.5", "x"} {
		stacktest.Must(t, w.redis.Set(ctx, key, noted, 0).Err())
		w.expect("the format "+noted, []string{"redis.format fail"})
	}
	stacktest.Must(t, w.redis.Del(ctx, key).Err())
	w.expect("no format", nil)

	// Other replies.
	older := altered(func(reply []byte) []byte {
		return regexp.MustCompile(`redis_version:\d`).ReplaceAll(reply, []byte("redis_version:6"))
	})
	w.expect("an old Redis", []string{"redis.version fail"}, older)
	loading := altered(func(reply []byte) []byte {
		return bytes.Replace(reply, []byte("\nloading:0"), []byte("\nloading:1"), 1)
	})
	checks = w.expect("a Redis that loads its data", append(unreachable("redis"), "clocks unknown"), loading)
	if c := checks["redis.reachable"]; !strings.HasPrefix(c.Fix, "wait") {
		t.Errorf("a Redis that loads its data: %+v", c)
	}
	w.expect("no server", append(unreachable("redis"), "clocks unknown"), redisAt("127.0.0.1:1", ""))
	host, port, _ := net.SplitHostPort(hostOf(stacktest.Shared().RedisURL))
	stacktest.Must(t, w.redis.Do(ctx, "REPLICAOF", host, port).Err())
	checks = w.check()
	if c := checks["redis.role"]; c.Status != preflight.Fail || !strings.Contains(c.Found, host) {
		t.Errorf("a replica: %+v", c)
	}
}

// TestRedisCommands_ServerLacksCommands_FailsForNeededOnes checks servers whose redis.conf has removed commands.
func TestRedisCommands_ServerLacksCommands_FailsForNeededOnes(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	without := func(commands ...string) map[string]preflight.Check {
		t.Helper()
		port := strconv.Itoa(stacktest.QuietPorts(t, 1)[0])
		args := []string{"--port", port, "--bind", "127.0.0.1", "--save", ""}
		for _, command := range commands {
			args = append(args, "--rename-command", command, "")
		}
		stacktest.RunRedis(t, stacktest.ConnectRedis(t, "redis://127.0.0.1:"+port), t.TempDir(), args...)
		return w.check(redisAt("127.0.0.1:"+port, ""))
	}
	for _, c := range []struct {
		commands, want string
		status         preflight.Status
	}{
		{"KEYS FLUSHALL SHUTDOWN SSUBSCRIBE PSUBSCRIBE", "user default may run all commands of the scripts", preflight.OK},
		{"KEYS PSUBSCRIBE SPUBLISH PEXPIRE ZADD", "this server does not have pexpire, zadd", preflight.Fail},
		{"EVALSHA EVALSHA_RO EVAL EVAL_RO", "ERR unknown command", preflight.Fail},
	} {
		got := without(strings.Fields(c.commands)...)["redis.commands"]
		if got.Status != c.status || !strings.Contains(got.Found, c.want) {
			t.Errorf("without %s: %+v", c.commands, got)
		}
	}
}

// unreachable returns the states of the checks of a server that does not answer.
func unreachable(server string) (but []string) {
	for name := range healthy {
		switch {
		case name == server+".reachable":
			but = append(but, name+" fail")
		case strings.HasPrefix(name, server+"."):
			but = append(but, name+" skipped")
		}
	}
	return but
}

// TestClocks_Apart_FailsOnlyWhenCertain changes the clock of Redis and delays its replies. The
// check fails only when the clock is certainly wrong.
func TestClocks_Apart_FailsOnlyWhenCertain(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	seconds := regexp.MustCompile(`^\*2\r\n\$10\r\n(\d{10})\r\n`)
	off := func(by int64) func(*preflight.Target) {
		return altered(func(reply []byte) []byte {
			found := seconds.FindSubmatch(reply)
			if found == nil {
				return reply
			}
			n, _ := strconv.ParseInt(string(found[1]), 10, 64)
			return bytes.Replace(reply, found[1], []byte(strconv.FormatInt(n+by, 10)), 1)
		})
	}
	for _, by := range []int64{1, -1, 3600} {
		c := w.expect(fmt.Sprintf("a clock that is %d s off", by), []string{"clocks fail"}, off(by))["clocks"]
		if !strings.Contains(c.Found, "redis") || !strings.Contains(c.Fix, "chronyc") {
			t.Errorf("a clock that is %d s off: %+v", by, c)
		}
	}
	w.expect("a clock that is right, in the same way", nil, off(0))
	slow := altered(func(reply []byte) []byte {
		if seconds.Match(reply) {
			time.Sleep(600 * time.Millisecond) // a network that is slow in one direction
		}
		return reply
	})
	w.expect("a clock that is right, far away", []string{"clocks unknown"}, slow)
}

// TestLockServers_Unsuitable_FailOrWarn misconfigures the lock servers of Redlock.
func TestLockServers_Unsuitable_FailOrWarn(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	urls := stacktest.LockServers(t, 3)
	with := func(urls ...string) func(*preflight.Target) {
		return func(t *preflight.Target) {
			for _, url := range urls {
				t.LockServers = append(t.LockServers, stacktest.RedisOptions(url))
			}
		}
	}
	const down = "redis://127.0.0.1:1/0"
	w.expect("three", []string{"lock_redis.1 ok", "lock_redis.2 ok", "lock_redis.3 ok"}, with(urls...))
	w.expect("one down", []string{"lock_redis.1 ok", "lock_redis.2 warn", "lock_redis.3 ok"}, with(urls[0], down, urls[1]))
	w.expect("two down", []string{"lock_redis.1 warn", "lock_redis.2 warn", "lock_redis.3 ok", "lock_redis fail"},
		with(down, down, urls[1]))
	_, port, _ := net.SplitHostPort(hostOf(urls[0]))
	w.expect("one twice", []string{"lock_redis.1 ok", "lock_redis.2 ok", "lock_redis.3 fail"},
		with(urls[0], urls[1], "redis://localhost:"+port))
	w.config("maxmemory-policy", "allkeys-lru")
	checks := w.expect("one that evicts",
		[]string{"lock_redis.1 ok", "lock_redis.2 ok", "lock_redis.3 warn", "redis.maxmemory_policy fail"},
		with(urls[0], urls[1], w.RedisURL))
	w.applyFix(checks["lock_redis.3"])
	w.expect("three again", []string{"lock_redis.1 ok", "lock_redis.2 ok", "lock_redis.3 ok"},
		with(urls[0], urls[1], w.RedisURL))
}
