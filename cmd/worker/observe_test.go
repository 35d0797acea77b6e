package main

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestObservePools_CommandAndPipeline_AreCounted compares the metrics with the connections that Redis lists: one for
// commands and one for pipelines.
func TestObservePools_CommandAndPipeline_AreCounted(t *testing.T) {
	t.Parallel()
	registry, set := newMetricSet(t)
	options := stacktest.RedisOptions(stacktest.Shared().RedisURL)
	options.ClientName, options.PoolSize, options.PipelinePoolSize = stacktest.Namespace(t), 7, 3
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	x := &observer{redis: client, log: zerolog.Nop()}
	x.register(set)
	stacktest.Must(t, client.Ping(t.Context()).Err())
	pipe := client.Pipeline()
	pipe.Ping(t.Context())
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.observeRedisPool(t.Context())
	listed, err := client.ClientList(t.Context()).Result()
	stacktest.Must(t, err)
	families := metricFamilies(t, registry)
	sum := func(name string) (total float64) {
		for _, m := range metricsOf(families, name) {
			for _, label := range m.GetLabel() {
				if label.GetValue() == poolRedis {
					total += m.GetGauge().GetValue()
				}
			}
		}
		return total
	}
	opened := strings.Count(listed, " name="+options.ClientName+" ")
	if got := sum("holdfast_pool_connections"); got != float64(opened) || opened != 2 {
		t.Errorf("%v connections, and Redis lists %d, want 2", got, opened)
	}
	if got := sum("holdfast_pool_connections_max"); got != 7+3 {
		t.Errorf("at most %v connections, want 10", got)
	}
}

// TestObserveClocks_RedisIsAhead_SkewIsPositive measures a clock of Redis that is an hour ahead, and behind. Its skew is that
// hour to within the minute that a busy machine may take, and that of Postgres, on the same machine, is small.
func TestObserveClocks_RedisIsAhead_SkewIsPositive(t *testing.T) {
	t.Parallel()
	_, set := newMetricSet(t)
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL, stacktest.Namespace(t))
	stacktest.Must(t, err)
	t.Cleanup(db.Close)
	x := &observer{store: db, holds: holds.NewMetrics(set), log: zerolog.Nop()}
	x.register(set)
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		x.clock = func(context.Context) (holds.Time, error) { return holds.Time{Time: time.Now().Add(ahead)}, nil }
		stacktest.Must(t, x.observeClocks(t.Context()))
		for server, want := range map[string]time.Duration{serverRedis: ahead, serverPostgres: 0} {
			if got := x.skew.With(server).Value(); math.Abs(got-want.Seconds()) > 60 {
				t.Errorf("%s is %v s ahead, want %s", server, got, want)
			}
		}
	}
}

// TestPipelinesMax_Options_AreSizeOfPool compares with the meaning of the option in go-redis.
func TestPipelinesMax_Options_AreSizeOfPool(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{0: 10, 3: 3, -1: 0} {
		if got := pipelinesMax(&redis.Options{PipelinePoolSize: size}); got != want {
			t.Errorf("with a size of %d: %d, want %d", size, got, want)
		}
	}
}
