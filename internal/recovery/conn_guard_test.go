package recovery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestConnGuard_OtherServer_IsRefused sends commands to the allowed server, another one and a replica.
func TestConnGuard_OtherServer_IsRefused(t *testing.T) {
	t.Parallel()
	own, other := stacktest.StartRedis(t), stacktest.StartRedis(t)
	guard := recovery.NewConnGuard()
	guardedClient := func(url string) *redis.Client {
		options := stacktest.RedisOptions(url)
		guard.Attach(options)
		client := redis.NewClient(options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	right, wrong := guardedClient(own.RedisURL), guardedClient(other.RedisURL)
	ctx := t.Context()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, holds.ErrDataLost) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	refused("before Allow", right.Ping(ctx).Err())

	h := newHarnessOn(t, own.RedisURL)
	epochs, err := h.store.Epochs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e := common(t, epochs)
	guard.Allow(e.Server)
	if err := right.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Errorf("to the allowed server: %v", err)
	}
	refused("to another server", wrong.Set(ctx, "key", "value", 0).Err())
	if n := stacktest.ConnectRedis(t, other.RedisURL).Exists(ctx, "key").Val(); n != 0 {
		t.Error("the other server has executed the command")
	}

	// Block closes an existing connection.
	conn := right.Conn()
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	guard.Block("closed")
	if err := conn.Ping(ctx).Err(); err == nil {
		t.Error("an existing connection is still open after Block")
	}
	refused("after Block", right.Ping(ctx).Err())
	guard.Allow(e.Server)
	if err := right.Ping(ctx).Err(); err != nil {
		t.Errorf("after Allow: %v", err)
	}

	// A replica is refused, even if its name is allowed.
	host, port, _ := strings.Cut(stacktest.ConnectRedis(t, other.RedisURL).Options().Addr, ":")
	if err := stacktest.ConnectRedis(t, own.RedisURL).ReplicaOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	guard.Block("closed")
	guard.Allow(e.Server)
	if err := right.Ping(ctx).Err(); err == nil || errors.Is(err, holds.ErrDataLost) {
		t.Errorf("to a replica: %v, want an error that is not ErrDataLost", err)
	}
}
