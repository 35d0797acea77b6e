package main

import (
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// TestRun_AllButRedisRestored_HoldsStay restores backups of Postgres and of the streams that are older than the last
// recovery of Redis, which has run on. The holds that were granted since then are in Redis alone, and stay. One that was paid
// since then has lost its reservation: an audit says what to do.
func TestRun_AllButRedisRestored_HoldsStay(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	own := stacktest.Start(t, stack.Options{Redis: true, NATS: true})
	postgres := stacktest.PostgresURL(stacktest.StartPostgres(t))
	s := newHarnessOn(t, urls{own.NATSURL, own.RedisURL, postgres})
	worker := s.startWorker()
	s.setInventory("hall", slotA, 3)
	before := s.answer(s.book("hall", "ana", "k1", slotA, hour)).Subject
	worker.stop(t)
	s.sqlElsewhere("CREATE DATABASE backup TEMPLATE postgres")
	restore := stacktest.BackupStreams(t, s.urls.nats, s.subjects.InStream(), s.subjects.OutStream(), s.subjects.DLQStream())

	stacktest.Must(t, s.redis.FlushAll(t.Context()).Err())
	worker = s.startWorker()
	worker.awaitReady(t)
	after := s.answer(s.book("hall", "ben", "k2", slotA, hour)).Subject
	paid := s.answer(s.book("hall", "cleo", "k3", slotA, hour)).Subject
	s.answer(s.pay(paid, "p"))
	s.awaitMarker(s.redis, recovery.FormatPartition)
	worker.stop(t)
	s.unfollow()
	s.sqlElsewhere("ALTER DATABASE postgres RENAME TO former")
	s.sqlElsewhere("ALTER DATABASE backup RENAME TO postgres")
	restore()

	worker = s.startWorker()
	worker.awaitReady(t)
	worker.awaitLog(t, "redis is newer than postgres and the outbound stream, its data is kept")
	for _, hold := range []string{before, after} {
		if status, body := worker.get(t, "/v1/holds/"+hold); status != http.StatusOK || !strings.Contains(body, string(holds.Held)) {
			t.Errorf("hold %s: %d %s", hold, status, body)
		}
	}
	if status, body := worker.get(t, "/v1/availability?resource_id=hall&slot=A"); !strings.Contains(body, `"held":2`) {
		t.Errorf("availability: %d %s, want 2 held", status, body)
	}
	if _, report, _ := s.runAudit(); !strings.Contains(report, paid+" is confirmed in Redis") ||
		!strings.Contains(report, "enter the sale again or refund it") {
		t.Errorf("the audit does not say what to do about %s:\n%s", paid, report)
	}
}

// TestRun_PostgresFilesRestored_IsolatedWorkerComparesFirst restores the files of Postgres, as a snapshot of a volume has
// them: the server has the same name and timeline. The first worker to reach it could not since before the snapshot, so the
// older commit marker of the files is news to it. A sale that was published after the snapshot stays sold.
func TestRun_PostgresFilesRestored_IsolatedWorkerComparesFirst(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	dir, copied := stacktest.DataDir(t), stacktest.DataDir(t)
	start := func(dir string) *stack.Server {
		server, err := stack.StartPostgresServer(t.Context(), dir, "fsync=off")
		stacktest.Must(t, err)
		t.Cleanup(func() { _ = server.Kill() }) // fails when the test has ended it
		return server
	}
	postgres := start(dir)
	url, proxy := stacktest.ProxyTo(t, stacktest.PostgresURL(postgres))
	urlOfIsolated, proxyOfIsolated := stacktest.ProxyTo(t, stacktest.PostgresURL(postgres))
	serve := func(p *stacktest.Proxy) {
		p.Target(stack.Loopback(postgres.Port))
		p.Refuse(false)
	}
	stop := func(p *stacktest.Proxy) {
		p.Refuse(true)
		p.Cut(false)
	}
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, stacktest.Shared().RedisURL, url})
	awaitMarker := func() {
		stream, err := s.js.Stream(t.Context(), s.subjects.OutStream())
		stacktest.Must(t, err)
		stacktest.Eventually(t, "the commit marker at the end of the stream", func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && stacktest.PostgresSQL(t, stacktest.PostgresURL(postgres),
				"SELECT seq FROM "+s.namespace+".commit_marker") == strconv.FormatUint(info.State.LastSeq, 10)
		})
	}
	worker := s.startWorker()
	s.urls.postgres = urlOfIsolated
	isolated := s.startWorker()
	worker.awaitReady(t)
	isolated.awaitReady(t)
	s.setInventory("hall", slotA, 1)
	awaitMarker()

	stop(proxyOfIsolated)
	stop(proxy)
	stacktest.Must(t, postgres.Kill())
	stacktest.Must(t, exec.Command("cp", "-a", dir, copied).Run())
	postgres = start(dir)
	serve(proxy)
	sold := s.wantAnswer(s.book("hall", "ana", "k1", slotA, hour), holds.EventHoldCreated).Subject
	s.wantAnswer(s.pay(sold, "p1"), holds.EventHoldConfirmed)
	awaitMarker()
	stop(proxy)
	stacktest.Must(t, postgres.Kill())
	postgres = start(copied)
	serve(proxyOfIsolated)
	s.wantAnswer(s.book("hall", "ben", "k2", slotA, hour), holds.EventHoldRejected)
	if n := stacktest.PostgresSQL(t, stacktest.PostgresURL(postgres), "SELECT count(*) FROM "+s.namespace+".reservations"); n != "1" {
		t.Errorf("%s reservations, want the one that was sold after the snapshot", n)
	}
}

// sqlElsewhere runs plain SQL on the server of the harness, in another database.
func (s *harness) sqlElsewhere(statement string) {
	s.t.Helper()
	stacktest.PostgresSQL(s.t, strings.Replace(s.urls.postgres, "/postgres?", "/template1?", 1), statement)
}
