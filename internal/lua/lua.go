// Package lua runs Lua scripts in Redis, many calls in one round trip, and several calls in one run.
//
// A run of a script costs Redis about as much as three or four of its commands, before the script
// does anything. So calls of one script are packed: they share one run, which answers for each of
// them. On a Redis Cluster only calls whose keys share a hash slot are packed, because a run may not
// leave its slot. What a call does and answers is the same as if it were run alone, and an error of
// one call does not touch the others.
package lua

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Script is a named script. Its source starts with a shebang, so that a Redis that is read-only,
// cannot persist or (without the flag allow-oom) is out of memory refuses it before its first
// command, never in its midst.
type Script struct {
	Name   string
	Flags  string // of its shebang
	reads  bool   // it has the flag no-writes
	script *redis.Script
	pack   int // calls in one run, 0 = it is not made to be packed
}

// New returns a script with the flags of its shebang ("" or for example "no-writes").
func New(name, flags, source string) Script {
	shebang := "#!lua"
	if flags != "" {
		shebang += " flags=" + flags
	}
	return Script{Name: name, Flags: flags, reads: strings.Contains(flags, "no-writes"), script: redis.NewScript(shebang + "\n" + source)}
}

//go:embed pack.lua
var packSource string

// NewPacked returns a script of which up to pack calls are packed into one run. The source ends with
// local function run(KEYS, ARGV), which is called for each of them, with its own KEYS and ARGV.
func NewPacked(name, flags string, pack int, source string) Script {
	s := New(name, flags, source+"\n"+packSource)
	s.pack = pack
	return s
}

var commandPattern = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)

// Commands returns the commands that a script gives, each once, by its source.
func Commands(source string) (names []string) {
	for _, found := range commandPattern.FindAllStringSubmatch(source, -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Call is one run of a script, and then what came of it.
type Call struct {
	Script Script
	Keys   []string
	Args   []any

	Status string   // the first value of the reply, by our convention a word
	Reply  []string // the others
	// Err is what Redis or the connection said. Unless it is a Redis error, the call may have
	// been done nevertheless: a lost reply looks like a lost request.
	Err error
}

// Expect returns Err, or an error unless the status is ok with at least n more values.
func (c *Call) Expect(n int) error {
	if c.Err == nil && (c.Status != "ok" || len(c.Reply) < n) {
		c.Err = fmt.Errorf("%s.lua: unexpected reply %q with %d values", c.Script.Name, c.Status, len(c.Reply))
	}
	return c.Err
}

// Run runs calls in one pipelined round trip and fills in what came of each. Calls whose script
// the server does not know (it restarted, or its script cache was flushed) have not run; they
// are run once more with their source: a pipeline, unlike a single call, does not do so itself.
//
// The client must have MaxRetries -1. It would otherwise send again what may have been done;
// each caller here has a way to ask again that gives the same answer.
func Run(ctx context.Context, client redis.UniversalClient, calls []*Call) {
	RunWithin(ctx, 0, client, calls)
}

// RunWithin is Run with a limit to each of its pipelines, 0 = none but the client's. What one server has not answered by then
// does not keep a script from being sent to another that does not know it.
func RunWithin(ctx context.Context, limit time.Duration, client redis.UniversalClient, calls []*Call) {
	if len(calls) == 0 {
		return
	}
	if unknown := pipeline(ctx, limit, client, calls, evalSha); len(unknown) > 0 {
		pipeline(ctx, limit, client, unknown, eval)
	}
}

// evaluation is a way to run a script. One that has the flag no-writes is run so that a user who may
// only read is let run it.
type evaluation func(s Script, ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func evalSha(s Script, ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	if s.reads {
		return s.script.EvalShaRO(ctx, c, keys, args...)
	}
	return s.script.EvalSha(ctx, c, keys, args...)
}

func eval(s Script, ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd {
	if s.reads {
		return s.script.EvalRO(ctx, c, keys, args...)
	}
	return s.script.Eval(ctx, c, keys, args...)
}

func pipeline(ctx context.Context, limit time.Duration, client redis.UniversalClient, calls []*Call, run evaluation) (unknown []*Call) {
	if limit > 0 {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = bounded
	}
	_, cluster := client.(*redis.ClusterClient)
	_ = exec(ctx, client.Pipeline(), packed(calls, cluster), run) // each call has its own error
	for _, c := range calls {
		if c.unknown() {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// exec sends runs through a pipe and fills in what came of each. It returns the error of the
// connection or the transaction, or else that of the first run that has one.
func exec(ctx context.Context, pipe redis.Pipeliner, runs []run, eval evaluation) error {
	commands := make([]*redis.Cmd, len(runs))
	for i, run := range runs {
		keys, args := run.arguments()
		commands[i] = eval(run[0].Script, ctx, pipe, keys, args...)
	}
	_, execErr := pipe.Exec(ctx)
	for i, run := range runs {
		values, err := commands[i].Slice()
		if execErr != nil && commands[i].Err() == nil && commands[i].Val() == nil {
			err = execErr // it was not even sent, for want of a connection
		}
		run.setReplies(values, err)
	}
	return execErr
}

// run is calls that share one run of their script.
type run []*Call

// unpackedArgsMin is how many arguments make a call run alone: Lua hands on no more than some 8,000 values.
const unpackedArgsMin = 4000

// packed divides calls into runs, with bySlot none of them of two hash tags. Calls of one script and hash tag
// keep their order.
func packed(calls []*Call, bySlot bool) []run {
	type place struct {
		script *redis.Script
		slot   string
	}
	open := make(map[place]int) // the run that has room
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
			delete(open, at) // those after it run after it
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

// hashTag returns the part of a key that decides its hash slot.
func hashTag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// arguments returns KEYS and ARGV of a run, as pack.lua reads them.
func (r run) arguments() (keys []string, args []any) {
	if r[0].Script.pack == 0 {
		return r[0].Keys, r[0].Args
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

// scriptError is what Redis said to one call of a run.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError marks it as said by Redis, not by the connection.
func (scriptError) RedisError() {}

// setReplies fills in what came of each call of a run.
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
			its, _ = values[i].([]any) // what is none is an empty reply
		}
		if len(its) == 2 && its[0] == "error" {
			c.setReply(nil, scriptError(fmt.Sprint(its[1])))
			continue
		}
		c.setReply(its, nil)
	}
}

// unknown reports whether the server did not know the script.
func (c *Call) unknown() bool { return c.Err != nil && redis.HasErrorPrefix(c.Err, "NOSCRIPT") }

func (c *Call) setReply(values []any, err error) {
	c.Status, c.Reply, c.Err = "", nil, nil
	if err != nil {
		hint := ""
		if redis.HasErrorPrefix(err, "The user executing the script can't") { // Redis 7.0 does not say what
			hint = " (ACL LOG in Redis tells which command, key or channel its user is not allowed)"
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

// RunTransaction runs calls in one MULTI/EXEC on a connection that may watch keys. If one of
// those has changed, it reports that it was refused: nothing was done and every call has the
// status conflict. So have calls whose script the server did not know; it does afterwards.
func RunTransaction(ctx context.Context, conn *redis.Conn, calls []*Call, conflict string) (refused bool) {
	refused = errors.Is(exec(ctx, conn.TxPipeline(), packed(calls, true), evalSha), redis.TxFailedErr)
	for _, c := range calls {
		if refused || c.unknown() && c.Script.script.Load(ctx, conn).Err() == nil {
			c.Status, c.Reply, c.Err = conflict, nil, nil
		}
	}
	return refused
}
