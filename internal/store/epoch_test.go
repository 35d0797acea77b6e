package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// common returns the epoch that all partitions have. It fails the test when they differ.
func common(t *testing.T, epochs recovery.Epochs) recovery.Epoch {
	t.Helper()
	for p := range epochs {
		if epochs[p] != epochs[0] {
			t.Fatalf("epoch of partition %d is %+v, of partition 0 %+v", p, epochs[p], epochs[0])
		}
	}
	return epochs[0]
}

// invalidate invalidates epochs of partitions under the names that they have.
func (s harness) invalidate(t *testing.T, lost record.PartitionSet, why string) (record.PartitionSet, error) {
	t.Helper()
	epochs, err := s.Epochs(t.Context())
	stacktest.Must(t, err)
	for p := range lost.Each() {
		epochs[p].Why = why
	}
	return s.InvalidateEpochs(t.Context(), lost, &epochs)
}

// lose invalidates epochs of partitions whose Redis was flushed.
func (s harness) lose(t *testing.T, lost record.PartitionSet) {
	t.Helper()
	_, err := s.invalidate(t, lost, "flushed")
	stacktest.Must(t, err)
}

// TestEpochs_NewDatabase_AllPartitionsHaveTheFirst completes the epoch with which a schema begins.
func TestEpochs_NewDatabase_AllPartitionsHaveTheFirst(t *testing.T) {
	t.Parallel()
	s := newMigrated(t)
	all, err := s.Epochs(t.Context())
	if err != nil || all.Uninitialised() != record.AllPartitions {
		t.Fatalf("epochs %+v, %v", all, err)
	}
	first := common(t, all).Name
	stacktest.Must(t, s.CompleteEpoch(t.Context(), record.AllPartitions, first, "run history", ""))
	want := recovery.Epoch{Name: first, Complete: true, Server: "run history"}
	if all, err := s.Epochs(t.Context()); err != nil || common(t, all) != want {
		t.Errorf("later: %+v %v", all, err)
	}
	s.execute(t, `DELETE FROM partition_epochs WHERE partition >= 32`)
	if _, err := s.Epochs(t.Context()); err == nil {
		t.Error("no error for data with another number of partitions")
	}
}

// TestCompleteFirstEpoch_SeveralWorkers_OneWrites starts two workers on a new database: one writes the first epoch to Redis
// while the other one waits, and then writes nothing. Nor does one that was paused until the epoch was lost. When a write
// fails, the next worker writes.
func TestCompleteFirstEpoch_SeveralWorkers_OneWrites(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.execute(t, `UPDATE partition_epochs SET written = false, server = NULL`)
	first := func(what string, write func() (string, error)) error {
		err := s.CompleteFirstEpoch(t.Context(), record.AllPartitions, s.epoch, write)
		if all, failed := s.Epochs(t.Context()); failed != nil || all.Complete() != 0 && common(t, all).Server != "run history" {
			t.Errorf("%s: %+v %v", what, all, failed)
		}
		return err
	}
	late := func(what string) {
		err := first(what, func() (string, error) { t.Errorf("%s: written", what); return "other", nil })
		if !errors.Is(err, recovery.ErrEpochChanged) {
			t.Errorf("%s: %v, want ErrEpochChanged", what, err)
		}
	}
	refused := errors.New("redis refuses")
	err := first("refused", func() (string, error) { return "", refused })
	if _, isOfPostgres := errors.AsType[*postgres.Error](err); isOfPostgres || !errors.Is(err, refused) {
		t.Errorf("a write that failed: %v", err)
	}
	var second sync.WaitGroup
	if err := first("first", func() (string, error) {
		second.Go(func() { late("second") })
		stacktest.Eventually(t, "the second one to wait", func() bool {
			return len(s.column(t, `SELECT 'waits' FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
				WHERE NOT l.granted AND a.application_name = 'holdfast worker ' || current_schema`)) == 1
		})
		return "run history", nil
	}); err != nil {
		t.Error(err)
	}
	second.Wait()
	if all, err := s.Epochs(t.Context()); err != nil || !common(t, all).Complete {
		t.Errorf("not complete: %+v %v", all, err)
	}
	s.lose(t, record.AllPartitions)
	late("after its loss")
}

// TestBeginEpoch_SeveralRebuilders_OneBegins invalidates epochs of partitions and begins the next by
// several rebuilders at once: each partition gets one of them. It has the epoch until its lease ends or
// it gives the lease up. A rebuilder that is too late changes nothing.
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
	lost := record.PartitionSetOf(3, 4, 60)
	_, _, err := s.BeginEpoch(ctx, lost, "w1", time.Minute)
	refused("begin while the epochs are complete", err)
	changed, err := s.invalidate(t, record.PartitionSetOf(3, 4), "flushed")
	stacktest.Must(t, err)
	if changed != record.PartitionSetOf(3, 4) {
		t.Errorf("invalidated %v", changed)
	}
	if changed, err = s.invalidate(t, lost, "flushed"); err != nil || changed != record.PartitionSetOf(60) {
		t.Errorf("invalidated two of three again: %v %v", changed, err)
	}
	_, err = s.invalidate(t, lost, "flushed")
	refused("invalidate twice", err)
	refused("complete the first epoch after its loss", s.CompleteEpoch(ctx, lost, s.epoch, "server2", ""))

	type beginning struct {
		its   record.PartitionSet
		epoch string
	}
	var all sync.WaitGroup
	begun := make(chan beginning, 16)
	for i := range cap(begun) {
		all.Go(func() {
			set := lost
			if i%2 == 0 {
				set = record.PartitionSetOf(4, 5, 60)
			}
			switch its, epoch, err := s.BeginEpoch(ctx, set, "w1", time.Minute); {
			case err != nil:
				refused("begin after another rebuilder", err)
			default:
				begun <- beginning{its, epoch}
			}
		})
	}
	all.Wait()
	close(begun)
	var sum, some record.PartitionSet // some with 4 and 60, and their epoch
	first := ""
	for b := range begun {
		if sum&b.its != 0 {
			t.Errorf("partition begun twice: %v and %v", sum, b.its)
		}
		if sum |= b.its; b.its.Has(4) {
			some, first = b.its, b.epoch
		}
	}
	if sum != lost || !strings.HasPrefix(first, s.epoch+"/") {
		t.Fatalf("begun are %v, want %v; 4 under %s", sum, lost, first)
	}
	refused("renew by another rebuilder", s.RenewEpochLease(ctx, some, first, "w2", time.Minute, "half"))
	refused("renew with a partition too many",
		s.RenewEpochLease(ctx, some|record.PartitionSetOf(5), first, "w1", time.Minute, "more than half"))
	stacktest.Must(t, s.RenewEpochLease(ctx, some, first, "w1", time.Minute, "half"))
	want := recovery.Epoch{Name: first, Server: "server", Lost: s.epoch, Why: "flushed", Rebuilder: "w1", Progress: "half"}
	if e, err := s.Epochs(ctx); err != nil || e.Complete() != record.AllPartitions&^lost || e[4] != want || e[60] != want {
		t.Errorf("during the rebuild: %+v %v", e, err)
	}
	refused("complete by another rebuilder", s.CompleteEpoch(ctx, some, first, "server2", "w2"))

	stacktest.Must(t, s.RenewEpochLease(ctx, some, first, "w1", 0, "failed"))
	its, second, err := s.BeginEpoch(ctx, record.PartitionSetOf(4), "w2", time.Minute)
	stacktest.Must(t, err)
	if its != record.PartitionSetOf(4) || second == first {
		t.Errorf("begun %v under %s", its, second)
	}
	refused("complete after another has begun", s.CompleteEpoch(ctx, some, first, "server2", "w1"))
	refused("renew after another has begun", s.RenewEpochLease(ctx, some, first, "w1", time.Minute, ""))
	stacktest.Must(t, s.CompleteEpoch(ctx, its, second, "server2", "w2"))
	stacktest.Must(t, s.CompleteEpoch(ctx, some&^its, first, "server2", "w1"))
	refused("complete twice", s.CompleteEpoch(ctx, its, second, "server2", "w2"))
	epochs, err := s.Epochs(ctx)
	stacktest.Must(t, err)
	if epochs[4] != (recovery.Epoch{Name: second, Complete: true, Server: "server2"}) ||
		epochs[5] != (recovery.Epoch{Name: s.epoch, Complete: true, Server: "server"}) {
		t.Errorf("at the end: %+v", epochs)
	}
	older := epochs
	older[4].Name = s.epoch
	_, err = s.InvalidateEpochs(ctx, its, &older)
	refused("invalidate the previous epoch", err)
	older = epochs
	older[4].Server = "server"
	refused("replace a server that is not the stored one", s.SetEpochServer(ctx, its, &older, "server3"))
	stacktest.Must(t, s.SetEpochServer(ctx, its, &epochs, "server3"))
}

// TestBeginEpoch_LeaseExpired_AnotherBegins begins an epoch by a rebuilder that never renews its
// lease.
func TestBeginEpoch_LeaseExpired_AnotherBegins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	some := record.PartitionSetOf(1, 2)
	s.lose(t, some)
	_, first, err := s.BeginEpoch(t.Context(), some, "w1", 50*time.Millisecond)
	stacktest.Must(t, err)
	stacktest.Eventually(t, "the lease to end", func() bool {
		its, epoch, err := s.BeginEpoch(t.Context(), some, "w2", time.Minute)
		return err == nil && its == some && epoch != first
	})
}

// TestBeginEpoch_ClockSetBack_AnotherBegins sets the clock back by a day after a rebuilder, which then dies, has begun. The
// next epoch has another number than that of the rebuilder.
func TestBeginEpoch_ClockSetBack_AnotherBegins(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	some := record.PartitionSetOf(1, 2)
	s.lose(t, some)
	const last = 9_000_000_000_000
	for i, rebuilder := range []string{"w1", "w2"} {
		s.execute(t, fmt.Sprintf(`UPDATE partition_epochs SET leased_until = leased_until + interval '1 day', generation = %d`, last+i))
		its, epoch, err := s.BeginEpoch(t.Context(), some, rebuilder, time.Minute)
		if want := fmt.Sprintf("%s/%d", s.epoch, last+i+1); err != nil || its != some || epoch != want {
			t.Errorf("%s begins %s in %v: %v, want %s", rebuilder, epoch, its, err, want)
		}
	}
}

// TestEndRebuilds_EpochsLost_NumbersRaisedAndRebuilderStopped compares Postgres while a worker rebuilds. A worker of an
// earlier version begins the next epoch with the number after the last one.
func TestEndRebuilds_EpochsLost_NumbersRaisedAndRebuilderStopped(t *testing.T) {
	t.Parallel()
	s, ctx := newHarness(t), t.Context()
	some := record.PartitionSetOf(1, 2)
	s.lose(t, some)
	begun, epoch, err := s.BeginEpoch(ctx, some, "w1", time.Minute)
	if err != nil || begun != some {
		t.Fatalf("began %v: %v", begun, err)
	}
	before := time.Now().UnixMilli()
	s.execute(t, `UPDATE partition_epochs SET generation = 2 WHERE partition = 3`)
	stacktest.Must(t, s.EndRebuilds(ctx))
	if err := s.RenewEpochLease(ctx, some, epoch, "w1", time.Minute, ""); !errors.Is(err, recovery.ErrEpochChanged) {
		t.Errorf("the rebuilder goes on: %v", err)
	}
	least := s.column(t, `SELECT min(generation)::text FROM partition_epochs`)
	if n, err := strconv.ParseInt(least[0], 10, 64); err != nil || n < before {
		t.Errorf("the least number is %v, want at least %d", least, before)
	}
}

// TestReservations_AnswerAloneMissing_Found loses the answer to a payment, and not its reservation. A rebuild of Redis finds
// the reservation.
func TestReservations_AnswerAloneMissing_Found(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	paid := s.pay(t)
	s.execute(t, `DELETE FROM payments`)
	var found []recovery.Reservation
	stacktest.Must(t, s.Reservations(t.Context(), []holds.HoldID{paid.Hold},
		func(r recovery.Reservation) { found = append(found, r) }))
	if want := []recovery.Reservation{{Hold: paid.Hold, PaymentID: "p", ConfirmedAt: paid.At}}; !slices.Equal(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
}
