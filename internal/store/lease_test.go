package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// TestKeepLease_SeveralHolders_OneHoldsIt takes a lease by several holders at once: one gets it and
// keeps it by renewing. Another gets it after a release or when its time is over.
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
		t.Fatalf("%d holders have the lease, want 1", got)
	}
	keep := func(name, holder string, want bool) {
		t.Helper()
		if held, err := s.KeepLease(t.Context(), name, holder, time.Hour); err != nil || held != want {
			t.Errorf("%s keeps %s: %v %v", holder, name, held, err)
		}
	}
	keep("other work", "x", true)
	keep("other work", "x", true)
	keep("other work", "y", false)
	for _, holder := range []string{"y", "x"} {
		stacktest.Must(t, s.ReleaseLease(t.Context(), "other work", holder))
		keep("other work", "z", holder == "x")
	}
	keep("other work", "x", false)
	s.execute(t, `UPDATE leases SET held_until = clock_timestamp() WHERE name = 'other work'`)
	keep("other work", "x", true)
	keep("work", "x", false)
}

// TestKeepLease_ClockSetBack_AnotherTakesIt sets the clock back by a day after a holder, which then dies, has taken a lease:
// it seems to end in a day and an hour.
func TestKeepLease_ClockSetBack_AnotherTakesIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for i, holder := range []string{"x", "y"} {
		held, err := s.KeepLease(t.Context(), "work", holder, time.Hour)
		if err != nil || !held {
			t.Errorf("holder %d: %v %v", i, held, err)
		}
		s.execute(t, `UPDATE leases SET held_until = held_until + interval '1 day'`)
	}
}

// TestKeepLease_ClockBehind_HolderKeepsIt takes a lease when the clock is a few seconds behind the one by which its holder
// has taken it.
func TestKeepLease_ClockBehind_HolderKeepsIt(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	if held, err := s.KeepLease(t.Context(), "work", "x", time.Hour); err != nil || !held {
		t.Fatalf("%v %v", held, err)
	}
	s.execute(t, `UPDATE leases SET held_until = held_until + interval '5 seconds'`)
	if held, err := s.KeepLease(t.Context(), "work", "y", time.Hour); err != nil || held {
		t.Errorf("another holder: %v %v", held, err)
	}
}
