package lua_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

// twoKeysSource writes a declared key and then one that it does not declare, of the same hash tag.
const twoKeysSource = `
local function run(KEYS, ARGV)
  redis.call('INCR', KEYS[1])
  return {'ok', redis.call('INCR', KEYS[1] .. ':more')}
end
`

// clusterHarness has one call for each of some hash tags, which are on all servers.
type clusterHarness struct {
	*stacktest.RedisCluster
	client *redis.ClusterClient
	script lua.Script
	tags   []string
	counts map[string]int64 // how often each tag was counted
}

func newClusterHarness(t *testing.T) *clusterHarness {
	t.Helper()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	h := &clusterHarness{
		RedisCluster: cluster, client: cluster.ClusterClient(),
		script: lua.NewPacked("two keys", "", pack, twoKeysSource), counts: make(map[string]int64),
	}
	for i := range 12 {
		h.tags = append(h.tags, fmt.Sprintf("k:{%d}:count", i))
	}
	return h
}

// count counts every tag once, and returns the keys whose calls failed.
func (h *clusterHarness) count(t *testing.T) (failed map[string]*lua.Call) {
	t.Helper()
	return h.countWithin(t.Context(), t)
}

func (h *clusterHarness) countWithin(ctx context.Context, t *testing.T) (failed map[string]*lua.Call) {
	t.Helper()
	calls := make([]*lua.Call, len(h.tags))
	for i, key := range h.tags {
		calls[i] = &lua.Call{Script: h.script, Keys: []string{key}}
	}
	lua.Run(ctx, h.client, calls)
	failed = make(map[string]*lua.Call)
	for i, c := range calls {
		key := h.tags[i]
		if c.Err != nil {
			failed[key] = c
			continue
		}
		h.counts[key]++
		if want := fmt.Sprint(h.counts[key]); !slices.Equal(c.Reply, []string{want}) {
			t.Errorf("%s was counted %v times, want %s", key, c.Reply, want)
		}
	}
	return failed
}

// tagsOf returns the keys that a server has.
func (h *clusterHarness) tagsOf(node int) (keys []string) {
	for _, key := range h.tags {
		if h.NodeOf(key) == node {
			keys = append(keys, key)
		}
	}
	return keys
}

// wantShardErrors checks that exactly the calls for the keys of a server have failed, with an error that names it.
func (h *clusterHarness) wantShardErrors(
	t *testing.T, state string, failed map[string]*lua.Call, lost []string, node int,
) {
	t.Helper()
	if len(failed) != len(lost) {
		t.Errorf("%s: %d calls failed, want %d", state, len(failed), len(lost))
	}
	for _, key := range lost {
		if shard, is := errors.AsType[*lua.ShardError](failed[key].Err); !is || shard.Shard() != h.Addr(node) {
			t.Errorf("%s: %s: %v, want an error of %s", state, key, failed[key].Err, h.Addr(node))
		}
	}
}

// TestRun_SlotMoves_WholeOrNotAtAll runs calls in each state of a slot that moves from one server to
// another. While it moves, its calls are refused without an effect, and the others run. As soon as the
// target has it, its calls run there.
func TestRun_SlotMoves_WholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	key := h.tags[0]
	move := h.Move(key, (h.NodeOf(key)+1)%3)
	check := func(state string, served bool) {
		t.Helper()
		for range 2 {
			failed := h.count(t)
			c := failed[key]
			if served && len(failed) > 0 || !served && (c == nil || len(failed) != 1) {
				t.Fatalf("%s: failed %v, served %t", state, failed, served)
			}
			if served {
				continue
			}
			if _, is := errors.AsType[*lua.ShardError](c.Err); !is {
				t.Errorf("%s: refused with %v", state, c.Err)
			}
		}
	}
	check("before", true)
	check("before, with known scripts", true)
	move.Begin()
	check("no key moved", false)
	if n := move.MoveKeys(1); n != 1 {
		t.Fatalf("moved %d keys", n)
	}
	check("one of two keys moved", false)
	move.MoveKeys(10)
	check("all keys moved", false)
	move.EndTarget()
	stacktest.Eventually(t, "the calls to reach the target", func() bool { return len(h.count(t)) == 0 })
	check("the target has the slot", true)
	move.EndSource()
	check("both servers know", true)
}

// TestRun_SlotHasMoved_SentAgain runs a call after its slot has moved, with a client that does not know.
func TestRun_SlotHasMoved_SentAgain(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	h.count(t)
	key := h.tags[0]
	move := h.Move(key, (h.NodeOf(key)+1)%3)
	move.Begin()
	move.MoveKeys(10)
	move.EndTarget()
	stacktest.Eventually(t, "all servers to know", func() bool {
		for i := range 3 {
			node := h.Client(i)
			err := node.Get(t.Context(), key).Err()
			_ = node.Close()
			if i != h.NodeOf(key) && (err == nil || !strings.HasPrefix(err.Error(), "MOVED")) || h.NodeOf(key) == move.From() {
				return false
			}
		}
		return true
	})
	if failed := h.count(t); len(failed) > 0 {
		t.Errorf("failed: %v", failed[key].Err)
	}
}

// TestRun_OneServerFails_OthersAnswer runs calls while one of three servers refuses writes, and then is killed.
// The errors name that server.
func TestRun_OneServerFails_OthersAnswer(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	h.count(t)
	down := h.NodeOf(h.tags[0])
	lost := h.tagsOf(down)
	check := func(state string) {
		t.Helper()
		for range 3 {
			h.wantShardErrors(t, state, h.count(t), lost, down)
		}
	}
	node := h.Client(down)
	defer func() { _ = node.Close() }()
	for _, one := range []struct{ setting, value, before string }{
		{"min-replicas-to-write", "1", "0"}, {"maxmemory", "1", "0"},
	} {
		if err := node.ConfigSet(t.Context(), one.setting, one.value).Err(); err != nil {
			t.Fatal(err)
		}
		check(one.setting)
		if err := node.ConfigSet(t.Context(), one.setting, one.before).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Nodes[down].Kill(); err != nil {
		t.Fatal(err)
	}
	check("killed")
}

// countPipelines counts the pipelines that a client sends to each server, by address.
type countPipelines struct {
	sync.Mutex
	to map[string]int
}

// watch counts the pipelines of a client that has sent nothing yet.
func (c *countPipelines) watch(client *redis.ClusterClient) {
	c.to = make(map[string]int)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(nodeHook{counts: c, addr: node.Options().Addr}) })
}

// take returns the numbers, and begins again.
func (c *countPipelines) take() map[string]int {
	c.Lock()
	defer c.Unlock()
	counted := c.to
	c.to = make(map[string]int)
	return counted
}

type nodeHook struct {
	stacktest.PassHook
	counts *countPipelines
	addr   string
}

func (h nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		h.counts.Lock()
		h.counts.to[h.addr]++
		h.counts.Unlock()
		return next(ctx, commands)
	}
}

// TestTimeOutOnce_ServerHangs_AskedOnce runs calls several times while one of three servers hangs. Within a
// context it is asked once, and its calls have an error each time.
func TestTimeOutOnce_ServerHangs_AskedOnce(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	var asked countPipelines
	asked.watch(h.client)
	if failed := h.count(t); len(failed) > 0 {
		t.Fatal(failed)
	}
	asked.take()
	hangs := h.NodeOf(h.tags[0])
	lost := h.tagsOf(hangs)
	if err := h.Nodes[hangs].Pause(); err != nil {
		t.Fatal(err)
	}
	batch := lua.TimeOutOnce(t.Context())
	for range 3 {
		h.wantShardErrors(t, "hangs", h.countWithin(batch, t), lost, hangs)
	}
	for addr, n := range asked.take() {
		if want := map[bool]int{true: 1, false: 3}[addr == h.Addr(hangs)]; n != want {
			t.Errorf("%s got %d pipelines, want %d", addr, n, want)
		}
	}
	if err := h.Nodes[hangs].Resume(); err != nil {
		t.Fatal(err)
	}
}

// TestRun_EventsFault_NoShardError runs calls that fail on a cluster as they would on any server.
func TestRun_EventsFault_NoShardError(t *testing.T) {
	t.Parallel()
	h := newClusterHarness(t)
	if err := h.client.HSet(t.Context(), h.tags[0], "a", "b").Err(); err != nil {
		t.Fatal(err)
	}
	broken := lua.NewPacked("broken", "", pack, "local function run(KEYS, ARGV) return {'ok', nothing.here} end")
	calls := []*lua.Call{{Script: h.script, Keys: []string{h.tags[0]}}, {Script: broken, Keys: []string{h.tags[1]}}}
	lua.Run(t.Context(), h.client, calls)
	for _, c := range calls {
		if _, is := errors.AsType[*lua.ShardError](c.Err); is || c.Err == nil {
			t.Errorf("%s: %v", c.Script.Name, c.Err)
		}
	}
}
