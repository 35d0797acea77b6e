package stacktest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/stack"
)

// RedisCluster is a Redis Cluster for one test.
type RedisCluster struct {
	*stack.RedisCluster
	t       testing.TB
	clients []*redis.Client // of each server
}

// StartRedisCluster starts a Redis Cluster for this test only.
func StartRedisCluster(t testing.TB, primaries, replicas int) *RedisCluster {
	t.Helper()
	started, err := stack.StartRedisCluster(t.Context(), t.TempDir(), primaries, replicas)
	if err != nil {
		t.Fatalf("start redis cluster: %v", err)
	}
	c := &RedisCluster{RedisCluster: started, t: t}
	for i := range c.Nodes {
		c.clients = append(c.clients, c.Client(i))
	}
	t.Cleanup(func() {
		for _, client := range c.clients {
			_ = client.Close() // its commands have ended
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ClusterClient returns a client like the worker's.
func (c *RedisCluster) ClusterClient() *redis.ClusterClient {
	addrs := strings.Split(strings.TrimPrefix(c.URL(), "redis+cluster://"), ",")
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRedirects: -1, MaxRetries: -1, DisableRoutingPolicies: true, ContextTimeoutEnabled: true,
		DisableIdentity: true, ClusterStateReloadInterval: time.Hour, // only when something fails
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// do sends a command to one server.
func (c *RedisCluster) do(node int, command ...any) any {
	c.t.Helper()
	reply, err := c.clients[node].Do(c.t.Context(), command...).Result()
	if err != nil {
		c.t.Fatalf("%v at server %d: %v", command, node, err)
	}
	return reply
}

// ID returns the name by which the servers know one of them.
func (c *RedisCluster) ID(node int) string {
	c.t.Helper()
	return c.do(node, "cluster", "myid").(string)
}

// NodeOf returns the primary that has the slot of a key.
func (c *RedisCluster) NodeOf(key string) (node int) {
	c.t.Helper()
	slot := c.do(0, "cluster", "keyslot", key).(int64)
	for _, its := range c.clients[0].ClusterSlots(c.t.Context()).Val() { //nolint:staticcheck // as in package stack
		if int64(its.Start) <= slot && slot <= int64(its.End) {
			for i := range c.Nodes {
				if its.Nodes[0].Addr == c.Addr(i) {
					return i
				}
			}
		}
	}
	c.t.Fatalf("no server has the slot of %s", key)
	return 0
}

// SlotMove moves the hash slot of a key to another primary, in steps.
type SlotMove struct {
	cluster  *RedisCluster
	key      string
	slot     int64
	from, to int
}

// Move returns the steps of a move.
func (c *RedisCluster) Move(key string, to int) *SlotMove {
	c.t.Helper()
	return &SlotMove{cluster: c, key: key, slot: c.do(0, "cluster", "keyslot", key).(int64), from: c.NodeOf(key), to: to}
}

// MoveAll moves the hash slot of a key to another primary, with all its keys, and returns when the servers know it.
func (c *RedisCluster) MoveAll(key string, to int) {
	c.t.Helper()
	m := c.Move(key, to)
	m.Begin()
	m.Finish()
}

// From returns the server that has the slot before the move.
func (m *SlotMove) From() int { return m.from }

// Begin prepares both servers. From now on the source has no answer about keys that it does not have.
func (m *SlotMove) Begin() {
	m.cluster.t.Helper()
	m.cluster.do(m.to, "cluster", "setslot", m.slot, "importing", m.cluster.ID(m.from))
	m.cluster.do(m.from, "cluster", "setslot", m.slot, "migrating", m.cluster.ID(m.to))
}

// MoveKeys moves up to n keys that are not to be kept, and returns how many.
func (m *SlotMove) MoveKeys(n int, keep ...string) int {
	m.cluster.t.Helper()
	keys := m.cluster.do(m.from, "cluster", "getkeysinslot", m.slot, n+len(keep)).([]any)
	keys = slices.DeleteFunc(keys, func(key any) bool { return slices.Contains(keep, key.(string)) })
	keys = keys[:min(n, len(keys))]
	if len(keys) > 0 {
		command := []any{"migrate", "127.0.0.1", m.cluster.Nodes[m.to].Port, "", 0, 5000, "keys"}
		m.cluster.do(m.from, append(command, keys...)...)
	}
	return len(keys)
}

// Keys returns how many keys of the slot the source still has.
func (m *SlotMove) Keys() int64 {
	m.cluster.t.Helper()
	return m.cluster.do(m.from, "cluster", "countkeysinslot", m.slot).(int64)
}

// EndTarget makes the target the slot's server. The others know it soon.
func (m *SlotMove) EndTarget() { m.end(m.to) }

// EndSource makes the source send clients to the target.
func (m *SlotMove) EndSource() { m.end(m.from) }

// Finish moves the keys that are left, ends the move at both servers, and returns when the servers know it.
func (m *SlotMove) Finish() {
	m.cluster.t.Helper()
	for m.MoveKeys(100) > 0 {
	}
	m.EndTarget()
	m.EndSource()
	Eventually(m.cluster.t, "the servers to know", func() bool { return m.cluster.NodeOf(m.key) == m.to })
}

func (m *SlotMove) end(at int) {
	m.cluster.t.Helper()
	m.cluster.do(at, "cluster", "setslot", m.slot, "node", m.cluster.ID(m.to))
}
