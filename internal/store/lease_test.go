package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestKeepLease_SeveralHolders_OneHoldsIt has several holders take a lease at once: one has it, for as long as it keeps it.
// Another takes it when it was released, or its time is over.
func TestKeepLease_SeveralHolders_OneHoldsIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	var holders sync.WaitGroup
	var had atomic.Int32
	for i := range 8 {
		holders.Go(func() {
			held, err := s.KeepLease(context.Background(), "work", string(rune('a'+i)), time.Hour)
			if err != nil {
				t.Error(err)
			}
			if held {
				had.Add(1)
			}
		})
	}
	holders.Wait()
	if got := had.Load(); got != 1 {
		t.Fatalf("%d have it", got)
	}
	keep := func(name, holder string, want bool) {
		t.Helper()
		if held, err := s.KeepLease(t.Context(), name, holder, time.Hour); err != nil || held != want {
			t.Errorf("%s has %s: %v %v", holder, name, held, err)
		}
	}
	keep("other work", "x", true)
	keep("other work", "x", true)
	keep("other work", "y", false)
	for _, holder := range []string{"y", "x"} {
		if err := s.ReleaseLease(t.Context(), "other work", holder); err != nil {
			t.Fatal(err)
		}
		keep("other work", "z", holder == "x")
	}
	keep("other work", "x", false)
	s.execute(t, `UPDATE leases SET held_until = clock_timestamp() WHERE name = 'other work'`)
	keep("other work", "x", true)
	keep("work", "x", false)
}
