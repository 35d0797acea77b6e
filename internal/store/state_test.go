package store_test

import (
	"errors"
	"testing"

	"holdfast/internal/postgres"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestState_NewerSchema_SaysSo reads from a schema of a later version, which has other tables than this program reads.
func TestState_NewerSchema_SaysSo(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"another column":  `ALTER TABLE policies RENAME COLUMN settings TO others`,
		"another policy":  `INSERT INTO policies (since, settings) VALUES (now(), '{"hold_ttl": {"value": "10m"}}')`,
		"a table less":    `DROP TABLE workers CASCADE`,
		"the same tables": `SELECT 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(t)
			s.execute(t, change)
			s.execute(t, `UPDATE schema_compatibility SET works_from = 999`)
			if _, err := s.State(t.Context(), "a"); !errors.Is(err, recovery.ErrUnknownSchema) {
				t.Errorf("state: %v, want %v", err, recovery.ErrUnknownSchema)
			}
		})
	}
}

// TestState_SessionBecomesReadOnly_IsRefused makes a session read-only while it reads that a worker is registered:
// another server may know that it was forgotten.
func TestState_SessionBecomesReadOnly_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	stacktest.Must(t, s.RegisterWorker(t.Context(), "a"))
	s.endWritesOf(t, "workers")
	if state, err := s.State(t.Context(), "a"); !errors.Is(err, postgres.ErrReadOnly) {
		t.Errorf("state: %+v %v, want %v", state, err, postgres.ErrReadOnly)
	}
}
