package preflight_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
	"holdfast/internal/recovery"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.Main(m) }

var retention = events.Retention{HoldLifetime: 2 * time.Hour, AnswerTTL: 24 * time.Hour}

// harness is a namespace on durable servers, ready for a worker. Its tests misconfigure the
// servers, so each has its own.
type harness struct {
	*stack.Stack
	t     *testing.T
	ns    events.Namespace
	redis *redis.Client
	pg    *pgx.Conn
	nc    *nats.Conn
	js    jetstream.JetStream
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	s := stacktest.Start(t, stack.Options{Dir: stacktest.DataDir(t), NATS: true, Redis: true, Postgres: true})
	js := stacktest.ConnectNATS(t, s.NATSURL)
	w := &harness{Stack: s, t: t, ns: "holdfast", redis: stacktest.ConnectRedis(t, s.RedisURL),
		pg: stacktest.ConnectPostgres(t, s.PostgresURL), nc: js.Conn(), js: js}
	w.migrate()
	return w
}

// migrate does what worker migrate does.
func (w *harness) migrate() {
	w.t.Helper()
	db := w.open(w.PostgresURL)
	stacktest.Must(w.t, db.Migrate(w.t.Context(), string(w.ns)))
	stacktest.Must(w.t, recovery.WriteFormat(w.t.Context(), string(w.ns), w.redis))
	stacktest.Must(w.t, events.Setup(w.t.Context(), w.js, w.ns, retention, zerolog.Nop()))
}

func (w *harness) open(url string) *store.Store {
	w.t.Helper()
	db, err := store.Open(w.t.Context(), url, string(w.ns))
	stacktest.Must(w.t, err)
	w.t.Cleanup(db.Close)
	return db
}

// check runs all checks, after a test has changed a server.
func (w *harness) check(change ...func(*preflight.Target)) map[string]preflight.Check {
	w.t.Helper()
	target := preflight.Target{
		Namespace: string(w.ns), NATSURL: w.NATSURL, Redis: stacktest.RedisOptions(w.RedisURL), Retention: retention,
	}
	for _, c := range change {
		c(&target)
	}
	if target.Store == nil { // a new connection, because some settings are fixed when it is opened
		db, err := store.Open(w.t.Context(), w.PostgresURL, string(w.ns))
		stacktest.Must(w.t, err)
		defer db.Close()
		target.Store = db
	}
	checks := make(map[string]preflight.Check)
	for _, c := range preflight.Run(w.t.Context(), target) {
		if _, twice := checks[c.Name]; twice {
			w.t.Errorf("check %s occurs twice", c.Name)
		}
		if bad := c.Status == preflight.Fail || c.Status == preflight.Warn; bad != (c.Impact != "" && c.Fix != "") {
			w.t.Errorf("a check without reason or fix, or one that is ok and has them: %+v", c)
		}
		if c.Found == "" {
			w.t.Errorf("check %s has no found", c.Name)
		}
		checks[c.Name] = c
	}
	return checks
}

// expect runs all checks and compares their states with those of healthy servers, except for the
// checks given here, such as "redis.maxmemory_policy fail".
func (w *harness) expect(what string, but []string, change ...func(*preflight.Target)) map[string]preflight.Check {
	w.t.Helper()
	want := maps.Clone(healthy)
	for _, line := range but {
		name, status, _ := strings.Cut(line, " ")
		want[name] = preflight.Status(status)
	}
	checks := w.check(change...)
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		if checks[name].Status != want[name] {
			w.t.Errorf("%s: %s is %s, want %s: %+v", what, name, checks[name].Status, want[name], checks[name])
		}
	}
	for name := range want {
		if _, present := checks[name]; !present {
			w.t.Errorf("%s: check %s is missing", what, name)
		}
	}
	return checks
}

// healthy has the states of the checks on such servers with users that may do everything.
var healthy = map[string]preflight.Status{
	"redis.reachable": "ok", "redis.version": "ok", "redis.role": "ok", "redis.maxmemory_policy": "ok",
	"redis.writes": "ok", "redis.notifications": "ok",
	"redis.format": "ok", "redis.commands": "ok", "redis.privileges": "warn",
	"nats.reachable": "ok", "nats.version": "ok", "nats.max_payload": "ok", "nats.stream.HOLDFAST_IN": "ok",
	"nats.stream.HOLDFAST_OUT": "ok",
	"nats.stream.HOLDFAST_DLQ": "ok", "nats.stream.HOLDFAST_RUNS": "ok", "nats.replicas": "warn", "nats.consumers": "ok",
	"nats.sync_interval": "unknown", "nats.limits": "ok", "nats.workers": "ok", "nats.events": "ok",
	"nats.rebuild": "ok", "nats.trim": "ok", "nats.console": "skipped", "nats.privileges": "warn",
	"postgres.reachable": "ok", "postgres.primary": "ok", "postgres.fsync": "ok", "postgres.synchronous_commit": "ok",
	"postgres.full_page_writes": "ok", "postgres.commits": "ok", "postgres.standbys": "ok",
	"postgres.schema": "ok", "postgres.grants": "ok", "postgres.privileges": "warn",
	"clocks": "ok", "redis.link": "ok", "nats.link": "ok", "postgres.link": "ok", "postgres.sessions": "ok",
	"postgres.encoding": "ok",
}

// applyFix runs the commands of a check's fix.
func (w *harness) applyFix(c preflight.Check) {
	w.t.Helper()
	done := 0
	for line := range strings.Lines(c.Fix) {
		line = strings.TrimSpace(line)
		if words, is := strings.CutPrefix(line, "redis-cli "); is {
			var args []any
			for _, word := range strings.Fields(words) {
				args = append(args, word)
			}
			if err := w.redis.Do(w.t.Context(), args...).Err(); err != nil {
				w.t.Errorf("%s: %v", line, err)
			}
			done++
		}
		if strings.HasSuffix(line, ";") {
			w.sql(line)
			done++
		}
		if line == "worker migrate" || strings.HasPrefix(line, "run worker migrate,") {
			w.migrate()
			done++
		}
		if args, is := strings.CutPrefix(line, "nats "); is {
			w.natsCommand(args)
			done++
		}
	}
	if done == 0 {
		w.t.Errorf("%s: the fix %q has no command", c.Name, c.Fix)
	}
}

func (w *harness) sql(statement string) {
	w.t.Helper()
	if _, err := w.pg.Exec(w.t.Context(), statement); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

func (w *harness) config(name, value string) {
	w.t.Helper()
	stacktest.Must(w.t, w.redis.ConfigSet(w.t.Context(), name, value).Err())
}

// alteredConn is a connection whose client reads what alter returns for each piece that the server has sent.
type alteredConn struct {
	net.Conn
	alter func([]byte) []byte
	left  []byte // altered, and not read yet
}

func (c *alteredConn) Read(to []byte) (n int, err error) {
	if len(c.left) == 0 {
		buffer := make([]byte, 64<<10)
		if n, err = c.Conn.Read(buffer); n == 0 {
			return 0, err
		}
		c.left = c.alter(buffer[:n])
	}
	n = copy(to, c.left)
	c.left = c.left[n:]
	return n, nil
}

// wrapped replaces each connection to the Redis of a target.
func wrapped(wrap func(net.Conn) net.Conn) func(*preflight.Target) {
	return func(t *preflight.Target) {
		options := *t.Redis
		dial := redis.NewDialer(&options)
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}
		t.Redis = &options
	}
}

// altered alters what the Redis of a target sends.
func altered(alter func([]byte) []byte) func(*preflight.Target) {
	return wrapped(func(conn net.Conn) net.Conn { return &alteredConn{Conn: conn, alter: alter} })
}

// hostOf returns the host and port of a URL.
func hostOf(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	if _, after, found := strings.Cut(rest, "@"); found {
		rest = after
	}
	host, _, _ := strings.Cut(rest, "/")
	return host
}

func redisAt(address, user string) func(*preflight.Target) {
	return func(t *preflight.Target) {
		if user != "" {
			user += ":pw@"
		}
		t.Redis = stacktest.RedisOptions(fmt.Sprintf("redis://%s%s/0", user, address))
	}
}

// user sets the rules of a Redis user, who may do everything else with the worker's keys, and returns the target of that
// user.
func (w *harness) user(name, rules string) func(*preflight.Target) {
	w.t.Helper()
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">pw", "~holdfast:*", "&*", "+@all"}
	for _, rule := range strings.Fields(rules) {
		args = append(args, rule)
	}
	stacktest.Must(w.t, w.redis.Do(w.t.Context(), args...).Err())
	return redisAt(hostOf(w.RedisURL), name)
}

func migrates(t *preflight.Target) { t.Migrates = true }
