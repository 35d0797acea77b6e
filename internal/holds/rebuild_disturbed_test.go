package holds_test

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
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// blocked is a Chronicle that says what waits when it may.
type blocked struct {
	*retold
	reached chan struct{} // closed when it is asked
	may     chan struct{}
}

func (c *blocked) Waiting(ctx context.Context, payment func(holds.ConfirmRequest, holds.Time), cancel func(holds.ReleaseRequest, holds.Time)) error {
	close(c.reached)
	<-c.may
	return c.retold.Waiting(ctx, payment, cancel)
}

// TestRebuildWhileAnotherDoes asks for Redis to be filled again while somebody is at it: that is waited for, and told.
func TestRebuildWhileAnotherDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := &blocked{&retold{world: w}, make(chan struct{}), make(chan struct{})}
	rebuild := func(keeper *holds.Keeper, progress func(string)) {
		keeper.DoNotWait()
		if _, err := keeper.Rebuild(t.Context(), "a test", false, progress); err != nil {
			t.Error(err)
		}
	}
	var both sync.WaitGroup
	both.Go(func() { rebuild(w.newKeeper(first, "first", holds.NewTenure()), func(string) {}) })
	<-first.reached
	var once sync.Once
	heard := ""
	both.Go(func() {
		rebuild(w.newKeeper(&retold{world: w}, "second", holds.NewTenure()), func(progress string) {
			once.Do(func() { heard = progress; close(first.may) })
		})
	})
	both.Wait()
	if !strings.HasPrefix(heard, "first: ") {
		t.Errorf("who waited heard %q", heard)
	}
}

// TestWhatWasWrittenIsCounted has somebody meddle with Redis while it is being filled. It is not used
// then, and filled anew.
func TestWhatWasWrittenIsCounted(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records"} {
		w := newWorld(t)
		w.told = []holds.Told{}
		w.setInventory(t, "room", holds.Asked{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		meddling := &meddler{retold: &retold{world: w}, meddle: func() error {
			const record = "held 9999999999999 1 1 0 - eve k stock {} "
			return w.client.HSet(t.Context(), holds.Key(w.namespace, "room", key), "somebody", map[bool]string{true: record, false: "1"}[key == "records"]).Err()
		}}
		keeper := w.newKeeper(meddling, "rebuilder", holds.NewTenure())
		keeper.DoNotWait()
		_, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {})
		if !errors.Is(err, holds.ErrDamaged) {
			t.Errorf("%s were other than the holds add up to: %v", key, err)
		}
		if e, err := w.store.Epoch(t.Context()); e.Written || err != nil {
			t.Errorf("the epoch is %+v %v", e, err)
		}
		w.loseAndRebuild(t, &retold{})
		w.renew(t)
		if stock := w.available(t, "room", holds.Asked{}); stock[0].Held != 1 {
			t.Errorf("%d held", stock[0].Held)
		}
	}
}

// TestWhatIsGoneIsCounted has somebody remove a key, or a field of the index, when all was written, and before it
// is counted.
func TestWhatIsGoneIsCounted(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"counts", "users", "records", "due", "tombstones", "index"} {
		w := newWorld(t)
		w.told = []holds.Told{}
		w.setInventory(t, "room", holds.Asked{}, 2)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		w.release(t, holds.ReleaseRequest{Hold: created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]).HoldID})
		removed := int64(0)
		keeper := w.newKeeper(&retold{world: w}, "rebuilder", holds.NewTenure())
		keeper.DoNotWait()
		_, err := keeper.Rebuild(t.Context(), "a test", false, func(progress string) {
			if !strings.HasPrefix(progress, "writing holds") {
				return
			}
			var err error
			if key == "index" {
				users := holds.Key(w.namespace, "room", "users")
				fields := slices.DeleteFunc(w.client.HKeys(t.Context(), users).Val(), func(field string) bool { return !strings.Contains(field, " ") })
				removed, err = w.client.HDel(t.Context(), users, fields...).Result()
			} else {
				removed, err = w.client.Del(t.Context(), holds.Key(w.namespace, "room", key)).Result()
			}
			if err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, holds.ErrDamaged) || removed != 1 {
			t.Errorf("%s were gone (%d): %v", key, removed, err)
		}
	}
}

// TestRemovesWhatIsLeft fills a Redis that has far more of one resource than a script can be given at once. All of
// it is removed: nobody was told of any of it.
func TestRemovesWhatIsLeft(t *testing.T) {
	t.Parallel()
	const number = 20_000
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	pipe := w.client.Pipeline()
	for i := range number {
		pipe.Set(t.Context(), holds.Key(w.namespace, "room", fmt.Sprintf("request:k%d", i)), "x", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeper := w.newKeeper(&retold{world: w}, "rebuilder", holds.NewTenure())
	keeper.DoNotWait()
	if _, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if left := w.client.Keys(t.Context(), holds.Key(w.namespace, "room", "*")).Val(); len(left) != 0 {
		t.Errorf("%d of %d keys are left", len(left), number)
	}
}

// TestPostgresWithoutAWord has Postgres not answer any more one who fills Redis. It gives up when its lease
// is over, and another does it.
func TestPostgresWithoutAWord(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	keeper := w.newKeeperOf(&silent{Store: w.store}, &retold{world: w}, "w1", holds.NewTenure())
	if r, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("filled in %+v %v", r, err)
	}
	if r := w.loseAndRebuild(t, &retold{}); r.Live != 1 {
		t.Errorf("filled in %+v", r)
	}
}

// silent is a Store that does not answer one who fills Redis, from a point on.
type silent struct{ *store.Store }

func (*silent) Reservations(ctx context.Context, _ []holds.HoldID, _ func(holds.Reservation)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*silent) KeepEpoch(ctx context.Context, _, _ string, _ time.Duration, _ string) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestFencesBeginAnew fills Redis twice. Each time all partitions count their locks from one new base, which
// is higher than the one before; but for one in which somebody who has not noticed the loss has drawn a
// higher one meanwhile.
func TestFencesBeginAnew(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	fence := func(p int) string { return fmt.Sprintf("%s:{%d}:fence", w.namespace, p) }
	drawn := int64(0)
	meddling := &meddler{retold: &retold{world: w}, meddle: func() (err error) {
		if drawn, err = locking.FenceBase(w.store.FenceBase).Next(t.Context()); err == nil {
			drawn *= 8
			err = w.client.Set(t.Context(), fence(5), drawn, 0).Err()
		}
		return err
	}}
	last := int64(0)
	for range 2 {
		keeper := w.newKeeper(meddling, "rebuilder", holds.NewTenure())
		keeper.DoNotWait()
		if _, err := keeper.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Fatal(err)
		}
		base, err := w.client.Get(t.Context(), fence(0)).Int64()
		if err != nil || base <= last {
			t.Errorf("the fence is %d %v, it was %d", base, err, last)
		}
		for p := range holds.Partitions {
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

// meddler is a Chronicle that somebody meddles behind.
type meddler struct {
	*retold
	meddle func() error
}

func (m *meddler) Waiting(context.Context, func(holds.ConfirmRequest, holds.Time), func(holds.ReleaseRequest, holds.Time)) error {
	return m.meddle()
}

// TestWaitsForTrust fills Redis again while another worker still relies on the epoch before. The last is
// read when it does not any more: what it has published until then is filled in.
func TestWaitsForTrust(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	other := holds.NewTenure()
	keeper := w.newKeeper(&retold{world: w}, "other", other)
	stacktest.Eventually(t, "another worker to rely on the epoch", func() bool {
		if _, err := keeper.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return other.Trust(t.Context(), w.epoch) == nil
	})
	reads := &trustedReads{retold: &retold{world: w}, tenure: other}
	if _, err := w.newKeeper(reads, "rebuilder", holds.NewTenure()).Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if len(reads.trusted) < 2 || slices.Contains(reads.trusted[1:], true) {
		t.Errorf("when it was read, the epoch before was relied on: %v", reads.trusted)
	}
}

// trustedReads is a Chronicle that looks, each time that it is read, whether a worker relies on the epoch before.
type trustedReads struct {
	*retold
	tenure  *holds.Tenure
	trusted []bool
}

func (r *trustedReads) Outcomes(ctx context.Context, since time.Time, after uint64, each func(holds.Told) error, progress func(done, all uint64)) (uint64, error) {
	r.trusted = append(r.trusted, r.tenure.Trust(ctx, r.epoch) == nil)
	return r.retold.Outcomes(ctx, since, after, each, progress)
}
