// Package lua runs Lua scripts in Redis: many calls in one round trip, and several calls in one
// run.
//
// To start a run costs Redis as much as three or four commands. Therefore calls of one script are
// packed: they share one run, which returns a reply for each of them. In a Redis Cluster only calls
// with the same hash tag are packed, because a run must stay in one hash slot. A packed call has
// the same effect and the same reply as a call that runs alone. An error of one call does not
// affect the others.
//
// While a hash slot moves to another server of a Redis Cluster, each of the two has some of its keys. A
// script could fail at a key that has moved, after some of its writes, or take it for a missing one.
// Therefore a script in a cluster first reads a key that never exists: the server that the slot leaves
// refuses that, and the other one refuses the script until it has all keys. So a script runs completely
// or not at all (see ShardError).
package lua

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Script is a named script. Its source starts with a shebang. So a Redis that is read-only, cannot
// persist or (without the flag allow-oom) is out of memory refuses the script before its first
// command, not after some of its writes.
type Script struct {
	Name   string
	reads  bool // the script has the flag no-writes
	script *redis.Script
	pack   int // maximum number of calls in one run; 0 when the script cannot be packed

	inCluster *redis.Script // what runs in a Redis Cluster: script, with checkSlot before it
}

// New returns a script. flags are the flags of its shebang, for example "no-writes" or "".
func New(name, flags, source string) Script {
	shebang := "#!lua"
	if flags != "" {
		shebang += " flags=" + flags
	}
	return Script{
		Name: name, reads: strings.Contains(flags, "no-writes"),
		script:    redis.NewScript(shebang + "\n" + source),
		inCluster: redis.NewScript(shebang + "\n" + checkSlot + source),
	}
}

//go:embed pack.lua
var packSource string

// NewPacked returns a script of which up to pack calls share one run. source must define
// local function run(KEYS, ARGV), which is called with the KEYS and ARGV of each call.
func NewPacked(name, flags string, pack int, source string) Script {
	s := New(name, flags, source+"\n"+packSource)
	s.pack = pack
	return s
}

// Source returns the text of lua/<name>.lua, which the caller's package has embedded.
func Source(files embed.FS, name string) string {
	text, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: cannot happen in a program that was built
	}
	return string(text)
}

var commandPattern = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)

// Commands returns the Redis commands that the source of a script uses, sorted and without repeats.
func Commands(source string) (names []string) {
	for _, found := range commandPattern.FindAllStringSubmatch(source, -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Call is one call of a script. Run sets its result.
type Call struct {
	Script Script
	Keys   []string
	Args   []any

	Status string   // the first value of the reply, by convention one word
	Reply  []string // the other values
	// Err is an error of Redis or of the connection. After an error of the connection the call may
	// have run nevertheless, because a lost reply cannot be distinguished from a lost request.
	Err error
}

// Expect returns Err, or an error unless the status is ok with at least n more values.
func (c *Call) Expect(n int) error {
	if c.Err == nil && (c.Status != "ok" || len(c.Reply) < n) {
		c.Err = fmt.Errorf("%s.lua: unexpected reply %q with %d values", c.Script.Name, c.Status, len(c.Reply))
	}
	return c.Err
}

// Run runs calls in one pipelined round trip and sets the result of each. A call whose script the
// server does not know (it has restarted, or its script cache was flushed) has not run. Run sends
// these calls again with their source, because go-redis does so only for single calls, not in a
// pipeline. In a Redis Cluster there is one pipeline for each server, and a failure of one server
// concerns only its calls, which have a *ShardError. Run sends a call again, once, when its slot has moved to
// another server.
//
// The client must have MaxRetries -1, and in a cluster MaxRedirects -1. Otherwise it would repeat
// calls that may have run, or ask a server for keys that it does not have yet. A caller that retries
// must use calls that give the same answer again.
func Run(ctx context.Context, client redis.UniversalClient, calls []*Call) {
	RunWithin(ctx, 0, client, calls)
}

// RunWithin is like Run, with a timeout for each of its pipelines. With 0 only the client's own
// timeouts apply, and in a context of TimeOutOnce its limit. A server that does not answer in time
// does not prevent that a script is sent to another server that does not know it.
func RunWithin(
	ctx context.Context, limit time.Duration, client redis.UniversalClient, calls []*Call,
) {
	if len(calls) == 0 {
		return
	}
	cluster, is := client.(*redis.ClusterClient)
	if !is {
		runKnown(ctx, limit, client, calls)
		return
	}
	timedOut, _ := ctx.Value(timeoutsKey{}).(*timeouts) // nil without TimeOutOnce
	if timedOut != nil && limit == 0 {
		limit = onceLimit
	}
	if asked := timedOut.take(ctx, cluster, calls); len(asked) > 0 {
		runKnown(ctx, limit, client, asked)
		if moved := reload(ctx, cluster, asked); len(moved) > 0 {
			runKnown(ctx, limit, client, moved)
		}
	}
	for _, c := range calls {
		c.Err = OfShard(ctx, client, c.Keys[0], c.Err)
		timedOut.record(c.Err)
	}
}

// runKnown runs calls, those of scripts that a server does not know by their source.
func runKnown(ctx context.Context, limit time.Duration, client redis.UniversalClient, calls []*Call) {
	if unknown := pipeline(ctx, limit, client, calls, false); len(unknown) > 0 {
		pipeline(ctx, limit, client, unknown, true)
	}
}

// eval evaluates the script through a pipe, by its hash or by its source. A script that only reads is evaluated by the
// read-only command, so that a Redis user who may only read can run it.
func (s Script) eval(
	ctx context.Context, pipe redis.Scripter, cluster, bySource bool, keys []string, args []any,
) *redis.Cmd {
	script := s.script
	if cluster {
		script = s.inCluster
	}
	switch {
	case s.reads && bySource:
		return script.EvalRO(ctx, pipe, keys, args...)
	case s.reads:
		return script.EvalShaRO(ctx, pipe, keys, args...)
	case bySource:
		return script.Eval(ctx, pipe, keys, args...)
	}
	return script.EvalSha(ctx, pipe, keys, args...)
}

// pipeline runs calls in one pipeline and returns those whose script a server does not know.
func pipeline(
	ctx context.Context, limit time.Duration, client redis.UniversalClient, calls []*Call, bySource bool,
) (unknown []*Call) {
	if limit > 0 {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = bounded
	}
	cluster := inCluster(client)
	_ = exec(ctx, client.Pipeline(), packed(calls, cluster), cluster, bySource) // each call has its own error
	for _, c := range calls {
		if c.unknown() {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// Exec executes a pipeline and returns nil when its commands have errors of their own. It returns the error of a
// connection that could not be initialised: then nothing was sent, and the commands have no error.
func Exec(ctx context.Context, pipe redis.Pipeliner) error {
	commands, err := pipe.Exec(ctx)
	if slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return nil
	}
	return err
}

// exec sends runs through a pipe and sets the results of their calls. It returns the error of the
// connection or the transaction, or otherwise the first error of a run.
func exec(ctx context.Context, pipe redis.Pipeliner, runs []run, cluster, bySource bool) error {
	commands := make([]*redis.Cmd, len(runs))
	for i, run := range runs {
		keys, args := run.arguments()
		commands[i] = run[0].Script.eval(ctx, pipe, cluster, bySource, keys, args)
	}
	_, execErr := pipe.Exec(ctx)
	for i, run := range runs {
		values, err := commands[i].Slice()
		if execErr != nil && commands[i].Err() == nil && commands[i].Val() == nil {
			err = execErr // no connection: the command was not sent
		}
		run.setReplies(values, err)
	}
	return execErr
}

// run contains the calls that share one run of their script.
type run []*Call

// unpackedArgsMin is the number of arguments from which a call runs alone. Lua's unpack is limited
// to about 8,000 values.
const unpackedArgsMin = 4000

// packed divides calls into runs. With bySlot the calls of one run have the same hash tag. Calls of
// the same script and hash tag keep their order.
func packed(calls []*Call, bySlot bool) []run {
	type place struct {
		script *redis.Script
		slot   string
	}
	open := make(map[place]int) // index of the last run, to which calls may be added
	runs := make([]run, 0, len(calls))
	for _, c := range calls {
		if c.Script.pack <= 1 {
			runs = append(runs, run{c})
			continue
		}
		at := place{script: c.Script.script}
		if bySlot {
			at.slot = hashTag(c.Keys[0])
		}
		if len(c.Args) >= unpackedArgsMin {
			delete(open, at) // later calls must run after this one
			runs = append(runs, run{c})
			continue
		}
		if i, found := open[at]; found && len(runs[i]) < c.Script.pack {
			runs[i] = append(runs[i], c)
			continue
		}
		open[at] = len(runs)
		runs = append(runs, run{c})
	}
	return runs
}

// hashTag returns the part of a key that determines its hash slot.
func hashTag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// arguments returns the KEYS and ARGV of a run in the format of pack.lua.
func (r run) arguments() (keys []string, args []any) {
	if r[0].Script.pack == 0 {
		return r[0].Keys, r[0].Args
	}
	if len(r) == 1 {
		return r[0].Keys, append(r[0].Args, len(r[0].Keys), len(r[0].Args), 1)
	}
	numKeys, numArgs := 0, 1
	for _, c := range r {
		numKeys, numArgs = numKeys+len(c.Keys), numArgs+2+len(c.Args)
	}
	keys, args = make([]string, 0, numKeys), make([]any, 0, numArgs)
	for _, c := range r {
		keys, args = append(keys, c.Keys...), append(args, c.Args...)
	}
	for _, c := range r {
		args = append(args, len(c.Keys), len(c.Args))
	}
	return keys, append(args, len(r))
}

// scriptError is the error of Redis for one call of a run.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError marks the error as one of Redis, not of the connection.
func (scriptError) RedisError() {}

// setReplies sets the result of each call of a run.
func (r run) setReplies(values []any, err error) {
	if r[0].Script.pack == 0 || err != nil {
		for _, c := range r {
			c.setReply(values, err)
		}
		return
	}
	for i, c := range r {
		var its []any
		if i < len(values) {
			its, _ = values[i].([]any) // a value of another type counts as an empty reply
		}
		if len(its) == 2 && its[0] == "error" {
			c.setReply(nil, scriptError(fmt.Sprint(its[1])))
			continue
		}
		c.setReply(its, nil)
	}
}

func (c *Call) unknown() bool { return c.Err != nil && redis.HasErrorPrefix(c.Err, "NOSCRIPT") }

func (c *Call) setReply(values []any, err error) {
	c.Status, c.Reply, c.Err = "", nil, nil
	if err != nil {
		hint := ""
		if deniedInScript(err) { // Redis 7.0 does not name the command, and no version the key
			hint = " (ACL LOG in Redis shows the command, key or channel that was denied)"
		}
		c.Err = WrapError(fmt.Errorf("%s.lua: %w%s", c.Script.Name, err, hint))
		return
	}
	words := make([]string, len(values))
	for i, value := range values {
		switch v := value.(type) {
		case string:
			words[i] = v
		case int64:
			words[i] = strconv.FormatInt(v, 10)
		default:
			c.Err = fmt.Errorf("%s.lua: unexpected %T in its reply", c.Script.Name, value)
			return
		}
	}
	if len(words) == 0 {
		c.Err = fmt.Errorf("%s.lua: empty reply", c.Script.Name)
		return
	}
	c.Status, c.Reply = words[0], words[1:]
}

// RunTransaction runs calls in one MULTI/EXEC on a connection that may watch keys. If a watched key
// has changed, refused is true, nothing was done, and every call has the status conflict. A call
// whose script the server did not know also has the status conflict. RunTransaction loads the
// script for the next attempt.
func RunTransaction(
	ctx context.Context, conn *redis.Conn, calls []*Call, conflict string,
) (refused bool) {
	refused = errors.Is(exec(ctx, conn.TxPipeline(), packed(calls, true), false, false), redis.TxFailedErr)
	for _, c := range calls {
		if refused || c.unknown() && c.Script.script.Load(ctx, conn).Err() == nil {
			c.Status, c.Reply, c.Err = conflict, nil, nil
		}
	}
	return refused
}
