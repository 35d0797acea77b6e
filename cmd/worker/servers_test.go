package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// TestRedisClient_ReplyLost_NotSentAgain drops the reply to a command. The worker's client does not
// retry the command: it is executed once, and the lost reply is an error.
func TestRedisClient_ReplyLost_NotSentAgain(t *testing.T) {
	t.Parallel()
	url, proxy := stacktest.ProxyTo(t, stacktest.Shared().RedisURL)
	c := &Connections{Named: Named{stacktest.Namespace(t)}}
	options, err := c.redisOptions("--redis-url", url)
	stacktest.Must(t, err)
	client, direct := redis.NewClient(options), stacktest.ConnectRedis(t, stacktest.Shared().RedisURL)
	t.Cleanup(func() { _ = client.Close() })
	stacktest.Must(t, client.Ping(t.Context()).Err())
	key := c.Namespace + ":counter"
	proxy.Drop(stacktest.DropRule{Words: []string{key}})
	if err := client.Incr(t.Context(), key).Err(); err == nil {
		t.Error("no error although the reply was lost")
	}
	if n := direct.Get(t.Context(), key).Val(); n != "1" || proxy.Dropped() != 1 {
		t.Errorf("the command was executed %s times; %d replies were lost", n, proxy.Dropped())
	}
}

// TestInitialise_PausedUntilRedisIsEmpty_WritesNothing lets a worker write the first epoch that has read long before that
// there is none: another one has written it since, and Redis has lost it. With the epoch in Redis no worker would notice
// the loss: it is the one of Postgres, on the same server.
func TestInitialise_PausedUntilRedisIsEmpty_WritesNothing(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	epoch, key := s.epochs()[7].Name, record.Keyspace(s.namespace).Epoch(7)
	if n := s.redis.Del(t.Context(), key).Val(); n != 1 {
		t.Fatal("the first epoch is missing")
	}
	server := recovery.Server{Options: s.redis.Options}
	c := Config{Connections: Connections{Named: Named{s.namespace}}}
	stacktest.Must(t, initialise(t.Context(), c, server, record.PartitionSetOf(7), epoch, s.store))
	if got := s.redis.Get(t.Context(), key).Val(); got != "" {
		t.Errorf("the epoch %q was written to a redis that had lost it", got)
	}
}

// TestRedisServers_FilesGone_OptionsStay removes the certificates of a worker that runs. It may find servers and open
// clients at any time, also while the files are missing or do not belong together, as during a renewal.
func TestRedisServers_FilesGone_OptionsStay(t *testing.T) {
	t.Parallel()
	ca, err := stacktest.NewCA(t.TempDir())
	stacktest.Must(t, err)
	c := &Connections{RedisURL: "rediss://127.0.0.1:1", RedisFiles: RedisFiles{CAFile: ca.File}}
	find, closeAll, err := c.redisServers()
	stacktest.Must(t, err)
	t.Cleanup(closeAll)
	stacktest.Must(t, os.Remove(ca.File))
	servers, err := find(t.Context())
	stacktest.Must(t, err)
	if options := servers[0].Options(); options == nil || options.TLSConfig.RootCAs == nil {
		t.Errorf("the options of a client of the server are %+v", options)
	}
}

// TestNATSClient_Disconnected_PublishFails publishes while NATS is disconnected. Publishing fails
// at once, and nothing is buffered: after the reconnect it may no longer be true.
func TestNATSClient_Disconnected_PublishFails(t *testing.T) {
	t.Parallel()
	servers := stacktest.Start(t, stack.Options{NATS: true})
	nc, err := newNATS(t.Context(), Config{Connections: Connections{NATSServers: NATSServers{NATSURL: servers.NATSURL}}}, zerolog.Nop(), new(natsFailure), func() {})
	stacktest.Must(t, err)
	t.Cleanup(nc.Close)
	stacktest.Must(t, servers.Close())
	stacktest.Eventually(t, "the client to be disconnected", func() bool { return nc.Status() == nats.RECONNECTING })
	if err := nc.Publish("subject", []byte("text")); err == nil {
		t.Error("the message is buffered")
	}
}

// TestCapacityBySQL_WorkerRuns_RevChanges changes a capacity by SQL while a worker runs. The
// revision of the slot changes, so decisions that have read the old capacity are refused.
func TestCapacityBySQL_WorkerRuns_RevChanges(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker()
	s.setInventory("hall", seat, 1)
	conn := stacktest.ConnectPostgres(t, s.urls.postgres)
	rev := func() string {
		return s.redis.Get(t.Context(), fmt.Sprintf("%s:{%d}:hall:rev", s.namespace, record.Partition("hall"))).Val()
	}
	before := rev()
	stacktest.Eventually(t, "the worker to be notified", func() bool { // it may not listen yet
		stacktest.Exec(t, conn, "UPDATE "+s.namespace+".inventory SET capacity = capacity + 1")
		return rev() != before
	})
}

// TestMigrate_StreamsRefused_PolicyUnchanged asks for a longer life of holds than the outbound stream keeps: the
// command fails, and must not have changed the policy of all workers.
func TestMigrate_StreamsRefused_PolicyUnchanged(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate()
	args := append(append([]string{"migrate"}, s.serversAs("migrator")...), "--preflight", "warn",
		"--hold-lifetime-max", "300h", "--request-key-ttl", "300h")
	if code := run(t.Context(), args, streams{t.Output(), t.Output()}); code != exitFailed {
		t.Fatalf("worker migrate: exit code %d, want %d", code, exitFailed)
	}
	worker := s.startWorker("HOLDFAST_NO_MIGRATE=true")
	if code, body := worker.get(t, "/readyz"); strings.Contains(body, "policy_mismatch") {
		t.Errorf("the refused policy is in force: %d %s", code, body)
	}
}

// TestRun_MaxPayloadLowered_LogsWhyItEnds lowers max_payload by a reload. NATS closes the connection of the
// worker, which sends a larger outcome, permanently. The log has the cause.
func TestRun_MaxPayloadLowered_LogsWhyItEnds(t *testing.T) {
	t.Parallel()
	options := &natsserver.Options{JetStream: true, StoreDir: t.TempDir()}
	served := stacktest.StartNATS(t, options)
	shared := stacktest.Shared()
	s := newHarnessOn(t, urls{served.ClientURL(), shared.RedisURL, shared.PostgresURL})
	p := s.startWorker()
	lowered := options.Clone()
	lowered.MaxPayload = 16 << 10
	stacktest.Must(t, served.ReloadOptions(lowered))
	s.publish(events.InventorySet, "nights", events.InventorySetData{
		ResourceID: "nights", SlotSelection: holds.SlotSelection{CheckIn: "2026-01-01", CheckOut: "2028-12-31"}, Capacity: 7,
	})
	p.awaitLog(t, "nats: Maximum Payload Violation")
	p.awaitExit(t)
	if p.cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("the worker exited with %v", p.err)
	}
}
