package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// generatedLog is an OutcomeLog of number holds. It generates their outcomes, so that a test has none of them in memory.
type generatedLog struct {
	*replayLog
	number int
	of     func(i int, id holds.HoldID) []holds.StoredOutcome
}

func (l *generatedLog) Outcomes(
	ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error, _ func(done, all uint64),
) (last uint64, err error) {
	if l.onOutcomes != nil {
		l.onOutcomes(ctx, since, after)
	}
	for i := int(after); i < l.number; i++ {
		id := holds.NewHoldID("room")
		for _, o := range l.of(i, id) {
			if err := each(o); err != nil {
				return 0, err
			}
		}
	}
	return uint64(l.number), nil
}

// newEndedLog returns a log of holds that are released, and of as many refusals, for a Redis of its own.
func newEndedLog(t *testing.T) *generatedLog {
	t.Helper()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	w.release(t, hold.HoldID, "released")
	return &generatedLog{replayLog: &replayLog{harness: w}, of: func(i int, id holds.HoldID) []holds.StoredOutcome {
		all := slices.Clone(w.outcomes[:3])
		grant, refusal := all[0].Data.(holds.HoldCreated), all[1].Data.(holds.HoldRejected)
		end := all[2].Data.(holds.HoldReleased)
		grant.HoldID, grant.RequestKey, refusal.RequestKey = id, fmt.Sprintf("granted-%d", i), fmt.Sprintf("refused-%d", i)
		end.HoldID, end.RequestKey = id, grant.RequestKey
		all[0].Hold, all[0].Data, all[1].Data, all[2].Hold, all[2].Data = id, grant, refusal, id, end
		return all
	}}
}

// heapInUse returns how many bytes are in use.
func heapInUse() uint64 {
	var memory runtime.MemStats
	runtime.GC()
	runtime.GC() // also what pools have kept
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}

// TestRebuild_TenTimesAsManyEnded_SameMemory rebuilds ended holds and refusals, and ten times as many. What it keeps
// in memory is not more, neither when all outcomes are read nor while they are written. It is not parallel: other
// tests would allocate meanwhile.
func TestRebuild_TenTimesAsManyEnded_SameMemory(t *testing.T) {
	const few, times = 3000, 10
	l := newEndedLog(t)
	rebuild := func(number int) (most uint64) {
		measure := func() { most = max(most, heapInUse()) }
		l.number, l.onOutcomes = number, func(_ context.Context, _ time.Time, after uint64) {
			if after > 0 { // all are read
				measure()
			}
		}
		supervisor := l.newRebuilder(l)
		supervisor.CutBytes = 64 << 10
		r, err := supervisor.Rebuild(t.Context(), "a test", false, func(progress string) {
			if strings.HasPrefix(progress, "writing holds") {
				measure()
			}
		})
		if err != nil || r.Ended != number || r.Answers != 2*number || r.Live != 0 {
			t.Fatalf("rebuilt %+v %v", r, err)
		}
		return most
	}
	before := rebuild(few)
	if after := rebuild(times * few); after > before*3/2 {
		t.Errorf("%d kB are in use with %d ended holds, %d kB with %d", before>>10, few, after>>10, times*few)
	}
}

// TestRebuild_ManyOldKeys_RemovesOnlyThem rebuilds a Redis that has more keys of one resource than one script can remove.
// It removes all of them, and writes nothing before, so it does not remove what it has written.
func TestRebuild_ManyOldKeys_RemovesOnlyThem(t *testing.T) {
	t.Parallel()
	const number, old = 1000, 40_000
	l := newEndedLog(t)
	l.number = number
	pipe := l.client.Pipeline()
	for i := range old {
		pipe.Set(t.Context(), l.key("room", fmt.Sprintf("request:old-%d", i)), "x", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := l.newRebuilder(l).Rebuild(t.Context(), "a test", false, func(string) {})
	if err != nil || r.Ended != number {
		t.Errorf("rebuilt %+v %v", r, err)
	}
	if answers := l.client.Keys(t.Context(), l.key("room", "request:*")).Val(); len(answers) != 2*number {
		t.Errorf("%d answers are stored, want %d", len(answers), 2*number)
	}
}

// TestRebuild_OldKeysNotRemoved_IsNotUsed makes Redis refuse to remove the old keys, while there is nothing to write. The
// rebuild fails with what Redis has said.
func TestRebuild_OldKeysNotRemoved_IsNotUsed(t *testing.T) {
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	w.client.Set(t.Context(), w.key("room", "request:old"), "x", 0)
	permit := func(rule string) {
		if err := w.client.Do(t.Context(), "acl", "setuser", "default", rule).Err(); err != nil {
			t.Fatal(err)
		}
	}
	permit("-unlink")
	supervisor := w.newRebuilder(&replayLog{harness: w})
	r, err := supervisor.Rebuild(t.Context(), "a test", false, func(progress string) {
		if progress == "reading pending payments" { // the outcomes are folded: what follows succeeds
			permit("+unlink")
		}
	})
	if err == nil || !strings.Contains(err.Error(), "wipe.lua") {
		t.Errorf("rebuilt %+v %v", r, err)
	}
	if epochs, err := w.store.Epochs(t.Context()); err != nil || epochs.Complete() != 0 {
		t.Errorf("%v are complete: %v", epochs.Complete(), err)
	}
}

// TestRebuild_OutcomesNotWritten_IsNotUsed makes Redis refuse what a rebuild has read. The rebuild fails, no epoch is
// complete, and the next one succeeds.
func TestRebuild_OutcomesNotWritten_IsNotUsed(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"fold", "request:k"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 1)
			created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
			w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "k"})
			spoil := sync.OnceFunc(func() {
				stacktest.Eventually(t, "the old keys to be removed", func() bool {
					return w.client.Exists(t.Context(), w.key("room", "rev")).Val() == 0
				})
				w.client.Del(t.Context(), w.key("room", key))
				w.client.LPush(t.Context(), w.key("room", key), "a list")
			})
			supervisor := w.newRebuilder(&replayLog{harness: w, onOutcomes: func(_ context.Context, _ time.Time, after uint64) {
				if after > 0 { // the old keys may be removed, and nothing is verified yet
					spoil()
				}
			}})
			supervisor.CutBytes = 1 << 20 // all in one cut, after the second read
			if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err == nil {
				t.Errorf("rebuilt %+v", r)
			}
			if epochs, err := w.store.Epochs(t.Context()); epochs.Complete().Has(record.Partition("room")) || err != nil {
				t.Errorf("the epoch is complete: %v", err)
			}
			if r := w.loseAndRebuild(t, &replayLog{}); r.Live != 1 || r.Answers != 2 {
				t.Errorf("rebuilt %+v", r)
			}
		})
	}
}

// TestRebuild_RefusedTwice_KeepsLaterAnswer asks again with a request key whose refusal was forgotten, and is refused
// again, or gets a hold. The later answer is remembered, whatever the order of the two outcomes.
func TestRebuild_RefusedTwice_KeepsLaterAnswer(t *testing.T) {
	t.Parallel()
	inOrder := func([]holds.StoredOutcome) {}
	for _, granted := range []bool{false, true} {
		for _, reorder := range []func([]holds.StoredOutcome){inOrder, slices.Reverse[[]holds.StoredOutcome]} {
			w := newHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 1)
			request := holds.PlaceRequest{EventID: "asked", Resource: "room", User: "ana", RequestKey: "k", Quantity: 2}
			if first := w.place(t, request)[0]; brief(first) != "hold.rejected sold_out" {
				t.Fatalf("first answer: %s", brief(first))
			}
			if err := w.client.Del(t.Context(), w.key("room", "request:k")).Err(); err != nil {
				t.Fatal(err)
			}
			w.pass(time.Minute)
			if granted {
				w.setInventory(t, "room", holds.SlotSelection{}, 2)
			}
			second := w.place(t, request)[0]
			reorder(w.outcomes)
			w.loseAndRebuild(t, &replayLog{})
			if again := w.place(t, request)[0]; exactText(t, again) != exactText(t, second) {
				t.Errorf("asked again: %s, want %s", exactText(t, again), exactText(t, second))
			}
		}
	}
}

// TestRebuild_RequestRepeatedMeanwhile_WaitsForItsAnswer repeats requests while a rebuild has read the outcomes and
// written some answers. They wait; then each gets its old answer, and no second hold.
func TestRebuild_RequestRepeatedMeanwhile_WaitsForItsAnswer(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	requests := []holds.PlaceRequest{
		{EventID: "granted", Resource: "room", User: "ana", RequestKey: "k1"},
		{EventID: "refused", Resource: "room", User: "ben", RequestKey: "k2", Quantity: 9},
	}
	first := w.place(t, requests...)
	blocked, reached, resume := w.newBlockedLog()
	supervisor := w.newRebuilder(blocked)
	var rebuilding sync.WaitGroup
	rebuilding.Go(func() {
		if _, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
			t.Error(err)
		}
	})
	<-reached
	if n := w.client.Exists(t.Context(), w.key("room", "request:k2")).Val(); n != 1 {
		t.Errorf("%d refusals are written when all outcomes are read, want 1", n)
	}
	for i, r := range w.service.Place(t.Context(), requests) {
		if !errors.Is(r.Err, holds.ErrDataLost) {
			t.Errorf("%s during the rebuild: %+v", requests[i].EventID, r)
		}
	}
	close(resume)
	rebuilding.Wait()
	w.adoptEpoch(t)
	for i, again := range w.place(t, requests...) {
		if exactText(t, again) != exactText(t, first[i]) {
			t.Errorf("%s again: %s, want %s", requests[i].EventID, exactText(t, again), exactText(t, first[i]))
		}
	}
	if held := w.held(t, "room"); held != 1 {
		t.Errorf("%d held, want 1", held)
	}
}

// TestRebuild_OutcomeStoredBetweenSeals_IsIncluded stores an outcome of the last partition when the first ones are
// sealed. The rebuild includes it, and rebuilds no sealed partition again.
func TestRebuild_OutcomeStoredBetweenSeals_IsIncluded(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	early, late := resourceIn(0), resourceIn(record.Partitions-1)
	for _, resource := range []string{early, late} {
		w.setInventory(t, resource, holds.SlotSelection{}, 5)
		created(t, w.place(t, holds.PlaceRequest{Resource: resource, User: "ana"})[0])
		w.place(t, holds.PlaceRequest{Resource: resource, User: "ben", Quantity: 9})
	}
	created(t, w.place(t, holds.PlaceRequest{Resource: late, User: "cleo"})[0])
	stored := w.outcomes
	w.outcomes = slices.Clone(stored[:len(stored)-1])
	supervisor := w.newRebuilder(&replayLog{harness: w})
	sealed := ""
	r, err := supervisor.Rebuild(t.Context(), "a test", false, func(progress string) {
		if strings.Contains(progress, "partitions partition") {
			t.Errorf("the progress repeats a word: %s", progress)
		}
		if !strings.HasPrefix(progress, "writing holds") || !strings.Contains(progress, fmt.Sprint(record.Partitions-1)) || sealed != "" {
			return
		}
		epochs, err := w.store.Epochs(t.Context())
		if err != nil || !epochs[0].Complete || epochs[record.Partitions-1].Complete {
			t.Errorf("epochs are %+v and %+v: %v", epochs[0], epochs[record.Partitions-1], err)
		}
		sealed = epochs[0].Name
		w.outcomes = stored
	})
	if err != nil || r.Live != 3 || r.Answers != 5 {
		t.Errorf("rebuilt %+v %v", r, err)
	}
	epochs, err := w.store.Epochs(t.Context())
	if err != nil || epochs[0].Name != sealed || sealed == "" {
		t.Errorf("epoch is %+v %v, want %s", epochs[0], err, sealed)
	}
	w.adoptEpoch(t)
	for resource, want := range map[string]int64{early: 1, late: 2} {
		if held := w.held(t, resource); held != want {
			t.Errorf("%d held of %s, want %d", held, resource, want)
		}
	}
}

// resourceIn returns a resource of a partition.
func resourceIn(p int) string {
	for i := 0; ; i++ {
		if resource := fmt.Sprintf("room-%d", i); record.Partition(resource) == p {
			return resource
		}
	}
}

// TestRebuild_ManyEnded_UnpublishedPaymentsCount rebuilds a resource whose holds a rebuild reads page by page. What
// Postgres alone has counts on each page: a payment, and that a late one has taken slots after the deadline of others.
func TestRebuild_ManyEnded_UnpublishedPaymentsCount(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	var id [12]holds.HoldID // so many that they are on more pages than one
	w.setInventory(t, "room", holds.SlotSelection{}, int64(len(id)))
	w.release(t, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID, "released")
	released := w.outcomes[len(w.outcomes)-1]
	for range 1500 {
		data := released.Data.(holds.HoldReleased)
		data.HoldID = holds.NewHoldID("room")
		another := released
		another.Hold, another.Data = data.HoldID, data
		w.outcomes = append(w.outcomes, another)
	}
	for i := range id {
		id[i] = created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: fmt.Sprint("user-", i)})[0]).HoldID
	}
	published := w.outcomes
	w.pay(t, id[0], "p0")
	w.pass(time.Hour)
	if late := w.pay(t, id[1], "p1"); late.Event != holds.EventHoldConfirmed {
		t.Fatalf("late payment: %s", brief(late))
	}
	w.outcomes = published
	w.now = w.now.Add(-time.Hour) // so that only the late payment says that the others have expired
	w.loseAndRebuild(t, &replayLog{})
	for i := range id {
		want := holds.Expired
		if i == 0 {
			want = holds.Confirmed
		}
		if view, _, err := w.service.GetHold(t.Context(), id[i]); err != nil || view.State != want {
			t.Errorf("hold %d is %q %v, want %q", i, view.State, err, want)
		}
	}
}

// answeredLog is an OutcomeLog of number payments above the ack floor that Postgres has rejected. It generates them,
// so that a test has none of them in memory.
type answeredLog struct {
	*replayLog
	number int
	read   func() // called when all after a sequence are read
}

func (l *answeredLog) Unacknowledged(
	_ context.Context, after uint64, payment func(holds.ConfirmRequest, holds.Time) error,
	_ func(holds.ReleaseRequest, holds.Time) error,
) (last uint64, err error) {
	for i := after; i < uint64(l.number); i++ {
		id := holds.HoldID{Resource: "room", UUID: fmt.Sprintf("%032x", i)}
		if err := payment(holds.ConfirmRequest{Hold: id, PaymentID: "p"}, holds.Time{Time: logCreated}); err != nil {
			return i, err
		}
	}
	l.read()
	return uint64(l.number), nil
}

// answerPayments stores in Postgres that number payments of an answeredLog are rejected.
func (w *harness) answerPayments(t *testing.T, number int) {
	t.Helper()
	w.execute(t, fmt.Sprintf("INSERT INTO %s.payments (hold_id, payment_id, outcome, reason, decided_at, hold) "+
		"SELECT 'room.' || lpad(to_hex(i), 32, '0'), 'p', 'rejected', 'unknown_hold', now(), '{}' FROM generate_series(0, %d) i",
		w.namespace, number-1))
}

// TestRebuild_TenTimesAsManyAnsweredPayments_SameMemory rebuilds while a payment that cannot be answered holds the ack
// floor below many that are. What is kept of these does not grow with their number. It is not parallel: other tests
// would allocate meanwhile.
func TestRebuild_TenTimesAsManyAnsweredPayments_SameMemory(t *testing.T) {
	const few, times = 5000, 10
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	w.answerPayments(t, times*few)
	rebuild := func(number int) (used uint64) {
		l := &answeredLog{&replayLog{harness: w}, number, func() { used = max(used, heapInUse()) }}
		supervisor := w.newRebuilder(l)
		if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || used == 0 {
			t.Fatalf("rebuilt %+v %v", r, err)
		}
		return used
	}
	before := rebuild(few)
	if after := rebuild(times * few); after > before*3/2 {
		t.Errorf("%d kB are in use with %d payments, %d kB with %d", before>>10, few, after>>10, times*few)
	}
}

// TestRebuild_TenTimesAsManyLive_TenTimesAsManyReads rebuilds live holds on one resource, and ten times as many. A
// rebuild reads nothing of them more often.
func TestRebuild_TenTimesAsManyLive_TenTimesAsManyReads(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	const few, times = 10_000, 10
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	rebuild := func(number int) (reads int) {
		l := &generatedLog{&replayLog{harness: w}, number, func(i int, id holds.HoldID) []holds.StoredOutcome {
			o := w.outcomes[0]
			grant := o.Data.(holds.HoldCreated)
			grant.HoldID, grant.RequestKey, grant.UserID = id, fmt.Sprintf("k%d", i), fmt.Sprintf("u%d", i)
			o.Hold, o.Data = id, grant
			return []holds.StoredOutcome{o}
		}}
		supervisor := w.newRebuilder(l)
		supervisor.CutBytes = 1 << 20
		w.client.ConfigResetStat(t.Context())
		if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || r.Live != number {
			t.Fatalf("rebuilt %+v %v", r, err)
		}
		_, stats, _ := strings.Cut(w.client.Info(t.Context(), "commandstats").Val(), "cmdstat_hscan:calls=")
		calls, _, _ := strings.Cut(stats, ",")
		reads, err := strconv.Atoi(calls)
		if err != nil {
			t.Fatal(err)
		}
		return reads
	}
	before := rebuild(few)
	if after := rebuild(times * few); after > before*times*3/2 {
		t.Errorf("%d HSCANs for %d holds, %d for %d", before, few, after, times*few)
	}
}
