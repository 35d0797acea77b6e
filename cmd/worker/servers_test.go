package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/connect"
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

// natsRefusal makes NATS refuse a client that reconnects through a proxy, and accept it again.
type natsRefusal struct {
	name, good, more string // the URL of the server behind the proxy, and those of others
	files            connect.NATSFiles
	refuse           func(p *stacktest.Proxy, refused bool)
	why              []string
}

// targets makes a proxy forward new connections to the server refusing, or to good.
func targets(refusing, good string) func(*stacktest.Proxy, bool) {
	return func(p *stacktest.Proxy, refused bool) {
		p.Target(map[bool]string{true: refusing, false: good}[refused])
	}
}

// away renames a file, or renames it back.
func away(t *testing.T, file string) func(*stacktest.Proxy, bool) {
	return func(_ *stacktest.Proxy, refused bool) {
		from, to := file, file+".away"
		if !refused {
			from, to = to, from
		}
		stacktest.Must(t, os.Rename(from, to))
	}
}

// natsRefusals returns refusals after the server has accepted the connection, for which nats.go has no handler.
func natsRefusals(t *testing.T) []natsRefusal {
	t.Helper()
	ca := stacktest.TestCA(t)
	start := func(by *stacktest.CA, o *natsserver.Options) (addr string) {
		if by != nil {
			secure, err := by.ServerConfig(tls.RequestClientCert)
			stacktest.Must(t, err)
			o.TLS, o.TLSConfig, o.TLSTimeout = true, secure, 60
		}
		return stacktest.StartNATS(t, o).Addr().String()
	}
	plain, full := start(nil, &natsserver.Options{AlwaysEnableNonce: true}), start(nil, &natsserver.Options{AlwaysEnableNonce: true, MaxConn: -1})
	secure, other := start(ca, &natsserver.Options{}), start(stacktest.TestCA(t), &natsserver.Options{})
	cert, key, err := ca.Issue("client")
	stacktest.Must(t, err)
	user, err := nkeys.CreateUser()
	stacktest.Must(t, err)
	seed, err := user.Seed()
	stacktest.Must(t, err)
	login := connect.NATSFiles{NKeyFile: fileOf(t, "seed", string(seed))}
	withTLS := connect.NATSFiles{CAFile: ca.File, CertFile: cert, KeyFile: key}
	return []natsRefusal{
		{"another authority", "tls://" + secure, ",tls://127.0.0.1:1", withTLS, targets(other, secure),
			[]string{"unknown authority", "connection refused"}},
		{"no client certificate", "tls://" + secure, "", withTLS, away(t, key), []string{"--nats-cert-file, --nats-key-file: open"}},
		{"no login", "nats://" + plain, "", login, away(t, login.NKeyFile), []string{"unable to extract key pair"}},
		{"too many connections", "nats://" + plain, "", login, targets(full, plain), []string{"maximum connections exceeded"}},
	}
}

// TestNATSClient_NotReconnected_SaysWhyOnce refuses a client that reconnects, in two outages. Each attempt fails for the same
// reasons: the log has each of them once in an outage, and /readyz the last one.
func TestNATSClient_NotReconnected_SaysWhyOnce(t *testing.T) {
	t.Parallel()
	for _, c := range natsRefusals(t) {
		url, proxy := stacktest.ProxyTo(t, c.good)
		var logged lockedBuffer
		var failure natsFailure
		servers := NATSServers{NATSURL: url + c.more, NATSFiles: c.files}
		nc, err := newNATS(t.Context(), Config{Connections: Connections{NATSServers: servers}}, zerolog.New(&logged), &failure, func() {})
		stacktest.Must(t, err)
		t.Cleanup(nc.Close)
		await := func(what string, condition func() bool) {
			t.Helper()
			stacktest.Eventually(t, c.name+": "+what, func() bool {
				if nc.IsReconnecting() {
					stacktest.Must(t, nc.ForceReconnect()) // now, not after the pause
				}
				return condition()
			})
		}
		for outage := 1; outage <= 2; outage++ {
			before := nc.Stats().Reconnects
			c.refuse(proxy, true)
			proxy.Cut(true)
			await("several attempts", func() bool { return nc.Stats().Reconnects > before+3 })
			await("all reasons", func() bool {
				text := fmt.Sprint(failure.why())
				return !slices.ContainsFunc(c.why, func(why string) bool {
					return !strings.Contains(text, why) || strings.Count(logged.String(), why) < outage
				})
			})
			await("more attempts", func() bool { return nc.Stats().Reconnects > before+9 })
			for _, line := range strings.Split(logged.String(), "\n") {
				if n := strings.Count(logged.String(), line+"\n"); strings.Contains(line, "error") && n != outage {
					t.Errorf("%s: after %d outages the log has %d times %s", c.name, outage, n, line)
				}
			}
			c.refuse(proxy, false)
			await("a connection", func() bool { return nc.IsConnected() && failure.why() == nil })
		}
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
