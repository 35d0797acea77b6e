package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// TestOutage_ServerHangs_EventsWait stops the process of Redis, and then of Postgres, as if the
// machine hung. The worker reports it, every event waits, no event is dead-lettered, and all are
// answered when the server continues.
func TestOutage_ServerHangs_EventsWait(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	servers := stacktest.Start(t, stack.Options{Redis: true, Postgres: true})
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, servers.RedisURL, servers.PostgresURL})
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 10)
	hold := s.answer(s.book("hall", "ana", "k", holds.SlotSelection{}, 3600))

	for name, pid := range map[string]int{"redis": servers.RedisPID(), "postgres": servers.PostgresPID()} {
		signalAll(t, pid, syscall.SIGSTOP)
		requested := s.book("hall", "ben-"+name, "k-"+name, holds.SlotSelection{}, 3600)
		paid := s.pay(hold.Subject, "p")
		stacktest.Eventually(t, "the worker to report why it is paused", func() bool {
			ready := worker.readiness(t)
			return slices.Contains(ready.Reasons, name) && slices.Contains(ready.Reasons, "paused") &&
				strings.Contains(ready.Details["paused"], "is paused by an outage: ")
		})
		signalAll(t, pid, syscall.SIGCONT)
		s.wantAnswer(requested, holds.EventHoldCreated)
		s.wantAnswer(paid, holds.EventHoldConfirmed)
	}
	s.wantNoDeadLetters()
	if got := s.counts("hall")[holds.StockSlot]; got != "2" {
		t.Errorf("%s held, want 2", got)
	}
}

// TestOutage_PostgresHangs_PaymentsClaimHolds lets payments come one after the other while Postgres hangs. Each of them
// claims its hold, which therefore cannot expire, and the metric says how many wait. All are confirmed when
// Postgres continues.
func TestOutage_PostgresHangs_PaymentsClaimHolds(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	servers := stacktest.Start(t, stack.Options{Redis: true, Postgres: true})
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, servers.RedisURL, servers.PostgresURL})
	worker := s.startWorker()
	const number = 5
	s.setInventory("hall", holds.SlotSelection{}, number)
	var ids, paid []string
	for i := range number {
		ids = append(ids, s.answer(s.book("hall", fmt.Sprint("u", i), fmt.Sprint("k", i), holds.SlotSelection{}, 60)).Subject)
	}
	signalAll(t, servers.PostgresPID(), syscall.SIGSTOP)
	stacktest.Eventually(t, "the worker not to be ready", func() bool { return !worker.readiness(t).Ready })
	for i, id := range ids {
		paid = append(paid, s.pay(id, fmt.Sprint("p", i)))
		worker.awaitMetrics(t, func(value func(string) float64) bool {
			return value("holdfast_payments_unsettled") == float64(i+1)
		})
	}
	signalAll(t, servers.PostgresPID(), syscall.SIGCONT)
	for _, p := range paid {
		s.wantAnswer(p, holds.EventHoldConfirmed)
	}
}

// signalAll signals a server and its child processes: Postgres has one process for each connection.
func signalAll(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	stacktest.Must(t, err)
	for _, child := range append(strings.Fields(string(children)), strconv.Itoa(pid)) {
		n, err := strconv.Atoi(child)
		stacktest.Must(t, err)
		if err := syscall.Kill(n, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
}

// newHangingProxy returns the URL of a server behind a proxy, and hang, after which the server does not answer there.
func newHangingProxy(t testing.TB, serverURL string) (proxyURL string, hang func()) {
	t.Helper()
	proxyURL, proxy := stacktest.ProxyTo(t, serverURL)
	return proxyURL, func() {
		for _, direction := range []stacktest.Direction{stacktest.Upstream, stacktest.Downstream} {
			proxy.Set(direction, stacktest.Toxics{Stall: true})
		}
	}
}

// startWithHangingNATS starts a worker, whose NATS then does not answer any more.
func (s *harness) startWithHangingNATS() *process {
	s.t.Helper()
	address, hang := newHangingProxy(s.t, s.urlsAs("worker").nats)
	worker := launch(s.t, false, append(s.runArgs(), "--nats-url", address))
	worker.awaitStarted(s.t)
	hang()
	return worker
}

// TestStop_NATSHangs_ExitsWithZero stops a worker while NATS does not answer. The worker exits with 0: NATS
// delivers to another worker what this one has not acknowledged.
func TestStop_NATSHangs_ExitsWithZero(t *testing.T) {
	t.Parallel()
	worker := newHarness(t).startWithHangingNATS()
	worker.stop(t)
}

// TestStats_RedisHangs_AnswersInTime reads the state of a worker whose Redis does not answer: by HTTP, in the console
// and with the commands of a monitor and of an operator.
func TestStats_RedisHangs_AnswersInTime(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	address, hang := newHangingProxy(t, s.urlsAs("worker").redis)
	worker := launch(t, false, append(s.runArgs(), "--redis-url", address), "HOLDFAST_CONSOLE=read")
	worker.awaitStarted(t)
	worker.awaitReady(t)
	hang()
	began := time.Now()
	stats := getJSON[workerStats](t, worker, "/v1/stats")
	if took := time.Since(began); stats.Ready || stats.LiveHolds != nil || !slices.Contains(stats.Reasons, "redis") || took > 4*time.Second {
		t.Errorf("after %s: %+v", took, stats)
	}
	if page := newBrowser(t, worker).get("/console/"); !strings.Contains(page, "redis") {
		t.Errorf("the overview does not name redis:\n%s", page)
	}
	for _, command := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"nagios"}, nagiosCritical, "HOLDFAST CRITICAL - not ready: "},
		{[]string{"top", "--once"}, exitOK, "NOT READY: "},
	} {
		code, out := execute(t.Context(), append(command.args, "--http-addr", worker.http)...)
		_, reasons, _ := strings.Cut(out, command.text)
		if code != command.code || !strings.Contains(reasons, "redis") {
			t.Errorf("%s: exit code %d: %s", command.args, code, out)
		}
	}
}

// TestReadiness_NATSHangs_SaysSo checks that a worker whose NATS does not answer is not ready, and names NATS: in /readyz and
// in the metrics, of which some cannot be measured.
func TestReadiness_NATSHangs_SaysSo(t *testing.T) {
	t.Parallel()
	worker := newHarness(t).startWithHangingNATS()
	stacktest.Eventually(t, "the worker to report NATS", func() bool { return slices.Contains(worker.readiness(t).Reasons, "nats") })
	worker.awaitMetrics(t, func(value func(string) float64) bool {
		return value("holdfast_ready") == 0 && value(`holdfast_not_ready{reason="nats"}`) == 1 &&
			value(`holdfast_not_ready{reason="postgres"}`) == 0 && value(`holdfast_observe_failures_total{part="streams"}`) > 0
	})
}

// TestReadiness_NATSDown_SaysWhy refuses the connections of a worker to NATS. /readyz, the log and the commands of a monitor and of
// an operator say why it is not connected.
func TestReadiness_NATSDown_SaysWhy(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	address, proxy := stacktest.ProxyTo(t, s.urlsAs("worker").nats)
	worker := launch(t, false, append(s.runArgs(), "--nats-url", address))
	worker.awaitStarted(t)
	worker.awaitReady(t)
	stacktest.Must(t, proxy.Close())
	const why = "connection refused"
	stacktest.Eventually(t, "the worker to say why", func() bool { return strings.Contains(worker.readiness(t).Details["nats"], why) })
	worker.awaitLog(t, "nats: not reconnected")
	for _, command := range []struct {
		args []string
		code int
	}{{[]string{"nagios"}, nagiosCritical}, {[]string{"top", "--once"}, exitFailed}} {
		if code, out := execute(t.Context(), append(command.args, "--http-addr", worker.http)...); code != command.code ||
			!strings.Contains(out, "nats") || !strings.Contains(out, why) {
			t.Errorf("%s: exit code %d: %s", command.args, code, out)
		}
	}
	if paused := worker.readiness(t).Details["paused"]; strings.Contains(paused, "buffer") {
		t.Errorf("the worker says that it is paused: %s", paused)
	}
}

// TestRedisFull_WorkerRestarts_HoldsExpire restarts a worker while Redis is out of memory. It must start: it ends holds, and
// that frees memory.
func TestRedisFull_WorkerRestarts_HoldsExpire(t *testing.T) {
	t.Parallel()
	own, shared := stacktest.StartRedis(t), stacktest.Shared()
	s := newHarnessOn(t, urls{shared.NATSURL, own.RedisURL, shared.PostgresURL})
	first := s.startWorker()
	s.setInventory("room", holds.SlotSelection{}, 5)
	s.answer(s.book("room", "ana", "k1", holds.SlotSelection{}, 2))
	stacktest.Must(t, s.redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
	stacktest.Must(t, first.cmd.Process.Kill())
	first.awaitExit(t)
	s.startWorker()
	s.awaitExpired(1)
}
