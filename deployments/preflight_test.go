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

// TestPreflight looks at servers with these users as the worker, and as the administrator: the
// worker has all privileges that it needs and nothing that it should not have.
func TestPreflight(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	look := func(user string) map[string]preflight.Check { return look(t, g, user) }
	// These servers keep nothing, and are one each. What the worker may not see is unknown.
	but := map[string]preflight.Status{
		"redis.notifications":  preflight.Unknown,
		preflight.NATSReplicas: preflight.Warn, preflight.PostgresFsync: preflight.Fail, preflight.PostgresCommit: preflight.Fail, preflight.PostgresPages: preflight.Warn,
	}
	for name, c := range look("worker") {
		want := preflight.OK
		if other, is := but[name]; is {
			want = other
		}
		if c.Status != want {
			t.Errorf("to the worker %s is %s, want %s: %+v", name, c.Status, want, c)
		}
	}
	all := look("admin")
	for _, name := range preflight.Privileges {
		if c := all[name]; c.Status != preflight.Warn {
			t.Errorf("to the administrator %s is %s: %+v", name, c.Status, c)
		}
	}
	if len(all) < 25 || !slices.Contains(preflight.Durability, preflight.NATSSync) || all[preflight.NATSSync].Status != preflight.OK {
		t.Errorf("%d checks, %+v", len(all), all[preflight.NATSSync])
	}
}

func look(t *testing.T, g *stacktest.RestrictedServers, user string) map[string]preflight.Check {
	t.Helper()
	nats, redis, postgres := g.URLs(user)
	db, err := store.Open(t.Context(), postgres, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	checks := make(map[string]preflight.Check)
	for _, c := range preflight.Run(t.Context(), preflight.Target{
		Namespace: ns, NATSURL: nats, Redis: stacktest.RedisOptions(redis), Store: db, Optimistic: true, Retention: events.Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour},
		Monitors: []string{g.MonitorURL()},
	}) {
		checks[c.Name] = c
	}
	return checks
}

// TestPreflightKnowsAllGrants takes from the worker each privilege that grants.sql gives it, column by
// column: the preflight misses each. That the worker needs no more is shown by the tests that run as it.
func TestPreflightKnowsAllGrants(t *testing.T) {
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
		t.Fatalf("only %d grants are found: %q", len(all), all)
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
			if what == "DELETE ON holdfast.inventory" {
				continue // who owns the table decides; TestPostgresPermissions says that it is granted
			}
			run("REVOKE " + what + " FROM holdfast_worker")
			checks := look(t, g, "worker")
			if checks["postgres.grants"].Status != preflight.Fail && checks["postgres.reachable"].Status != preflight.Fail {
				t.Errorf("without %s the preflight says %+v", what, checks["postgres.grants"])
			}
			run("GRANT " + what + " TO holdfast_worker")
		}
	}
}
