package deployments

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack/stacktest"
)

// TestCompose_RedisPrimaryKilled_ReplicaTakesOver starts Redis and Sentinel as compose.yaml does. The user of the
// workers finds the primary, and the next one after the first was killed.
func TestCompose_RedisPrimaryKilled_ReplicaTakesOver(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	group := stacktest.StartSentinels(t)
	if err := group.Primary.Kill(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewFailoverClient(group.Options("worker"))
	defer func() { _ = client.Close() }()
	stacktest.Eventually(t, "write on the next primary", func() bool {
		return client.Set(t.Context(), "holdfast:{0}:epoch", "second", 0).Err() == nil
	})
}

// TestCluster_ThreeServers_HaveReplicatedStreams starts three servers with nats/cluster.conf.
func TestCluster_ThreeServers_HaveReplicatedStreams(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartNATSCluster(t)
	nc, err := nats.Connect(stacktest.URLAs("admin", cluster[0].ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "a stream with three replicas", func() bool {
		created, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "T", Replicas: 3})
		return err == nil && len(created.CachedInfo().Cluster.Replicas) == 2
	})
}
