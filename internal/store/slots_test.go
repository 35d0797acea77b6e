package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"holdfast/internal/holds"
)

// TestDeleteSlot_Reserved_IsRefused deletes and renames rows, as upstream might by mistake.
func TestDeleteSlot_Reserved_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "n1", "n2")
	if _, err := s.Decide(t.Context(), []holds.Payment{payment(t, "room", "p", 2, "n1")}); err != nil {
		t.Fatal(err)
	}
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
	if got := s.reserved(t, "room", "n1"); got != 2 {
		t.Errorf("%d reserved, want 2", got)
	}
}

// TestInsertSlot_ReservationsExist_BeginsWithThem deletes rows without triggers. Upstream and
// inventory.set insert them again: they begin with the sums of their reservations.
func TestInsertSlot_ReservationsExist_BeginsWithThem(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.set(t, "room", 5, "n1", "n2", "n3")
	s.set(t, "loft", 5, "n1")
	cancelled := payment(t, "room", "c", 1, "n1")
	if _, err := s.Decide(t.Context(), []holds.Payment{
		payment(t, "room", "p", 2, "n1", "n2"), payment(t, "room", "q", 1, "n2", "n3"), payment(t, "loft", "r", 4, "n1"), cancelled,
	}); err != nil {
		t.Fatal(err)
	}
	now := func(context.Context) (holds.Time, error) { return holds.TimeFromMillis(1000), nil }
	if _, err := s.Cancel(t.Context(), []holds.CancelRequest{{EventID: "cancel", Hold: cancelled.Hold}}, now); err != nil {
		t.Fatal(err)
	}
	s.execute(t, `TRUNCATE inventory`)

	role := pgx.Identifier{"upstream_" + s.namespace}.Sanitize()
	for _, sql := range []string{ // as upstream, which may not read reservations
		`CREATE ROLE ` + role,
		`GRANT USAGE ON SCHEMA ` + s.namespace + ` TO ` + role,
		`GRANT INSERT (resource_id, slot, capacity) ON inventory TO ` + role,
		`SET ROLE ` + role,
		`INSERT INTO inventory (resource_id, slot, capacity) VALUES ('room', 'n1', 9), ('loft', 'n1', 9), ('room', 'n7', 9)`,
		`RESET ROLE`,
		`DROP OWNED BY ` + role,
		`DROP ROLE ` + role,
	} {
		if _, err := s.conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
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
		if got := s.reserved(t, want.resource, want.slot); got != want.reserved {
			t.Errorf("reserved of %s of %s are %d, want %d", want.slot, want.resource, got, want.reserved)
		}
	}
}
