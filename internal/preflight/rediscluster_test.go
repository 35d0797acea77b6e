package preflight_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/preflight"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestRedisCluster_PrimaryDown_Warns kills one of three primaries without replicas. A worker can start, and the
// warning names the server. As an unknown user of one server it cannot.
func TestRedisCluster_PrimaryDown_Warns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	nodes := stacktest.StartRedisCluster(t, 3, 0)
	user := ""
	find := func(target *preflight.Target) {
		var seeds []string
		for i := range nodes.Nodes {
			seeds = append(seeds, nodes.Addr(i))
		}
		options := func(addr string) *redis.Options {
			o := stacktest.RedisOptions("redis://" + addr)
			if addr == seeds[1] {
				o.Username, o.Password = user, user
			}
			return o
		}
		cluster := recovery.NewCluster(string(w.ns), seeds, options)
		t.Cleanup(cluster.Close)
		target.Primaries = cluster.Servers
	}
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
