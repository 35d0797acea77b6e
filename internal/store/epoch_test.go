package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
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
		t.Error("data that is divided otherwise is taken for ours")
	}
}

func (s harness) execute(t *testing.T, sql string) {
	t.Helper()
	if _, err := s.conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// TestBeginEpoch_SeveralRebuilders_OneBegins condemns an epoch and has several begin the next: one does. It keeps it
// for as long as its lease, or until it gives it up; what one who was late says changes nothing.
func TestBeginEpoch_SeveralRebuilders_OneBegins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, recovery.ErrEpochChanged) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.BeginEpoch(ctx, "w1", time.Minute)
	refused("to begin while there is one", err)
	done(s.InvalidateEpoch(ctx, s.epoch, "flushed"))
	refused("to condemn it twice", s.InvalidateEpoch(ctx, s.epoch, "flushed"))

	var all sync.WaitGroup
	begun := make(chan string, 8)
	for range cap(begun) {
		all.Go(func() {
			if epoch, err := s.BeginEpoch(ctx, "w1", time.Minute); err == nil {
				begun <- epoch
			} else {
				refused("to begin after another", err)
			}
		})
	}
	all.Wait()
	if len(begun) != 1 {
		t.Fatalf("%d have begun", len(begun))
	}
	first := <-begun
	if first != s.epoch+"/2" {
		t.Errorf("the second epoch is %s", first)
	}
	refused("another's word", s.RenewEpochLease(ctx, first, "w2", time.Minute, "half"))
	done(s.RenewEpochLease(ctx, first, "w1", time.Minute, "half"))
	if e, err := s.Epoch(ctx); e != (recovery.Epoch{Name: first, Server: "server", Lost: s.epoch, Why: "flushed", Rebuilder: "w1", Progress: "half"}) || err != nil {
		t.Errorf("while it is written: %+v %v", e, err)
	}
	refused("to finish for another", s.CompleteEpoch(ctx, first, "server2", "w2"))

	done(s.RenewEpochLease(ctx, first, "w1", 0, "failed"))
	second, err := s.BeginEpoch(ctx, "w2", time.Minute)
	done(err)
	refused("to finish after another has begun", s.CompleteEpoch(ctx, first, "server2", "w1"))
	refused("to keep it then", s.RenewEpochLease(ctx, first, "w1", time.Minute, ""))
	done(s.CompleteEpoch(ctx, second, "server2", "w2"))
	refused("to finish twice", s.CompleteEpoch(ctx, second, "server2", "w2"))
	refused("to condemn the one before", s.InvalidateEpoch(ctx, s.epoch, "noticed late"))
	if e, err := s.Epoch(ctx); e != (recovery.Epoch{Name: second, Complete: true, Server: "server2"}) || err != nil {
		t.Errorf("at the end: %+v %v", e, err)
	}
	refused("another name for a server that is not noted", s.SetEpochServer(ctx, second, "server3", "server"))
	done(s.SetEpochServer(ctx, second, "server3", "server2"))
}

// TestBeginEpoch_LeaseExpired_AnotherBegins lets one begin that says nothing any more.
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

// TestDecide_EpochInvalidated_DecidesNothing condemns an epoch while a payment is being decided under it. It is
// not condemned before the payment is answered, and whoever has condemned it finds that one; no
// payment is decided under it after.
func TestDecide_EpochInvalidated_DecidesNothing(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	ctx := t.Context()
	s.set(t, "room", 3, "n1")
	// The payment waits in its transaction until the test lets it go on.
	s.execute(t, `
		CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared(hashtext(TG_TABLE_SCHEMA));
			RETURN NEW;
		END $$;
		CREATE TRIGGER waits BEFORE INSERT ON payments FOR EACH ROW EXECUTE FUNCTION waits();
		SELECT pg_advisory_lock(hashtext(current_schema))`)
	paid := payment(t, "room", "p1", 1, "n1")
	var deciding sync.WaitGroup
	deciding.Go(func() {
		if answers, err := s.Decide(ctx, []holds.Payment{paid}); err != nil || !answers[0].Confirmed {
			t.Errorf("the payment that came before: %+v %v", answers, err)
		}
	})
	stacktest.Eventually(t, "the payment to wait", func() (waits bool) {
		err := s.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND objid::bigint = hashtext(current_schema)::bigint & 4294967295)`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	if err := s.InvalidateEpoch(ctx, s.epoch, "flushed"); err == nil || errors.Is(err, recovery.ErrEpochChanged) {
		t.Fatalf("the epoch was condemned while a payment was being decided: %v", err)
	}
	s.execute(t, `SELECT pg_advisory_unlock(hashtext(current_schema))`)
	deciding.Wait()
	if err := s.InvalidateEpoch(ctx, s.epoch, "flushed"); err != nil {
		t.Fatal(err)
	}
	var found []recovery.Reservation
	if err := s.Reservations(ctx, []holds.HoldID{paid.Hold}, func(r recovery.Reservation) { found = append(found, r) }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0] != (recovery.Reservation{Hold: paid.Hold, PaymentID: "p1", ConfirmedAt: paid.At}) {
		t.Errorf("after the epoch was condemned: %+v", found)
	}
	if answers, err := s.Decide(ctx, []holds.Payment{payment(t, "room", "p2", 1, "n1")}); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("a payment under the condemned epoch: %+v %v", answers, err)
	}
}
