package holds

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// ErrDataLost says that Redis has lost data, or may have lost it: the epoch of a partition is
// missing or different, or the server has another replication history. Nothing is decided in that
// partition until it is recovered.
var ErrDataLost = errors.New("redis has lost its data")

// ErrCorrupt says that a value in Redis is not one that the scripts write. The callback of
// OnCorruption may repair it in place. If the corruption lasts, its partition is rebuilt (package
// recovery).
var ErrCorrupt = errors.New("corrupt data in redis")

// noWrites marks a script that only reads.
const noWrites = "no-writes"

// allowOOM lets a script run when Redis is out of memory. Scripts that end holds and free memory
// have it. Redis refuses a script that needs more memory before its first command.
const allowOOM = "allow-oom"

// The scripts. The header of each file describes ARGV and the reply. The header of lua/prelude.lua
// describes KEYS and the replies that all scripts have in common.
var (
	scriptPlace        = load("place", "")
	scriptClaim        = load("claim", allowOOM)
	scriptSettle       = load("settle", allowOOM)
	scriptRelease      = load("release", allowOOM)
	scriptExtend       = load("extend", "")
	scriptBump         = load("bump", allowOOM)
	scriptExpire       = load("expire", allowOOM)
	scriptForget       = load("forget", allowOOM)
	scriptAvailability = load("availability", allowOOM)
	scriptShow         = load("show", noWrites)
	scriptAgenda       = load("agenda", noWrites)
	scriptList         = load("list", noWrites)
	scriptCount        = load("count", noWrites)
	scriptLive         = load("live", noWrites)
	scriptRevs         = load("revs", noWrites)
)

// packMax is the maximum number of calls in one run. Other clients of Redis wait until the run
// ends.
const packMax = 16

// prelude is the common part of all scripts.
var prelude = source("prelude")

func load(name, flags string) lua.Script { return NewScript(name, flags, source(name)) }

// NewScript returns a script that begins with the prelude. Its text defines the function run, which
// begins each call with begin.
func NewScript(name, flags, text string) lua.Script {
	reads := fmt.Sprintf("local READS = %t\n", strings.Contains(flags, noWrites))
	return lua.NewPacked(name, flags, packMax, reads+prelude+text)
}

func source(name string) string { return lua.Source(luaFiles, name) }

// ScriptCommands returns the Redis commands that the scripts use. The Redis user of a worker needs
// all of them: without one of them a script stops after some of its writes, and Redis does not undo
// these.
func ScriptCommands() []string {
	files, err := luaFiles.ReadDir("lua")
	if err != nil {
		panic(err) // embedded: cannot happen in a program that was built
	}
	var all strings.Builder
	for _, one := range files {
		all.WriteString(source(strings.TrimSuffix(one.Name(), ".lua")))
	}
	return lua.Commands(all.String())
}

// newCall returns a call of a script for a resource. args follow the three arguments that every
// script has. The call has an error, and run skips it, while nothing is decided in the partition of
// the resource.
func (w *work) newCall(script lua.Script, resource string, args ...any) *lua.Call {
	p := record.Partition(resource)
	return w.service.newCallUnder(w.epochs.Partition(p), p, script, resource, args...)
}

// newPartitionCall is like newCall, for a script that works on a partition instead of a resource.
func (w *work) newPartitionCall(partition int, script lua.Script, args ...any) *lua.Call {
	return w.service.newCallUnder(w.epochs.Partition(partition), partition, script, "", args...)
}

// newCallUnder returns a call of a script under an epoch of a partition, for a resource in it or,
// with "", for the partition itself.
func (s *Service) newCallUnder(
	epoch *CurrentEpoch, partition int, script lua.Script, resource string, args ...any,
) *lua.Call {
	prefix := ""
	if resource != "" {
		prefix = s.keys.Partition(partition) + resource + ":"
	}
	all := append(make([]any, 0, 3+len(args)), epoch.arg, resource, prefix)
	return &lua.Call{
		Script: s.dryVariant(script), Keys: []string{s.keys.Epoch(partition)},
		Args: append(all, args...), Err: epoch.Err,
	}
}

// run runs calls in one round trip. It turns the common replies lost and corrupt into ErrDataLost
// and ErrCorrupt, and reports them.
func (w *work) run(ctx context.Context, calls ...*lua.Call) {
	w.runWithin(ctx, 0, calls...)
}

// runWithin is like run, with a timeout for each pipeline. With 0 only the client's own timeouts
// apply.
func (w *work) runWithin(ctx context.Context, limit time.Duration, calls ...*lua.Call) {
	if slices.ContainsFunc(calls, hasFailed) {
		calls = slices.DeleteFunc(slices.Clone(calls), hasFailed)
	}
	lua.RunWithin(ctx, limit, w.service.redis, calls)
	for _, c := range calls {
		w.classifyReply(c)
	}
}

func hasFailed(c *lua.Call) bool { return c.Err != nil }

// classifyReply sets the error of a common reply and reports corruption and a loss of data.
func (w *work) classifyReply(c *lua.Call) {
	SetReplyError(c)
	corrupt := errors.Is(c.Err, ErrCorrupt)
	if !corrupt && !errors.Is(c.Err, ErrDataLost) {
		return
	}
	s, p := w.service, w.service.partitionOf(c)
	epoch := w.epochs.Partition(p).Name
	resource, _ := c.Args[1].(string)
	if corrupt {
		s.reportCorruption(p, epoch, resource, c.Err)
	} else {
		s.term.Report(p, epoch, resource, c.Err)
	}
}

func (s *Service) partitionOf(c *lua.Call) int {
	text, _, _ := strings.Cut(strings.TrimPrefix(c.Keys[0], string(s.keys)+":{"), "}")
	p, _ := strconv.Atoi(text) // keys.Epoch has written it
	return p
}

// SetReplyError turns a common reply, or a value of the wrong type, into its error.
func SetReplyError(c *lua.Call) {
	switch {
	case c.Err != nil && redis.HasErrorPrefix(c.Err, "WRONGTYPE"):
		c.Err = fmt.Errorf("%w: %w", ErrCorrupt, c.Err)
	case c.Err == nil && c.Status == "lost":
		c.Err = ErrDataLost
	case c.Err == nil && c.Status == "corrupt":
		c.Err = fmt.Errorf("%s: %w", strings.Join(c.Reply, " "), ErrCorrupt)
	}
}

// reportUnread reports corruption of a resource that only the parse of a reply has found. Of is the error of its call, which
// was reported. reportUnread ignores other errors than ErrCorrupt.
func (w *work) reportUnread(resource string, of, err error) {
	if of == nil && errors.Is(err, ErrCorrupt) {
		p := record.Partition(resource)
		w.service.reportCorruption(p, w.epochs.Partition(p).Name, resource, err)
	}
}

// reportCorruption reports corruption that was found under an epoch to the term and to the callback
// of OnCorruption. For corruption in data of a whole partition resource is "".
func (s *Service) reportCorruption(partition int, epoch, resource string, err error) {
	s.term.Report(partition, epoch, resource, err)
	if resource != "" && s.onCorruption != nil {
		s.onCorruption(resource)
	}
}
