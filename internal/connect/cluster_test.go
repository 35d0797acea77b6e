package connect_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

// TestClusterOptions_OneAddressGiven_AllServersFound connects to a cluster of which the URL names one server.
func TestClusterOptions_OneAddressGiven_AllServersFound(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	address := "redis+cluster://" + cluster.Addr(1)
	client := clusterClient(t, address)
	pipe := client.Pipeline()
	for i := range 12 {
		pipe.Set(t.Context(), fmt.Sprintf("{%d}", i), i, 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		key := fmt.Sprintf("{%d}", i)
		node := cluster.Client(cluster.NodeOf(key))
		if value, err := node.Get(t.Context(), key).Int(); err != nil || value != i {
			t.Errorf("%s is %d, %v", key, value, err)
		}
		_ = node.Close()
	}
}

// TestClusterOptions_SlotMoves_NoRedirectionFollowed reads a key that has moved to a server that does
// not have its slot yet.
func TestClusterOptions_SlotMoves_NoRedirectionFollowed(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	client := clusterClient(t, cluster.URL())
	const key = "{1}"
	if err := client.Set(t.Context(), key, "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	move := cluster.Move(key, (cluster.NodeOf(key)+1)%3)
	move.Begin()
	move.MoveKeys(1)
	if err := client.Get(t.Context(), key).Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("read: %v, want ASK", err)
	}
	pipe := client.Pipeline()
	pipe.Get(t.Context(), key)
	if _, err := pipe.Exec(t.Context()); errors.Is(err, redis.Nil) || !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("pipeline: %v, want ASK", err)
	}
}

// clusterClient returns a client with the options for an address.
func clusterClient(t *testing.T, address string) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(connect.ClusterOptions(address, func(addr string) *redis.Options {
		options, err := connect.RedisOptions(address, connect.TLSFiles{})
		if err != nil {
			t.Error(err)
		}
		options.Addr, options.MaxRetries = addr, -1
		return options
	}))
	t.Cleanup(func() { _ = client.Close() })
	return client
}
