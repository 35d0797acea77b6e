package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestNagios_RunningWorker_LineAndExitCode checks a worker without and with a dead letter, a paused one, and an
// address without a worker.
func TestNagios_RunningWorker_LineAndExitCode(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	check := func(state int, text string, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		code := run(t.Context(), append([]string{"nagios", "--http-addr", worker.http}, args...), streams{&out, &errs})
		if code != state || !strings.HasPrefix(out.String(), text) || strings.Count(out.String(), "\n") != 1 || errs.Len() > 0 {
			t.Errorf("exit code %d: %s%s\nwant %d: %s", code, &out, &errs, state, text)
		}
		return out.String()
	}
	s.setInventory("hall", holds.SlotSelection{}, 1)
	check(nagiosOK, "HOLDFAST OK - ready, ")
	s.awaitDeadLetter(s.publish(events.BookingRequested, "hall", "not an object"))
	check(nagiosWarning, "HOLDFAST WARNING - 1 dead letter | oldest=")
	s.asMigrator(exitOK, "pause", "--who", "ann", "--consumers", "requests", "--reason", "a | b")
	worker.eventually(t, "the worker to notice the pause", func() bool { return !worker.readiness(t).Ready })
	line := check(nagiosCritical, "HOLDFAST CRITICAL - not ready: paused; requests is paused until ")
	if who := " by ann: a / b; 1 dead letter | oldest="; !strings.Contains(line, who) {
		t.Errorf("%s has not %q", line, who)
	}
	check(nagiosCritical, "HOLDFAST CRITICAL - no answer from worker: ", "--http-addr", "127.0.0.1:1")
	check(nagiosUnknown, "HOLDFAST UNKNOWN - --warning must not exceed --critical\n", "--warning", "2m")
	check(nagiosUnknown, "HOLDFAST UNKNOWN - --warning and --critical must not be negative\n", "--warning=-1s")
	check(nagiosUnknown, "HOLDFAST UNKNOWN - unknown flag --nosuch", "--nosuch")
	check(nagiosUnknown, "HOLDFAST UNKNOWN - --warning: expected duration", "--warning", "abc")
	check(nagiosUnknown, "HOLDFAST UNKNOWN - unexpected argument a/b", "a|b")
}

// TestNagios_DifferencesLeft_Critical makes a counter wrong under a worker that only reports differences.
func TestNagios_DifferencesLeft_Critical(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker("HOLDFAST_RECONCILE=report")
	s.setInventory("hall", holds.SlotSelection{}, 10)
	s.answer(s.book("hall", "ann", "k", holds.SlotSelection{}, 600))
	counts := fmt.Sprintf("%s:{%d}:hall:counts", s.namespace, record.Partition("hall"))
	stacktest.Must(t, s.redis.HSet(t.Context(), counts, "stock", "5").Err())
	worker.eventually(t, "the difference", func() bool {
		code, out := execute(t.Context(), "nagios", "--http-addr", worker.http)
		return code == nagiosCritical &&
			strings.HasPrefix(out, "HOLDFAST CRITICAL - 1 difference left in stored data, see worker audit | ")
	})
}

// TestNagios_ReadyButLosing_StateSaysSo gives answers of a worker that is ready while nothing is granted on some resources, or
// while Redis evicts holds.
func TestNagios_ReadyButLosing_StateSaysSo(t *testing.T) {
	t.Parallel()
	c := nagiosCommand{Warning: 10 * time.Second, Critical: time.Minute}
	for _, name := range []string{"lost_commits", "redis_eviction"} {
		stats := workerStats{Readiness: queries.Readiness{Ready: true, Details: map[string]string{name: "that | this", "namespace": "holdfast"}}}
		if state, text := c.stateOf(&stats); state != nagiosCritical || !strings.HasPrefix(text, "that / this | oldest=") {
			t.Errorf("%s: %d, %s", name, state, text)
		}
	}
}

// TestNagios_EventWaits_StateByItsAge gives answers with the age of the oldest event.
func TestNagios_EventWaits_StateByItsAge(t *testing.T) {
	t.Parallel()
	c := nagiosCommand{Warning: 10 * time.Second, Critical: time.Minute}
	for age, want := range map[float64]int{9: nagiosOK, 11: nagiosWarning, 61: nagiosCritical} {
		stats := workerStats{Readiness: queries.Readiness{Ready: true}, Stats: queries.Stats{
			Consumers: []queries.ConsumerStats{{Name: "payments"}, {Name: "requests", Pending: 3, OldestAgeSeconds: age}},
		}}
		if state, text := c.stateOf(&stats); state != want || !strings.Contains(text, "waiting=3;") {
			t.Errorf("after %g s: %d, %s; want %d", age, state, text, want)
		}
	}
}
