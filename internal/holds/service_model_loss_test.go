package holds_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// shuffledLog is a recovery.OutcomeLog of what a harness has published, in another order.
type shuffledLog struct {
	outcomes []holds.StoredOutcome
	shuffle  func([]holds.StoredOutcome) []holds.StoredOutcome
}

func (l *shuffledLog) Outcomes(
	_ context.Context, _ time.Time, after uint64, each func(holds.StoredOutcome) error, _ func(done, all uint64),
) (last uint64, err error) {
	for _, outcome := range l.shuffle(slices.Clone(l.outcomes[after:])) {
		if err := each(outcome); err != nil {
			return 0, err
		}
	}
	return uint64(len(l.outcomes)), nil
}

func (l *shuffledLog) Position(context.Context) (holds.LogPosition, error) {
	return holds.LogPosition{Seq: uint64(len(l.outcomes))}, nil
}

func (*shuffledLog) MissingAfter(context.Context, holds.LogPosition) (string, error) { return "", nil }

func (*shuffledLog) Gaps(context.Context, time.Time) (string, error) { return "", nil }

func (*shuffledLog) OldestPayment(context.Context) (time.Time, error) { return time.Time{}, nil }

func (*shuffledLog) Unacknowledged(
	context.Context, uint64, func(holds.ConfirmRequest, holds.Time) error, func(holds.ReleaseRequest, holds.Time) error,
) (uint64, error) {
	return 0, nil
}

// loseAndRebuild removes all keys of the harness from Redis, and rebuilds them from a log. A new service decides under
// the new epoch.
func (w *harness) loseAndRebuild(t fatal, l recovery.OutcomeLog) {
	t.Helper()
	ctx := context.Background()
	keys, err := w.client.Keys(ctx, w.namespace+":*").Result()
	if err == nil && len(keys) > 0 {
		err = w.client.Del(ctx, keys...).Err()
	}
	if err != nil {
		t.Fatalf("lose: %v", err)
	}
	w.recover(t, l, "a test")
}

// recover lets a worker recover Redis after a loss. A new service decides under the new epoch.
func (w *harness) recover(t fatal, l recovery.OutcomeLog, why string) recovery.RebuildResult {
	t.Helper()
	ctx := context.Background()
	supervisor := recovery.NewSupervisor(w.supervisorOptions(l))
	supervisor.Drain, supervisor.Clock, supervisor.CutBytes = 0, w.clock(), 1
	r, err := supervisor.Rebuild(ctx, why, false, func(string) {})
	if err != nil {
		t.Fatalf("rebuild: %v", err)
	}
	epochs, err := w.store.Epochs(ctx)
	if err != nil {
		t.Fatalf("epochs: %v", err)
	}
	e := epochs[0]
	w.epoch, w.term = e.Name, recovery.StaticTerm(e.Name, e.Server)
	return r
}

func (w *harness) supervisorOptions(l recovery.OutcomeLog) recovery.SupervisorOptions {
	return recovery.SupervisorOptions{
		Namespace: w.namespace, Name: "rebuilder", Policy: w.policy, Term: w.term, Guard: recovery.NewConnGuard(),
		Servers:    recovery.LoneServer(func() *redis.Options { return stacktest.RedisOptions(w.redisURL) }),
		EpochStore: w.store, Inventory: w.store, OutcomeLog: l, Log: zerolog.Nop(),
		Fence: locking.FenceBase(w.store.FenceBase).Next,
	}
}

// TestModel_RedisLost_SameOutcomes does random things to a resource and to the model, and loses everything that
// Redis has in between, as often as not. What was published comes back in any order, and some of it
// twice. The model does not know of losses: everything goes on as if there were none.
func TestModel_RedisLost_SameOutcomes(t *testing.T) {
	var losses atomic.Int64
	t.Cleanup(func() { wantLosses(t, &losses) })
	againstModel(t, func(rt *rapid.T, r *modelRun) {
		r.outcomes = []holds.StoredOutcome{}
		actions := r.actions()
		actions["lose"] = func(rt *rapid.T) {
			losses.Add(1)
			r.loseAndRebuild(rt, r.shuffledLog(rt))
			r.renew()
		}
		rt.Repeat(actions)
	})
}

// wantLosses checks at the end of a test that something was lost in it.
func wantLosses(t *testing.T, losses *atomic.Int64) {
	if losses.Load() == 0 {
		t.Error("nothing was ever lost")
	}
}

// shuffledLog returns the log of what was published, in any order, some of it twice.
func (r *modelRun) shuffledLog(rt *rapid.T) recovery.OutcomeLog {
	return &shuffledLog{r.outcomes, func(outcomes []holds.StoredOutcome) []holds.StoredOutcome {
		return shuffleOutcomes(rt, outcomes)
	}}
}

// TestModel_LastWritesLost_SameOutcomes does random things to a resource and to the model. At times it writes
// markers, copies what Redis has at a later moment, and makes Redis lose everything after that. The outcomes
// after the marker come back in any order, and some of them twice. The model does not know of losses:
// everything goes on as if there were none, and Redis is not rebuilt.
func TestModel_LastWritesLost_SameOutcomes(t *testing.T) {
	var losses atomic.Int64
	t.Cleanup(func() { wantLosses(t, &losses) })
	againstModel(t, func(rt *rapid.T, r *modelRun) {
		r.outcomes = []holds.StoredOutcome{}
		r.loseAndRebuild(rt, &shuffledLog{shuffle: slices.Clone[[]holds.StoredOutcome]}) // without other resources
		r.renew()
		var restore func(context.Context) error
		actions := r.actions()
		actions["mark"] = func(rt *rapid.T) {
			marker := recovery.NewMarker(r.supervisorOptions(&shuffledLog{outcomes: r.outcomes}))
			if own, err := marker.Mark(rt.Context()); err != nil || !own {
				rt.Fatalf("mark: %v %v", own, err)
			}
		}
		actions["copy"] = func(rt *rapid.T) {
			if r.client.Exists(rt.Context(), r.namespace+":{0}:applied").Val() == 0 {
				rt.Skip("no marker of this epoch")
			}
			var err error
			if restore, err = stacktest.CopyKeys(rt.Context(), r.client, r.namespace+":*"); err != nil {
				rt.Fatalf("copy: %v", err)
			}
		}
		actions["lose"] = func(rt *rapid.T) {
			if restore == nil {
				rt.Skip("nothing was copied under this epoch")
			}
			losses.Add(1)
			if err := restore(rt.Context()); err != nil {
				rt.Fatalf("restore: %v", err)
			}
			restore = nil
			if result := r.recover(rt, r.shuffledLog(rt), anotherServer); !result.Resumed {
				rt.Fatalf("redis was rebuilt: %+v", result)
			}
			r.renew()
		}
		rt.Repeat(actions)
	})
}

// anotherServer is the reason for which workers resume.
const anotherServer = "another server, or the same after a restart or a failover: it may have older data"

// shuffleOutcomes returns outcomes in any order, some of them twice.
func shuffleOutcomes(rt *rapid.T, outcomes []holds.StoredOutcome) []holds.StoredOutcome {
	for _, one := range outcomes {
		if rapid.Bool().Draw(rt, "published twice") {
			outcomes = append(outcomes, one)
		}
	}
	if len(outcomes) == 0 {
		return nil
	}
	return rapid.Permutation(outcomes).Draw(rt, "order")
}
