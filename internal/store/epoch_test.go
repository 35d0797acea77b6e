package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestEpoch_NewDatabase_CreatedOnce starts several workers on a new database.
func TestEpoch_NewDatabase_CreatedOnce(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `DELETE FROM redis_epoch`)
	epochs := make(chan string, 4)
	for range cap(epochs) {
		go func() {
			epoch, err := s.Epoch(context.Background())
			if err != nil || epoch.Complete || epoch.Why != "" {
				t.Errorf("epoch %+v, %v", epoch, err)
			}
			epochs <- epoch.Name
		}()
	}
	first := <-epochs
	for range cap(epochs) - 1 {
		if other := <-epochs; other != first {
			t.Errorf("two epochs, %s and %s", first, other)
		}
	}
	if err := s.CompleteEpoch(t.Context(), first, "run history", ""); err != nil {
		t.Fatal(err)
	}
	want := recovery.Epoch{Name: first, Complete: true, Server: "run history"}
	if epoch, err := s.Epoch(t.Context()); epoch != want || err != nil {
		t.Errorf("later: %+v %v", epoch, err)
	}
	s.execute(t, `UPDATE redis_epoch SET partitions = 32`)
	if _, err := s.Epoch(t.Context()); err == nil {
		t.Error("no error for data with another number of partitions")
	}
}

// TestBeginEpoch_SeveralRebuilders_OneBegins invalidates an epoch and begins the next by several
// rebuilders at once: one succeeds. It has the epoch until its lease ends or it gives the lease up.
// A rebuilder that is too late changes nothing.
func TestBeginEpoch_SeveralRebuilders_OneBegins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, recovery.ErrEpochChanged) {
			t.Errorf("%s: %v, want ErrEpochChanged", what, err)
		}
	}
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.BeginEpoch(ctx, "w1", time.Minute)
	refused("begin while the epoch is complete", err)
	done(s.InvalidateEpoch(ctx, s.epoch, "flushed"))
	refused("invalidate twice", s.InvalidateEpoch(ctx, s.epoch, "flushed"))

	var all sync.WaitGroup
	begun := make(chan string, 8)
	for range cap(begun) {
		all.Go(func() {
			if epoch, err := s.BeginEpoch(ctx, "w1", time.Minute); err == nil {
				begun <- epoch
			} else {
				refused("begin after another rebuilder", err)
			}
		})
	}
	all.Wait()
	if len(begun) != 1 {
		t.Fatalf("%d rebuilders have begun, want 1", len(begun))
	}
	first := <-begun
	if first != s.epoch+"/2" {
		t.Errorf("the second epoch is %s", first)
	}
	refused("renew by another rebuilder", s.RenewEpochLease(ctx, first, "w2", time.Minute, "half"))
	done(s.RenewEpochLease(ctx, first, "w1", time.Minute, "half"))
	if e, err := s.Epoch(ctx); e != (recovery.Epoch{Name: first, Server: "server", Lost: s.epoch, Why: "flushed",
		Rebuilder: "w1", Progress: "half"}) || err != nil {
		t.Errorf("during the rebuild: %+v %v", e, err)
	}
	refused("complete by another rebuilder", s.CompleteEpoch(ctx, first, "server2", "w2"))

	done(s.RenewEpochLease(ctx, first, "w1", 0, "failed"))
	second, err := s.BeginEpoch(ctx, "w2", time.Minute)
	done(err)
	refused("complete after another has begun", s.CompleteEpoch(ctx, first, "server2", "w1"))
	refused("renew after another has begun", s.RenewEpochLease(ctx, first, "w1", time.Minute, ""))
	done(s.CompleteEpoch(ctx, second, "server2", "w2"))
	refused("complete twice", s.CompleteEpoch(ctx, second, "server2", "w2"))
	refused("invalidate the previous epoch", s.InvalidateEpoch(ctx, s.epoch, "noticed late"))
	if e, err := s.Epoch(ctx); e != (recovery.Epoch{Name: second, Complete: true, Server: "server2"}) || err != nil {
		t.Errorf("at the end: %+v %v", e, err)
	}
	refused("replace a server that is not the stored one", s.SetEpochServer(ctx, second, "server3", "server"))
	done(s.SetEpochServer(ctx, second, "server3", "server2"))
}

// TestBeginEpoch_LeaseExpired_AnotherBegins begins an epoch by a rebuilder that never renews its
// lease.
func TestBeginEpoch_LeaseExpired_AnotherBegins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	if err := s.InvalidateEpoch(t.Context(), s.epoch, "flushed"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginEpoch(t.Context(), "w1", 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the lease to end", func() bool {
		epoch, err := s.BeginEpoch(t.Context(), "w2", time.Minute)
		return err == nil && strings.HasSuffix(epoch, "/3")
	})
}
