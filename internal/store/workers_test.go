package store_test

import (
	"slices"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// wantRegistered compares whether a worker is registered.
func wantRegistered(t *testing.T, s harness, id string, want bool) {
	t.Helper()
	if state, err := s.State(t.Context(), id); err != nil || state.Registered != want {
		t.Errorf("%s is registered: %v %v, want %v", id, state.Registered, err, want)
	}
}

// TestUndrained_EachWorker_UntilItHasSaidSo registers workers and lets one say of one epoch that it has drained.
func TestUndrained_EachWorker_UntilItHasSaidSo(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	register := func(id string) {
		t.Helper()
		wantRegistered(t, s, id, false)
		stacktest.Must(t, s.RegisterWorker(t.Context(), id))
		wantRegistered(t, s, id, true)
	}
	register("a")
	register("b")
	stacktest.Must(t, s.StoreDrained(t.Context(), "a", []string{"1 e/2", "2 e/2"}))
	forgotten := time.Duration(0)
	want := func(epochs []string, want ...string) {
		t.Helper()
		ids, err := s.Undrained(t.Context(), epochs, forgotten)
		if slices.Sort(ids); err != nil || !slices.Equal(ids, want) {
			t.Errorf("undrained of %v: %v %v, want %v", epochs, ids, err, want)
		}
	}
	want([]string{"1 e/2"}, "b")
	want([]string{"1 e/2", "3 e/2"}, "a", "b")
	stacktest.Must(t, s.ForgetWorkers(t.Context(), []string{"a", "b", "c"}, []string{"2 e/2"}))
	wantRegistered(t, s, "a", true) // it has said so meanwhile
	want([]string{"2 e/2"})
	forgotten = time.Hour
	want([]string{"2 e/2"}, "b")
	register("b")
	forgotten = 0
	want([]string{"2 e/2"}, "b")
	stacktest.Must(t, s.RemoveWorker(t.Context(), "b"))
	forgotten = time.Hour
	want([]string{"2 e/2"})
}

// TestForgetWorkers_WithoutEpochs_ForgetsDrained forgets a worker that stops, whatever it has said.
func TestForgetWorkers_WithoutEpochs_ForgetsDrained(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	stacktest.Must(t, s.RegisterWorker(t.Context(), "a"))
	stacktest.Must(t, s.StoreDrained(t.Context(), "a", []string{"1 e/2"}))
	stacktest.Must(t, s.ForgetWorkers(t.Context(), []string{"a"}, nil))
	if ids, err := s.Undrained(t.Context(), []string{"1 e/3"}, 0); err != nil || len(ids) != 0 {
		t.Errorf("undrained: %v %v, want none", ids, err)
	}
	if ids, err := s.Undrained(t.Context(), []string{"1 e/3"}, time.Hour); err != nil || len(ids) != 1 {
		t.Errorf("undrained or forgotten within the hour: %v %v, want the worker", ids, err)
	}
}
