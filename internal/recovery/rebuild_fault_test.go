package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// blockedLog is a Chronicle that says what waits when it may.
type blockedLog struct {
	*replayLog
	reached chan struct{} // closed when it is asked
	may     chan struct{}
}

func (c *blockedLog) Unacknowledged(ctx context.Context, payment func(holds.ConfirmRequest, holds.Time), cancel func(holds.ReleaseRequest, holds.Time)) error {
	close(c.reached)
	<-c.may
	return c.replayLog.Unacknowledged(ctx, payment, cancel)
}

// TestRebuild_AnotherIsRebuilding_WaitsAndReports asks for Redis to be filled again while somebody is at it: that is waited for, and told.
func TestRebuild_AnotherIsRebuilding_WaitsAndReports(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	first := &blockedLog{&replayLog{harness: w}, make(chan struct{}), make(chan struct{})}
	rebuild := func(supervisor *recovery.Supervisor, progress func(string)) {
		supervisor.Drain = 0
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, progress); err != nil {
			t.Error(err)
		}
	}
	var both sync.WaitGroup
	both.Go(func() { rebuild(w.newSupervisor(first, "first", recovery.NewEpochTerm()), func(string) {}) })
	<-first.reached
	var once sync.Once
	received := ""
	both.Go(func() {
		rebuild(w.newSupervisor(&replayLog{harness: w}, "second", recovery.NewEpochTerm()), func(progress string) {
			once.Do(func() { received = progress; close(first.may) })
		})
	})
	both.Wait()
	if !strings.HasPrefix(received, "first: ") {
		t.Errorf("who waited heard %q", received)
	}
}

// TestRebuild_DataChangedMeanwhile_FailsVerification has somebody meddle with Redis while it is being filled. It is not used
// then, and filled anew.
func TestRebuild_DataChangedMeanwhile_FailsVerification(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records"} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		interfering := &interferingLog{replayLog: &replayLog{harness: w}, interfere: func() error {
			const record = "held 9999999999999 1 1 0 - eve k stock {} "
			return w.client.HSet(t.Context(), w.key("room", key), "somebody", map[bool]string{true: record, false: "1"}[key == "records"]).Err()
		}}
		supervisor := w.newSupervisor(interfering, "rebuilder", recovery.NewEpochTerm())
		supervisor.Drain = 0
		_, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {})
		if !errors.Is(err, holds.ErrCorrupt) {
			t.Errorf("%s were other than the holds add up to: %v", key, err)
		}
		if e, err := w.store.Epoch(t.Context()); e.Complete || err != nil {
			t.Errorf("the epoch is %+v %v", e, err)
		}
		w.loseAndRebuild(t, &replayLog{})
		w.startNewTerm(t)
		if held := w.held(t, "room"); held != 1 {
			t.Errorf("%d held", held)
		}
	}
}

// TestRebuild_KeyRemovedMeanwhile_FailsVerification has somebody remove a key, or a field of the index, when all was written, and before it
// is counted.
func TestRebuild_KeyRemovedMeanwhile_FailsVerification(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records", "due", "tombstones", "index"} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		w.release(t, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]).HoldID, "released")
		removed := int64(0)
		supervisor := w.newSupervisor(&replayLog{harness: w}, "rebuilder", recovery.NewEpochTerm())
		supervisor.Drain = 0
		_, err := supervisor.Rebuild(t.Context(), "a test", false, func(progress string) {
			if !strings.HasPrefix(progress, "writing holds") {
				return
			}
			var err error
			if key == "index" {
				users := w.key("room", "users")
				fields := slices.DeleteFunc(w.client.HKeys(t.Context(), users).Val(), func(field string) bool { return !strings.Contains(field, " ") })
				removed, err = w.client.HDel(t.Context(), users, fields...).Result()
			} else {
				removed, err = w.client.Del(t.Context(), w.key("room", key)).Result()
			}
			if err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, holds.ErrCorrupt) || removed != 1 {
			t.Errorf("%s were gone (%d): %v", key, removed, err)
		}
	}
}

// TestRebuild_OldKeysExist_RemovesThem fills a Redis that has far more of one resource than a script can be given at once. All of
// it is removed: nobody was told of any of it.
func TestRebuild_OldKeysExist_RemovesThem(t *testing.T) {
	t.Parallel()
	const number = 20_000
	w := newRealTimeHarness(t)
	pipe := w.client.Pipeline()
	for i := range number {
		pipe.Set(t.Context(), w.key("room", fmt.Sprintf("request:k%d", i)), "x", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	supervisor := w.newSupervisor(&replayLog{harness: w}, "rebuilder", recovery.NewEpochTerm())
	supervisor.Drain = 0
	if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if left := w.client.Keys(t.Context(), w.key("room", "*")).Val(); len(left) != 0 {
		t.Errorf("%d of %d keys are left", len(left), number)
	}
}

// TestRebuild_PostgresSilent_GivesUpWithItsLease has Postgres not answer any more one who fills Redis. It gives up when its lease
// is over, and another does it.
func TestRebuild_PostgresSilent_GivesUpWithItsLease(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	supervisor := w.newSupervisorWith(&silentStore{Store: w.store}, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("filled in %+v %v", r, err)
	}
	if r := w.loseAndRebuild(t, &replayLog{}); r.Live != 1 {
		t.Errorf("filled in %+v", r)
	}
}

// silentStore is a Store that does not answer one who fills Redis, from a point on.
type silentStore struct{ *store.Store }

func (*silentStore) Reservations(ctx context.Context, _ []holds.HoldID, _ func(recovery.Reservation)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*silentStore) RenewEpochLease(ctx context.Context, _, _ string, _ time.Duration, _ string) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestRebuild_Fences_CountFromNewBase fills Redis twice. Each time all partitions count their locks from one new base, which
// is higher than the one before; but for one in which somebody who has not noticed the loss has drawn a
// higher one meanwhile.
func TestRebuild_Fences_CountFromNewBase(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	fence := func(p int) string { return fmt.Sprintf("%s:{%d}:fence", w.namespace, p) }
	drawn := int64(0)
	interfering := &interferingLog{replayLog: &replayLog{harness: w}, interfere: func() (err error) {
		if drawn, err = locking.FenceBase(w.store.FenceBase).Next(t.Context()); err == nil {
			drawn *= 8
			err = w.client.Set(t.Context(), fence(5), drawn, 0).Err()
		}
		return err
	}}
	last := int64(0)
	for range 2 {
		supervisor := w.newSupervisor(interfering, "rebuilder", recovery.NewEpochTerm())
		supervisor.Drain = 0
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		base, err := w.client.Get(t.Context(), fence(0)).Int64()
		if err != nil || base <= last {
			t.Errorf("the fence is %d %v, it was %d", base, err, last)
		}
		for p := range record.Partitions {
			want := base
			if p == 5 {
				want = drawn
			}
			if found, err := w.client.Get(t.Context(), fence(p)).Int64(); err != nil || found != want {
				t.Errorf("the fence of partition %d is %d %v, want %d", p, found, err, want)
			}
		}
		last = base
	}
}

// interferingLog is a Chronicle that somebody meddles behind.
type interferingLog struct {
	*replayLog
	interfere func() error
}

func (m *interferingLog) Unacknowledged(context.Context, func(holds.ConfirmRequest, holds.Time), func(holds.ReleaseRequest, holds.Time)) error {
	return m.interfere()
}

// TestRebuild_OldTermStillValid_WaitsBeforeLastRead fills Redis again while another worker still relies on the epoch before. The last is
// read when it does not any more: what it has published until then is filled in.
func TestRebuild_OldTermStillValid_WaitsBeforeLastRead(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	other := recovery.NewEpochTerm()
	supervisor := w.newSupervisor(&replayLog{harness: w}, "other", other)
	stacktest.Eventually(t, "another worker to rely on the epoch", func() bool {
		if _, err := supervisor.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return other.Verify(t.Context(), w.epoch) == nil
	})
	reads := &verifyingLog{replayLog: &replayLog{harness: w}, term: other}
	if _, err := w.newSupervisor(reads, "rebuilder", recovery.NewEpochTerm()).Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if len(reads.verified) < 2 || slices.Contains(reads.verified[1:], true) {
		t.Errorf("when it was read, the epoch before was relied on: %v", reads.verified)
	}
}

// verifyingLog is a Chronicle that looks, each time that it is read, whether a worker relies on the epoch before.
type verifyingLog struct {
	*replayLog
	term     *recovery.EpochTerm
	verified []bool
}

func (r *verifyingLog) Outcomes(ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error, progress func(done, all uint64)) (uint64, error) {
	r.verified = append(r.verified, r.term.Verify(ctx, r.epoch) == nil)
	return r.replayLog.Outcomes(ctx, since, after, each, progress)
}
