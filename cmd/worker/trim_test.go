package main

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestTrimmer_AllAnswered_RemovesWhatIsOld has a worker, as the user that it is in deployments, answer events of all
// kinds. Then they are old: they are removed, as are old answers and nights, and an audit finds nothing wrong.
func TestTrimmer_AllAnswered_RemovesWhatIsOld(t *testing.T) {
	t.Parallel()
	s := newGuardedSystem(t)
	s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", holds.Asked{}, 10)
	hold := s.answer(s.publish(events.BookingRequested, "hall", book("hall", "ann", "k", holds.Asked{}, 600))).Subject
	s.answer(s.publish(events.PaymentConfirmed, "hall", events.PaymentConfirmedData{HoldID: hold, PaymentID: "p"}))
	s.answer(s.publish(events.ReservationCancelled, "hall", events.ReservationCancelledData{HoldID: hold}))
	s.answer(s.publish(events.BookingRequested, "hall", book("hall", "ben", "l", holds.Asked{}, 600)))

	admin, err := pgx.Connect(t.Context(), s.urls.postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	for _, sql := range []string{
		`UPDATE holdfast.event_answers SET decided_at = now() - interval '40 days'`,
		`INSERT INTO holdfast.inventory (resource_id, slot, capacity, reserved) VALUES ('hall', '2001-02-03', 5, 0)`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	at := s.as("worker")
	nc, err := events.Connect(at.nats, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := events.NewJetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Connections: Connections{Namespace: s.namespace, PostgresURL: at.postgres},
		Policies:    Policies{Terms: Terms{Lifetimes: Lifetimes{HoldLifetimeMax: 2 * time.Hour}}}, Operations: Operations{InboundKeep: -time.Minute},
	}
	db, err := newStore(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	log, err := newLogger(t.Output(), "info")
	if err != nil {
		t.Fatal(err)
	}
	x := newTrimmer(c, js, s.subjects, db, log)
	var inbound, answers, nights int
	stacktest.Eventually(t, "all that is old to be removed", func() bool {
		if err := x.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		stream, err := s.js.Stream(t.Context(), s.subjects.InStream())
		if err == nil {
			inbound = int(stream.CachedInfo().State.Msgs)
			err = admin.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM holdfast.event_answers),
				(SELECT count(*) FROM holdfast.inventory WHERE slot = '2001-02-03')`).Scan(&answers, &nights)
		}
		if err != nil {
			t.Fatal(err)
		}
		return inbound == 0 && answers == 0 && nights == 0 // acknowledgements may come late
	})
	if code, out, stderr := s.audited(); code != exitOK {
		t.Errorf("worker audit ended with %d: %s%s", code, out, stderr)
	}
	s.answer(s.publish(events.BookingRequested, "hall", book("hall", "cleo", "m", holds.Asked{}, 600)))
}
