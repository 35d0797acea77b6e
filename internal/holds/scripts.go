package holds

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// ErrDataLost says that Redis has lost what was written to it, or may have: a partition's epoch is
// missing or another one, or the server is. Nothing is decided until the live holds are rebuilt.
var ErrDataLost = errors.New("redis has lost its data")

// ErrCorrupt says that something in Redis is not what the scripts write there. Whoever is told of it
// (OnCorruption) may heal it in place; Redis is filled again for what nobody has healed soon (healWithin).
var ErrCorrupt = errors.New("damaged data in redis")

// What ends holds and gives memory back must run when Redis is out of memory; what takes more
// is refused then, before its first command.
const allowOOM = "allow-oom"

// The scripts. Each file's header tells its ARGV and what it returns; KEYS and the common
// answers are told in lua/prelude.lua.
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
	scriptShow         = load("show", "no-writes")
	scriptAgenda       = load("agenda", "no-writes")
)

// packMax is how many calls share a run: the others of Redis' clients wait so long for its end.
const packMax = 16

// prelude is what all scripts have in common.
var prelude = source("prelude")

// load returns the script of a file under lua/.
func load(name, flags string) lua.Script { return NewScript(name, flags, source(name)) }

// NewScript returns a script that begins with the prelude. Its text defines the function run, which
// begins each call with begin.
func NewScript(name, flags, text string) lua.Script {
	return lua.NewPacked(name, flags, packMax, prelude+text)
}

// source returns a file under lua/.
func source(name string) string {
	text, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: cannot happen in a program that was built
	}
	return string(text)
}

// ScriptCommands are the commands that the scripts give. A user of Redis who lacks one of them would
// have a script stop in its midst, which Lua does not undo.
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

// newCall prepares a script on one resource; args follow the three that every script takes.
func (s *Service) newCall(script lua.Script, resource string, args ...any) *lua.Call {
	head := []any{s.epochArg, resource, s.keys.Prefix(resource)}
	return &lua.Call{Script: s.dryVariant(script), Keys: []string{s.keys.Epoch(record.Partition(resource))}, Args: append(head, args...)}
}

// run runs calls in one round trip and turns the answers that every script can give into
// errors: ErrDataLost and ErrCorrupt.
func (s *Service) run(ctx context.Context, calls ...*lua.Call) {
	s.runWithin(ctx, 0, calls...)
}

// runWithin is run with a limit to each pipeline, 0 = none but the client's.
func (s *Service) runWithin(ctx context.Context, limit time.Duration, calls ...*lua.Call) {
	lua.RunWithin(ctx, limit, s.redis, calls)
	for _, c := range calls {
		s.classifyReply(c)
	}
}

// classifyReply turns an answer that every script can give into its error, and tells of what is damaged or not found.
func (s *Service) classifyReply(c *lua.Call) {
	SetReplyError(c)
	switch resource, _ := c.Args[1].(string); {
	case errors.Is(c.Err, ErrCorrupt):
		s.reportCorruption(resource, c.Err)
	case errors.Is(c.Err, ErrDataLost):
		s.term.Report(s.epoch, resource, c.Err)
	}
}

// SetReplyError turns an answer that every script can give into its error.
func SetReplyError(c *lua.Call) {
	switch {
	case c.Err != nil && redis.HasErrorPrefix(c.Err, "WRONGTYPE"):
		c.Err = fmt.Errorf("%w: %w", ErrCorrupt, c.Err)
	case c.Err == nil && c.Status == "lost":
		c.Err = ErrDataLost
	case c.Err == nil && c.Status == "damaged":
		c.Err = fmt.Errorf("%s: %w", strings.Join(c.Reply, " "), ErrCorrupt)
	}
}

// reportCorruption tells who heals in place, and the Keeper, of something damaged: of a resource, or "" where it is of
// a partition.
func (s *Service) reportCorruption(resource string, err error) {
	epoch := s.epoch
	if epoch == "" { // not asked for by a piece of work
		current, _ := s.term.Current() // no epoch is told by ""
		epoch = current.Name
	}
	s.term.Report(epoch, resource, err)
	if resource != "" && s.onCorruption != nil {
		s.onCorruption(resource)
	}
}
