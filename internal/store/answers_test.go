package store_test

import (
	"maps"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestRecordPoison_Repeated_FirstDetailStays records events as poison, one of them twice: the first
// detail stays.
func TestRecordPoison_Repeated_FirstDetailStays(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for _, record := range [][2]string{{"IN-1-7", "panic: a bug"}, {"IN-1-8", "too large"}, {"IN-1-7", "another"}} {
		stacktest.Must(t, s.RecordPoison(t.Context(), record[0], "room", record[1]))
	}
	got, err := s.Poisoned(t.Context(), []string{"IN-1-7", "IN-1-9", "IN-1-8"})
	if want := map[string]string{"IN-1-7": "panic: a bug", "IN-1-8": "too large"}; err != nil ||
		!maps.Equal(got, want) {
		t.Errorf("%v: %v, want %v", err, got, want)
	}
	if got, err := s.Poisoned(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("%v: %v for no ids", err, got)
	}
}
