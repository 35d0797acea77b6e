package lua_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

// pack is the maximum number of calls in one run in these tests.
const pack = 4

// recorderSource records that it ran, and returns its arguments.
//
// KEYS  1 a list: each call appends its name  2 a counter for this call
// ARGV  1 name  2 kind of failure, "" for none  then any values
// Returns ok, the number of this call in its run, the number of KEYS, the KEYS, and the type and
// the value of each ARGV
const recorderSource = `
local nth = 0
local function run(KEYS, ARGV)
  nth = nth + 1
  redis.call('INCR', KEYS[2])
  if ARGV[2] == 'wrong type' then redis.call('INCR', KEYS[1]) end
  if ARGV[2] == 'no number' then redis.call('HINCRBY', KEYS[2] .. ':hash', 'f', 'x') end
  if ARGV[2] == 'unknown command' then redis.call('NOSUCHCOMMAND') end
  if ARGV[2] == 'lua' then return {'ok', ARGV[2] + 1} end
  if ARGV[2] == 'error' then error('a text of its own') end
  if ARGV[2] == 'table' then error({err = 'OWN a text'}) end
  redis.call('RPUSH', KEYS[1], ARGV[1])
  if ARGV[2] == 'none' then return nil end
  if ARGV[2] == 'empty' then return {} end
  if ARGV[2] == 'no list' then return 7 end
  if ARGV[2] == 'nested' then return {'ok', {'a'}} end
  local reply = {'ok', nth, #KEYS}
  for _, key in ipairs(KEYS) do reply[#reply + 1] = key end
  for _, arg in ipairs(ARGV) do
    reply[#reply + 1] = type(arg)
    reply[#reply + 1] = arg
  end
  return reply
end
`

var (
	packed = lua.NewPacked("recorder", "", pack, recorderSource)
	alone  = lua.New("unpacked recorder", "", recorderSource+"\nreturn run(KEYS, ARGV)")
)

// harness is a namespace on a server.
type harness struct {
	*redis.Client
	prefix string
}

// newHarness returns a harness on the shared server.
func newHarness(t *testing.T) harness {
	t.Helper()
	return harness{newClient(t, stacktest.RedisOptions(stacktest.Shared().RedisURL)), stacktest.Namespace(t) + ":"}
}

// newExclusiveHarness returns a harness on a server that no other test uses.
func newExclusiveHarness(t *testing.T) harness {
	t.Helper()
	return harness{newClient(t, stacktest.RedisOptions(stacktest.StartRedis(t).RedisURL)), ""}
}

func newClient(t *testing.T, o *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (b harness) listKey(tag string) string { return b.prefix + "{" + tag + "}:list" }
func (b harness) counterKey(tag, name string) string {
	return b.prefix + "{" + tag + "}:counter:" + name
}

// call returns a call of a script that is recorded under a tag.
func (b harness) call(s lua.Script, tag, name, fails string, args ...any) *lua.Call {
	return &lua.Call{Script: s, Keys: []string{b.listKey(tag), b.counterKey(tag, name)},
		Args: append([]any{name, fails}, args...)}
}

// doneCount returns how often a call has run.
func (b harness) doneCount(t *testing.T, tag, name string) int {
	t.Helper()
	n, err := b.Get(t.Context(), b.counterKey(tag, name)).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// takeRunCounts returns the number of runs on the server since the last call, by EVALSHA and by
// EVAL. It includes an EVALSHA of an unknown script.
func (b harness) takeRunCounts(t *testing.T) (evalsha, eval int) {
	t.Helper()
	for line := range strings.Lines(b.Info(t.Context(), "commandstats").Val()) {
		for name, n := range map[string]*int{"cmdstat_evalsha:calls=": &evalsha, "cmdstat_eval:calls=": &eval} {
			if rest, found := strings.CutPrefix(line, name); found {
				digits, _, _ := strings.Cut(rest, ",")
				var err error
				if *n, err = strconv.Atoi(digits); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := b.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return evalsha, eval
}

// positionInRun returns the number of a call in its run.
func positionInRun(t *testing.T, c *lua.Call) string {
	t.Helper()
	if err := c.Expect(1); err != nil {
		t.Fatal(err)
	}
	return c.Reply[0]
}
