package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// trimmerOfOldEvents returns a trimmer with the permissions of a worker that takes each event as old enough.
func (s *harness) trimmerOfOldEvents() *trimmer {
	s.t.Helper()
	at := s.urlsAs("worker")
	nc, err := events.Connect(at.nats, s.t.Name(), s.t.Logf)
	stacktest.Must(s.t, err)
	s.t.Cleanup(nc.Close)
	js, err := events.NewJetStream(nc, s.subjects)
	stacktest.Must(s.t, err)
	c := Config{
		Connections: Connections{Named: Named{s.namespace}, PostgresURL: at.postgres},
		Policies:    Policies{Terms: Terms{Lifetimes: Lifetimes{HoldLifetimeMax: 2 * time.Hour}}},
		Operations:  Operations{InboundKeep: -time.Minute},
	}
	db, err := newStore(s.t.Context(), c)
	stacktest.Must(s.t, err)
	s.t.Cleanup(db.Close)
	return newTrimmer(c, js, s.subjects, db, newLogger(s.t.Output(), Logging{LogLevel: "info"}, s.namespace))
}

// TestTrimmer_AllAnswered_RemovesOldData has a worker with the permissions in deployments/ answer
// events of all kinds. Once they are old, it removes the events, old answers and past nights, and
// an audit finds no differences.
func TestTrimmer_AllAnswered_RemovesOldData(t *testing.T) {
	t.Parallel()
	s := newRestrictedHarness(t)
	s.startWorker("HOLDFAST_RECONCILE=off")
	s.setInventory("hall", holds.SlotSelection{}, 10)
	hold := s.answer(s.book("hall", "ann", "k", holds.SlotSelection{}, 600)).Subject
	s.answer(s.pay(hold, "p"))
	s.answer(s.publish(events.ReservationCancelled, "hall", events.ReservationCancelledData{HoldID: hold}))
	s.answer(s.book("hall", "ben", "l", holds.SlotSelection{}, 600))

	admin := stacktest.ConnectPostgres(t, s.urls.postgres)
	for _, sql := range []string{
		`UPDATE holdfast.event_answers SET decided_at = now() - interval '40 days'`,
		`INSERT INTO holdfast.inventory (resource_id, slot, capacity, updated_at) VALUES ('hall', '2001-02-03', 5, '2001-01-01')`,
	} {
		stacktest.Exec(t, admin, sql)
	}
	x := s.trimmerOfOldEvents()
	var inbound, answers, nights int
	stacktest.Eventually(t, "all old data to be removed", func() bool {
		stacktest.Must(t, x.runOnce(t.Context()))
		stream, err := s.js.Stream(t.Context(), s.subjects.InStream())
		if err == nil {
			inbound = int(stream.CachedInfo().State.Msgs)
			err = admin.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM holdfast.event_answers),
				(SELECT count(*) FROM holdfast.inventory WHERE slot = '2001-02-03')`).Scan(&answers, &nights)
		}
		stacktest.Must(t, err)
		return inbound == 0 && answers == 0 && nights == 0 // acknowledgements may come late
	})
	if code, out, stderr := s.runAudit(); code != exitOK {
		t.Errorf("worker audit: exit code %d: %s%s", code, out, stderr)
	}
	s.answer(s.book("hall", "cleo", "m", holds.SlotSelection{}, 600))
}

// TestTrimmer_OutcomesKeptLonger_KeepsTheirAnswers has upstream remove an inventory row that an event has set. While the
// outcome of that event is kept, a comparison of Postgres with all outcomes finds its answer and does not restore the row.
func TestTrimmer_OutcomesKeptLonger_KeepsTheirAnswers(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 10)
	s.sql(`UPDATE ` + s.namespace + `.event_answers SET decided_at = now() - interval '40 days';
		DELETE FROM ` + s.namespace + `.inventory`)
	x := s.trimmerOfOldEvents()
	trimAfter := func(maxAge time.Duration) {
		t.Helper()
		out, err := s.js.Stream(t.Context(), s.subjects.OutStream())
		stacktest.Must(t, err)
		config := out.CachedInfo().Config
		config.MaxAge = maxAge
		_, err = s.js.UpdateStream(t.Context(), config)
		stacktest.Must(t, err)
		stacktest.Eventually(t, "all events to be removed", func() bool { // acknowledgements may come late
			stacktest.Must(t, x.runOnce(t.Context()))
			in, err := s.js.Stream(t.Context(), s.subjects.InStream())
			stacktest.Must(t, err)
			return in.CachedInfo().State.Msgs == 0
		})
	}
	for _, maxAge := range []time.Duration{0, 20 * 24 * time.Hour} {
		trimAfter(maxAge)
		outcomes := events.NewOutcomeLog(s.js, s.subjects, x.log)
		_, err := outcomes.Commits(t.Context(), holds.LogPosition{}, func(all []holds.StoredOutcome) error {
			restored, err := x.db.PutBack(t.Context(), all)
			if restored != 0 {
				t.Errorf("%d of %d outcomes, which are kept for %v, were put back", restored, len(all), maxAge)
			}
			return err
		})
		stacktest.Must(t, err)
	}
	trimAfter(7 * 24 * time.Hour)
	left := stacktest.PostgresSQL(t, s.urls.postgres, "SELECT count(*) FROM "+s.namespace+".event_answers")
	if left != "0" {
		t.Errorf("%s answers of 40 days ago are left although outcomes are kept for a week", left)
	}
}

// TestStorageTable_Docs_ListEverythingStored checks that docs/storage.md lists every Redis key,
// table, sequence and stream.
func TestStorageTable_Docs_ListEverythingStored(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		stacktest.Must(t, err)
		return string(text)
	}
	page := read("../../docs/storage.md")
	named := func(what string) {
		t.Helper()
		if !strings.Contains(page, "`"+what+"`") {
			t.Errorf("docs/storage.md does not list %s", what)
		}
	}
	keys := regexp.MustCompile(`(?m)^//\t([a-z_]+|<resource>:[a-z_]+(?::<[a-z]+>)?) +(?:string|hash|zset) `).FindAllStringSubmatch(read("../../internal/holds/doc.go"), -1)
	if len(keys) < 20 {
		t.Fatalf("doc.go has only %d keys: %q", len(keys), keys)
	}
	for _, key := range keys {
		named(strings.Replace(key[1], "<resource>:", "R:", 1))
	}
	migrations, err := filepath.Glob("../../internal/store/migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatal(migrations, err)
	}
	for _, path := range migrations {
		for _, made := range regexp.MustCompile(`(?m)^CREATE (?:TABLE|SEQUENCE) (?:IF NOT EXISTS )?([a-z_]+)`).FindAllStringSubmatch(read(path), -1) {
			named(made[1])
		}
	}
	for _, config := range events.Namespace("n").Streams(events.Retention{}) {
		named(config.Name)
		if config.MaxAge == 0 && config.Name != "N_IN" && config.Name != "N_DLQ" {
			t.Errorf("stream %s has no limit", config.Name)
		}
	}
}

// TestTrimmer_ShortKeep_RunsMoreOften checks that events are removed soon after the time that they are kept.
func TestTrimmer_ShortKeep_RunsMoreOften(t *testing.T) {
	t.Parallel()
	for keep, want := range map[time.Duration]time.Duration{
		time.Minute: 6 * time.Second, time.Hour: 6 * time.Minute, 72 * time.Hour: trimEach,
	} {
		if got := (&trimmer{keep: keep}).each(); got != want {
			t.Errorf("events are kept for %v, and removed every %v, want every %v", keep, got, want)
		}
	}
}
