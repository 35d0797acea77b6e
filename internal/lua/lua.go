// Package lua runs Lua scripts in Redis, many in one round trip.
package lua

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Script is a named script. Its source starts with a shebang, so that a Redis that is read-only,
// cannot persist or (without the flag allow-oom) is out of memory refuses it before its first
// command, never in its midst.
type Script struct {
	Name   string
	Flags  string // of its shebang
	script *redis.Script
}

// New returns a script with the flags of its shebang ("" or for example "no-writes").
func New(name, flags, source string) Script {
	shebang := "#!lua"
	if flags != "" {
		shebang += " flags=" + flags
	}
	return Script{name, flags, redis.NewScript(shebang + "\n" + source)}
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
	if len(calls) == 0 {
		return
	}
	if unknown := pipeline(ctx, client, calls, (*redis.Script).EvalSha); len(unknown) > 0 {
		pipeline(ctx, client, unknown, (*redis.Script).Eval)
	}
}

type evaluation func(s *redis.Script, ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func pipeline(ctx context.Context, client redis.UniversalClient, calls []*Call, eval evaluation) (unknown []*Call) {
	_ = exec(ctx, client.Pipeline(), calls, eval) // each call has its own error
	for _, c := range calls {
		if c.unknown() {
			unknown = append(unknown, c)
		}
	}
	return unknown
}

// exec runs calls through a pipe and fills in what came of each. It returns the error of the
// connection or the transaction, or else that of the first call that has one.
func exec(ctx context.Context, pipe redis.Pipeliner, calls []*Call, eval evaluation) error {
	commands := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		commands[i] = eval(c.Script.script, ctx, pipe, c.Keys, c.Args...)
	}
	_, execErr := pipe.Exec(ctx)
	for i, c := range calls {
		values, err := commands[i].Slice()
		if err == nil && values == nil {
			err = execErr
		}
		c.settle(values, err)
	}
	return execErr
}

// unknown reports whether the server did not know the script.
func (c *Call) unknown() bool { return c.Err != nil && redis.HasErrorPrefix(c.Err, "NOSCRIPT") }

func (c *Call) settle(values []any, err error) {
	c.Status, c.Reply, c.Err = "", nil, nil
	if err != nil {
		c.Err = fmt.Errorf("%s.lua: %w", c.Script.Name, err)
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
	refused = errors.Is(exec(ctx, conn.TxPipeline(), calls, (*redis.Script).EvalSha), redis.TxFailedErr)
	for _, c := range calls {
		if refused || c.unknown() && c.Script.script.Load(ctx, conn).Err() == nil {
			c.Status, c.Reply, c.Err = conflict, nil, nil
		}
	}
	return refused
}
