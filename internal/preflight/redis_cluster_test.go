package preflight_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/preflight"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// inCluster returns a change of the target to a cluster. user returns the user of a node, whose name is its password.
func (w *harness) inCluster(t *testing.T, c *stacktest.RedisCluster, user func(node int) string) func(*preflight.Target) {
	t.Helper()
	var seeds []string
	for i := range c.Nodes {
		seeds = append(seeds, c.Addr(i))
	}
	options := func(addr string) *redis.Options {
		o := stacktest.RedisOptions("redis://" + addr)
		o.Username = user(slices.Index(seeds, addr))
		o.Password = o.Username
		return o
	}
	return func(target *preflight.Target) {
		cluster := recovery.NewCluster(string(w.ns), seeds, options)
		t.Cleanup(cluster.Close)
		target.Primaries = cluster.Servers
	}
}

// TestRedisCluster_UserMayNotCountKeys_Warns checks as a user that has no permission to find out whether slots were moving.
// The same user of a lone Redis needs none.
func TestRedisCluster_UserMayNotCountKeys_Warns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	nodes := stacktest.StartRedisCluster(t, 3, 0)
	for i := range nodes.Nodes {
		admin := stacktest.ConnectRedis(t, "redis://"+nodes.Addr(i))
		stacktest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "older", "on", ">older", "~*", "&*", "+@all", "-cluster|shards",
			"-cluster|countkeysinslot").Err())
	}
	c := w.check(w.inCluster(t, nodes, func(int) string { return "older" }))["redis.commands"]
	if c.Status != preflight.Warn || !strings.Contains(c.Found, "cluster|countkeysinslot, cluster|shards") {
		t.Errorf("in a cluster: %+v", c)
	}
	if c := w.check(w.user("older", "-cluster|shards -cluster|countkeysinslot"))["redis.commands"]; c.Status != preflight.OK {
		t.Errorf("of a lone Redis: %+v", c)
	}
}

// TestRedisCluster_PrimaryDown_Warns kills one of three primaries without replicas. A worker can start, and the
// warning names the server. As an unknown user of one server it cannot.
func TestRedisCluster_PrimaryDown_Warns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	nodes := stacktest.StartRedisCluster(t, 3, 0)
	user := ""
	find := w.inCluster(t, nodes, func(node int) string {
		if node == 1 {
			return user
		}
		return ""
	})
	const name = "redis.reachable"
	if c := w.check(find)[name]; c.Status != preflight.OK {
		t.Fatalf("before: %+v", c)
	}
	user = "unknown"
	if c := w.check(find)[name]; c.Status != preflight.Fail || !strings.HasPrefix(c.Found, nodes.Addr(1)) {
		t.Errorf("as an unknown user: %+v", c)
	}
	user = ""
	stacktest.Must(t, nodes.Nodes[1].Kill())
	checks := w.check(find)
	if c := checks[name]; c.Status != preflight.Warn || !strings.HasPrefix(c.Found, nodes.Addr(1)) {
		t.Errorf("one is down: %+v", c)
	}
	for of, c := range checks {
		if strings.HasPrefix(of, "redis.") && c.Status == preflight.Fail {
			t.Errorf("one is down: %+v", c)
		}
	}
}

// TestRedisCluster_NoSlotsGiven_Fails checks a cluster whose servers answer before it was created.
func TestRedisCluster_NoSlotsGiven_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	c := w.check(func(target *preflight.Target) {
		target.Primaries = func(context.Context) ([]recovery.Server, error) { return nil, nil }
	})[preflight.RedisCluster]
	if c.Status != preflight.Fail || c.Fix == "" {
		t.Errorf("%+v", c)
	}
}
