package deployments

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

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

// TestCompose_WorkerStarts_AllServersHaveStarted follows what the worker depends on, because the documented command starts
// nothing else. A primary of Redis without a replica refuses the writes of worker migrate. Nor does Compose start a
// read-only container with a secret of its environment.
func TestCompose_WorkerStarts_AllServersHaveStarted(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			DependsOn map[string]struct{} `yaml:"depends_on"`
			ReadOnly  bool                `yaml:"read_only"`
			Secrets   []string            `yaml:"secrets"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	started := []string{"worker"}
	for i := 0; i < len(started); i++ {
		for name := range file.Services[started[i]].DependsOn {
			if !slices.Contains(started, name) {
				started = append(started, name)
			}
		}
	}
	for _, server := range []string{
		"nats-1", "nats-2", "nats-3", "redis-1", "redis-2", "redis-3", "sentinel-1", "sentinel-2", "sentinel-3", "postgres",
		"migrate", "grants", "consumers", "token",
	} {
		if !slices.Contains(started, server) {
			t.Errorf("docker compose up worker does not start %s, only %v", server, started)
		}
	}
	worker := file.Services["worker"]
	if !worker.ReadOnly || len(worker.Secrets) > 0 { // which Compose refuses together, unless the secret is a file
		t.Errorf("the worker is read-only: %v, with the secrets %v", worker.ReadOnly, worker.Secrets)
	}
}

// TestCluster_ThreeServers_HaveReplicatedStreams starts three servers with nats/cluster.conf.
func TestCluster_ThreeServers_HaveReplicatedStreams(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartNATSCluster(t)
	js := stacktest.ConnectNATS(t, stacktest.URLAs("admin", cluster[0].ClientURL()))
	stacktest.Eventually(t, "a stream with three replicas", func() bool {
		created, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "T", Replicas: 3})
		return err == nil && len(created.CachedInfo().Cluster.Replicas) == 2
	})
}
