package stacktest

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/stack"
)

// RedisOptions returns the options of a client like the worker's: it never retries a command by itself,
// and it observes the deadline of the context.
func RedisOptions(url string) *redis.Options {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err) // the URL comes from a stack
	}
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	options.DisableIdentity = true // CLIENT SETINFO is refused under an ACL, since Redis 7.2 with an entry in ACL LOG
	// With notifications, connections of Client.Conn write their shared mode without a lock (v9.23.0).
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options
}

// StartRedis starts a Redis for this test only.
func StartRedis(t testing.TB) *stack.Stack {
	t.Helper()
	return Start(t, stack.Options{Redis: true, StopWithin: WaitBound})
}

// RunRedis starts redis-server in a directory with arguments, and waits until client reaches it. stop ends it, and may be
// called again: the end of the test does so.
func RunRedis(t testing.TB, client *redis.Client, dir string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command("redis-server", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (install redis-server)", err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	Eventually(t, "redis to start", func() bool { return client.Ping(context.Background()).Err() == nil })
	return stop
}

// ReplicaOf makes a Redis the replica of another, and returns when it has the data of the other.
func ReplicaOf(t testing.TB, replica, master *redis.Client) {
	t.Helper()
	host, port, _ := strings.Cut(master.Options().Addr, ":")
	Must(t, replica.ReplicaOf(t.Context(), host, port).Err())
	Eventually(t, "the replica to be in sync", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// Promote makes a replica a master again.
func Promote(t testing.TB, replica *redis.Client) {
	t.Helper()
	Must(t, replica.ReplicaOf(t.Context(), "no", "one").Err())
}
