package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// backends are those of the system, for an audit.
func (s *harness) backends() audit.Backends {
	s.t.Helper()
	pool, err := audit.OpenPostgres(s.t.Context(), s.urls.postgres, s.namespace)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return audit.Backends{Namespace: s.namespace, JetStream: s.js, Redis: s.redis, Postgres: pool}
}

// wantNoFindings fails the test unless an audit finds nothing.
func (s *harness) wantNoFindings() {
	s.t.Helper()
	report, err := audit.Run(s.t.Context(), s.backends(), audit.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range report.Findings {
		s.t.Errorf("audit: %s: %s", f.Kind, f.Text)
	}
}

// auditFlags are those of `worker audit`, as the users who may do it: who repairs is the worker to Redis
// and Postgres.
func (s *harness) auditFlags(more ...string) []string {
	at := s.urlsAs("auditor")
	if slices.Contains(more, "--repair") {
		worker := s.urlsAs("worker")
		at.redis, at.postgres = worker.redis, worker.postgres
	}
	return append([]string{"audit", "--namespace", s.namespace, "--nats-url", at.nats, "--redis-url", at.redis, "--postgres-url", at.postgres}, more...)
}

// runAudit runs `worker audit` in this process.
func (s *harness) runAudit(more ...string) (code int, out, stderr string) {
	var text, errors strings.Builder
	code = run(context.Background(), s.auditFlags(more...), streams{&text, &errors})
	return code, text.String(), errors.String()
}

// auditFindsNothing reports an error unless `worker audit` finds all stored data consistent.
func (s *harness) auditFindsNothing(t *testing.T) {
	t.Helper()
	if code, out, stderr := s.runAudit(); code != exitOK {
		t.Errorf("worker audit ended with %d\n%s%s", code, out, stderr)
	}
}

// TestAudit_CounterWrong_PrintedAndRepaired audits a system in which nothing is wrong, makes a counter wrong, and sees what is
// printed, asked, repaired and returned.
func TestAudit_CounterWrong_PrintedAndRepaired(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", seat, 3)
	created := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k", seat, 600)))
	code, out, stderr := s.runAudit()
	if code != exitOK || !strings.Contains(out, "Looked at ") || !strings.Contains(out, ": 2 events, 2 outcomes, 0 dead letters; 1 resource with 1 record and") ||
		!strings.HasSuffix(out, "\nNothing is wrong.\n") || stderr != "" {
		t.Errorf("%d %s %s", code, out, stderr)
	}

	key := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	if err := s.redis.HSet(t.Context(), key, "A-12", "x\x1b[2J").Err(); err != nil {
		t.Fatal(err)
	}
	code, out, stderr = s.runAudit()
	for _, want := range []string{
		"\n1. counter  hall  A-12\n   Redis counts nonsense held of slot A-12 of hall; its live holds take 1.\n",
		"   where   " + key + ": found nonsense, expected 1\n",
		"   after   sequence 2 of " + s.subjects.OutStream() + ": hold.created " + created.ID + ", 20",
		"   remedy  Set the counter to what the records of the live holds say. worker audit --repair does it.\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("worker audit does not print %q:\n%s", want, out)
		}
	}
	if code != exitDiffer || stderr != "worker: 1 difference left\n" {
		t.Errorf("worker audit ended with %d and said %q", code, stderr)
	}
	if code, out, _ := s.runAudit("--resource-id", "elsewhere"); code != exitOK || !strings.HasSuffix(out, "\nNothing is known of resource elsewhere.\n") {
		t.Errorf("the audit of another resource ended with %d:\n%s", code, out)
	}

	code, out, _ = s.runAudit("-o", "json")
	var report audit.Report
	if err := json.Unmarshal([]byte(out), &report, json.RejectUnknownMembers(true)); err != nil || code != exitDiffer {
		t.Fatalf("worker audit -o json: %d, %v\n%s", code, err, out)
	}
	if f := report.Findings[0]; len(report.Findings) != 1 || report.Counts[audit.Counter] != 1 || f.Kind != audit.Counter || !f.Automatic || f.After == nil || f.After.ID != created.ID {
		t.Errorf("worker audit -o json: %s", out)
	}

	if code, text := s.runAuditPiped(t, "y\n", "--repair"); code != exitUsage || !strings.Contains(text, "give --yes") || s.counts("hall")["A-12"] == "1" {
		t.Errorf("without a terminal it ended with %d:\n%s", code, text)
	}
	if code, text := s.runAuditPiped(t, "", "--repair", "--yes"); code != exitOK || !strings.Contains(text, "\n1 repaired.\n") {
		t.Errorf("with --yes it ended with %d:\n%s", code, text)
	}
	if got := s.counts("hall")["A-12"]; got != "1" {
		t.Errorf("%s are held after the repair", got)
	}
	if code, out, _ := s.runAudit(); code != exitOK {
		t.Errorf("after the repair it ended with %d:\n%s", code, out)
	}

	s.redis.Del(t.Context(), key)
	code, out, _ = s.runAudit("--repair", "--yes", "-o", "json")
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitOK || report.Findings[0].Result != audit.Done {
		t.Errorf("worker audit --repair --yes -o json: %d, %v\n%s", code, err, out)
	}
	if code, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A-12"); code != 200 || !strings.Contains(body, `"held":1,`) {
		t.Errorf("after the repair the worker says %d %s", code, body)
	}
}

// runAuditPiped runs `worker audit` as a process whose stdin is no terminal.
func (s *harness) runAuditPiped(t *testing.T, stdin string, more ...string) (code int, text string) {
	t.Helper()
	binary, err := workerBinary()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(binary, s.auditFlags(more...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), string(out)
}

// TestAudit_WrongUsage_Refused calls it wrongly, and where there is nothing to look at.
func TestAudit_WrongUsage_Refused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for want, args := range map[string][]string{
		"--yes is for --repair only":               s.auditFlags("--yes"),
		"-o json asks nobody: add --yes":           s.auditFlags("--repair", "-o", "json"),
		"--resource-id must match":                 s.auditFlags("--resource-id", "a b"),
		`--namespace "A" must match`:               s.auditFlags("--namespace", "A"),
		"--request-key-ttl 0s must be at least 1s": s.auditFlags("--request-key-ttl", "0s"),
		"give --nats-url or HOLDFAST_NATS_URL":     {"audit", "--data-dir", t.TempDir(), "--nats-url", "", "--redis-url", "", "--postgres-url", ""},
		"--redis-url is not a Redis URL":           s.auditFlags("--redis-url", "http://x"),
		"--postgres-url: not a Postgres URL":       s.auditFlags("--postgres-url", "http://x"),
		"--postgres-url: target_session_attrs":     s.auditFlags("--postgres-url", "postgres://x/y?target_session_attrs=standby"),
		"--nats-url: not a NATS URL":               s.auditFlags("--nats-url", "://x"),
		`--output must be one of "table","json"`:   s.auditFlags("-o", "xml"),
	} {
		var out, stderr strings.Builder
		if code := run(t.Context(), args, streams{&out, &stderr}); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%v ended with %d: %s, want %s", args, code, stderr.String(), want)
		}
	}
	var out, stderr strings.Builder
	other := s.auditFlags()
	other[2] = "nobody"
	if code := run(t.Context(), other, streams{&out, &stderr}); code != exitFailed || !strings.Contains(stderr.String(), "was `worker migrate` run?") {
		t.Errorf("without a schema it ended with %d: %s", code, stderr.String())
	}
	stderr.Reset()
	if code := run(t.Context(), s.auditFlags("--postgres-url", "postgres://127.0.0.1:1/x"), streams{&out, &stderr}); code != exitFailed || strings.Contains(stderr.String(), "migrate") {
		t.Errorf("without Postgres it ended with %d: %s", code, stderr.String())
	}
	stderr.Reset()
	flags := append([]string{"rebuild", "--yes"}, s.serversAs("worker")...)
	if code := run(t.Context(), append(flags, "--namespace", "nobody"), streams{&out, &stderr}); code != exitFailed || !strings.Contains(stderr.String(), "was `worker migrate` run?") {
		t.Errorf("rebuild without a schema ended with %d: %s", code, stderr.String())
	}
}

// TestReconcile_CounterWrong_HealedInPlace makes a counter wrong under a running worker. The next who asks for the slot waits
// until it is healed in place, and is answered as if nothing had been; it is logged and counted.
func TestReconcile_CounterWrong_HealedInPlace(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", seat, 2)
	before := s.epoch()
	s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k1", seat, 600)))
	stacktest.Eventually(t, "the first round", func() bool {
		_, metrics := worker.get(t, "/metrics")
		return strings.Contains(metrics, "\n"+audit.MetricRounds+" 1\n")
	})
	if err := s.redis.HSet(t.Context(), fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall")), "A-12", "x").Err(); err != nil {
		t.Fatal(err)
	}
	if o := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ben", "k2", seat, 600))); o.Type != events.Type(holds.EventHoldCreated) {
		t.Errorf("ben was answered %s: %s", o.Type, o.Data)
	}
	if o := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "cleo", "k3", seat, 600))); o.Type != events.Type(holds.EventHoldRejected) {
		t.Errorf("cleo was answered %s: %s", o.Type, o.Data)
	}
	_, metrics := worker.get(t, "/metrics")
	for _, want := range []string{
		audit.MetricFound + `{kind="counter"} 1`, audit.MetricHealed + `{kind="counter"} 1`, audit.MetricLeft + `{kind="counter"} 0`,
		audit.MetricFound + `{kind="reserved"} 0`, audit.MetricResources + " ",
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("/metrics does not show %s", want)
		}
	}
	if now := s.epoch(); now != before {
		t.Errorf("redis was filled again for it: the epoch is %+v, it was %+v", now, before)
	}
	s.wantNoFindings()
}

// TestCorruptRecord_EventsOfResource_WaitUntilRebuilt damages the record of a hold, which nobody can heal in place. The events of its resource wait,
// while those about others are answered and the worker is ready, until the worker has filled Redis again.
func TestCorruptRecord_EventsOfResource_WaitUntilRebuilt(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_RECONCILE=report")
	for _, resource := range []string{"hall", "tent"} {
		s.setInventory(resource, seat, 2)
	}
	before := s.epoch()
	hold := s.answer(s.publish(events.BookingRequested, "hall", bookingData("hall", "ana", "k1", seat, soon))).Subject
	key := fmt.Sprintf("%s:{%d}:hall:records", s.namespace, record.Partition("hall"))
	id := hold[strings.IndexByte(hold, '.')+1:]
	if err := s.redis.HSet(t.Context(), key, id, "held by nobody").Err(); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the damage to be told", func() bool { return strings.Contains(worker.log.String(), "damaged data in redis") })
	waits := s.publish(events.BookingRequested, "hall", bookingData("hall", "ben", "k2", seat, 600))
	for i := range 3 {
		if o := s.answer(s.publish(events.BookingRequested, "tent", bookingData("tent", fmt.Sprint("u", i), fmt.Sprint("k", i), seat, 600))); i < 2 && o.Type != events.Type(holds.EventHoldCreated) {
			t.Errorf("while another resource is damaged, %s", o.Type)
		}
	}
	stacktest.Eventually(t, "the log to tell what waits", func() bool {
		return strings.Contains(worker.log.String(), "event waits, the data of its resource is corrupt")
	})
	stacktest.Eventually(t, "the worker to be ready, if it does not fill redis yet", func() bool {
		code, _ := worker.get(t, "/readyz")
		return code == 200 || s.epoch() != before
	})
	s.awaitRebuilt(before)
	if o := s.answer(waits); o.Type != events.Type(holds.EventHoldCreated) {
		t.Errorf("when it is mended, %s", o.Type)
	}
	s.await("the lapse", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return slices.ContainsFunc(outcomes, func(e events.Envelope) bool {
			return e.Type == events.Type(holds.EventHoldExpired) && e.Subject == hold
		})
	})
}

// TestAlerts_EveryMetric_IsMeasured keeps the alerts to what the worker measures.
func TestAlerts_EveryMetric_IsMeasured(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deployments/prometheus/holdfast.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Load(text, &rules, yaml.WithKnownFields()); err != nil {
		t.Fatal(err)
	}
	registry, _ := newMetrics(t)
	known := make(map[string]bool)
	for _, family := range metricFamilies(t, registry) {
		known[family.GetName()] = true
	}
	metric := regexp.MustCompile(`\bholdfast_[a-z_]+\b`)
	alerts := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alerts++
			names := metric.FindAllString(rule.Expr, -1)
			if len(names) == 0 || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" {
				t.Errorf("alert %s is not complete", rule.Alert)
			}
			for _, name := range names {
				if !known[name] {
					t.Errorf("alert %s is about %s, which no worker measures", rule.Alert, name)
				}
			}
			if _, err := model.ParseDuration(rule.For); rule.For != "" && err != nil {
				t.Errorf("alert %s: for: %v", rule.Alert, err)
			}
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}
