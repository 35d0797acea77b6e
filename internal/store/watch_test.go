package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// watcher records what Watch reports.
type watcher struct {
	changed  chan []string // one batch per call
	synced   chan holds.Time
	syncLost atomic.Int64
	clock    atomic.Int64 // the last time of Redis' clock, in ms
	down     atomic.Bool  // Redis does not answer
	failed   atomic.Int64 // calls of BumpRevisions that failed
}

func (w *watcher) Now(context.Context) (holds.Time, error) {
	if w.down.Load() {
		return holds.Time{}, errors.New("redis is down")
	}
	return holds.TimeFromMillis(w.clock.Add(1)), nil
}

func (w *watcher) BumpRevisions(_ context.Context, resources ...string) error {
	if w.down.Load() {
		return fmt.Errorf("failure %d", w.failed.Add(1))
	}
	w.changed <- resources
	return nil
}

func (w *watcher) InventorySynced(at holds.Time) { w.synced <- at }

func (w *watcher) InventorySyncLost() { w.syncLost.Add(1) }

func startWatch(t *testing.T, s *store.Store) *watcher { return startWatchLogging(t, s, io.Discard) }

func startWatchLogging(t *testing.T, s *store.Store, log io.Writer) *watcher {
	t.Helper()
	w := &watcher{changed: make(chan []string, 10_000), synced: make(chan holds.Time, 10_000)}
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan error)
	go func() { watched <- s.Watch(ctx, w, zerolog.New(log)) }()
	t.Cleanup(func() {
		stop()
		stacktest.Must(t, <-watched)
	})
	return w
}

// TestWatch_ChangesBeforeAProof_AreReportedBeforeIt commits a change and reads the clock: the
// change is reported before a proof with a later time.
func TestWatch_ChangesBeforeAProof_AreReportedBeforeIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	w := startWatch(t, s.Store)
	<-w.synced
	if w.syncLost.Load() != 1 {
		t.Errorf("InventorySyncLost was called %d times, want once at the start", w.syncLost.Load())
	}
	changes := 5
	if stacktest.Long(t.Name()) {
		changes = 20
	}
	for n := range changes {
		s.execute(t, fmt.Sprintf(`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('r%d', 's', 1)`, n))
		committed, _ := w.Now(t.Context())
		for at := range w.synced {
			if at.After(committed.Time) {
				break
			}
		}
		seen := false
		for len(w.changed) > 0 {
			seen = slices.Contains(<-w.changed, fmt.Sprint("r", n)) || seen
		}
		if !seen {
			t.Fatalf("change %d was not reported before a proof of a later time", n)
		}
	}
	s.execute(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_notify%'
		AND application_name = 'holdfast worker `+s.namespace+`'`)
	stacktest.Eventually(t, "the connection to be replaced", func() bool { return w.syncLost.Load() >= 3 })
}

// TestWatch_EachChange_IsReported changes inventory in each way, also as a subscription of logical replication does
// (session_replication_role = replica), and by a trigger of upstream. Where a row gets another name, any row may have
// changed: an empty resource. A statement that sets the same names again renames nothing.
func TestWatch_EachChange_IsReported(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	w := startWatch(t, s.Store)
	<-w.synced
	type change struct {
		sql  string
		want []string
	}
	var changes []change
	for _, role := range []string{"origin", "replica"} {
		for _, c := range []change{
			{`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'A', 1)`, []string{"room"}},
			{`UPDATE inventory SET slot = 'B'`, []string{""}},
			{`UPDATE inventory SET resource_id = 'loft'`, []string{""}},
			{`UPDATE inventory SET resource_id = 'loft', slot = 'B', capacity = 2`, []string{"loft"}},
			{`UPDATE inventory SET reserved = 1`, nil},
			{`UPDATE inventory SET reserved = 0`, nil},
			{`DELETE FROM inventory`, []string{"loft"}},
			{`TRUNCATE inventory`, []string{""}},
		} {
			c.sql = `BEGIN; SET LOCAL session_replication_role = ` + role + `; ` + c.sql + `; COMMIT`
			changes = append(changes, c)
		}
	}
	changes = append(changes, change{`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'A', 1)`, []string{"room"}},
		change{`CREATE FUNCTION set_capacity() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.capacity := 7; RETURN NEW; END';
			CREATE TRIGGER capacity_is_set BEFORE UPDATE ON inventory FOR EACH ROW EXECUTE FUNCTION set_capacity();
			UPDATE inventory SET reserved = 1`, []string{"room"}})
	for _, c := range changes {
		s.execute(t, c.sql)
		committed, _ := w.Now(t.Context())
		stacktest.Eventually(t, "a proof of a later time", func() bool {
			return len(w.synced) > 0 && (<-w.synced).After(committed.Time)
		})
		var got []string
		for len(w.changed) > 0 {
			got = append(got, <-w.changed...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q is reported, want %q", c.sql, got, c.want)
		}
	}
}

// TestWatch_TriggersDisabled_NothingIsProven disables the triggers that notify, and enables them as ALTER TABLE and
// pg_restore do it, without ALWAYS. Meanwhile nothing is proven, and the statement that is logged repairs it. A
// transaction that disables and enables them may have made a change, so the rows before it are dropped.
func TestWatch_TriggersDisabled_NothingIsProven(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	lines := make(logLines, 100)
	w := startWatchLogging(t, s.Store, lines)
	<-w.synced
	awaitState := func() { // the state that the first of two further notifications reads is noticed before the second
		t.Helper()
		proofs := w.clock.Load()
		stacktest.Eventually(t, "two further notifications", func() bool { return w.clock.Load() >= proofs+2 })
	}
	wantLost := func(what, sql string) {
		t.Helper()
		lost := w.syncLost.Load()
		s.execute(t, sql)
		if awaitState(); w.syncLost.Load() == lost {
			t.Fatalf("%s is not noticed", what)
		}
	}
	repair := ""
	for _, enabled := range []string{"DISABLE TRIGGER USER", "ENABLE TRIGGER USER", "DISABLE TRIGGER a_truncation_is_notified",
		"ENABLE REPLICA TRIGGER a_changed_capacity_is_told"} {
		wantLost(enabled, `ALTER TABLE inventory `+enabled)
		for len(w.synced) > 0 {
			<-w.synced
		}
		if awaitState(); len(w.synced) > 0 {
			t.Errorf("after %s changes are proven to be reported", enabled)
		}
		var warned struct {
			Message string `json:"message"`
			Risk    string `json:"risk"`
			Fix     string `json:"fix"`
		}
		stacktest.Must(t, json.Unmarshal([]byte(<-lines), &warned))
		if len(lines) > 0 || warned.Message != "inventory triggers disabled, capacity read for each decision" {
			t.Errorf("after %s the log has %d further lines after %+v", enabled, len(lines), warned)
		}
		if strings.Contains(warned.Risk, "sold twice") != (enabled == "DISABLE TRIGGER USER") {
			t.Errorf("after %s the risk is %q", enabled, warned.Risk)
		}
		wantLost("the repair", warned.Fix)
		<-w.synced
		if line := <-lines; !strings.Contains(line, "inventory triggers enabled again") {
			t.Errorf("after the repair the log has %s", line)
		}
		if repair == "" {
			repair = warned.Fix
		}
	}
	wantLost("a transaction without triggers", `BEGIN; ALTER TABLE inventory DISABLE TRIGGER USER;
		INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'A', 1); ALTER TABLE inventory ENABLE TRIGGER USER; `+
		repair+` COMMIT`)
	<-w.synced
	s.execute(t, `DROP TRIGGER a_new_slot_is_told ON inventory`)
	if line := <-lines; !strings.Contains(line, "restore the missing triggers of inventory from a dump of the schema: a_new_slot_is_told") {
		t.Errorf("without a trigger the log has %s", line)
	}
}

// TestWatch_GuardDisabled_WarnsOfTheRisk disables a trigger that keeps what is reserved. The log says what happens without it,
// and changes are still proven to be reported.
func TestWatch_GuardDisabled_WarnsOfTheRisk(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	lines := make(logLines, 100)
	w := startWatchLogging(t, s.Store, lines)
	<-w.synced
	s.execute(t, `ALTER TABLE inventory DISABLE TRIGGER a_new_slot_begins_with_what_is_reserved`)
	if line := <-lines; !strings.Contains(line, `"inventory triggers disabled"`) ||
		!strings.Contains(line, "slots that are deleted and inserted again are sold twice") ||
		!strings.Contains(line, "ENABLE TRIGGER a_new_slot_begins_with_what_is_reserved;") {
		t.Errorf("the log has %s", line)
	}
	for len(w.synced) > 0 {
		<-w.synced
	}
	proofs := w.clock.Load()
	for at := range w.synced {
		if at.UnixMilli() > proofs {
			break
		}
	}
}

// TestWatch_ConnectionDead_Reconnects cuts the connection silently: Watch detects it and listens on
// a new one.
func TestWatch_ConnectionDead_Reconnects(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	url, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
	remote, err := store.Open(t.Context(), url, s.namespace)
	stacktest.Must(t, err)
	t.Cleanup(remote.Close)
	w := startWatch(t, remote)
	s.set(t, "room", 1, "A")
	wantChange := func(what string) {
		t.Helper()
		stacktest.Eventually(t, what, func() bool {
			s.execute(t, `UPDATE inventory SET capacity = capacity + 1`)
			return len(w.changed) > 0
		})
	}
	wantChange("a change")
	proxy.HalfOpen()
	lost := w.syncLost.Load()
	// it reports the later changes
	stacktest.Eventually(t, "another connection", func() bool { return w.syncLost.Load() >= lost+2 })
	for len(w.changed) > 0 {
		<-w.changed
	}
	wantChange("a change on the new connection")
}

// TestWatch_ManyChanges_ReportedTogether changes a thousand resources with one statement, as
// upstream may.
func TestWatch_ManyChanges_ReportedTogether(t *testing.T) {
	t.Parallel()
	const many = 1000
	s := newHarness(t)
	w := startWatch(t, s.Store)
	<-w.synced
	s.execute(t, fmt.Sprint(`INSERT INTO inventory (resource_id, slot, capacity) SELECT 'r' || r, 's', 1 FROM generate_series(1, `, many, `) AS r`))
	seen, calls := make(map[string]bool), 0
	for len(seen) < many {
		calls++
		for _, resource := range <-w.changed {
			seen[resource] = true
		}
	}
	if calls > many/4 {
		t.Errorf("%d resources were reported in %d calls", many, calls)
	}
}

// TestWatch_Outage_LoggedAtBeginAndEnd has several connections of Watch fail in one outage. It logs
// one line when the outage begins and one when it ends.
func TestWatch_Outage_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	lines := make(logLines, 100)
	w := startWatchLogging(t, s.Store, lines)
	<-w.synced
	s.set(t, "room", 1, "A")
	w.down.Store(true)
	stacktest.Eventually(t, "several failures", func() bool {
		s.execute(t, `UPDATE inventory SET capacity = capacity + 1`)
		return w.failed.Load() >= 3
	})
	w.down.Store(false)
	if line := <-lines; !strings.Contains(line, "postgres LISTEN failed") {
		t.Errorf("the first line is %s", line)
	}
	if line := <-lines; !strings.Contains(line, "postgres LISTEN recovered") {
		t.Errorf("the second line is %s", line)
	}
}

// logLines receives each line of a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
