package store_test

import (
	"errors"
	"testing"

	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

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
