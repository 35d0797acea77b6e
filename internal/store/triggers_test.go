package store_test

import (
	"slices"
	"strings"
	"testing"

	"holdfast/internal/store"
)

// TestTriggers_Disabled_FixRestoresEach disables triggers of inventory, and applies the fix: each is again as the migrations
// made it. Those without which slots are sold twice are distinguished.
func TestTriggers_Disabled_FixRestoresEach(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	states := func() []string {
		return s.column(t, `SELECT tgname || ' ' || tgenabled::text FROM pg_trigger
			WHERE tgrelid = 'inventory'::regclass AND NOT tgisinternal ORDER BY tgname`)
	}
	read := func() *store.Triggers {
		t.Helper()
		info, err := s.Inspect(t.Context(), s.namespace)
		if err != nil {
			t.Fatal(err)
		}
		return &info.Schema.Triggers
	}
	migrated := states()
	if triggers := read(); len(triggers.Off()) > 0 || triggers.Risk() != "" || triggers.Fix(s.namespace) != "" {
		t.Errorf("after the migrations: %+v", triggers)
	}
	for change, oversell := range map[string]bool{
		"DISABLE TRIGGER USER":                                           true,
		"DISABLE TRIGGER a_slot_with_reservations_stays":                 true,
		"ENABLE REPLICA TRIGGER a_new_slot_begins_with_what_is_reserved": true,
		"ENABLE TRIGGER USER":                                            false,
		"DISABLE TRIGGER a_set_capacity_is_dated":                        false,
		"ENABLE TRIGGER a_set_capacity_is_dated":                         false,
		"DISABLE TRIGGER a_new_slot_is_told":                             false,
	} {
		s.execute(t, "ALTER TABLE inventory "+change)
		triggers := read()
		if len(triggers.Off()) == 0 || triggers.Oversell() != oversell ||
			strings.Contains(triggers.Risk(), "sold twice") != oversell ||
			strings.Contains(triggers.Fix(s.namespace), "worker audit --repair") != oversell {
			t.Errorf("after %s: %v, risk %q, fix %q", change, triggers.Off(), triggers.Risk(), triggers.Fix(s.namespace))
		}
		s.execute(t, triggers.Fix(s.namespace))
		if after := states(); !slices.Equal(after, migrated) {
			t.Errorf("the fix after %s leaves %q, want %q", change, after, migrated)
		}
	}
	s.execute(t, "ALTER TABLE inventory ENABLE ALWAYS TRIGGER a_slot_with_reservations_stays")
	if off := read().Off(); len(off) > 0 {
		t.Errorf("triggers that fire always are off: %q", off)
	}
	s.execute(t, "DROP TRIGGER a_slot_with_reservations_stays ON inventory")
	if triggers := read(); !triggers.Oversell() ||
		!strings.Contains(triggers.Fix(s.namespace), "restore the missing triggers of inventory from a dump of the schema: a_slot_") {
		t.Errorf("without a trigger: %q", triggers.Fix(s.namespace))
	}
}
