package deployments

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// ofRedis has commands with the users that may run them.
var ofRedis = map[string][]string{
	"FLUSHALL": {}, "FLUSHDB": {}, "FLUSHALL ASYNC": {}, "SWAPDB 0 1": {}, "SELECT 1": {}, "MOVE holdfast:k 1": {},
	"CONFIG SET maxmemory-policy allkeys-lru": {}, "CONFIG GET *": {}, "CONFIG REWRITE": {}, "CONFIG RESETSTAT": {},
	"KEYS *": {}, "KEYS holdfast:*": {}, "SCRIPT FLUSH": {}, "SCRIPT KILL": {}, "FUNCTION FLUSH": {}, "FUNCTION LIST": {},
	"SHUTDOWN NOSAVE": {}, "SAVE": {}, "BGSAVE": {}, "BGREWRITEAOF": {}, "REPLICAOF NO ONE": {}, "FAILOVER": {},
	"ACL LIST": {}, "ACL SETUSER x on": {}, "ACL GETUSER holdfast_worker": {}, "CLIENT KILL ID 99999": {}, "CLIENT LIST": {}, "CLIENT PAUSE 1": {},
	"CLIENT NO-EVICT on": {}, "MONITOR": {}, "MODULE LIST": {}, "MEMORY DOCTOR": {}, "SLOWLOG GET": {}, "LATENCY RESET": {}, "PUBLISH holdfast:x y": {},
	"RENAME holdfast:k holdfast:l": {}, "DUMP holdfast:k": {}, "RESTORE holdfast:k 0 x": {}, "SORT holdfast:k": {}, "OBJECT ENCODING holdfast:k": {},
	"MIGRATE 127.0.0.1 1 holdfast:k 0 1": {}, "UNLINK others:k": {}, "MSET holdfast:k x others:k y": {}, "APPEND holdfast:k x": {}, "LPUSH holdfast:k x": {},

	"SCAN 0":                  {"worker", "auditor"},
	"TYPE holdfast:k":         {"worker", "auditor"},
	"TYPE others:k":           {},
	"HGETALL holdfast:h":      {"worker", "auditor"},
	"HGETALL others:h":        {},
	"HRANDFIELD holdfast:h 1": {"worker"},
	"HRANDFIELD others:h 1":   {},
	"HKEYS holdfast:h":        {},
	"ZSCAN holdfast:z 0":      {"worker", "auditor"},
	"ZCARD holdfast:z":        {"worker", "auditor"},
	"ZADD others:z 1 m":       {},
	"GET holdfast:k":          {"worker", "auditor"},
	"MGET holdfast:k others":  {},
	"GET others:k":            {}, "GET holdfast_dev:k": {}, "GET xholdfast:k": {}, "SET others:k x": {}, "HGET others:h f": {}, "DEL others:k": {},
	"SET holdfast:k x": {"worker"}, "DEL holdfast:k": {"worker"}, "HSET holdfast:h f v": {"worker"}, "ZADD holdfast:z 1 m": {"worker"},
	"SET holdfast:{7}:epoch x": {"worker", "migrator"}, "GET holdfast:{7}:epoch": {"worker", "migrator", "auditor"}, "SETNX holdfast:{7}:epoch x": {},
	"GET holdfast:{7}:moving": {"worker", "migrator", "auditor"}, "SET holdfast:{7}:moving x": {"worker"},
	"SET holdfast:{0}:format 1": {"worker", "migrator"}, "DEL holdfast:{7}:epoch": {"worker"},
	"UNLINK holdfast:k": {"worker"}, "MSET holdfast:k x": {"worker"}, "UNLINK holdfast:{7}:epoch": {"worker"},
	"SPUBLISH holdfast:x y": {"worker"}, "SPUBLISH others:x y": {}, "SSUBSCRIBE holdfast:x": {"worker"}, "SSUBSCRIBE others:x": {},
	"PSUBSCRIBE __keyevent@*__:expired": {"worker"}, "PSUBSCRIBE *": {}, "PSUBSCRIBE __keyevent@0__:*": {}, "PSUBSCRIBE __keyspace@0__:*": {}, "SUBSCRIBE others:x": {},
	"INFO": {"worker", "migrator", "auditor"}, "TIME": {"worker", "migrator", "auditor"}, "ACL WHOAMI": {"worker", "migrator", "auditor"}, "PING": {"worker", "migrator", "auditor"},
	"EVAL return{redis.call('FLUSHALL')} 0":                 {},
	"EVAL return{redis.call('KEYS','*')} 0":                 {},
	"EVAL return{redis.call('GET','others:k')} 0":           {},
	"EVAL return{redis.call('SET','others:k','x')} 0":       {},
	"EVAL return{redis.call('GET','holdfast:{7}:epoch')} 0": {"worker", "migrator"},
	"EVAL return{redis.call('SET','holdfast:k','x')} 0":     {"worker"},
	"EVAL return{redis.call('SPUBLISH','others:x','y')} 0":  {},

	"EVAL_RO return{redis.call('GET','holdfast:{7}:epoch')} 0": {"worker", "migrator", "auditor"},
	"EVAL_RO return{redis.call('HGETALL','holdfast:h')} 0":     {"worker", "auditor"},
	"EVAL_RO return{redis.call('GET','others:k')} 0":           {},
	"EVAL_RO return{redis.call('KEYS','*')} 0":                 {},
}

// TestRedisUsers_EachCommand_OnlyAllowedUsers runs each command as each user.
func TestRedisUsers_EachCommand_OnlyAllowedUsers(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	admin := redisAs(t, g, "admin")
	if err := admin.Set(t.Context(), "others:k", "precious", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"worker", "migrator", "auditor"} {
		t.Run(user, func(t *testing.T) {
			client := redisAs(t, g, user)
			for line, users := range ofRedis {
				var args []any
				for _, word := range strings.Fields(line) {
					args = append(args, word)
				}
				conn := client.Conn() // a subscription changes the mode of its connection
				err := conn.Do(t.Context(), args...).Err()
				_ = conn.Close()
				if strings.Contains(line, "SUBSCRIBE") {
					client.Close()
					client = redisAs(t, g, user)
				}
				want := slices.Contains(users, user)
				if got := !refusedByRedis(err); got != want {
					t.Errorf("%s may run %s: %v (%v), want %v", user, line, got, err, want)
				}
			}
		})
	}
	if got := admin.Get(t.Context(), "others:k").Val(); got != "precious" {
		t.Errorf("the key of another program is now %q", got)
	}
	_, address, _ := g.URLs("worker")
	anonymous := stacktest.RedisOptions(address)
	anonymous.Username, anonymous.Password = "", ""
	client := redis.NewClient(anonymous)
	defer func() { _ = client.Close() }()
	if err := client.Ping(t.Context()).Err(); !redis.HasErrorPrefix(err, "NOAUTH") {
		t.Errorf("a client without a user gets %v", err)
	}
}

// refusedByRedis reports whether err is a missing permission, of a command or inside a script.
func refusedByRedis(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") ||
		redis.HasErrorPrefix(err, "The user executing the script can't") || // Redis 7.0
		redis.HasErrorPrefix(err, "ACL failure in script") // Redis 7.2 and later
}

// writeRedisFiles writes redis.conf and the ACL file that it names into a directory.
func writeRedisFiles(t *testing.T, dir string) {
	t.Helper()
	var users strings.Builder // as grep and envsubst print them
	for line := range strings.Lines(read(t, "redis/users.conf.template")) {
		if strings.HasPrefix(line, "user ") {
			users.WriteString(os.ExpandEnv(line))
		}
	}
	const installed = "/etc/redis/users.acl"
	conf := read(t, "redis/redis.conf")
	if !strings.Contains(conf, "\naclfile "+installed+"\n") {
		t.Errorf("redis.conf does not name %s", installed)
	}
	conf = strings.ReplaceAll(conf, installed, filepath.Join(dir, "users.acl"))
	for name, text := range map[string]string{"redis.conf": conf, "users.acl": users.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUsersACL_PasswordNotExported_IsShown runs the command that writes users.acl, as README.md and the template have it, with
// and without a password of the administrator. Without one, Redis would accept each client as this user.
func TestUsersACL_PasswordNotExported_IsShown(t *testing.T) {
	t.Parallel()
	const envsubst = "envsubst() { eval \"cat <<EOF\n$(cat)\nEOF\"; }\n" // which not each machine has
	command := regexp.MustCompile(`(?m)\(umask 077; grep .*$`)
	for _, file := range []string{"README.md", "redis/users.conf.template"} {
		for _, password := range []string{"s3cret", ""} {
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "redis"), os.DirFS("redis")); err != nil {
				t.Fatal(err)
			}
			shell := exec.CommandContext(t.Context(), "sh", "-c", envsubst+command.FindString(read(t, file)))
			shell.Dir = filepath.Join(dir, filepath.Dir(file))
			shell.Env = append(shell.Environ(), "HOLDFAST_REDIS_ADMIN_PASSWORD="+password, "HOLDFAST_REDIS_WORKER_PASSWORD=w",
				"HOLDFAST_REDIS_MIGRATOR_PASSWORD=m", "HOLDFAST_REDIS_AUDITOR_PASSWORD=a")
			want := ""
			if password == "" {
				want = "user holdfast_admin on > ~* &* +@all\n"
			}
			if out, err := shell.CombinedOutput(); (err == nil) != (password != "") || string(out) != want {
				t.Errorf("the command of %s with the password %q: %v: %s", file, password, err, out)
			}
		}
	}
}

// TestRedisConf_AsInREADME_Starts starts Redis with these files as described in README.md, and
// compares its users with those of all other tests. It starts again after a Sentinel had it rewrite its file.
func TestRedisConf_AsInREADME_Starts(t *testing.T) {
	t.Parallel()
	g := stacktest.NewRestrictedServers(t)
	dir := t.TempDir()
	writeRedisFiles(t, dir)
	ports := stacktest.QuietPorts(t, 1)
	port := fmt.Sprint(ports[0])
	_, address, _ := g.URLs("admin")
	options := stacktest.RedisOptions(address)
	options.Addr = "127.0.0.1:" + port
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	args := []string{"redis.conf", "--port", port, "--bind", "127.0.0.1"}
	stop := stacktest.RunRedis(t, client, dir, args...)
	const twoWrites = "redis.call('SET', KEYS[1], 'x') redis.call('SET', KEYS[2], 'x')" // a transaction in the append-only file
	if err := client.Eval(t.Context(), twoWrites, []string{"holdfast:a", "holdfast:b"}).Err(); !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	if err := client.ConfigRewrite(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	stop()
	stacktest.RunRedis(t, client, dir, args...)
	if n := client.Exists(t.Context(), "holdfast:a", "holdfast:b").Val(); n != 2 {
		t.Errorf("after a restart %d of 2 keys are there", n)
	}
	users := func(c *redis.Client) string {
		t.Helper()
		list, err := c.Do(t.Context(), "ACL", "LIST").StringSlice()
		if err != nil {
			t.Fatal(err)
		}
		for i, user := range list { // the order of commands does not matter
			words := strings.Fields(user)
			slices.Sort(words)
			list[i] = strings.Join(words, " ")
		}
		return strings.Join(list[1:], "\n") // the first is the default user
	}
	if got, want := users(client), users(redisAs(t, g, "admin")); got != want || strings.Count(got, "holdfast_") != 4 {
		t.Errorf("the users are\n%s\nin other tests they are\n%s", got, want)
	}
	for name, want := range map[string]string{
		"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "save": "", "notify-keyspace-events": "xE",
	} {
		if got := client.ConfigGet(t.Context(), name).Val()[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
