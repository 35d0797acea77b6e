package store_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestSetCapacity_EventRepeated_AnsweredOnce delivers an old inventory.set again after a later one.
func TestSetCapacity_EventRepeated_AnsweredOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	old := holds.CapacityChange{EventID: "old", Position: holds.StreamPosition{At: time.Now()}, Resource: "room",
		Names: []string{"n1", "n2"}, Capacity: 10, Held: []int64{1, 0}}
	first, err := s.SetCapacity(t.Context(), old)
	stacktest.Must(t, err)
	s.set(t, "room", 5, "n1", "n2")
	s.mustDecide(t, payment(t, "room", "p1", 4, "n1"))
	again, err := s.SetCapacity(t.Context(), old)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("delivered again: %+v %v, first %+v", again, err, first)
	}
	if refused := s.set(t, "room", 3, "n1", "n2"); !refused.BelowReserved {
		t.Errorf("capacity below the reservations: %+v", refused)
	}
	rows, err := s.InventoryRows(t.Context(), []string{"room", "other"}, [][]string{{"n1", "n2"}, {"n1"}})
	want := [][]holds.InventoryRow{{{Known: true, Capacity: 5, Reserved: 4}, {Known: true, Capacity: 5}}, {{}}}
	if err != nil || fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("inventory %v %v, want %v", rows, err, want)
	}
}

// TestInventoryRows_AnySlots_EachHasItsOwn reads slots in runs of nights, across the ends of months, with gaps, with
// names between nights, in any order and twice. Each has the row that it has when it is read alone.
func TestInventoryRows_AnySlots_EachHasItsOwn(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	capacity := int64(0)
	for _, resource := range []string{"room", "hall"} {
		for _, slot := range []string{
			"2026-12-08", "2026-12-09", "2026-12-10", "2026-12-11", "2026-12-30", "2026-12-31", "2027-01-01", "2027-01-03",
			"2026-12-1", "2026-12-09x", "2026-12-099", "2026-12-9", "A-09", "A-10", "A-100", "stock", "hall-AB-09", "hall-AB-10",
		} {
			capacity++
			s.set(t, resource, capacity, slot)
		}
	}
	for _, slots := range [][]string{
		{"2026-12-08", "2026-12-09", "2026-12-10"},
		{"2026-12-07", "2026-12-08", "2026-12-09", "2026-12-10", "2026-12-11", "2026-12-12"}, // no row at the ends
		{"2026-12-30", "2026-12-31", "2027-01-01", "2027-01-02", "2027-01-03"},
		{"2026-12-09", "2026-12-09x", "2026-12-10"},
		{"2026-12-10", "2026-12-09", "2026-12-08", "2026-12-09"},
		{"2026-12-9", "2026-12-10"},
		{"A-09", "A-10", "A-11"},
		{"hall-AB-09", "hall-AB-10", "hall-AB-11"},
		{"stock"},
		{},
	} {
		rows, err := s.InventoryRows(t.Context(), []string{"room", "none", "hall"}, [][]string{slots, slots, slots})
		stacktest.Must(t, err)
		for i, resource := range []string{"room", "none", "hall"} {
			for j, slot := range slots {
				alone, err := s.InventoryRows(t.Context(), []string{resource}, [][]string{{slot}})
				if err != nil || rows[i][j] != alone[0][0] {
					t.Errorf("%s of %s among %q: %+v, alone %+v %v", slot, resource, slots, rows[i][j], alone, err)
				}
			}
		}
		if known := s.knownSlots(t, "room", slots); count(rows[0]) != known || count(rows[1]) != 0 {
			t.Errorf("%q: %d rows, want %d; %d of a resource without inventory", slots, count(rows[0]), known, count(rows[1]))
		}
	}
}

// knownSlots counts which of some slots a resource has, by plain SQL.
func (s harness) knownSlots(t *testing.T, resource string, slots []string) (n int) {
	t.Helper()
	err := s.conn.QueryRow(t.Context(), `SELECT count(*) FROM unnest($2::text[]) AS want (slot)
		JOIN inventory USING (slot) WHERE resource_id = $1`, resource, slots).Scan(&n)
	stacktest.Must(t, err)
	return n
}

func count(rows []holds.InventoryRow) (known int) {
	for _, row := range rows {
		if row.Known {
			known++
		}
	}
	return known
}

// capacities reads the capacities of slots of the resource room.
func (s harness) capacities(t *testing.T, names ...string) string {
	t.Helper()
	rows, err := s.InventoryRows(t.Context(), []string{"room"}, [][]string{names})
	stacktest.Must(t, err)
	var capacities []int64
	for _, row := range rows[0] {
		capacities = append(capacities, row.Capacity)
	}
	return fmt.Sprint(capacities)
}

// TestSetCapacity_OutOfOrder_LaterStoredWins delivers inventory.set events in the wrong order and
// with clocks that contradict it: the event stored later wins. In a cluster of NATS each leader of a restored stream may have
// another time of its creation, some milliseconds apart.
func TestSetCapacity_OutOfOrder_LaterStoredWins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	created := time.Now().Add(-time.Hour)
	at := func(seconds int, seq uint64) holds.StreamPosition {
		return holds.StreamPosition{At: created.Add(time.Duration(seconds) * time.Second), StreamCreatedAt: created,
			Seq: seq}
	}
	restored := func(seconds, milliseconds int, seq uint64) holds.StreamPosition {
		p := at(seconds, seq)
		p.StreamCreatedAt = created.Add(time.Minute + time.Duration(milliseconds)*time.Millisecond)
		return p
	}
	for _, step := range []struct {
		what     string
		stored   holds.StreamPosition
		capacity int64
		names    []string
		want     string
	}{
		{"the first", at(10, 1), 1, []string{"n1", "n2"}, "[1 1]"},
		{"the third, before the second", at(30, 3), 3, []string{"n1"}, "[3 1]"},
		{"the second, too late for n1", at(20, 2), 2, []string{"n1", "n2"}, "[3 2]"},
		{"the fourth, of a leader whose clock is behind", at(5, 4), 4, []string{"n1"}, "[4 2]"},
		{"the third again, as another event, with a later time", at(30, 3), 5, []string{"n1"}, "[4 2]"},
		{
			"the first of a recreated stream, by a clock that is behind",
			holds.StreamPosition{At: created, StreamCreatedAt: created.Add(time.Minute), Seq: 1},
			6, []string{"n1"},
			"[6 2]",
		},
		{"one of the previous stream", at(40, 9), 7, []string{"n1", "n2"}, "[6 7]"},
		{"the second of the stream, by a leader with an earlier time of creation", restored(70, -77, 2), 8, []string{"n1"}, "[8 7]"},
		{"the third, by the leader before, whose clock is behind", restored(69, 0, 3), 9, []string{"n1"}, "[9 7]"},
		{"the second again", restored(70, -77, 2), 8, []string{"n1"}, "[9 7]"},
		{"the second again, by a leader with a later time of creation", restored(70, 77, 2), 8, []string{"n1"}, "[9 7]"},
		{"the first of a stream that was created again soon", restored(71, 9_900, 1), 10, []string{"n1"}, "[10 7]"},
	} {
		answer := s.setBy(t, step.stored, "room", step.capacity, step.names...)
		if got := s.capacities(t, "n1", "n2"); got != step.want {
			t.Errorf("%s: capacities are %s, want %s", step.what, got, step.want)
		}
		if answered := fmt.Sprint(answer.Slots[0].Capacity); !strings.HasPrefix(step.want, "["+answered+" ") {
			t.Errorf("%s: the answer says %s of n1, want as in %s", step.what, answered, step.want)
		}
	}
	// As docs/operating.md has it for workers that return to an older stream.
	s.execute(t, "UPDATE inventory SET set_by_event_at = NULL, set_in_stream_at = NULL, "+
		"set_by_stream_created_at = NULL, set_by_stream_seq = NULL")
	s.setBy(t, at(50, 10), "room", 8, "n1", "n2")
	if got := s.capacities(t, "n1", "n2"); got != "[8 8]" {
		t.Errorf("after the streams that have set capacities are forgotten they are %s", got)
	}
}

// TestSetCapacity_RefusedByCustomer_IsRejected has a constraint and a trigger of the customer that refuse a capacity, as a
// mistake of one event and no outage.
func TestSetCapacity_RefusedByCustomer_IsRejected(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `
		ALTER TABLE inventory ADD CONSTRAINT villa_is_small CHECK (resource_id <> 'villa' OR capacity <= 8);
		CREATE FUNCTION limit_suite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.resource_id = 'suite' AND NEW.capacity > 8 THEN RAISE EXCEPTION 'too many'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER zz_limit BEFORE INSERT OR UPDATE ON inventory FOR EACH ROW EXECUTE FUNCTION limit_suite()`)
	for _, resource := range []string{"villa", "suite"} {
		_, err := s.SetCapacity(t.Context(), holds.CapacityChange{EventID: resource, Position: holds.StreamPosition{At: time.Now()},
			Resource: resource, Names: []string{"n1"}, Capacity: 9, Held: []int64{0}})
		if refused, is := errors.AsType[*postgres.Error](err); !is || !refused.Rejected() {
			t.Errorf("%s: %v is not rejected", resource, err)
		}
	}
}

// TestGrants_UpstreamRole_WritesOnlyCapacity sets capacity as a role without any other privilege.
func TestGrants_UpstreamRole_WritesOnlyCapacity(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "A")
	s.asUpstream(t, `SELECT (resource_id), UPDATE (capacity)`,
		`SET search_path = ''; UPDATE `+s.namespace+`.inventory SET capacity = 6 WHERE resource_id = 'room'; RESET search_path`)
}

// TestDeleteSlot_Reserved_IsRefused deletes and renames rows, as upstream might by mistake.
func TestDeleteSlot_Reserved_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "n1", "n2")
	s.mustDecide(t, payment(t, "room", "p", 2, "n1"))
	for _, sql := range []string{
		`DELETE FROM inventory`,
		`DELETE FROM inventory WHERE slot = 'n1'`,
		`UPDATE inventory SET slot = 'n9' WHERE slot = 'n1'`,
		`UPDATE inventory SET resource_id = 'loft' WHERE slot = 'n1'`,
	} {
		_, err := s.conn.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.ConstraintName != "a_slot_with_reservations_stays" ||
			!strings.Contains(refused.Message, "slot n1 of resource room") || refused.Hint == "" {
			t.Errorf("%s: %v, want it refused", sql, err)
		}
	}
	s.execute(t, `DELETE FROM inventory WHERE slot = 'n2'`)
	s.wantReserved(t, "room", "n1", 2)
}

// TestInsertSlot_SchemaRenamed_Works renames a schema by the statements of docs/operating.md.
func TestInsertSlot_SchemaRenamed_Works(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	page, err := os.ReadFile("../../docs/operating.md")
	stacktest.Must(t, err)
	to := stacktest.Namespace(t)
	names := strings.NewReplacer("holdfast", s.namespace, "shop_copy", to)
	for _, found := range regexp.MustCompile("`(ALTER [^`]* shop_copy[^`]*)`").FindAllStringSubmatch(string(page), -1) {
		s.execute(t, names.Replace(found[1]))
	}
	copied, err := store.Open(t.Context(), stacktest.Shared().PostgresURL, to)
	stacktest.Must(t, err)
	t.Cleanup(copied.Close)
	harness{Store: copied, namespace: to, seq: s.seq}.set(t, "room", 5, "n1")
}

// TestInsertSlot_ReservationsExist_BeginsWithThem deletes rows without triggers. Upstream and
// inventory.set insert them again: they begin with the sums of their reservations.
func TestInsertSlot_ReservationsExist_BeginsWithThem(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "n1", "n2", "n3")
	s.set(t, "loft", 5, "n1")
	cancelled := payment(t, "room", "c", 1, "n1")
	s.mustDecide(t, payment(t, "room", "p", 2, "n1", "n2"), payment(t, "room", "q", 1, "n2", "n3"),
		payment(t, "loft", "r", 4, "n1"), cancelled)
	if _, err := s.Cancel(t.Context(), []holds.CancelRequest{{EventID: "cancel", Hold: cancelled.Hold}}, at(1000)); err != nil {
		t.Fatal(err)
	}
	s.execute(t, `TRUNCATE inventory`)

	s.asUpstream(t, `INSERT (resource_id, slot, capacity)`, // it may not read reservations
		`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'n1', 9), ('loft', 'n1', 9), ('room', 'n7', 9)`)
	if a := s.set(t, "room", 2, "n1", "n2"); !a.BelowReserved {
		t.Errorf("capacity below the reservations of a new slot: %+v", a)
	}
	if a := s.set(t, "room", 3, "n1", "n2"); a.BelowReserved || a.Slots[0].Reserved != 2 || a.Slots[1].Reserved != 3 {
		t.Errorf("reserved of an old and a new slot: %+v", a)
	}
	for _, want := range []struct {
		resource, slot string
		reserved       int64
	}{{"room", "n1", 2}, {"room", "n2", 3}, {"room", "n7", 0}, {"loft", "n1", 4}} {
		s.wantReserved(t, want.resource, want.slot, want.reserved)
	}
}

// TestInsertSlot_OthersHaveReservations_NoneIsRead inserts the nights of a new resource beside others with many reservations.
func TestInsertSlot_OthersHaveReservations_NoneIsRead(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `INSERT INTO reservations (hold_id, resource_id, user_id, slots, quantity, payment_id, request_key, confirmed_at)
		SELECT 'room' || n % 20 || '.' || lpad(to_hex(n), 32, '0'), 'room' || n % 20, 'ana', ARRAY['2026-01-01', '2026-01-02'], 1,
			'p', 'k', now()
		FROM generate_series(1, 20000) AS n`)
	s.execute(t, `ANALYZE reservations`)
	tx, err := s.conn.Begin(t.Context())
	stacktest.Must(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }() // nothing was changed for others
	_, err = tx.Exec(t.Context(), `INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'new', to_char(date '2028-01-01' + n, 'YYYY-MM-DD'), 5 FROM generate_series(0, 89) AS n`)
	stacktest.Must(t, err)
	var read int64
	err = tx.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
		WHERE relid = 'reservations'::regclass`).Scan(&read)
	if err != nil || read != 0 {
		t.Errorf("%d reservations of other resources were read, %v", read, err)
	}
}

// TestInsertSlot_TemporaryTablesShadow_AreIgnored inserts a slot as upstream, which has temporary tables with the names of
// those that the trigger uses, with a trigger of its own. It does not run with the rights of the owner of the schema.
func TestInsertSlot_TemporaryTablesShadow_AreIgnored(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.pay(t)
	s.asUpstream(t, `INSERT (resource_id, slot, capacity)`, `
		CREATE TEMP TABLE inventory (resource_id text, slot text, reserved bigint);
		CREATE TEMP TABLE reservations (hold_id text, resource_id text, slots text[], quantity bigint, status text);
		INSERT INTO pg_temp.inventory VALUES ('room', 'B', 0);
		INSERT INTO pg_temp.reservations VALUES ('h', 'room', '{B}', 1, 'confirmed');
		GRANT ALL ON pg_temp.inventory, pg_temp.reservations TO PUBLIC;
		CREATE FUNCTION pg_temp.run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			DELETE FROM `+s.namespace+`.reservations;
			RETURN NEW;
		END $$;
		CREATE TRIGGER run BEFORE UPDATE ON pg_temp.inventory FOR EACH ROW EXECUTE FUNCTION pg_temp.run();
		INSERT INTO `+s.namespace+`.inventory (resource_id, slot, capacity) VALUES ('room', 'B', 1)`)
	if left := s.column(t, `SELECT status FROM reservations`); !slices.Equal(left, []string{"confirmed"}) {
		t.Errorf("the reservations are %q: upstream has deleted them with the rights of the owner", left)
	}
	s.wantReserved(t, "room", "B", 0)
}

// TestFenceBase_DrawnAtOnce_EachIsHigher draws bases at once: each is returned once, and later ones
// are higher.
func TestFenceBase_DrawnAtOnce_EachIsHigher(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	const drawers, draws = 8, 10
	var mu sync.Mutex
	seen := make(map[int64]bool)
	var all sync.WaitGroup
	for range drawers {
		all.Go(func() {
			last := int64(0)
			for range draws {
				base, err := s.FenceBase(t.Context())
				if err != nil || base <= last {
					t.Errorf("base %d after %d: %v", base, last, err)
				}
				last = base
				mu.Lock()
				if seen[base] {
					t.Errorf("base %d was drawn twice", base)
				}
				seen[base] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
}
