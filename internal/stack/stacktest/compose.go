package stacktest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// Sentinels are the three Redis servers and three Sentinels of deployments/compose.
type Sentinels struct {
	Addrs   []string // of the Sentinels
	Primary *stack.Server
}

// URL returns the URL of the group as the worker takes it, without a user.
func (s *Sentinels) URL() string {
	return "redis+sentinel://" + strings.Join(s.Addrs, ",") + "/holdfast"
}

// StartSentinels starts Redis and Sentinel as compose.yaml does, with the passwords of [RestrictedServers]. An
// address of the loopback network stands for each host name. It returns when a write is replicated and the
// Sentinels know each other.
func StartSentinels(t testing.TB) *Sentinels {
	t.Helper()
	if _, err := stack.RedisProgram(t.Context()); err != nil {
		t.Fatal(err)
	}
	ports := QuietPorts(t, 2)
	group := &Sentinels{}
	for _, role := range []string{"server", "sentinel"} {
		for i := range 3 {
			address := fmt.Sprint("127.0.0.", i+1)
			s := startRedisScript(t, role, address, ports[0], ports[1])
			if role == "sentinel" {
				group.Addrs = append(group.Addrs, fmt.Sprint(address, ":", ports[1]))
			} else if group.Primary == nil {
				group.Primary = s
			}
		}
	}
	client := redis.NewFailoverClient(group.Options("worker"))
	defer func() { _ = client.Close() }()
	Eventually(t, "write on the first primary, which has its replicas", func() bool {
		return client.Set(t.Context(), "holdfast:{0}:epoch", "first", 0).Err() == nil
	})
	Must(t, client.Del(t.Context(), "holdfast:{0}:epoch").Err())
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: group.Addrs[1], DisableIdentity: true})
	defer func() { _ = sentinel.Close() }()
	Eventually(t, "three Sentinels that know each other and both replicas", func() bool {
		known, err := sentinel.Master(t.Context(), "holdfast").Result()
		return err == nil && known["num-other-sentinels"] == "2" && known["num-slaves"] == "2"
	})
	return group
}

// Options returns the options of a client of the primary, as a user.
func (s *Sentinels) Options(user string) *redis.FailoverOptions {
	return &redis.FailoverOptions{MasterName: "holdfast", SentinelAddrs: s.Addrs, DisableIdentity: true,
		Username: "holdfast_" + user, Password: passwords()[user]}
}

// startRedisScript starts a server or a Sentinel by compose/redis.sh.
func startRedisScript(t testing.TB, role, address string, port, sentinelPort int) *stack.Server {
	t.Helper()
	own, user, password := sentinelPort, "", ""
	if role == "server" {
		own, user, password = port, "replication", passwords()["replication"]
	}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprint(address, ":", own), DisableIdentity: true,
		Username: user, Password: password})
	defer func() { _ = client.Close() }()
	environment := append(os.Environ(), "REDIS_FILES="+Deployment("redis"), "REDIS_DATA="+filepath.Join(t.TempDir(), role),
		"REDIS_BIND="+address, "PRIMARY=127.0.0.1", fmt.Sprint("REDIS_PORT=", port), fmt.Sprint("SENTINEL_PORT=", sentinelPort))
	s, err := stack.StartProgram(t.Context(), stack.Program{
		Path: "/bin/sh", Args: []string{Deployment("compose", "redis.sh"), role, address}, Env: environment,
		Ready: func(ctx context.Context) error { return client.Ping(ctx).Err() },
	})
	return killAfter(t, s, err)
}

// StartNATSCluster starts three servers with nats/cluster.conf, as compose.yaml does.
func StartNATSCluster(t testing.TB) (cluster []*server.Server) {
	t.Helper()
	passwords()
	options := make([]*server.Options, 3)
	for i := range options {
		o, err := server.ProcessConfigFile(Deployment("nats", "cluster.conf"))
		Must(t, err)
		if !o.SyncAlways {
			t.Error("the servers do not sync each message")
		}
		o.Port, o.HTTPPort, o.NoLog = 0, 0, true
		options[i] = o
	}
	return StartNATSServers(t, options...)
}

// NewComposeServers starts the servers of compose.yaml for a test: three of NATS, three of Redis with three
// Sentinels, and Postgres. They are empty, as those of [NewRestrictedServers].
func NewComposeServers(t testing.TB) *RestrictedServers {
	t.Helper()
	s := &RestrictedServers{redisURL: StartSentinels(t).URL(), nats: StartNATSCluster(t)[0]}
	var err error
	if s.stack, err = stack.Start(t.Context(), stack.Options{Postgres: true}); err == nil {
		err = s.restrictPostgres(t.Context())
	}
	return closeAfter(t, s, err)
}
