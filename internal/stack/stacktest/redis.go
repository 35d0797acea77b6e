package stacktest

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/stack"
)

// RedisOptions returns the options of a client that is configured as the worker's: it never sends
// a command again by itself, and keeps to its caller's time.
func RedisOptions(url string) *redis.Options {
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err) // a stack made it
	}
	options.MaxRetries = -1
	options.ContextTimeoutEnabled = true
	// Connections of Client.Conn write the mode that they share without a common lock (v9.23.0).
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options
}

// StartRedis starts a Redis that no other test uses.
func StartRedis(t testing.TB) *stack.Stack {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Options{Redis: true, StopWithin: waitBound})
	if err != nil {
		t.Fatalf("start redis: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ReplicaOf has a Redis become a replica of another, and returns when it has what the other has.
func ReplicaOf(t testing.TB, replica, master *redis.Client) {
	t.Helper()
	host, port, _ := strings.Cut(master.Options().Addr, ":")
	if err := replica.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the replica to follow", func() bool {
		return strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// Promote has a replica become a master again.
func Promote(t testing.TB, replica *redis.Client) {
	t.Helper()
	if err := replica.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
}
