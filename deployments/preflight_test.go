package deployments

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestPreflight_WorkerAndAdmin_StatusesDiffer runs the preflight as the worker, as the administrator and as users who
// may do less. The worker has all permissions that it needs and no others.
func TestPreflight_WorkerAndAdmin_StatusesDiffer(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	run := func(user string) map[string]preflight.Check { return runPreflight(t, g, user) }
	// These servers are not durable and not replicated. What the worker may not see is unknown.
	but := map[string]preflight.Status{
		"redis.notifications":  preflight.Unknown,
		preflight.NATSReplicas: preflight.Warn, preflight.PostgresFsync: preflight.Fail,
		preflight.PostgresCommit: preflight.Fail, preflight.PostgresPages: preflight.Warn,
		preflight.NATSConsole: preflight.Skipped,
	}
	for name, c := range run("worker") {
		want := preflight.OK
		if other, is := but[name]; is {
			want = other
		}
		if c.Status != want {
			t.Errorf("as the worker, %s is %s, want %s: %+v", name, c.Status, want, c)
		}
	}
	for user, want := range map[string][2]preflight.Status{ // they may see less, which fails nothing
		"migrator": {preflight.OK, preflight.Unknown}, "auditor": {preflight.Unknown, preflight.Unknown},
	} {
		checks := run(user)
		writes, limits := checks[preflight.RedisWrites], checks[preflight.NATSLimits]
		if got := [2]preflight.Status{writes.Status, limits.Status}; got != want {
			t.Errorf("as the %s %v, want %v: %+v %+v", user, got, want, writes, limits)
		}
	}
	all := run("admin")
	for _, name := range preflight.Privileges {
		if c := all[name]; c.Status != preflight.Warn {
			t.Errorf("as the administrator, %s is %s: %+v", name, c.Status, c)
		}
	}
	if len(all) < 25 || !slices.Contains(preflight.Durability, preflight.NATSSync) ||
		all[preflight.NATSSync].Status != preflight.OK {
		t.Errorf("%d checks, %+v", len(all), all[preflight.NATSSync])
	}
}

// TestPreflight_EachConsole_NeedsItsPermissions runs the preflight of workers with each value of HOLDFAST_CONSOLE: with
// the permissions that accounts.conf grants, without one that a console reads with, and with those that the file names
// for a console that acts. Only the last may be too many.
func TestPreflight_EachConsole_NeedsItsPermissions(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	const runs, acts = "$JS.API.STREAM.MSG.GET.HOLDFAST_RUNS", "publish payments, set capacity, record runs, delete dead letters"
	check := func(console, name string, status preflight.Status, found ...string) {
		t.Helper()
		c := runPreflight(t, g, "worker", func(t *preflight.Target) { t.Console = console })[name]
		if c.Status != status {
			t.Errorf("with the console %s, %s is %s, want %s: %+v", console, name, c.Status, status, c)
		}
		for _, want := range found {
			if !strings.Contains(c.Found, want) {
				t.Errorf("with the console %s, %s lacks %q: %+v", console, name, want, c)
			}
		}
	}
	check("off", preflight.NATSConsole, preflight.Skipped)
	check("read", preflight.NATSConsole, preflight.OK)
	check("act", preflight.NATSConsole, preflight.Warn,
		"holdfast.in.payment.confirmed.", "holdfast.in.inventory.set.", "holdfast.runs.", "$JS.API.STREAM.MSG.DELETE.HOLDFAST_DLQ")
	check("act", preflight.NATSPrivileges, preflight.OK)

	stacktest.Must(t, g.DenyNATS("worker", runs))
	check("off", preflight.NATSConsole, preflight.Skipped)
	check("read", preflight.NATSConsole, preflight.Warn, runs)

	stacktest.Must(t, g.AllowActing())
	check("act", preflight.NATSConsole, preflight.OK)
	check("act", preflight.NATSPrivileges, preflight.OK)
	for _, console := range []string{"off", "read"} {
		check(console, preflight.NATSPrivileges, preflight.Warn, acts)
	}
}

// TestPreflight_EventsNotAllowed_Fails runs the preflight of a worker with the login of worker migrate, as by swapped
// secrets, and of workers that lack a permission without which they answer nothing.
func TestPreflight_EventsNotAllowed_Fails(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	check := func(user string, status preflight.Status, missing ...string) {
		t.Helper()
		c := runPreflight(t, g, user)[preflight.NATSAnswering]
		if c.Status != status {
			t.Errorf("as the %s without %q, %s is %s, want %s: %+v", user, missing, c.Name, c.Status, status, c)
		}
		for _, subject := range missing {
			if !strings.Contains(c.Found, subject) {
				t.Errorf("as the %s, %s does not name %s: %+v", user, c.Name, subject, c)
			}
		}
	}
	const next, ack = "$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.", "$JS.ACK.HOLDFAST_IN."
	check("migrator", preflight.Fail, next+"requests", next+"changes", next+"payments",
		ack+"requests.", ack+"changes.", ack+"payments.", "holdfast.out.", "holdfast.dlq.")
	for _, missing := range []string{next + "payments", ack + "requests.", "holdfast.out.inventory.", "holdfast.out.", "holdfast.dlq."} {
		pattern := missing
		if strings.HasSuffix(missing, ".") {
			pattern += ">"
		}
		stacktest.Must(t, g.DenyNATS("worker", pattern))
		check("worker", preflight.Fail, missing)
	}
	stacktest.Must(t, g.DenyNATS("worker", ""))
	check("worker", preflight.OK)
}

func runPreflight(
	t *testing.T, g *stacktest.RestrictedServers, user string, changes ...func(*preflight.Target),
) map[string]preflight.Check {
	t.Helper()
	nats, redis, postgres := g.URLs(user)
	db, err := store.Open(t.Context(), postgres, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	checks := make(map[string]preflight.Check)
	target := preflight.Target{
		Namespace: ns, NATSURL: nats, Redis: stacktest.RedisOptions(redis), Store: db, Optimistic: true,
		Retention: events.Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour}, Console: "off",
		Monitors: []string{g.MonitorURL()},
	}
	for _, change := range changes {
		change(&target)
	}
	for _, c := range preflight.Run(t.Context(), target) {
		checks[c.Name] = c
	}
	return checks
}

// TestPreflight_GrantRevoked_Fails revokes each privilege that grants.sql grants to the worker,
// column by column. The preflight detects each. The tests that run as the worker show that it needs
// no others.
func TestPreflight_GrantRevoked_Fails(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	admin := postgresAs(t, g, "admin")
	grant := regexp.MustCompile(`GRANT ([A-Z]+)(?: \(([^)]*)\))?\s+ON ((?:SCHEMA |SEQUENCE )?)([a-z_.]+) TO [a-z_, ]*holdfast_worker`)
	run := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	all := grant.FindAllStringSubmatch(read(t, "postgres/grants.sql"), -1)
	if len(all) < 14 {
		t.Fatalf("only %d grants in grants.sql: %q", len(all), all)
	}
	for _, found := range all {
		columns := []string{""}
		if found[2] != "" {
			columns = strings.Split(found[2], ", ")
		}
		for _, column := range columns {
			what := found[1]
			if column != "" {
				what += " (" + column + ")"
			}
			what += " ON " + found[3] + found[4]
			if what == "DELETE ON holdfast.inventory" || found[4] == "holdfast.redis_epoch" {
				continue // optional for this worker; TestRoles_EachStatement_OnlyAllowedRoles checks the grant
			}
			run("REVOKE " + what + " FROM holdfast_worker")
			checks := runPreflight(t, g, "worker")
			if checks["postgres.grants"].Status != preflight.Fail && checks["postgres.reachable"].Status != preflight.Fail {
				t.Errorf("without %s the preflight returns %+v", what, checks["postgres.grants"])
			}
			run("GRANT " + what + " TO holdfast_worker")
		}
	}
}
