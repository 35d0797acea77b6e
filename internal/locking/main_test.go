package locking_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// TestMain also runs this program as the holder of TestStrategy_HolderPausedPastLease_WorkIsRefused.
func TestMain(m *testing.M) {
	if os.Getenv(holderStrategy) != "" {
		os.Exit(holder())
	}
	redis.SetLogger(silentLogger{})
	stacktest.Main(m)
}

// silentLogger keeps go-redis from telling that the servers are down that tests stop.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}
