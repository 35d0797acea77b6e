package locking_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// TestMain also runs this program as the holder of TestPausedHolder.
func TestMain(m *testing.M) {
	if os.Getenv(holderStrategy) != "" {
		os.Exit(holder())
	}
	redis.SetLogger(quiet{})
	stacktest.Main(m)
}

// quiet keeps go-redis from telling that the servers are down that tests stop.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
