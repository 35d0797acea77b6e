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

func runPreflight(t *testing.T, g *stacktest.RestrictedServers, user string) map[string]preflight.Check {
	t.Helper()
	nats, redis, postgres := g.URLs(user)
	db, err := store.Open(t.Context(), postgres, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	checks := make(map[string]preflight.Check)
	for _, c := range preflight.Run(t.Context(), preflight.Target{
		Namespace: ns, NATSURL: nats, Redis: stacktest.RedisOptions(redis), Store: db, Optimistic: true,
		Retention: events.Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour},
		Monitors:  []string{g.MonitorURL()},
	}) {
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
