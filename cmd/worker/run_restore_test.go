package main

import (
	"net/http"
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
	own := stacktest.Start(t, stack.Options{Redis: true})
	postgres := stacktest.PostgresURL(stacktest.StartPostgres(t))
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, own.RedisURL, postgres})
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

// sqlElsewhere runs plain SQL on the server of the harness, in another database.
func (s *harness) sqlElsewhere(statement string) {
	s.t.Helper()
	stacktest.PostgresSQL(s.t, strings.Replace(s.urls.postgres, "/postgres?", "/template1?", 1), statement)
}
