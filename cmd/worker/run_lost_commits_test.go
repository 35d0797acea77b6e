package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/audit"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// failedOver is a namespace whose Postgres is a pair.
type failedOver struct {
	*harness
	pair   *stacktest.PostgresPair
	worker *process
}

func newFailedOver(t *testing.T) *failedOver {
	t.Helper()
	shared := stacktest.Shared()
	s := &failedOver{}
	s.pair = stacktest.StartPostgresPair(t, stacktest.StartPostgres(t))
	s.harness = newHarnessOn(t, urls{shared.NATSURL, shared.RedisURL,
		stacktest.PostgresURL(s.pair.Primary, s.pair.Standby)})
	s.worker = s.startWorker()
	return s
}

// one returns a value from the promoted standby.
func (s *failedOver) one(sql string) string {
	s.t.Helper()
	return stacktest.PostgresSQL(s.t, stacktest.PostgresURL(s.pair.Standby), strings.ReplaceAll(sql, "TABLE.", s.namespace+"."))
}

// hold places a hold on slot A and returns it.
func (s *failedOver) hold(resource, user string) holds.HoldCreated {
	s.t.Helper()
	return decoded[holds.HoldCreated](s.t, s.answer(s.request(resource, user)))
}

func (s *failedOver) request(resource, user string) (eventID string) {
	s.t.Helper()
	return s.book(resource, user, "k-"+user, slotA, 600)
}

// confirm pays a hold and returns the outcome.
func (s *failedOver) confirm(hold holds.HoldID, payment string) events.Envelope {
	s.t.Helper()
	return s.answer(s.publish(events.PaymentConfirmed, hold.Resource,
		events.PaymentConfirmedData{HoldID: hold.String(), PaymentID: payment, Amount: "12.50", Currency: "EUR"}))
}

// wantLostCommitFound fails the test unless an audit reports an outcome as a lost commit, and no other one.
func (s *failedOver) wantLostCommitFound(resource string, o events.Envelope) {
	s.t.Helper()
	report, err := audit.Run(s.t.Context(), s.backends(), audit.Options{})
	stacktest.Must(s.t, err)
	var found []string
	for _, f := range report.Findings {
		if f.Kind == audit.CommitLost {
			found = append(found, f.Resource+" "+f.Item)
		}
	}
	if want := []string{resource + " " + o.ID}; !slices.Equal(found, want) {
		s.t.Errorf("an audit reports the lost commits %v, want %v", found, want)
	}
}

var slotA = holds.SlotSelection{Slots: []string{"A"}}

// TestWorker_ComparesAtItsStart_ProbesAnswer starts a worker that must compare Postgres first. It cannot end that before the
// row of the commit marker is free, and is alive and not ready meanwhile.
func TestWorker_ComparesAtItsStart_ProbesAnswer(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.migrate()
	s.sql("UPDATE " + s.namespace + ".commit_marker SET server = '', seq = 0, stream_created_at = NULL")
	unlock := s.lockRow(t, "commit_marker")
	worker := s.launch()
	worker.awaitStarted(t)
	worker.awaitLog(t, "first integrity check takes long")
	worker.eventually(t, "the worker to say why it is not ready", func() bool {
		return strings.Contains(fmt.Sprint(worker.readiness(t).Details), "postgres may lack commits")
	})
	if status, _ := worker.get(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d, want 200", status)
	}
	unlock()
	worker.awaitReady(t)
}

// TestWorker_StandbyWasBehind_PublishedCommitsArePutBack promotes a standby that lacks the last
// commits. Without the comparison the slots that they took are granted again, and a payment gets
// another answer.
func TestWorker_StandbyWasBehind_PublishedCommitsArePutBack(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	s := newFailedOver(t)
	s.setInventory("hall", slotA, 2)
	s.setInventory("inn", slotA, 1)
	s.setInventory("cut", slotA, 0)
	s.confirm(s.hold("hall", "ana").HoldID, "p1")
	cancelled := s.hold("inn", "ben").HoldID
	s.confirm(cancelled, "p2")
	stacktest.Eventually(t, "a commit marker on the standby", func() bool {
		return s.one("SELECT seq > 0 FROM TABLE.commit_marker") == "t"
	})
	s.pair.AwaitReplicated(t)
	s.pair.Detach(t)

	// All of this is lost.
	lost := s.hold("hall", "eve").HoldID
	confirmed := s.confirm(lost, "p3")
	unknown := holds.NewHoldID("hall")
	rejected := s.confirm(unknown, "p4")
	s.answer(s.publish(events.ReservationCancelled, "inn", events.ReservationCancelledData{HoldID: cancelled.String()}))
	s.setInventory("new", slotA, 1)
	s.sql("UPDATE " + s.namespace + ".inventory SET capacity = 1 WHERE resource_id = 'cut'")
	var unrestorable events.Envelope
	stacktest.Eventually(t, "a hold on the capacity that upstream has raised", func() bool {
		user := "upstream" + string(rune('a'+len(s.ofType(holds.EventHoldRejected))))
		o := s.answer(s.request("cut", user))
		if o.Type != events.Type(holds.EventHoldCreated) {
			return false
		}
		unrestorable = s.confirm(decoded[holds.HoldCreated](t, o).HoldID, "p5")
		return true
	})

	s.pair.FailOver(t)
	full, blocked := s.request("hall", "fay"), s.request("cut", "gus")
	s.wantAnswer(full, holds.EventHoldRejected)
	s.wantAnswer(blocked, holds.EventHoldRejected)
	s.worker.awaitLog(t, "postgres compared, processing resumed")
	for _, want := range []struct{ sql, value string }{
		{"SELECT status FROM TABLE.reservations WHERE hold_id = '" + lost.String() + "'", "confirmed"},
		{"SELECT concat_ws(' ', outcome, amount, currency) FROM TABLE.payments WHERE payment_id = 'p3'",
			"confirmed 12.50 EUR"},
		{"SELECT outcome || ' ' || reason FROM TABLE.payments WHERE payment_id = 'p4'", "rejected unknown_hold"},
		{"SELECT status FROM TABLE.reservations WHERE hold_id = '" + cancelled.String() + "'", "cancelled"},
		{"SELECT reserved FROM TABLE.inventory WHERE resource_id = 'hall'", "2"},
		{"SELECT reserved FROM TABLE.inventory WHERE resource_id = 'inn'", "0"},
		{"SELECT capacity FROM TABLE.inventory WHERE resource_id = 'new'", "1"},
		{"SELECT string_agg(resource_id || ' ' || event, ',') FROM TABLE.lost_commits", "cut hold.confirmed"},
		{"SELECT capacity || ' ' || reserved FROM TABLE.inventory WHERE resource_id = 'cut'", "0 0"},
	} {
		if found := s.one(want.sql); found != want.value {
			t.Errorf("%s: %q, want %q", want.sql, found, want.value)
		}
	}
	s.wantLostCommitFound("cut", unrestorable)
	awaitLost := func(n float64) {
		t.Helper()
		s.worker.awaitMetrics(t, func(value func(string) float64) bool { return value("holdfast_lost_commits") == n })
	}
	awaitLost(1)
	const detail = "postgres lacks 1 published outcome, "
	if stats := getJSON[workerStats](t, s.worker, "/v1/stats"); !strings.HasPrefix(stats.Details["lost_commits"], detail) {
		t.Errorf("statistics do not name the lost commit: %+v", stats.Details)
	}
	if o := s.confirm(lost, "p3"); string(o.Data) != string(confirmed.Data) {
		t.Errorf("the same payment is answered with %s %s, before with %s", o.Type, o.Data, confirmed.Data)
	}
	if o := s.confirm(unknown, "p4"); string(o.Data) != string(rejected.Data) {
		t.Errorf("the same payment is answered with %s %s, before with %s", o.Type, o.Data, rejected.Data)
	}
	s.hold("inn", "hal") // others go on
	s.hold("new", "hal")

	s.one("UPDATE TABLE.inventory SET capacity = 2 WHERE resource_id = 'cut'")
	stacktest.Eventually(t, "the lost commit to be put back", func() bool {
		return s.one("SELECT count(*) FROM TABLE.lost_commits") == "0"
	})
	awaitLost(0)
	again := decoded[holds.HoldConfirmed](t, unrestorable)
	if o := s.confirm(again.HoldID, again.PaymentID); string(o.Data) != string(unrestorable.Data) {
		t.Errorf("the same payment is answered with %s %s, before with %s", o.Type, o.Data, unrestorable.Data)
	}
	stacktest.Eventually(t, "the resource to be granted again", func() bool {
		o := s.answer(s.request("cut", "again"+string(rune('a'+len(s.ofType(holds.EventHoldRejected))))))
		return o.Type == events.Type(holds.EventHoldCreated)
	})
	if found := s.one("SELECT reserved FROM TABLE.inventory WHERE resource_id = 'cut'"); found != "1" {
		t.Errorf("%s are reserved, want 1", found)
	}
	if len(s.deadLetters) > 0 {
		t.Errorf("dead letters: %v", s.deadLetters)
	}
}
