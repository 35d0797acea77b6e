package deployments

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// startRedisScript starts a server or a Sentinel by compose/redis.sh on an address of the loopback network, which
// stands for its host name.
func startRedisScript(t *testing.T, role, address string, port, sentinelPort int) *stack.Server {
	t.Helper()
	own := port
	if role == "sentinel" {
		own = sentinelPort
	}
	client := redis.NewClient(&redis.Options{Addr: address + ":" + strconv.Itoa(own), DisableIdentity: true,
		Username: map[string]string{"server": "replication"}[role], Password: map[string]string{"server": "secret"}[role]})
	defer func() { _ = client.Close() }()
	environment := []string{"REDIS_FILES=" + stacktest.Deployment("redis"), "REDIS_DATA=" + filepath.Join(t.TempDir(), role),
		"REDIS_BIND=" + address, "PRIMARY=127.0.0.1", fmt.Sprint("REDIS_PORT=", port), fmt.Sprint("SENTINEL_PORT=", sentinelPort),
		"PATH=" + os.Getenv("PATH")}
	for _, user := range []string{"ADMIN", "MIGRATOR", "WORKER", "AUDITOR", "REPLICATION"} {
		environment = append(environment, "HOLDFAST_REDIS_"+user+"_PASSWORD=secret")
	}
	s, err := stack.StartProgram(t.Context(), stack.Program{
		Path: "/bin/sh", Args: []string{stacktest.Deployment("compose", "redis.sh"), role, address}, Env: environment,
		Ready: func(ctx context.Context) error { return client.Ping(ctx).Err() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill() })
	return s
}

// TestCompose_RedisPrimaryKilled_ReplicaTakesOver starts Redis and Sentinel as compose.yaml does. The user of the
// workers finds the primary, and the next one after the first was killed.
func TestCompose_RedisPrimaryKilled_ReplicaTakesOver(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	if _, err := stack.RedisProgram(t.Context()); err != nil {
		t.Fatal(err)
	}
	ports, err := stack.QuietPorts(2)
	if err != nil {
		t.Fatal(err)
	}
	var primary *stack.Server
	var sentinels []string
	for _, role := range []string{"server", "sentinel"} {
		for i := range 3 {
			address := fmt.Sprint("127.0.0.", i+1)
			s := startRedisScript(t, role, address, ports[0], ports[1])
			if role == "sentinel" {
				sentinels = append(sentinels, fmt.Sprint(address, ":", ports[1]))
			} else if primary == nil {
				primary = s
			}
		}
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "holdfast", SentinelAddrs: sentinels,
		Username: "holdfast_worker", Password: "secret", DisableIdentity: true})
	defer func() { _ = client.Close() }()
	ctx := t.Context()
	stacktest.Eventually(t, "write on the first primary, which has its replicas", func() bool {
		return client.Set(ctx, "holdfast:{0}:epoch", "first", 0).Err() == nil
	})
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinels[1], DisableIdentity: true})
	defer func() { _ = sentinel.Close() }()
	stacktest.Eventually(t, "three Sentinels that know each other and both replicas", func() bool {
		known, err := sentinel.Master(ctx, "holdfast").Result()
		return err == nil && known["num-other-sentinels"] == "2" && known["num-slaves"] == "2"
	})
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "write on the next primary", func() bool {
		return client.Set(ctx, "holdfast:{0}:epoch", "second", 0).Err() == nil
	})
}

// TestCluster_ThreeServers_HaveReplicatedStreams starts three servers with nats/cluster.conf.
func TestCluster_ThreeServers_HaveReplicatedStreams(t *testing.T) {
	for _, user := range []string{"SYS", "ADMIN", "MIGRATOR", "WORKER", "OPERATOR", "AUDITOR", "BOOKING", "PAYMENT",
		"INVENTORY", "ROUTES"} {
		t.Setenv("HOLDFAST_NATS_"+user+"_PASSWORD", "secret")
	}
	ports, err := stack.QuietPorts(3)
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, port := range ports {
		routes = append(routes, fmt.Sprintf("nats://route:secret@127.0.0.1:%d", port))
	}
	var url string
	for i, port := range ports {
		options, err := server.ProcessConfigFile("nats/cluster.conf")
		if err != nil {
			t.Fatal(err)
		}
		if !options.SyncAlways {
			t.Error("the servers do not sync each message")
		}
		options.ServerName, options.StoreDir = fmt.Sprint("nats-", i+1), t.TempDir()
		options.HTTPPort, options.Cluster.Host, options.Cluster.Port = 0, "127.0.0.1", port
		options.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		url = stacktest.StartNATS(t, options).ClientURL()
	}
	nc, err := nats.Connect(url, nats.UserInfo("holdfast_admin", "secret"))
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
