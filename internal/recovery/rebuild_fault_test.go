package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// TestRebuild_AnotherIsRebuilding_WaitsAndReports calls Rebuild while another worker rebuilds. It waits, and
// reports the progress of that worker.
func TestRebuild_AnotherIsRebuilding_WaitsAndReports(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	first, reached, resume := w.newBlockedLog()
	rebuild := func(supervisor *recovery.Supervisor, progress func(string)) {
		supervisor.Drain = 0
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, progress); err != nil {
			t.Error(err)
		}
	}
	var both sync.WaitGroup
	both.Go(func() { rebuild(w.newSupervisor(first, "first", recovery.NewEpochTerm()), func(string) {}) })
	<-reached
	var once sync.Once
	received := ""
	both.Go(func() {
		rebuild(w.newSupervisor(&replayLog{harness: w}, "second", recovery.NewEpochTerm()), func(progress string) {
			once.Do(func() { received = progress; close(resume) })
		})
	})
	both.Wait()
	if !strings.HasPrefix(received, "first: ") {
		t.Errorf("reported progress is %q", received)
	}
}

// TestRebuild_DataChangedMeanwhile_FailsVerification changes Redis during a rebuild. The rebuild fails, and the
// next one succeeds.
func TestRebuild_DataChangedMeanwhile_FailsVerification(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records"} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		interfering := &replayLog{harness: w, onUnacknowledged: func() error {
			const record = "held 9999999999999 1 1 0 - eve k stock {} "
			value := map[bool]string{true: record, false: "1"}[key == "records"]
			return w.client.HSet(t.Context(), w.key("room", key), "changed", value).Err()
		}}
		supervisor := w.newRebuilder(interfering)
		_, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {})
		if !errors.Is(err, holds.ErrCorrupt) || strings.Contains(err.Error(), "canceled") {
			t.Errorf("%s changed: %v, want ErrCorrupt alone", key, err)
		}
		if epochs, err := w.store.Epochs(t.Context()); epochs.Complete().Has(record.Partition("room")) || err != nil {
			t.Errorf("the epoch is complete: %v", err)
		}
		w.loseAndRebuild(t, &replayLog{})
		if held := w.held(t, "room"); held != 1 {
			t.Errorf("%d held, want 1", held)
		}
	}
}

// TestRebuild_KeyRemovedMeanwhile_FailsVerification removes a key, or the fields of the index, after everything
// was written and before it is verified.
func TestRebuild_KeyRemovedMeanwhile_FailsVerification(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records", "due", "tombstones", "index"} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		w.release(t, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]).HoldID, "released")
		removed := int64(0)
		supervisor := w.newRebuilder(&replayLog{harness: w})
		_, err := supervisor.Rebuild(t.Context(), "a test", false, func(progress string) {
			if !strings.HasPrefix(progress, "writing holds") {
				return
			}
			var err error
			if key == "index" {
				users := w.key("room", "users")
				fields := slices.DeleteFunc(w.client.HKeys(t.Context(), users).Val(), func(field string) bool {
					return !strings.Contains(field, " ")
				})
				removed, err = w.client.HDel(t.Context(), users, fields...).Result()
			} else {
				removed, err = w.client.Del(t.Context(), w.key("room", key)).Result()
			}
			if err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, holds.ErrCorrupt) || removed != 1 {
			t.Errorf("%s removed (%d): %v, want ErrCorrupt", key, removed, err)
		}
	}
}

// overtakenEpochs is an EpochStore that calls a function when a rebuild has begun.
type overtakenEpochs struct {
	recovery.EpochStore
	begun func()
}

func (s *overtakenEpochs) BeginEpoch(
	ctx context.Context, of record.PartitionSet, rebuilder string, lease time.Duration,
) (record.PartitionSet, string, error) {
	begun, epoch, err := s.EpochStore.BeginEpoch(ctx, of, rebuilder, lease)
	s.begun()
	return begun, epoch, err
}

// overtakenLog is an OutcomeLog that calls a function between the two moments at which a rebuild reads and replaces
// the epochs.
type overtakenLog struct {
	*replayLog
	connected func()
}

func (l *overtakenLog) OldestPayment(ctx context.Context) (time.Time, error) {
	l.connected()
	return l.replayLog.OldestPayment(ctx)
}

// TestRebuild_Suspended_AnotherFinished suspends a rebuild, also one that replaces any data, for longer than its lease,
// before it has marked anything. Another worker rebuilds meanwhile. The first one leaves that data alone.
func TestRebuild_Suspended_AnotherFinished(t *testing.T) {
	t.Parallel()
	for i, when := range []string{
		"before it reads the epochs", "before it replaces them", "forced, before it reads the epochs", "forced, before it replaces them",
	} {
		w := newRealTimeHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		want := w.contents(t)
		var once sync.Once
		finishAnother := func() {
			once.Do(func() {
				w.execute(t, "UPDATE partition_epochs SET leased_until = now() - interval '1 s'")
				another := w.newSupervisor(&replayLog{harness: w}, "another", recovery.NewEpochTerm())
				another.Drain = 0
				if _, err := another.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
					t.Error(err)
				}
			})
		}
		suspended := w.newSupervisor(&overtakenLog{&replayLog{harness: w}, finishAnother}, "suspended", recovery.NewEpochTerm())
		if i%2 == 0 {
			suspended = w.newSupervisorWith(&overtakenEpochs{w.store, finishAnother}, &replayLog{harness: w}, "suspended", recovery.NewEpochTerm())
		}
		suspended.Drain = 0
		if _, err := suspended.Rebuild(t.Context(), "a test", i >= 2, func(string) {}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		epochs, err := w.store.Epochs(t.Context())
		if e := common(t, epochs); err != nil || !e.Complete ||
			e.Name != w.client.Get(t.Context(), record.Keyspace(w.namespace).Epoch(record.Partition("room"))).Val() {
			t.Errorf("%s: the epoch is %+v %v", when, e, err)
		}
		if got := w.contents(t); !maps.Equal(got, want) {
			t.Errorf("%s: redis has\n%v, want\n%v", when, got, want)
		}
	}
}

// TestRebuild_EpochOverwrittenMeanwhile_BeginsAgain overwrites an epoch between the moments at which a rebuild reads and
// replaces it: once, as a worker that was slow to invalidate it, and each time. The rebuild begins again, and fails visibly
// when that does not help, because no other worker has its lease. The next one succeeds.
func TestRebuild_EpochOverwrittenMeanwhile_BeginsAgain(t *testing.T) {
	t.Parallel()
	for times, fails := range map[int]bool{1: false, 1000: true} {
		w := newRealTimeHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		overwritten := 0
		overwrite := func() {
			if overwritten == times {
				return
			}
			overwritten++
			value := fmt.Sprintf("%s/900000000000%d", w.epoch, overwritten)
			if err := w.client.Set(t.Context(), record.Keyspace(w.namespace).Epoch(7), value, 0).Err(); err != nil {
				t.Error(err)
			}
		}
		supervisor := w.newRebuilder(&overtakenLog{&replayLog{harness: w}, overwrite})
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := func(progress string) {
			if strings.Contains(progress, ": ") { // it waits for a rebuild, which it takes for that of another worker
				cancel()
			}
		}
		r, err := supervisor.Rebuild(ctx, "a test", false, gaveUp)
		cancel()
		switch {
		case !fails && (err != nil || r.Live != 1 || overwritten != times):
			t.Errorf("overwritten once: rebuilt %+v %v", r, err)
		case fails && (!errors.Is(err, holds.ErrDataLost) || !strings.Contains(err.Error(), "partition 7") || overwritten != 3):
			t.Errorf("overwritten %d times: %v, want that partition 7 has another epoch", overwritten, err)
		}
		w.recover(t, &replayLog{}, "a test")
	}
}

// TestRebuild_OlderPostgresRestored_Succeeds restores an older state of Postgres, which lacks a rebuild and no commit, also
// one whose clock was ahead. The next rebuild succeeds at once, under a name that Redis has not had.
func TestRebuild_OlderPostgresRestored_Succeeds(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	want, names := w.contents(t), []string{w.epoch}
	for i, last := range []string{"1", "1", "9000000000000", "1"} {
		w.execute(t, `UPDATE partition_epochs SET epoch = '`+names[0]+`', generation = `+last)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := func(progress string) {
			if strings.Contains(progress, ": ") {
				cancel()
			}
		}
		if _, err := w.newRebuilder(&replayLog{harness: w}).Rebuild(ctx, "a test", false, gaveUp); err != nil {
			t.Fatalf("rebuild %d: %v", i, err)
		}
		cancel()
		w.adoptEpoch(t)
		if got := w.contents(t); !maps.Equal(got, want) || slices.Contains(names, w.epoch) {
			t.Errorf("rebuild %d, %s after %v: redis has\n%v, want\n%v", i, w.epoch, names, got, want)
		}
		names = append(names, w.epoch)
	}
}

// TestRebuild_PostgresSilent_GivesUpWithItsLease rebuilds while Postgres does not answer. The rebuilder gives up
// when its lease ends, and another one succeeds.
func TestRebuild_PostgresSilent_GivesUpWithItsLease(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	supervisor := w.newSupervisorWith(&silentStore{Store: w.store}, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("rebuilt %+v %v", r, err)
	}
	if r := w.loseAndRebuild(t, &replayLog{}); r.Live != 1 {
		t.Errorf("rebuilt %+v", r)
	}
}

// TestRebuild_RedisSilent_NothingIsMarked requests a rebuild while Redis does not answer: the epochs stay complete. One
// that fails later says that they do not.
func TestRebuild_RedisSilent_NothingIsMarked(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	_, proxy := stacktest.ProxyTo(t, w.redisURL)
	w.redisOptions.Addr = proxy.Addr()
	failing := errors.New("the outbound stream cannot be read")
	supervisor := w.newSupervisor(&replayLog{harness: w, onUnacknowledged: func() error { return failing }}, "w1", recovery.NewEpochTerm())
	_, err := checkAll(t, supervisor)
	stacktest.Must(t, err)
	supervisor.InspectTimeout = 100 * time.Millisecond
	proxy.Set(stacktest.Downstream, stacktest.Toxics{Stall: true})
	_, err = supervisor.Rebuild(t.Context(), "a test", false, func(string) {})
	epochs, unread := w.store.Epochs(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "nothing was changed: ") || epochs.Complete() != record.AllPartitions {
		t.Errorf("%v; %d partitions are complete: %v", err, epochs.Complete().Len(), unread)
	}
	proxy.Set(stacktest.Downstream, stacktest.Toxics{})
	supervisor.InspectTimeout = time.Minute
	if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); !errors.Is(err, failing) ||
		!strings.HasSuffix(err.Error(), " (redis is marked as lost, a worker rebuilds it)") {
		t.Errorf("got %v", err)
	}
}

// TestRebuild_UnknownFormat_NothingIsMarked requests a rebuild of data that a newer program has written.
func TestRebuild_UnknownFormat_NothingIsMarked(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	supervisor := w.newRebuilder(&replayLog{harness: w})
	_, err := checkAll(t, supervisor)
	stacktest.Must(t, err)
	stacktest.Must(t, w.client.Set(t.Context(), record.Keyspace(w.namespace).Format(), recovery.Format+1, 0).Err())
	_, err = supervisor.Rebuild(t.Context(), "a test", true, func(string) {})
	epochs, unread := w.store.Epochs(t.Context())
	if !errors.Is(err, recovery.ErrUnknownFormat) || !strings.HasPrefix(err.Error(), "nothing was changed: ") ||
		epochs.Complete() != record.AllPartitions {
		t.Errorf("%v; %d partitions are complete: %v", err, epochs.Complete().Len(), unread)
	}
}

// TestRebuild_PostgresFailsAtTheMark_SaysThatRedisIsMarked requests a rebuild while Postgres refuses to store that
// partitions are lost: they are marked in Redis already, so workers rebuild them.
func TestRebuild_PostgresFailsAtTheMark_SaysThatRedisIsMarked(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	failing := errors.New("postgres does not store it")
	supervisor := w.newSupervisorWith(&refusingStore{w.store, failing}, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	_, err := checkAll(t, supervisor)
	stacktest.Must(t, err)
	_, err = supervisor.Rebuild(t.Context(), "a test", false, func(string) {})
	if !errors.Is(err, failing) || !strings.HasSuffix(err.Error(), " (redis is marked as lost, a worker rebuilds it)") {
		t.Errorf("got %v", err)
	}
	epochs, err := checkAll(t, w.newRebuilder(&replayLog{harness: w}))
	if err != nil || epochs.Complete {
		t.Errorf("another worker has found %+v %v", epochs, err)
	}
}

// refusingStore is a Store that does not store that partitions are lost.
type refusingStore struct {
	*store.Store
	err error
}

func (s *refusingStore) InvalidateEpochs(
	context.Context, record.PartitionSet, *recovery.Epochs,
) (record.PartitionSet, error) {
	return 0, s.err
}

// silentStore is a Store that does not answer a rebuilder after it has connected to Redis.
type silentStore struct {
	*store.Store
	connected atomic.Bool
}

func (*silentStore) Reservations(ctx context.Context, _ []holds.HoldID, _ func(recovery.Reservation)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *silentStore) RenewEpochLease(
	ctx context.Context, of record.PartitionSet, epoch, rebuilder string, lease time.Duration, progress string,
) error {
	if !s.connected.Swap(true) {
		return s.Store.RenewEpochLease(ctx, of, epoch, rebuilder, lease, progress)
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestRebuild_Fences_CountFromNewBase rebuilds twice. Each time all partitions count fencing tokens from one new
// base, higher than the one before, except the partition for which a worker that has not noticed the loss has
// stored a higher one.
func TestRebuild_Fences_CountFromNewBase(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	fence := func(p int) string { return fmt.Sprintf("%s:{%d}:fence", w.namespace, p) }
	higher := int64(0)
	interfering := &replayLog{harness: w, onUnacknowledged: func() (err error) {
		if higher, err = locking.FenceBase(w.store.FenceBase).Next(t.Context()); err == nil {
			higher *= 8
			err = w.client.Set(t.Context(), fence(5), higher, 0).Err()
		}
		return err
	}}
	last := int64(0)
	for range 2 {
		supervisor := w.newRebuilder(interfering)
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		base, err := w.client.Get(t.Context(), fence(0)).Int64()
		if err != nil || base <= last {
			t.Errorf("fence is %d %v, want more than %d", base, err, last)
		}
		for p := range record.Partitions {
			want := base
			if p == 5 {
				want = higher
			}
			if found, err := w.client.Get(t.Context(), fence(p)).Int64(); err != nil || found != want {
				t.Errorf("fence of partition %d is %d %v, want %d", p, found, err, want)
			}
		}
		last = base
	}
}

// TestRebuild_OldTermStillValid_WaitsBeforeLastRead rebuilds while another worker still relies on the epoch
// before. The last read comes after that, so it includes all that the worker may publish.
func TestRebuild_OldTermStillValid_WaitsBeforeLastRead(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	other := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "other", other)
	stacktest.Eventually(t, "another worker to rely on the epoch", func() bool {
		if _, err := supervisor.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return other.Verify(t.Context(), holds.EpochID(0, w.epoch)) == nil
	})
	var verified []bool // at each read
	reads := &replayLog{harness: w, onOutcomes: func(ctx context.Context, _ time.Time, _ uint64) {
		verified = append(verified, other.Verify(ctx, holds.EpochID(0, w.epoch)) == nil)
	}}
	rebuilder := w.newSupervisor(reads, "rebuilder", recovery.NewEpochTerm())
	if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if len(verified) < 2 || slices.Contains(verified[1:], true) {
		t.Errorf("epoch before was valid at each read: %v, want it invalid after the first", verified)
	}
}
