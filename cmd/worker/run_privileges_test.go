package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestPrivileges_Least_EveryStrategyWorks has workers do everything once with each lock strategy,
// as users with least privileges. With HOLDFAST_TEST_PRIVILEGES=least all tests run with those
// users.
func TestPrivileges_Least_EveryStrategyWorks(t *testing.T) {
	t.Parallel()
	if strategy := os.Getenv("HOLDFAST_LOCK_STRATEGY"); strategy != "" {
		t.Skipf("HOLDFAST_LOCK_STRATEGY is %s for all workers of this run; without it this test uses every strategy",
			strategy)
	}
	for _, more := range [][]string{{rangeStrategy}, {rangeStrategy, "HOLDFAST_LOCK_FAIR=true"}, {redlockStrategy},
		{"optimistic"}, {"none"}} {
		t.Run(strings.Join(more, " "), func(t *testing.T) {
			t.Parallel()
			s := newRestrictedHarness(t)
			env := append([]string{"HOLDFAST_LOCK_STRATEGY=" + more[0], "HOLDFAST_HOLDS_PER_USER=3"}, more[1:]...)
			if more[0] == redlockStrategy {
				env = append(env, "HOLDFAST_LOCK_REDIS_URLS="+strings.Join(stacktest.RestrictedLockServers(t, lockServersMin), ","))
			}
			s.startWorker(env...)
			s.goThrough(contractRows, make(map[string]bool))
		})
	}
}

// TestWorker_PermissionMissing_EventsWait revokes a permission of the worker on each server. Events
// wait, none is dead-lettered, the log names the missing permission, and all are answered once it
// is granted again.
func TestWorker_PermissionMissing_EventsWait(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newRestrictedHarness(t)
	s.mayLack = true
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 10)
	admin := stacktest.ConnectPostgres(t, s.urls.postgres)
	setUser := func(rule string) {
		t.Helper()
		stacktest.Must(t, s.redis.Do(t.Context(), "ACL", "SETUSER", "holdfast_worker", rule).Err())
	}
	sql := func(statement string) {
		t.Helper()
		stacktest.Exec(t, admin, statement)
	}
	deny := func(subject string) {
		t.Helper()
		stacktest.Must(t, s.restricted.DenyNATS("worker", subject))
	}
	for i, c := range []struct {
		take, give func()
		logged     string // before Redis 7.2, and since
	}{
		{func() { setUser("-zrange") }, func() { setUser("+zrange") },
			"place.lua: ERR (The user executing the script can't run this command or subcommand|" +
				"ACL failure in script: User holdfast_worker has no permissions to run the 'zrange' command)"},
		{func() { setUser("-evalsha") }, func() { setUser("+evalsha") },
			"NOPERM (this user|User holdfast_worker) has no permissions to run the 'evalsha' command"},
		{func() { setUser("resetkeys") }, func() { setUser("~holdfast:*") },
			"NOPERM (this user has no permissions to access one of the keys|No permissions to access a key)"},
		{func() { sql("REVOKE SELECT ON holdfast.inventory FROM holdfast_worker") },
			func() { sql("GRANT SELECT ON holdfast.inventory TO holdfast_worker") },
			"permission denied for table inventory"},
		{func() { deny("holdfast.out.>") }, func() { deny("") },
			`(?i)permissions violation for publish to \\"holdfast\.out\.hold\.created\.hall\\"`},
	} {
		c.take()
		name := fmt.Sprintf("u%d", i)
		id := s.book("hall", name, name, holds.SlotSelection{}, 600)
		worker.eventually(t, "the log to match "+c.logged, func() bool {
			return regexp.MustCompile(c.logged).MatchString(worker.log.String())
		})
		if log := fmt.Sprint(s.redis.Do(t.Context(), "ACL", "LOG", "128").Val()); i == 0 && !strings.Contains(log, "zrange") {
			t.Errorf("ACL LOG: %s", log)
		}
		c.give()
		s.wantAnswer(id, holds.EventHoldCreated)
	}
	if !strings.Contains(worker.log.String(), "ACL LOG") {
		t.Error("the log does not refer to ACL LOG for a permission missing in a script")
	}
	s.wantNoDeadLetters()
}

// TestWorker_MayNotFetch_NotReadyUntilItMay denies a worker that runs to fetch payments, and gives the permission back. It
// is not ready meanwhile, and says which permission it lacks.
func TestWorker_MayNotFetch_NotReadyUntilItMay(t *testing.T) {
	t.Parallel()
	s := newRestrictedHarness(t)
	s.mayLack = true
	worker := s.startWorker()
	worker.awaitReady(t)
	const subject = "$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.payments"
	stacktest.Must(t, s.restricted.DenyNATS("worker", subject))
	worker.eventually(t, "the worker to lack the permission", func() bool {
		ready := worker.readiness(t)
		return !ready.Ready && strings.Contains(ready.Details["paused"], subject)
	})
	stacktest.Must(t, s.restricted.DenyNATS("worker", ""))
	worker.awaitReady(t)
}

// TestMissingNATSPermission_EndsAtOnce revokes a permission from the user of a command. The command
// exits at once, before its timeout, and names the user and the subject.
func TestMissingNATSPermission_EndsAtOnce(t *testing.T) {
	t.Parallel()
	s := newRestrictedHarness(t)
	s.book("hall", "ann", "k", holds.SlotSelection{}, 600) // an event for the audit to read
	started := func(user, subject string) (out string) {   // as a process, because a worker that fails to start leaves connections open until it exits
		t.Helper()
		s.mayLack = true
		stacktest.Must(t, s.restricted.DenyNATS(user, subject))
		p := s.launch()
		p.awaitExit(t)
		return p.log.String()
	}
	if log := started("worker", "$JS.API.CONSUMER.INFO.HOLDFAST_IN.*"); !strings.Contains(log,
		`user "holdfast_worker" may not publish to "$JS.API.CONSUMER.INFO.HOLDFAST_IN.`) ||
		strings.Contains(log, "could not build") {
		t.Errorf("worker run printed:\n%s", log)
	}
	for _, c := range []struct {
		user, subject string
		args          []string
	}{
		{"migrator", "$JS.API.CONSUMER.CREATE.HOLDFAST_IN.changes", append([]string{"migrate"}, s.serversAs("migrator")...)},
		{"auditor", "$JS.API.CONSUMER.CREATE.HOLDFAST_IN.>", s.auditFlags()},
	} {
		stacktest.Must(t, s.restricted.DenyNATS(c.user, c.subject))
		code, out := execute(t.Context(), c.args...)
		want := fmt.Sprintf(`permissions violation: user "holdfast_%s" may not publish to "%s`, c.user,
			strings.TrimSuffix(c.subject, ">"))
		if code != exitFailed || !strings.Contains(out, want) || strings.Contains(out, "deadline") {
			t.Errorf("worker %s: exit code %d, want %s:\n%s", c.args[0], code, want, out)
		}
	}
}
