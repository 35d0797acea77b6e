package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// backends returns the servers of the harness for an audit.
func (s *harness) backends() audit.Backends {
	s.t.Helper()
	pool, err := audit.OpenPostgres(s.t.Context(), s.urls.postgres, s.namespace)
	stacktest.Must(s.t, err)
	s.t.Cleanup(pool.Close)
	return audit.Backends{Namespace: s.namespace, JetStream: s.js, Redis: s.redis, Postgres: pool}
}

// wantNoFindings fails the test unless an audit finds nothing.
func (s *harness) wantNoFindings() {
	s.t.Helper()
	report, err := audit.Run(s.t.Context(), s.backends(), audit.Options{})
	stacktest.Must(s.t, err)
	for _, f := range report.Findings {
		s.t.Errorf("audit: %s: %s", f.Kind, f.Text)
	}
}

// auditFlags returns the flags of `worker audit`, as users that may audit and repair: for a repair
// it uses the worker's user of Redis and Postgres.
func (s *harness) auditFlags(more ...string) []string {
	at := s.urlsAs("auditor")
	if slices.Contains(more, "--repair") {
		worker := s.urlsAs("worker")
		at.redis, at.postgres = worker.redis, worker.postgres
	}
	return append([]string{"audit", "--namespace", s.namespace, "--nats-url", at.nats, "--redis-url", at.redis,
		"--postgres-url", at.postgres}, more...)
}

// runAudit runs `worker audit` in this process.
func (s *harness) runAudit(more ...string) (code int, out, stderr string) {
	var text, errors strings.Builder
	code = run(context.Background(), s.auditFlags(more...), streams{&text, &errors})
	return code, text.String(), errors.String()
}

// auditing lets audits take turns: at the end of twelve tests at once they did not connect to Postgres in time.
var auditing sync.Mutex

// auditFindsNothing reports an error unless `worker audit` finds all stored data consistent.
func (s *harness) auditFindsNothing(t testing.TB) {
	t.Helper()
	auditing.Lock()
	defer auditing.Unlock()
	if code, out, stderr := s.runAudit(); code != exitOK {
		t.Errorf("worker audit ended with %d\n%s%s", code, out, stderr)
	}
}

// TestAudit_CounterWrong_PrintedAndRepaired audits a consistent system, makes a counter wrong, and
// checks the output, the prompt, the repair and the exit codes.
func TestAudit_CounterWrong_PrintedAndRepaired(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", seat, 3)
	created := s.answer(s.book("hall", "ana", "k", seat, 600))
	code, out, stderr := s.runAudit()
	if code != exitOK || !strings.Contains(out, "Audited namespace ") ||
		!strings.Contains(out, ": 2 events, 2 outcomes, 0 dead letters; 1 resource with 1 record and") ||
		!strings.HasSuffix(out, "\nNo differences found.\n") || stderr != "" {
		t.Errorf("%d %s %s", code, out, stderr)
	}

	key := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	stacktest.Must(t, s.redis.HSet(t.Context(), key, "A-12", "x\x1b[2J").Err())
	code, out, stderr = s.runAudit()
	for _, want := range []string{
		"\n1. counter  hall  A-12\n   Redis counts nonsense held of slot A-12 of hall; its live holds take 1.\n",
		"   where   " + key + ": found nonsense, expected 1\n",
		"   after   sequence 2 of " + s.subjects.OutStream() + ": hold.created " + created.ID + ", 20",
		"   remedy  Set the counter to what the records of the live holds take. worker audit --repair does this.\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("worker audit does not print %q:\n%s", want, out)
		}
	}
	if code != exitDiffer || stderr != "worker: 1 difference left\n" {
		t.Errorf("worker audit: exit code %d, stderr %q", code, stderr)
	}
	if code, out, _ := s.runAudit("--resource-id", "elsewhere"); code != exitOK ||
		!strings.HasSuffix(out, "\nResource elsewhere has no data.\n") {
		t.Errorf("audit of another resource: exit code %d:\n%s", code, out)
	}

	code, out, _ = s.runAudit("-o", "json")
	var report audit.Report
	if err := json.Unmarshal([]byte(out), &report, json.RejectUnknownMembers(true)); err != nil || code != exitDiffer {
		t.Fatalf("worker audit -o json: %d, %v\n%s", code, err, out)
	}
	if f := report.Findings[0]; len(report.Findings) != 1 || report.Counts[audit.Counter] != 1 ||
		f.Kind != audit.Counter || !f.Automatic || f.After == nil || f.After.ID != created.ID {
		t.Errorf("worker audit -o json: %s", out)
	}

	if code, text := s.runAuditPiped(t, "y\n", "--repair"); code != exitUsage || !strings.Contains(text, "add --yes") ||
		s.counts("hall")["A-12"] == "1" {
		t.Errorf("without a terminal: exit code %d:\n%s", code, text)
	}
	if code, text := s.runAuditPiped(t, "", "--repair", "--yes"); code != exitOK ||
		!strings.Contains(text, "\n1 repaired.\n") {
		t.Errorf("with --yes: exit code %d:\n%s", code, text)
	}
	if got := s.counts("hall")["A-12"]; got != "1" {
		t.Errorf("%s are held after the repair", got)
	}
	if code, out, _ := s.runAudit(); code != exitOK {
		t.Errorf("after the repair: exit code %d:\n%s", code, out)
	}

	s.redis.Del(t.Context(), key)
	code, out, _ = s.runAudit("--repair", "--yes", "-o", "json")
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitOK ||
		report.Findings[0].Result != audit.Done {
		t.Errorf("worker audit --repair --yes -o json: %d, %v\n%s", code, err, out)
	}
	if code, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); code != 200 ||
		!strings.Contains(body, `"held":1,`) {
		t.Errorf("after the repair the worker answers %d %s", code, body)
	}
}

// runAuditPiped runs `worker audit` as a process whose stdin is not a terminal.
func (s *harness) runAuditPiped(t *testing.T, stdin string, more ...string) (code int, text string) {
	t.Helper()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	c := exec.Command(binary, s.auditFlags(more...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}

// TestAudit_WrongUsage_Refused runs `worker audit` with wrong flags and on an empty namespace.
func TestAudit_WrongUsage_Refused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for want, args := range map[string][]string{
		"--yes is for --repair only":               s.auditFlags("--yes"),
		"cannot ask for confirmation: add --yes":   s.auditFlags("--repair", "-o", "json"),
		"--resource-id must match":                 s.auditFlags("--resource-id", "a b"),
		`--namespace "A" must match`:               s.auditFlags("--namespace", "A"),
		`--namespace "pg_a" is the name`:           s.auditFlags("--namespace", "pg_a"),
		"--request-key-ttl 0s must be at least 1s": s.auditFlags("--request-key-ttl", "0s"),
		"give --nats-url or HOLDFAST_NATS_URL": {"audit", "--data-dir", t.TempDir(), "--nats-url", "", "--redis-url",
			"", "--postgres-url", ""},
		"--redis-url: not a Redis URL":       s.auditFlags("--redis-url", "http://x"),
		"--postgres-url: not a Postgres URL": s.auditFlags("--postgres-url", "http://x"),
		"--postgres-url: target_session_attrs": s.auditFlags("--postgres-url",
			"postgres://x/y?target_session_attrs=standby"),
		"--nats-url: not a NATS URL":             s.auditFlags("--nats-url", "://x"),
		`--output must be one of "table","json"`: s.auditFlags("-o", "xml"),
	} {
		var out, stderr strings.Builder
		if code := run(t.Context(), args, streams{&out, &stderr}); code != exitUsage ||
			!strings.Contains(stderr.String(), want) {
			t.Errorf("%v: exit code %d: %s, want %s", args, code, stderr.String(), want)
		}
	}
	var out, stderr strings.Builder
	other := s.auditFlags()
	other[2] = "missing"
	if code := run(t.Context(), other, streams{&out, &stderr}); code != exitFailed ||
		!strings.Contains(stderr.String(), "was `worker migrate` run?") {
		t.Errorf("without a schema: exit code %d: %s", code, stderr.String())
	}
	stderr.Reset()
	if code := run(t.Context(), s.auditFlags("--postgres-url", "postgres://127.0.0.1:1/x"),
		streams{&out, &stderr}); code != exitFailed || strings.Contains(stderr.String(), "migrate") {
		t.Errorf("without Postgres: exit code %d: %s", code, stderr.String())
	}
	stderr.Reset()
	flags := append([]string{"rebuild", "--yes"}, s.serversAs("worker")...)
	if code := run(t.Context(), append(flags, "--namespace", "missing"), streams{&out, &stderr}); code != exitFailed ||
		!strings.Contains(stderr.String(), "was `worker migrate` run?") {
		t.Errorf("rebuild without a schema: exit code %d: %s", code, stderr.String())
	}
}

// TestReconcile_CounterWrong_HealedInPlace makes a counter wrong under a running worker. The next
// request for the slot waits until the counter is healed in place, and gets a correct answer. The
// heal is logged and counted.
func TestReconcile_CounterWrong_HealedInPlace(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", seat, 2)
	before := s.epoch()
	s.answer(s.book("hall", "ana", "k1", seat, 600))
	stacktest.Eventually(t, "the first round", func() bool {
		_, metrics := worker.get(t, "/metrics")
		return strings.Contains(metrics, "\n"+audit.MetricRounds+" 1\n")
	})
	stacktest.Must(t, s.redis.HSet(t.Context(), fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall")),
		"A-12", "x").Err())
	s.wantAnswer(s.book("hall", "ben", "k2", seat, 600), holds.EventHoldCreated)
	s.wantAnswer(s.book("hall", "cleo", "k3", seat, 600), holds.EventHoldRejected)
	_, metrics := worker.get(t, "/metrics")
	for _, want := range []string{
		audit.MetricFound + `{kind="counter"} 1`, audit.MetricHealed + `{kind="counter"} 1`,
		audit.MetricLeft + `{kind="counter"} 0`,
		audit.MetricFound + `{kind="reserved"} 0`, audit.MetricResources + " ",
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("/metrics does not show %s", want)
		}
	}
	if now := s.epoch(); now != before {
		t.Errorf("redis was rebuilt: epoch %+v, before %+v", now, before)
	}
	s.wantNoFindings()
}

// TestCorruptRecord_EventsOfResource_WaitUntilRebuilt corrupts the record of a hold, which cannot
// be healed in place. The events of its resource wait until the worker has rebuilt Redis. Meanwhile
// the worker is ready and answers the events of other resources.
func TestCorruptRecord_EventsOfResource_WaitUntilRebuilt(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_RECONCILE=report")
	for _, resource := range []string{"hall", "tent"} {
		s.setInventory(resource, seat, 2)
	}
	before := s.epoch()
	hold := s.answer(s.book("hall", "ana", "k1", seat, soon)).Subject
	key := fmt.Sprintf("%s:{%d}:hall:records", s.namespace, record.Partition("hall"))
	id := hold[strings.IndexByte(hold, '.')+1:]
	stacktest.Must(t, s.redis.HSet(t.Context(), key, id, "not a record").Err())
	worker.awaitLog(t, "corrupt data in redis")
	waits := s.book("hall", "ben", "k2", seat, 600)
	for i := range 3 {
		if o := s.answer(s.book("tent", fmt.Sprint("u", i), fmt.Sprint("k", i), seat, 600)); i < 2 &&
			o.Type != events.Type(holds.EventHoldCreated) {
			t.Errorf("while another resource is corrupt: %s", o.Type)
		}
	}
	worker.awaitLog(t, "event deferred, resource data is corrupt")
	stacktest.Eventually(t, "the worker to be ready, unless it already rebuilds redis", func() bool {
		return worker.readiness(t).Ready || s.epoch() != before
	})
	s.awaitRebuilt(before)
	s.wantAnswer(waits, holds.EventHoldCreated)
	s.expiredOutcome(hold)
}

// TestAudit_ReadOnlyUser_ChangesNothing runs an audit and a repair as a user that may only read.
func TestAudit_ReadOnlyUser_ChangesNothing(t *testing.T) {
	t.Parallel()
	s := newRestrictedHarness(t)
	s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", holds.SlotSelection{}, 10)
	hold := s.answer(s.book("hall", "ann", "k", holds.SlotSelection{}, 600)).Subject
	s.answer(s.pay(hold, "p"))
	s.answer(s.book("hall", "ben", "l", holds.SlotSelection{}, 600))
	counts := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	stacktest.Must(t, s.redis.HSet(t.Context(), counts, "stock", "5").Err())
	admin := stacktest.ConnectPostgres(t, s.urls.postgres)
	reserved := func() (n int) {
		t.Helper()
		stacktest.Must(t, admin.QueryRow(t.Context(), "SELECT reserved FROM holdfast.inventory").Scan(&n))
		return n
	}
	repair := func(want string) {
		t.Helper()
		var out, stderr strings.Builder
		code := run(t.Context(), append(s.auditFlags(), "--repair", "--yes"), streams{&out, &stderr})
		if code != exitFailed || !strings.Contains(out.String(), want) ||
			!strings.Contains(strings.ToLower(stderr.String()), "noperm") && !strings.Contains(stderr.String(), "25006") ||
			!strings.HasSuffix(stderr.String(), ": repair with the worker's Redis and Postgres URLs\n") {
			t.Errorf("the auditor's repair: exit code %d: %s%s", code, out.String(), stderr.String())
		}
	}
	repair("Redis counts 5 held of slot stock of hall")
	if got := s.counts("hall")["stock"]; got != "5" {
		t.Errorf("%s are held afterwards", got)
	}
	if code, out, _ := s.runAudit("--repair", "--yes"); code != exitOK {
		t.Errorf("the worker's repair: exit code %d: %s", code, out)
	}
	stacktest.Exec(t, admin, "UPDATE holdfast.inventory SET reserved = 3")
	repair("Postgres has 3 reserved of slot stock of hall")
	if got := reserved(); got != 3 {
		t.Errorf("%d are reserved afterwards", got)
	}
	if code, out, _ := s.runAudit("--repair", "--yes"); code != exitOK || reserved() != 1 ||
		s.counts("hall")["stock"] != "1" {
		t.Errorf("the worker's repair: exit code %d: %s", code, out)
	}

	// A repair that fails in Redis says what it has repaired in Postgres.
	for output, want := range map[string]string{"table": "\n1 repaired.\n", "json": `"result": "done"`} {
		stacktest.Exec(t, admin, "UPDATE holdfast.inventory SET reserved = 3")
		stacktest.Must(t, s.redis.HSet(t.Context(), counts, "stock", "5").Err())
		var out, stderr strings.Builder
		flags := append(s.auditFlags(), "--postgres-url", s.urlsAs("worker").postgres, "--repair", "--yes", "-o", output)
		code := run(t.Context(), flags, streams{&out, &stderr})
		if code != exitFailed || reserved() != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("half of a repair: exit code %d, want %q: %s%s", code, want, out.String(), stderr.String())
		}
	}
}
