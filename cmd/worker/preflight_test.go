package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/internal/preflight"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// TestRun_RedisEvicts_Refuses starts a worker on healthy servers, but with a Redis that evicts. The
// worker refuses to start with the message of the preflight, and creates nothing. The fix in the
// message works. On a Redis whose memory is full the preflight fails, and the worker starts: it frees memory.
func TestRun_RedisEvicts_Refuses(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	servers := stacktest.Start(t, stack.Options{Dir: dir, EndpointsDir: dir, NATS: true, Redis: true, Postgres: true})
	at := []string{"--nats-url", servers.NATSURL, "--redis-url", servers.RedisURL, "--postgres-url", servers.PostgresURL}
	flags := append(slices.Clone(at), "--preflight", "refuse", "--lock-strategy", rangeStrategy) // of worker run
	client := stacktest.ConnectRedis(t, servers.RedisURL)
	setting := func(name, value string) {
		t.Helper()
		stacktest.Must(t, client.ConfigSet(t.Context(), name, value).Err())
	}
	setting("maxmemory-policy", "allkeys-lru")
	const found, why, fix = "redis.maxmemory_policy: allkeys-lru, with maxmemory 0B",
		"why: when its memory is full it would evict granted holds", "do:  redis-cli config set maxmemory-policy noeviction"
	starts := append(slices.Clone(flags), "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir())
	for verb, given := range map[string][]string{
		"preflight": append(slices.Clone(at), "--lock-strategy", rangeStrategy),
		"migrate":   append(slices.Clone(at), "--preflight", "refuse"),
		"run":       starts,
		"dev":       starts,
	} {
		args := append([]string{verb}, given...)
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute) // a worker that does not refuse would keep running
		code, out := execute(bounded, args...)
		cancel()
		for _, want := range []string{found, why, fix, "preflight failed"} {
			if code != exitFailed || !strings.Contains(out, want) {
				t.Errorf("worker %s: exit code %d, output lacks %q: %s", verb, code, want, out)
			}
		}
		if strings.Contains(out, "worker started") {
			t.Errorf("worker %s: %s", verb, out)
		}
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("a worker that refused to start has written %d keys", n)
	}

	// With --preflight warn it starts and logs the failed check.
	start := func(mode string) (log string) {
		t.Helper()
		p := launch(t, true, slices.Concat([]string{"run", "--http-addr", "127.0.0.1:0"}, flags, []string{"--preflight", mode}))
		p.awaitStarted(t)
		p.stop(t)
		return p.log.String()
	}
	if log := start("warn"); !strings.Contains(log, `"check":"redis.maxmemory_policy","found":"allkeys-lru`) {
		t.Errorf("with --preflight warn: %s", log)
	}
	setting("maxmemory-policy", "noeviction")
	if log := start("refuse"); strings.Contains(log, `"check":"redis.maxmemory_policy"`) ||
		!strings.Contains(log, `"check":"nats.replicas"`) {
		t.Errorf("on healthy servers: %s", log)
	}

	var text, errs strings.Builder
	setting("maxmemory", "1mb")
	if code := run(t.Context(), append([]string{"preflight", "--lock-strategy", rangeStrategy}, at...),
		streams{&text, &errs}); code != exitFailed || !strings.Contains(text.String(), "fail     redis.writes: ") {
		t.Errorf("preflight with full memory: %d %s %s", code, text.String(), errs.String())
	}
	if log := start("refuse"); !strings.Contains(log, `"check":"redis.writes"`) {
		t.Errorf("with full memory: %s", log)
	}
	setting("maxmemory", "0")
	text.Reset()
	errs.Reset()
	if _, err := servers.WriteEndpoints(); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(),
		[]string{"preflight", "-o", "json", "--no-migrate", "--lock-strategy", rangeStrategy, "--data-dir", dir},
		streams{&text, &errs}); code != exitOK {
		t.Errorf("preflight on healthy servers: %d %s %s", code, text.String(), errs.String())
	}
	var checks []preflight.Check
	if err := json.Unmarshal([]byte(text.String()), &checks, json.RejectUnknownMembers(true)); err != nil ||
		len(checks) < 20 {
		t.Errorf("%d checks, error %v: %s", len(checks), err, text.String())
	}
	for _, c := range checks {
		if c.Name == "" || c.Status == "" || c.Found == "" {
			t.Errorf("a check without name, status or found: %+v", c)
		}
	}

	// Data of a newer version is refused with --preflight warn too.
	refuses := func(check string) {
		t.Helper()
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		code, out := execute(bounded, slices.Concat([]string{"run", "--http-addr", "127.0.0.1:0", "--no-migrate"},
			flags, []string{"--preflight", "warn"})...)
		if code != exitFailed || !strings.Contains(out, check) ||
			!strings.Contains(out, "does not override") || strings.Contains(out, "worker started") {
			t.Errorf("with --preflight warn and a failed %s: exit code %d, %s", check, code, out)
		}
	}
	sql := func(statement string) { stacktest.PostgresSQL(t, servers.PostgresURL, statement) }
	sql("INSERT INTO holdfast.goose_db_version (version_id, is_applied) VALUES (9999, true)")
	sql("UPDATE holdfast.schema_compatibility SET works_from = 9999")
	refuses("postgres.schema")
	sql("UPDATE holdfast.schema_compatibility SET works_from = 1")
	sql("DELETE FROM holdfast.goose_db_version WHERE version_id = 9999")
	stacktest.Must(t, client.Set(t.Context(), "holdfast:{0}:format", "2", 0).Err())
	refuses("redis.format")
}

// TestRun_AnotherDatabase_Refuses starts a worker on a copy of the database that another one uses. It refuses, and names the
// other one. The copy may be prepared meanwhile, and a worker starts on it when the other one has ended.
func TestRun_AnotherDatabase_Refuses(t *testing.T) {
	t.Parallel()
	dir := stacktest.DataDir(t)
	servers := stacktest.Start(t, stack.Options{Dir: dir, NATS: true, Redis: true, Postgres: true})
	w := newHarnessOn(t, urls{servers.NATSURL, servers.RedisURL, servers.PostgresURL})
	stacktest.PostgresSQL(t, servers.PostgresURL, "CREATE DATABASE other TEMPLATE postgres")
	first := w.startWorker()
	w.urls.postgres = strings.Replace(servers.PostgresURL, "/postgres?", "/other?", 1)
	w.migrate()
	second := w.launch("HOLDFAST_PREFLIGHT=refuse")
	second.eventually(t, "the second worker to end", func() bool { return strings.Contains(second.log.String(), "not started") })
	second.awaitExit(t)
	name := fmt.Sprintf("-%d (", first.cmd.Process.Pid) // after the host
	if log := second.log.String(); !strings.Contains(log, "nats.workers: ") || !strings.Contains(log, name) ||
		strings.Contains(log, "worker started") {
		t.Errorf("the second worker logs no %q: %s", name, log)
	}
	first.stop(t)
	w.startWorker()
}

// TestPreflight_ServersUnreachable_Fails runs the preflight with URLs at which no server listens.
func TestPreflight_ServersUnreachable_Fails(t *testing.T) {
	t.Parallel()
	args := strings.Fields("preflight --lock-strategy range --nats-url nats://ann:s3cret@127.0.0.1:1 --redis-url redis://ann:s3cret@127.0.0.1:1 --postgres-url postgres://ann:s3cret@127.0.0.1:1/x")
	code, out := execute(t.Context(), args...)
	for _, want := range []string{"fail     redis.reachable", "fail     nats.reachable", "fail     postgres.reachable",
		"skipped", "3 fail"} {
		if code != exitFailed || !strings.Contains(out, want) {
			t.Errorf("exit code %d, output lacks %q: %s", code, want, out)
		}
	}
	if strings.Contains(out, "s3cret") {
		t.Errorf("the output contains a password: %s", out)
	}
}
