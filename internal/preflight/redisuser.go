package preflight

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/recovery"
)

// Commands that a user may run, by their names in ACL rules.
const (
	configGet = "config|get"
	configSet = "config|set"
	othersKey = "get of others' keys"
)

// exampleKey is the part of an example key after the namespace. No such key exists.
const exampleKey = ":{0}:preflight:example"

// neededCommands returns the commands that a worker needs, with example arguments: those inside
// scripts, those that run scripts, and those that find the keys for them.
func neededCommands(namespace string) map[string][]string {
	key := namespace + exampleKey
	_, ofAudit := audit.ScriptCommands()
	arguments := map[string][]string{
		"HDEL": {key, "f"}, "HGET": {key, "f"}, "HINCRBY": {key, "f", "1"}, "HMGET": {key, "f"}, "HSET": {key, "f", "v"},
		"HSCAN": {key, "0"}, "PEXPIRE": {key, "1"}, "SET": {key, "v"}, "ZADD": {key, "1", "m"},
		"ZRANGE": {key, "0", "0"}, "ZREM": {key, "m"}, "MSET": {key, "v"}, "ZSCAN": {key, "0"}, "ZSCORE": {key, "m"},
		"TIME": {}, "SPUBLISH": {key, "m"},
	}
	noHash := strings.Repeat("0", 40)
	commands := map[string][]string{
		"eval": {"EVAL", "", "0"}, "evalsha": {"EVALSHA", noHash, "0"},
		"eval_ro": {"EVAL_RO", "", "0"}, "evalsha_ro": {"EVALSHA_RO", noHash, "0"},
		"scan": {"SCAN", "0"}, "info": {"INFO"},
	}
	for _, name := range slices.Concat(holds.ScriptCommands(), recovery.ScriptCommands(), locking.ScriptCommands(), ofAudit) {
		rest, special := arguments[name]
		if !special {
			rest = []string{key}
		}
		commands[strings.ToLower(name)] = append([]string{name}, rest...)
	}
	return commands
}

// optimisticCommands returns the commands of the lock strategy optimistic.
func optimisticCommands(namespace string) map[string][]string {
	return map[string][]string{
		"watch": {"WATCH", namespace + exampleKey}, "unwatch": {"UNWATCH"}, "multi": {"MULTI"}, "exec": {"EXEC"},
		"script|load": {"SCRIPT", "LOAD", ""},
	}
}

// hintCommands returns the commands for notifications, which make a worker faster and which it can
// do without.
func hintCommands(namespace string) map[string][]string {
	return map[string][]string{
		"ssubscribe": {"SSUBSCRIBE", namespace + exampleKey}, "spublish": {"SPUBLISH", namespace + exampleKey, "m"},
		"psubscribe": {"PSUBSCRIBE", holds.ExpiredChannel},
	}
}

// resumeCommands are the commands with which a worker of a Redis Cluster knows, after a failover, that no slot was moving
// at that time.
var resumeCommands = map[string][]string{
	"cluster|shards": {"CLUSTER", "SHARDS"}, "cluster|countkeysinslot": {"CLUSTER", "COUNTKEYSINSLOT", "0"},
}

// excessCommands returns commands that a worker never runs.
func excessCommands(namespace string) map[string][]string {
	return map[string][]string{
		configSet: {"CONFIG", "SET", "maxmemory-policy", "noeviction"}, "flushall": {"FLUSHALL"}, "flushdb": {"FLUSHDB"},
		"keys": {"KEYS", "no-such-key"}, "script|flush": {"SCRIPT", "FLUSH"},
		"acl|setuser": {"ACL", "SETUSER", "no-such-user"}, "shutdown": {"SHUTDOWN"}, "replicaof": {"REPLICAOF", "NO", "ONE"},
		othersKey: {"GET", "not-" + namespace + ":nothing"},
	}
}

// permissions are the commands that a user may run.
type permissions struct {
	do     map[string]bool // by name
	absent map[string]bool // by name: the server does not have the command
	err    error           // why they are unknown
}

// scriptPermissions checks which commands its user may run. It runs none of them, and adds nothing
// to ACL LOG.
//
// ARGV  commands, each word followed by a line feed
// Returns ok, and for each command 1, 0 or -1: this server does not have it (rename-command, or a provider's Redis)
var scriptPermissions = lua.New("permissions", "no-writes", `
local reply = {'ok'}
for i, command in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(command, '([^\n]*)\n') do words[#words + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  reply[i + 1] = known and (may and 1 or 0) or -1
end
return reply
`)

func readPermissions(ctx context.Context, client *redis.Client, namespace string) permissions {
	var names []string
	var args []any
	for _, commands := range []map[string][]string{
		neededCommands(namespace), optimisticCommands(namespace), hintCommands(namespace), excessCommands(namespace),
		resumeCommands, {configGet: {"CONFIG", "GET", "save"}},
	} {
		for name, words := range commands {
			names, args = append(names, name), append(args, strings.Join(words, "\n")+"\n")
		}
	}
	c := &lua.Call{Script: scriptPermissions, Args: args}
	lua.Run(ctx, client, []*lua.Call{c})
	if err := c.Expect(len(names)); err != nil {
		return permissions{err: err}
	}
	may := permissions{do: make(map[string]bool, len(names)), absent: make(map[string]bool)}
	for i, name := range names {
		may.do[name], may.absent[name] = c.Reply[i] == "1", c.Reply[i] == "-1"
	}
	return may
}

// lacks returns the names of the commands that are not permitted, and of those that the server does not have.
func (p permissions) lacks(commands map[string][]string) (refused, absent []string) {
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		switch {
		case p.absent[name]:
			absent = append(absent, name)
		case !p.do[name]:
			refused = append(refused, name)
		}
	}
	return refused, absent
}

// redisCommands checks that the user may run all commands that a worker needs.
func (r *report) redisCommands(t Target, user string, may permissions) {
	allow := func(names []string, rest string) string {
		return "redis-cli acl setuser " + user + " +" + strings.Join(names, " +") + " " + rest +
			"\nand the same in users.acl; stop the workers first. Or use the worker's user"
	}
	needed := neededCommands(t.Namespace)
	delete(needed, "spublish") // scripts work without it
	if t.Optimistic {
		maps.Copy(needed, optimisticCommands(t.Namespace))
	}
	lacks, absent := may.lacks(needed)
	missingHints, _ := may.lacks(hintCommands(t.Namespace))
	missingResume, _ := may.lacks(resumeCommands)
	keys := "~" + t.Namespace + ":*"
	const (
		noScript = "no script can run"
		halfDone = "a script stops at a command that is refused, and its earlier writes remain: slots would be counted " +
			"without a hold"
		restore = "remove rename-command for it from redis.conf and restart Redis, or use a Redis that has it"
	)
	switch {
	case redis.HasErrorPrefix(may.err, "NOPERM"):
		r.fail(RedisCommands, may.err.Error(), noScript, allow([]string{"eval", "evalsha", "eval_ro", "evalsha_ro"}, keys))
	case redis.HasErrorPrefix(may.err, "unknown command"):
		r.fail(RedisCommands, may.err.Error(), noScript, restore)
	case may.err != nil:
		r.unknown(RedisCommands, may.err.Error(), "check again")
	case len(absent) > 0:
		r.fail(RedisCommands, "this server does not have "+strings.Join(absent, ", "), halfDone, restore)
	case len(lacks) > 0:
		r.fail(RedisCommands,
			fmt.Sprintf("user %s may not run %s with keys %s:*", user, strings.Join(lacks, ", "), t.Namespace), halfDone,
			allow(lacks, keys))
	case len(missingHints) > 0:
		r.warn(RedisCommands,
			fmt.Sprintf("user %s may not run %s on its channels", user, strings.Join(missingHints, ", ")),
			"released locks, or expired holds, are detected later, by the timer",
			allow(missingHints, "&"+t.Namespace+":* &"+holds.ExpiredChannel))
	case t.Primaries != nil && len(missingResume) > 0:
		r.warn(RedisCommands, fmt.Sprintf("user %s may not run %s", user, strings.Join(missingResume, ", ")),
			"after each failover the partitions of the server are rebuilt, where the few lost changes would do",
			allow(missingResume, keys))
	default:
		r.ok(RedisCommands, "user "+user+" may run all commands of the scripts")
	}
}

// redisPrivileges checks whether the user may run commands that a worker does not need.
func (r *report) redisPrivileges(t Target, user string, may permissions) {
	if may.err != nil {
		r.unknown(RedisPrivileges, may.err.Error(), "ACL GETUSER "+user+
			"\nas an administrator: it should have no more than deployments/redis/users.conf.template")
		return
	}
	has := slices.Sorted(maps.Keys(excessCommands(t.Namespace)))
	has = slices.DeleteFunc(has, func(name string) bool { return !may.do[name] })
	if len(has) == 0 {
		r.ok(RedisPrivileges, "user "+user+" has none of the checked permissions that a worker does not need")
		return
	}
	r.warn(RedisPrivileges, "user "+user+" may run "+strings.Join(has, ", "),
		"a mistake, or an intruder with the worker's login, could delete all of Redis or read the data of others",
		"use a user like holdfast_worker in deployments/redis/users.conf.template")
}
