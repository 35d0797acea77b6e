package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// asMigrator runs a command that changes consumers and returns its output.
func (s *harness) asMigrator(want int, args ...string) string {
	s.t.Helper()
	at := s.urlsAs("migrator")
	args = append(args, "--nats-url", at.nats, "--namespace", s.namespace)
	code, out := execute(s.t.Context(), args...)
	if code != want {
		s.t.Fatalf("worker %s: exit code %d: %s", args[0], code, out)
	}
	return out
}

// TestPause_Paused_EventsWaitUntilResumed pauses the requests. They wait while payments are processed, also after
// worker migrate and a second worker have started; then they are answered.
func TestPause_Paused_EventsWaitUntilResumed(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 10)
	out := s.asMigrator(exitOK, "pause", "--consumers", "requests", "--reason", "new schema", "--who", "eve@desk", "-o", "json")
	var paused []pausedConsumer
	if err := json.Unmarshal([]byte(out), &paused); err != nil || len(paused) != 1 || paused[0].Consumer != "requests" ||
		paused[0].Pause.Reason != "new schema" {
		t.Fatalf("worker pause: %v\n%s", err, out)
	}
	stacktest.Eventually(t, "the worker to report the pause", func() bool {
		paused := worker.readiness(t).Details["paused"]
		return strings.Contains(paused, "by eve@desk: new schema") && strings.Contains(paused, "consumer requests is paused until")
	})
	stacktest.Eventually(t, "the metrics that fire alerts and keep others silent", func() bool {
		_, metrics := worker.get(t, "/metrics")
		return strings.Contains(metrics, `holdfast_consumer_paused_by_operator{consumer="requests"} 1`) &&
			strings.Contains(metrics, `holdfast_consumer_paused_by_operator{consumer="payments"} 0`) &&
			strings.Contains(metrics, "\nholdfast_ready 0\n") && strings.Contains(metrics, `holdfast_not_ready{reason="paused"} 1`) &&
			strings.Contains(metrics, `holdfast_consumer_paused{consumer="requests"} 1`)
	})
	stats := getJSON[queries.Stats](t, worker, "/v1/stats")
	for _, consumer := range stats.Consumers {
		if consumer.Paused != (consumer.Name == events.ConsumerRequests) || consumer.Paused && consumer.Pause.Who != "eve@desk" {
			t.Errorf("consumer %+v", consumer)
		}
	}
	waiting := s.book("hall", "ann", "k", holds.SlotSelection{}, 600)
	s.migrate()
	s.startWorker()
	payment := s.pay("hall."+strings.Repeat("0", 32), "p")
	s.wantAnswer(payment, holds.EventConfirmRejected)
	stats = getJSON[queries.Stats](t, worker, "/v1/stats")
	if stats.Consumers[0].Pending == 0 || !stats.Consumers[0].Paused {
		t.Errorf("the request does not wait: %+v", stats.Consumers[0])
	}
	if out := s.asMigrator(exitOK, "resume"); out != "requests: resumed\nchanges: resumed\npayments: resumed\n" {
		t.Errorf("worker resume: %s", out)
	}
	s.wantAnswer(waiting, holds.EventHoldCreated)
	worker.awaitReady(t)
}

// TestPause_For_EndsByItself pauses everything for years, and then for ten seconds.
func TestPause_For_EndsByItself(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker()
	if out := s.asMigrator(exitOK, "pause", "--for", "87600h"); strings.Count(out, ": paused until 2") != 3 {
		t.Errorf("worker pause: %s", out)
	}
	if out := s.asMigrator(exitOK, "pause", "--for", "10s"); strings.Count(out, ": paused until 2") != 3 {
		t.Errorf("worker pause: %s", out)
	}
	id := s.book("hall", "ann", "k", holds.SlotSelection{}, 600)
	s.wantAnswer(id, holds.EventHoldRejected)
}

// TestPause_EndpointsFile_NamespaceComesFromIt pauses and resumes the consumers of the namespace that the
// endpoints file names.
func TestPause_EndpointsFile_NamespaceComesFromIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate()
	content := "HOLDFAST_NATS_URL=" + s.urlsAs("migrator").nats + "\nHOLDFAST_NAMESPACE=" + s.namespace + "\n"
	dir := filepath.Dir(fileOf(t, "endpoints.env", content))
	for _, command := range []string{"pause", "resume"} {
		if code, out := execute(t.Context(), command, "--data-dir", dir); code != exitOK {
			t.Errorf("worker %s: exit code %d: %s", command, code, out)
		}
	}
}

// TestPause_URLFile_PausesItsServer pauses and resumes the consumers of the server that a file names, although an endpoints
// file names another one. The namespace is checked.
func TestPause_URLFile_PausesItsServer(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate()
	file := fileOf(t, "url", s.urlsAs("migrator").nats)
	other := filepath.Dir(fileOf(t, "endpoints.env", "HOLDFAST_NATS_URL=nats://127.0.0.1:1\n"))
	for _, command := range []string{"pause", "resume"} {
		for namespace, want := range map[string]int{s.namespace: exitOK, "Bad.ns": exitUsage} {
			code, out := execute(t.Context(), command, "--nats-url-file", file, "--namespace", namespace, "--data-dir", other)
			if code != want {
				t.Errorf("worker %s --namespace %s: exit code %d: %s", command, namespace, code, out)
			}
		}
	}
}

// TestPause_OneConsumerMissing_SaysWhichAreChanged pauses all consumers, of which one does not exist.
func TestPause_OneConsumerMissing_SaysWhichAreChanged(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	stacktest.Must(t, s.js.DeleteConsumer(t.Context(), s.subjects.InStream(), events.ConsumerChanges))
	out := s.asMigrator(exitFailed, "pause", "--consumers", "requests,changes")
	if !strings.HasPrefix(out, "requests: paused until worker resume by ") ||
		!strings.Contains(out, "consumer changes: ") || !strings.Contains(out, "repeat the command for the others") {
		t.Error(out)
	}
}

// TestPause_WrongUsage_IsRefused checks settings, a missing consumer, and the text of an endless pause.
func TestPause_WrongUsage_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for _, length := range []string{"1ms", "0", "0s", "-1h"} {
		if out := s.asMigrator(exitUsage, "pause", "--for="+length); !strings.Contains(out, "at least 1s") {
			t.Error(out)
		}
	}
	for _, verb := range []string{"pause", "resume"} {
		if out := s.asMigrator(exitUsage, verb, "--consumers", ""); !strings.Contains(out, "--consumers") {
			t.Error(out)
		}
	}
	if out := s.asMigrator(exitUsage, "pause", "--consumers", "refunds"); !strings.Contains(out, "requests") {
		t.Error(out)
	}
	if out := s.asMigrator(exitOK, "pause", "--consumers", "changes"); !strings.HasPrefix(out, "changes: paused until worker resume by ") {
		t.Error(out)
	}
	out := s.asMigrator(exitOK, "pause", "--consumers", "changes", "--reason", "new\x1b[2J\nschema", "--who", "eve\u009b")
	if !strings.HasSuffix(out, ` by eve\u009b: new\x1b[2J\nschema`+"\n") {
		t.Errorf("worker pause: %q", out)
	}
	s.namespace = "nowhere"
	want := "namespace nowhere has no streams; `worker migrate`"
	if stacktest.LeastPrivilege() {
		want = "permissions violation" // the user has those of one namespace
	}
	if out := s.asMigrator(exitFailed, "resume"); !strings.Contains(out, "requests") || !strings.Contains(out, want) {
		t.Error(out)
	}
}
