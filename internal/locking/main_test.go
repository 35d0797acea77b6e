package locking_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// TestMain also runs this program as the holder in
// TestStrategy_HolderPausedPastLease_WorkIsRefused.
func TestMain(m *testing.M) {
	if os.Getenv(holderStrategy) != "" {
		os.Exit(holder())
	}
	redis.SetLogger(silentLogger{})
	stacktest.Main(m)
}

// silentLogger suppresses messages of go-redis about servers that tests stop.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}
