package preflight_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
	"holdfast/internal/stack/stacktest"
)

// natsTool reports whether the nats command is installed, which the fixes use. In CI it must be.
func natsTool(t *testing.T) bool {
	t.Helper()
	_, err := exec.LookPath("nats")
	if err != nil && os.Getenv("HOLDFAST_TEST_TOOLS") == "required" {
		t.Fatal("nats is not on PATH, so no fix is tried")
	}
	return err == nil
}

func (w *harness) natsCommand(args string) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "sh", "-c", "nats --server "+w.NATSURL+" "+args)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Errorf("nats %s: %v\n%s", args, err, out)
	}
}

// TestNATSStreams_Misconfigured_FailsAndFixRepairs misconfigures each stream in each way. Only the
// check of that stream fails, and its fix repairs the stream.
func TestNATSStreams_Misconfigured_FailsAndFixRepairs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	hasTool := natsTool(t)
	ctx := t.Context()
	all := make(map[string]jetstream.StreamConfig)
	for _, config := range w.ns.Streams(retention) {
		all[config.Name] = config
	}
	const in, out, dlq, runs = "HOLDFAST_IN", "HOLDFAST_OUT", "HOLDFAST_DLQ", "HOLDFAST_RUNS"
	moving := func(source, destination string) func(*jetstream.StreamConfig) {
		return func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: source, Destination: destination}
		}
	}
	writesLate := func(c *jetstream.StreamConfig) {
		c.PersistMode, c.AllowAtomicPublish = jetstream.AsyncPersistMode, false
	}
	for _, c := range []struct {
		what, stream string
		status       preflight.Status
		wrong        func(*jetstream.StreamConfig)
		recreate     bool // an edit cannot repair it
	}{
		{"in memory", in, "fail", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, true},
		{"in memory", out, "fail", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, true},
		{"a queue", dlq, "fail", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, true},
		{"by interest", in, "fail", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, true},
		{"discards old", in, "fail", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, false},
		{"discards old", dlq, "fail", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, false},
		{"discards new", out, "fail", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }, false},
		{"no purges", in, "warn", func(c *jetstream.StreamConfig) { c.DenyPurge = true }, true},
		{"no removals", dlq, "warn", func(c *jetstream.StreamConfig) { c.DenyDelete = true }, true},
		{"direct reads", dlq, "warn", func(c *jetstream.StreamConfig) { c.AllowDirect = true }, false},
		{"no acks", in, "fail", func(c *jetstream.StreamConfig) { c.NoAck = true }, false},
		{"other subjects", in, "fail", func(c *jetstream.StreamConfig) { c.Subjects = []string{"holdfast.in.booking.>"} },
			false},
		{"other subjects", out, "fail", func(c *jetstream.StreamConfig) { c.Subjects = []string{"holdfast.out.hold.>"} },
			false},
		{"a mirror", out, "fail", func(c *jetstream.StreamConfig) {
			c.Subjects, c.Duplicates, c.AllowAtomicPublish, c.Mirror = nil, 0, false, &jetstream.StreamSource{Name: runs}
		}, false},
		{"one of a subject", in, "fail", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }, false},
		{"lives too short", out, "fail",
			func(c *jetstream.StreamConfig) { c.MaxAge = retention.HoldLifetime - time.Second }, false},
		{"forgets answers", out, "warn",
			func(c *jetstream.StreamConfig) { c.MaxAge = retention.HoldLifetime + retention.AnswerTTL - time.Second }, false},
		{"forgets events", in, "warn", func(c *jetstream.StreamConfig) { c.MaxAge = 7 * 24 * time.Hour }, false},
		{"forgets dead letters", dlq, "warn", func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour }, false},
		{"small messages", in, "warn", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 10 }, false},
		{"small messages", dlq, "warn", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 128 << 10 }, false},
		{"small window", out, "warn", func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute }, false},
		{"small window", dlq, "warn", func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute }, false},
		{"long window", in, "fail", func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute }, false},
		{"time limits of messages", in, "fail", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, true},
		{"roll-ups", in, "fail", func(c *jetstream.StreamConfig) { c.AllowRollup = true }, false},
		{"moves events", in, "fail", moving("holdfast.in.payment.>", "moved.>"), false},
		{"moves outcomes", out, "fail", moving("", "moved.>"), false},
		{"moves other messages", in, "ok", moving("other.*", "holdfast.in.booking.requested.{{wildcard(1)}}"), false},
		{"writes late", in, "fail", writesLate, true},
		{"writes late", out, "fail", writesLate, true},
		{"large, and lives for ever", out, "ok", func(c *jetstream.StreamConfig) { c.MaxAge, c.MaxBytes = 0, 1<<30 }, false},
		{"more subjects", out, "ok", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "more.>") }, false},
		{"lives for a day", runs, "ok", func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour }, false},
	} {
		what := c.stream + ": " + c.what
		config := all[c.stream]
		c.wrong(&config)
		stacktest.Must(t, w.js.DeleteStream(ctx, c.stream))
		if _, err := w.js.CreateStream(ctx, config); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		check := "nats.stream." + c.stream
		if c.stream == in { // its consumers were deleted with it
			if c.status == "fail" {
				for _, consumer := range w.ns.Consumers() {
					if _, err := w.js.CreateOrUpdateConsumer(ctx, in, consumer); err != nil &&
						config.Retention == jetstream.LimitsPolicy {
						t.Fatalf("%s: %v", what, err)
					}
				}
			} else {
				w.migrate()
			}
		}
		found := w.expect(what, []string{check + " " + string(c.status)})[check]
		if found.Fix == "worker migrate" {
			w.expect(what+", and a worker that migrates", nil, migrates)
			w.applyFix(found)
			w.expect("after "+what, nil)
			continue
		}
		refused := events.Setup(ctx, w.js, w.ns, retention, zerolog.Nop())
		if (refused != nil) != (c.status == "fail") {
			t.Errorf("%s: a worker that migrates returns %v", what, refused)
		}
		if c.status == "fail" && !strings.Contains(found.Found,
			strings.TrimPrefix(strings.SplitN(refused.Error(), ": ", 3)[1], "")) {
			t.Errorf("%s: preflight reports %s, a worker that migrates %v", what, found.Found, refused)
		}
		switch {
		case c.status == preflight.OK:
			continue
		case c.recreate:
			if !strings.Contains(found.Fix, "worker migrate") {
				t.Errorf("%s: %s", what, found.Fix)
			}
		case hasTool:
			w.applyFix(found)
			w.expect("after "+what, nil)
			continue
		}
		stacktest.Must(t, w.js.DeleteStream(ctx, c.stream))
		w.migrate()
		w.expect("recreated after "+what, nil)
	}
	stacktest.Must(t, w.js.DeleteStream(ctx, dlq))
	w.expect("none, and a worker that migrates", nil, migrates)
	w.applyFix(w.expect("none", []string{"nats.stream.HOLDFAST_DLQ fail"})["nats.stream.HOLDFAST_DLQ"])
	w.expect("after none", nil)
	if !hasTool {
		t.Skip("nats is not on PATH, so the fixes were not tried (.ci/run has it, and sets HOLDFAST_TEST_TOOLS=required)")
	}
}

// TestNATSStreams_OutcomesDroppedEarly_Fails has the outbound stream drop outcomes younger than a
// hold can be.
func TestNATSStreams_OutcomesDroppedEarly_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	config := w.ns.Streams(retention)[1]
	config.MaxMsgs = 3
	if _, err := w.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	w.expect("limited, and not full", nil)
	for range 4 {
		if _, err := w.js.Publish(t.Context(), "holdfast.out.hold.created.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	c := w.expect("limited, and full", []string{"nats.stream.HOLDFAST_OUT fail"})["nats.stream.HOLDFAST_OUT"]
	if natsTool(t) {
		w.applyFix(c)
		w.expect("not limited any more", nil)
	}
}

// TestNATSConsumers_Misconfigured_FailsAndFixRepairs misconfigures consumers.
func TestNATSConsumers_Misconfigured_FailsAndFixRepairs(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	for what, wrong := range map[string]func(*jetstream.ConsumerConfig){
		"a limit of deliveries": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
		"a long wait for acks":  func(c *jetstream.ConsumerConfig) { c.AckWait = time.Minute },
		"few at a time":         func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1 },
		"another filter":        func(c *jetstream.ConsumerConfig) { c.FilterSubjects = []string{"holdfast.in.payment.started.>"} },
	} {
		config := w.ns.Consumers()[2]
		wrong(&config)
		if _, err := w.js.UpdateConsumer(ctx, "HOLDFAST_IN", config); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		w.expect(what+", and a worker that migrates", nil, migrates)
		c := w.expect(what, []string{"nats.consumers fail"})["nats.consumers"]
		if !strings.HasPrefix(c.Found, "payments: ") {
			t.Errorf("%s: %s", what, c.Found)
		}
		w.applyFix(c)
		w.expect("after "+what, nil)
	}
	config := w.ns.Consumers()[2]
	config.AckWait = 15 * time.Second // of an older version, whose workers may run beside this one
	if _, err := w.js.UpdateConsumer(ctx, "HOLDFAST_IN", config); err != nil {
		t.Fatal(err)
	}
	w.applyFix(w.expect("the wait for acks of an older version", []string{"nats.consumers warn"})["nats.consumers"])
	stacktest.Must(t, w.js.DeleteConsumer(ctx, "HOLDFAST_IN", "payments"))
	config = w.ns.Consumers()[2]
	config.ReplayPolicy = jetstream.ReplayOriginalPolicy // an update cannot change it
	if _, err := w.js.CreateConsumer(ctx, "HOLDFAST_IN", config); err != nil {
		t.Fatal(err)
	}
	w.applyFix(w.expect("the speed of the original", []string{"nats.consumers fail"})["nats.consumers"])
	w.expect("after the speed of the original", nil)
	stacktest.Must(t, w.js.DeleteConsumer(ctx, "HOLDFAST_IN", "changes"))
	w.applyFix(w.expect("one is missing", []string{"nats.consumers fail"})["nats.consumers"])
	w.expect("after one was missing", nil)
}

// natsServer starts a server for one test.
func natsServer(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	o.StoreDir = t.TempDir()
	return stacktest.StartNATS(t, &o)
}

// alteringDialer connects to NATS and alters what the server sends.
type alteringDialer func([]byte) []byte

func (alter alteringDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &alteredConn{Conn: conn, alter: alter}, err
}

// TestNATS_ServerUnsuitable_FailsOrWarns uses unsuitable servers.
func TestNATS_ServerUnsuitable_FailsOrWarns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	at := func(url string) func(*preflight.Target) { return func(t *preflight.Target) { t.NATSURL = url } }
	reporting := func(from, to string) func(*preflight.Target) {
		return func(t *preflight.Target) {
			t.NATSOptions = append(t.NATSOptions, nats.SetCustomDialer(alteringDialer(func(reply []byte) []byte {
				return bytes.Replace(reply, []byte(from), []byte(to), 1)
			})))
		}
	}
	w.expect("an old NATS", []string{"nats.version fail"},
		reporting(fmt.Sprintf(`"version":%q`, server.VERSION), `"version":"2.9.25"`))
	w.expect("a NATS that says nothing of itself", []string{"nats.version unknown"},
		reporting(fmt.Sprintf(`"version":%q`, server.VERSION), `"version":"new"`))
	w.expect("small payloads", []string{"nats.max_payload warn"}, reporting(`"max_payload":1048576`, `"max_payload":131072`))
	if c := w.expect("no server", append(unreachable("nats"), "clocks unknown"),
		at("nats://127.0.0.1:1"))["clocks"]; !strings.HasPrefix(c.Fix, "fix the above first") {
		t.Errorf("no server: %+v", c)
	}
	plain := natsServer(t, server.Options{})
	var streams []string
	for _, config := range w.ns.Streams(retention) {
		streams = append(streams, "nats.stream."+config.Name+" fail")
	}
	w.expect("no JetStream", append(streams, "nats.replicas skipped", "nats.consumers skipped", "nats.limits skipped"),
		at(plain.ClientURL()))

	// Monitoring addresses, which report sync_interval.
	monitored := func(o server.Options) (s *server.Server, monitor string) {
		o.JetStream, o.HTTPHost, o.HTTPPort = true, "127.0.0.1", -1
		s = natsServer(t, o)
		return s, "http://" + s.MonitorAddr().String()
	}
	connected, always := monitored(server.Options{SyncAlways: true, ServerName: "nats-1"})
	_, other := monitored(server.Options{SyncAlways: true, ServerName: "nats-2"})
	_, late := monitored(server.Options{ServerName: "nats-1"})
	w.expect("no streams yet", []string{"nats.consumers skipped", "nats.limits skipped"}, at(connected.ClientURL()), migrates)
	w.createStreams(connected.ClientURL())
	bare := "http://" + natsServer(t, server.Options{HTTPHost: "127.0.0.1", HTTPPort: -1}).MonitorAddr().String()
	for what, c := range map[string]struct {
		monitors []string
		status   string
	}{
		"always":             {[]string{always}, "ok"},
		"another server":     {[]string{other}, "unknown"},
		"late":               {[]string{late}, "fail"},
		"one of two late":    {[]string{always, late}, "fail"},
		"one of two silent":  {[]string{always, "http://127.0.0.1:1"}, "unknown"},
		"no JetStream there": {[]string{bare}, "unknown"},
		"not a monitor":      {[]string{"http://" + hostOf(w.NATSURL)}, "unknown"},
		"no URL":             {[]string{"http://ann:s3cret@[::1"}, "unknown"},
		"with a password":    {[]string{"http://ann:s3cret@127.0.0.1:1/"}, "unknown"},
	} {
		found := w.expect(what, []string{"nats.sync_interval " + c.status},
			func(t *preflight.Target) { t.Monitors = c.monitors }, at(connected.ClientURL()))["nats.sync_interval"]
		if what == "another server" && found.Found != "nats-1 has not reported it, nats-2: always" {
			t.Errorf("%s: %+v", what, found)
		}
		if strings.Contains(fmt.Sprint(found), "s3cret") {
			t.Errorf("%s: %+v", what, found)
		}
	}
}

// TestNATSPayload_LimitOfAccount_Warns has an account with a lower limit than its server.
func TestNATSPayload_LimitOfAccount_Warns(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	url := stacktest.NATSWithAccountPayload(t, 16<<10)
	c := w.check(func(t *preflight.Target) { t.NATSURL = url }, migrates)["nats.max_payload"]
	if c.Status != preflight.Warn || c.Found != "16384 bytes" {
		t.Errorf("it found %+v", c)
	}
}

// TestNATSAnswering_ByResponses_NeedsAnyNumber lets users acknowledge events only because they may answer what they receive. A
// worker answers an event that takes long more than once.
func TestNATSAnswering_ByResponses_NeedsAnyNumber(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	for responses, status := range map[int]preflight.Status{
		server.DEFAULT_ALLOW_RESPONSE_MAX_MSGS: preflight.Fail, 10: preflight.Fail, -1: preflight.OK,
	} {
		s := natsServer(t, server.Options{JetStream: true, Users: []*server.User{{
			Username: "worker", Password: "pw", Permissions: &server.Permissions{
				Publish:  &server.SubjectPermission{Allow: []string{"$JS.API.>", "$SYS.REQ.USER.INFO", "holdfast.>"}},
				Response: &server.ResponsePermission{MaxMsgs: responses, Expires: time.Hour},
			},
		}}})
		url := strings.Replace(s.ClientURL(), "nats://", "nats://worker:pw@", 1)
		w.createStreams(url)
		if c := w.check(func(t *preflight.Target) { t.NATSURL = url })[preflight.NATSAnswering]; c.Status != status {
			t.Errorf("with %d responses: %+v", responses, c)
		}
	}
}

// TestNATSSync_ServerNotMonitored_Unknown has other servers than the connected one lead the streams
// or have copies. Unless all of them are monitored, the check is unknown.
func TestNATSSync_ServerNotMonitored_Unknown(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const size = 3
	servers := natsCluster(t, size)
	w.withNATS(servers[0].ClientURL(), func(js jetstream.JetStream) error {
		for _, config := range w.ns.Streams(retention) {
			config.Replicas = size
			stacktest.Eventually(t, "servers that accept a stream", func() bool {
				_, err := js.CreateStream(t.Context(), config)
				return err == nil
			})
		}
		stream, err := js.Stream(t.Context(), w.ns.InStream())
		stacktest.Eventually(t, "all copies of a stream", func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.Cluster != nil && info.Cluster.Leader != "" && len(info.Cluster.Replicas) == size-1
		})
		return err
	})
	check := func(monitors ...*server.Server) preflight.Check {
		t.Helper()
		return w.check(func(t *preflight.Target) {
			t.NATSURL = servers[0].ClientURL()
			for _, s := range monitors {
				t.Monitors = append(t.Monitors, "http://"+s.MonitorAddr().String())
			}
		})["nats.sync_interval"]
	}
	if c := check(servers...); c.Status != preflight.OK {
		t.Errorf("all servers monitored: %+v", c)
	}
	for i := range servers {
		some := slices.Delete(slices.Clone(servers), i, i+1)
		if c := check(some...); c.Status != preflight.Unknown ||
			!strings.Contains(c.Found, servers[i].Name()+" has not reported it") {
			t.Errorf("without %s: %+v", servers[i].Name(), c)
		}
	}
	w.withNATS(servers[0].ClientURL(), func(js jetstream.JetStream) (err error) { // the servers then stop faster
		for _, config := range w.ns.Streams(retention) {
			err = errors.Join(err, js.DeleteStream(t.Context(), config.Name))
		}
		return err
	})
}

// TestNATSReplicas_ClusterAndLoneServer_AreChecked creates the streams in a cluster and on a single
// server, with the default and with a setting.
func TestNATSReplicas_ClusterAndLoneServer_AreChecked(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	servers := natsCluster(t, 3)
	cluster := func(t *preflight.Target) { t.NATSURL = servers[0].ClientURL() }
	replicas := func(js jetstream.JetStream, ns events.Namespace) (all []int) {
		t.Helper()
		for _, config := range ns.Streams(retention) {
			stream, err := js.Stream(t.Context(), config.Name)
			stacktest.Must(t, err)
			all = append(all, stream.CachedInfo().Config.Replicas)
		}
		return all
	}
	if got := replicas(w.js, w.ns); !slices.Equal(got, []int{1, 1, 1, 1}) {
		t.Errorf("on a single server the streams have %v replicas", got)
	}
	if c := w.check()["nats.replicas"]; c.Status != preflight.Warn || !strings.Contains(c.Fix, "move the streams to a cluster") {
		t.Errorf("on a single server: %+v", c)
	}
	two := retention
	two.Replicas = 2
	if err := events.Setup(t.Context(), w.js, "more", two, zerolog.Nop()); err == nil ||
		!strings.Contains(err.Error(), "HOLDFAST_STREAM_REPLICAS") {
		t.Errorf("two replicas on a single server: %v", err)
	}
	if c := w.check(cluster, migrates)["nats.replicas"]; c.Status != preflight.OK ||
		!strings.Contains(c.Found, "HOLDFAST_IN will be created with 3") {
		t.Errorf("before they are created: %+v", c)
	}
	w.withNATS(servers[0].ClientURL(), func(js jetstream.JetStream) error {
		for ns, c := range map[events.Namespace]struct {
			set  events.Retention
			want []int
		}{w.ns: {retention, []int{3, 3, 3, 3}}, "pair": {two, []int{2, 2, 2, 2}}} {
			stacktest.Eventually(t, "servers that accept streams", func() bool {
				return events.Setup(t.Context(), js, ns, c.set, zerolog.Nop()) == nil
			})
			if got := replicas(js, ns); !slices.Equal(got, c.want) {
				t.Errorf("with setting %d the streams have %v replicas, want %v", c.set.Replicas, got, c.want)
			}
		}
		return nil
	})
	if c := w.check(cluster)["nats.replicas"]; c.Status != preflight.OK {
		t.Errorf("in the cluster: %+v", c)
	}
	one := func(t *preflight.Target) { t.Retention.Replicas = 1 }
	if c := w.check(one)["nats.replicas"]; c.Status != preflight.OK {
		t.Errorf("one replica, as set: %+v", c)
	}
	w.withNATS(servers[0].ClientURL(), func(js jetstream.JetStream) (err error) { // the servers then stop faster
		for _, ns := range []events.Namespace{w.ns, "pair"} {
			for _, config := range ns.Streams(retention) {
				err = errors.Join(err, js.DeleteStream(t.Context(), config.Name))
			}
		}
		return err
	})
}

// TestNATSStreams_ServersOfClusterStop_AreReported stops two of the three servers that have a copy of the outbound
// stream, in a cluster of five. The stream allows no atomic batches: Setup leaves that to the operator, because an older
// server would stop it.
func TestNATSStreams_ServersOfClusterStop_AreReported(t *testing.T) {
	stacktest.LongOnly(t) // a server counts as offline only after some time
	t.Parallel()
	w := newHarness(t)
	servers := natsCluster(t, 5)
	cluster := func(t *preflight.Target) { t.NATSURL = servers[0].ClientURL() }
	out := "nats.stream." + w.ns.OutStream()
	var copies []string // the servers with a copy, without the connected one
	w.withNATS(servers[0].ClientURL(), func(js jetstream.JetStream) error {
		setup := func() error { return events.Setup(t.Context(), js, w.ns, retention, zerolog.Nop()) }
		stacktest.Eventually(t, "servers that accept streams", func() bool { return setup() == nil })
		stream, err := js.Stream(t.Context(), w.ns.OutStream())
		stacktest.Must(t, err)
		info := stream.CachedInfo()
		for _, name := range append([]string{info.Cluster.Leader}, peersOf(info)...) {
			if name != servers[0].Name() {
				copies = append(copies, name)
			}
		}
		info.Config.AllowAtomicPublish = false
		_, err = js.UpdateStream(t.Context(), info.Config)
		stacktest.Must(t, err)
		return setup()
	})
	if c := w.check(cluster, migrates)[out]; c.Status != preflight.Warn || !strings.Contains(c.Fix, "--allow-batch") {
		t.Errorf("without atomic batches: %+v", c)
	}
	stop := func(name string) {
		for _, s := range servers {
			if s.Name() == name {
				s.Shutdown()
			}
		}
	}
	stop(copies[0])
	stacktest.Eventually(t, "a report of the server that is down", func() bool {
		c := w.check(cluster)["nats.replicas"]
		return c.Status == preflight.Warn && strings.Contains(c.Found, "offline: "+copies[0])
	})
	stop(copies[1])
	stacktest.Eventually(t, "a report of the stream without a leader", func() bool {
		c := w.check(cluster)[out]
		return c.Status == preflight.Fail && strings.Contains(c.Found, "it has no leader") && strings.Contains(c.Found, copies[1])
	})
}

// peersOf returns the servers that follow the leader of a stream.
func peersOf(info *jetstream.StreamInfo) (names []string) {
	for _, peer := range info.Cluster.Replicas {
		names = append(names, peer.Name)
	}
	return names
}

// natsCluster starts a cluster for one test.
func natsCluster(t *testing.T, size int) (servers []*server.Server) {
	t.Helper()
	options := make([]*server.Options, size)
	for i := range options {
		options[i] = &server.Options{SyncAlways: true, HTTPHost: "127.0.0.1", HTTPPort: -1,
			Cluster: server.ClusterOpts{Name: "three"}}
	}
	return stacktest.StartNATSServers(t, options...)
}

// withNATS calls a function with another NATS server.
func (w *harness) withNATS(url string, do func(jetstream.JetStream) error) {
	w.t.Helper()
	nc, err := events.Connect(url, "", w.t.Logf)
	stacktest.Must(w.t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		err = do(js)
	}
	stacktest.Must(w.t, err)
}

// createStreams creates the streams on another NATS server.
func (w *harness) createStreams(url string) {
	w.t.Helper()
	w.withNATS(url, func(js jetstream.JetStream) error {
		return events.Setup(w.t.Context(), js, w.ns, retention, zerolog.Nop())
	})
}

// TestNATSLink_SeveralURLs_HasLoginOfTheConnected connects with URLs of several servers, of which one answers.
func TestNATSLink_SeveralURLs_HasLoginOfTheConnected(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const silent = "127.0.0.1:1"
	host := hostOf(w.NATSURL)
	for address, login := range map[string]string{
		"nats://user:pw@" + silent + "," + w.NATSURL:         "none",
		"nats://" + silent + ",nats://user:pw@" + host:       "password",
		"nats://user:pw@" + silent + ",nats://token@" + host: "token",
		"user:pw@" + host: "password",
	} {
		link := w.check(func(t *preflight.Target) { t.NATSURL = address })["nats.link"]
		if link.Link == nil || link.Link.Login != login {
			t.Errorf("%s: %+v, want login %s", address, link, login)
		}
	}
}

// TestNATSPrivileges_MissingAndExcess_AreReported connects as users with less or more permissions
// than a worker needs.
func TestNATSPrivileges_MissingAndExcess_AreReported(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const needed = "$JS.API.STREAM.INFO.*"
	users := map[string]*server.Permissions{
		"all": nil,
		"nothing": {Publish: &server.SubjectPermission{Allow: []string{"nothing"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.nothing.>"}}},
		"little": {
			Publish: &server.SubjectPermission{Allow: []string{
				needed, "$JS.API.CONSUMER.INFO.*.*", "$JS.API.CONSUMER.CREATE.HOLDFAST_IN.>",
				"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.>", "$JS.API.CONSUMER.MSG.NEXT.*.*",
				"$JS.API.CONSUMER.CREATE.HOLDFAST_DLQ.>", "$SYS.REQ.USER.INFO", "_INBOX.>",
				"$JS.ACK.HOLDFAST_IN.*.>", "holdfast.out.>", "holdfast.dlq.>",
			}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.little.>"}},
		},
		"forgetful": {
			Publish: &server.SubjectPermission{Allow: []string{needed, "$JS.API.CONSUMER.>", "$SYS.REQ.USER.INFO",
				"_INBOX.>"}, Deny: []string{"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.forgetful.>"}},
		},
		"denied": {
			Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.PURGE.>", "$JS.API.STREAM.DELETE.*",
				"$JS.API.STREAM.MSG.DELETE.HOLDFAST_OUT", "*.in.>"}},
			Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.preflight.>", "not-holdfast.>"}},
		},
		"purges": {Publish: &server.SubjectPermission{Allow: []string{"$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>",
			"$SYS.REQ.USER.INFO"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.purges.>"}}},
		"hears": {Publish: &server.SubjectPermission{Allow: []string{needed, "$JS.API.CONSUMER.INFO.>",
			"$SYS.REQ.USER.INFO"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}},
	}
	o := server.Options{JetStream: true, SyncAlways: true}
	for name, permissions := range users {
		o.Users = append(o.Users, &server.User{Username: name, Password: "pw", Permissions: permissions})
	}
	address := strings.TrimPrefix(natsServer(t, o).ClientURL(), "nats://")
	as := func(user string) func(*preflight.Target) {
		return func(t *preflight.Target) { t.NATSURL = "nats://" + user + ":pw@" + address }
	}
	w.createStreams("nats://all:pw@" + address)
	w.expect("a user who may all", nil, as("all"))
	w.expect("a user who may little", []string{"nats.privileges ok", "nats.trim warn", "nats.limits unknown", "nats.workers unknown"},
		as("little"))
	checks := w.expect("a user who may not read and publish outcomes",
		[]string{"nats.privileges ok", "nats.events fail", "nats.rebuild fail", "nats.trim warn", "nats.limits unknown",
			"nats.workers unknown"}, as("forgetful"))
	if c := checks["nats.events"]; !strings.Contains(c.Found, "holdfast.out.hold.created.") ||
		!strings.Contains(c.Found, "$JS.ACK.HOLDFAST_IN.changes.") || strings.Contains(c.Found, "MSG.NEXT") {
		t.Errorf("the check does not name the missing permissions: %+v", c)
	}
	if c := checks["nats.rebuild"]; !strings.Contains(c.Found, "$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.") || strings.Contains(c.Found, "HOLDFAST_IN") {
		t.Errorf("the check does not name the missing permission: %+v", c)
	}
	w.expect("a user who may all but that", []string{"nats.privileges warn", "nats.trim warn"}, as("denied")) // others' subjects
	var unseen []string
	for _, config := range w.ns.Streams(retention) {
		unseen = append(unseen, "nats.stream."+config.Name+" unknown")
	}
	began := time.Now()
	checks = w.expect("a user who may nothing",
		append(unseen, "nats.consumers skipped", "nats.limits skipped", "nats.replicas skipped", "nats.events unknown",
			"nats.rebuild unknown", "nats.trim unknown", "nats.privileges unknown", "nats.workers unknown", "clocks unknown"), as("nothing"))
	t.Logf("the checks of a user without permissions took %s", time.Since(began))
	if c := checks["nats.stream.HOLDFAST_IN"]; !strings.Contains(c.Found, "$JS.API.STREAM.INFO.HOLDFAST_IN") ||
		!strings.Contains(c.Fix, "$JS.API.STREAM.INFO.HOLDFAST_IN") {
		t.Errorf("the check does not name the missing permission: %+v", c)
	}
	for user, power := range map[string]string{"purges": "may purge HOLDFAST_OUT, delete HOLDFAST_IN, delete outcomes",
		"hears": "may subscribe to inboxes of others"} {
		if c := w.check(as(user))["nats.privileges"]; c.Status != preflight.Warn || !strings.Contains(c.Found, power) {
			t.Errorf("user %s: %+v", user, c)
		}
	}
	checks = w.check(func(t *preflight.Target) { t.NATSURL = "nats://all:wrong@" + address })
	if c := checks["nats.reachable"]; c.Status != preflight.Fail || !strings.Contains(c.Found, "Authorization") ||
		strings.Contains(fmt.Sprint(checks), "wrong") {
		t.Errorf("a wrong password: %+v", c)
	}
}

// TestNATS_ServerRefusesConnection_FixFits connects to servers that run, and that say why they refuse the connection.
func TestNATS_ServerRefusesConnection_FixFits(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	address := stacktest.NATSWithConfig(t, `accounts {
  APP { limits { max_connections: 1 }, users: [ {user: a, password: a} ] }
}`).Addr().String()
	only, err := nats.Connect("nats://a:a@" + address)
	stacktest.Must(t, err)
	t.Cleanup(only.Close)
	for url, refusal := range map[string]string{
		"nats://a:a@" + address: "maximum account active connections exceeded", "nats://a:b@" + address: "Authorization Violation",
	} {
		c := w.check(func(t *preflight.Target) { t.NATSURL = url })["nats.reachable"]
		if c.Status != preflight.Fail || !strings.Contains(c.Found, refusal) || !strings.Contains(c.Fix, "login") || !strings.Contains(c.Fix, "limit") {
			t.Errorf("%s: %+v", refusal, c)
		}
	}
}
