package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/telemetry"
)

// TestAnnounce_WorkerCrashed_IsHandedOutAgain lets a worker die after it has restored a hold and
// before it has announced it.
func TestAnnounce_WorkerCrashed_IsHandedOutAgain(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	o := w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", TTLSeconds: seconds(1)})
	created(t, o[0])
	w.pass(t, time.Second)
	dead := holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
	stacktest.Must(t, dead.SweepOnly(t.Context()))
	sweep := func() []string { return briefs(w.sweep(t)) }
	if got := sweep(); len(got) != 0 {
		t.Errorf("announced %v while it was handed out to another worker", got)
	}
	w.pass(t, holds.AnnounceLease)
	if got, want := sweep(), briefsAs(holds.EventHoldExpired, o); !slices.Equal(got, want) {
		t.Errorf("announced %v, want %v", got, want)
	}
	w.pass(t, holds.AnnounceLease)
	if got := sweep(); len(got) != 0 {
		t.Errorf("announced again: %v", got)
	}
}

// TestAnnounce_OneNotStored_OthersForgotten makes the stream refuse one of two hold.expired events: only that one is
// announced later.
func TestAnnounce_OneNotStored_OthersForgotten(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	for _, user := range []string{"ana", "bo"} {
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: seconds(1)})[0])
	}
	w.pass(t, time.Second)
	w.unstored = 1
	if err := w.expirer.SweepAndAnnounce(t.Context()); err == nil {
		t.Error("no error although one was not stored")
	}
	first := briefs(w.takeAnnounced())
	w.pass(t, holds.AnnounceLease)
	if second := briefs(w.sweep(t)); len(first) != 1 || len(second) != 1 || first[0] == second[0] {
		t.Errorf("announced %v and then %v", first, second)
	}
}

// TestAnnounce_OutageOfNATS_LoggedAtBeginAndEnd refuses a hold, announces another one, refuses one of the next two, and
// announces it last, some time later. One line begins the outage and one ends it.
func TestAnnounce_OutageOfNATS_LoggedAtBeginAndEnd(t *testing.T) {
	t.Parallel()
	announce := newHarness(t).beginAnnounceOutage(t)
	announce(0, 1, 1, 1)
}

// TestAnnounce_OutageWhileOneIsRefused_LoggedAgain refuses a hold again and again. Others are announced meanwhile, and then
// none for a while: one more line says so.
func TestAnnounce_OutageWhileOneIsRefused_LoggedAgain(t *testing.T) {
	t.Parallel()
	announce := newHarness(t).beginAnnounceOutage(t)
	announce(1, 0, 2, 0)
	announce(1, 0, 2, 0)
}

// beginAnnounceOutage refuses a hold, announces another one, and then refuses the first or a third one and announces the
// other. It returns a function that announces what is due a lease later, when some are refused, and checks how many were
// announced, and how many lines begin and end an outage since the beginning.
func (w *harness) beginAnnounceOutage(t *testing.T) (announce func(refused, announced, begun, ended int)) {
	t.Helper()
	w.placeForThreeRounds(t)
	var log logBuffer
	x := holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.New(&log))
	after := func(wait time.Duration, refused, announced, begun, ended int) {
		t.Helper()
		w.pass(t, wait)
		w.unstored = refused
		stacktest.Must(t, x.AnnounceLate(t.Context(), 0))
		found := []int{len(w.takeAnnounced()), log.count("announcing expired holds failed"), log.count("announcing expired holds recovered")}
		if want := []int{announced, begun, ended}; !slices.Equal(found, want) {
			t.Errorf("%d announced, lines that begin and end the outage; want %d", found, want)
		}
	}
	after(time.Second, 1, 0, 1, 0)
	after(time.Second, 0, 1, 1, 0)
	after(holds.AnnounceLease-time.Second, 1, 1, 1, 0) // of the first and the third hold
	x.RecoverAfter(-1)
	return func(refused, announced, begun, ended int) {
		t.Helper()
		after(holds.AnnounceLease, refused, announced, begun, ended)
	}
}

// placeForThreeRounds places three holds, which expire in different rounds.
func (w *harness) placeForThreeRounds(t *testing.T) {
	t.Helper()
	w.setInventory(t, "tent", holds.SlotSelection{}, 3)
	for i := range int64(3) {
		created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: fmt.Sprint(i), TTLSeconds: seconds(i + 1)})[0])
	}
}

// TestAnnounce_NothingSent_LeavesNothingUncertain fails what an announcement needs before it sends, and then the sending.
// Only after the latter something may be stored later.
func TestAnnounce_NothingSent_LeavesNothingUncertain(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.placeForThreeRounds(t)
	term := &unverifiedTerm{EpochTerm: w.term, ends: make(chan bool, 100)}
	service := holds.NewService(w.namespace, w.client, w.locker(t), w.store, term, w.policy)
	w.unstored = 1
	runExpirer(t, holds.NewExpirer(service, w, holds.ExpirerOptions{}, zerolog.Nop()))
	for i, want := range []bool{true, false, true} { // Postgres is away, NATS is away, stored
		if certain := <-term.ends; certain != want {
			t.Errorf("announcement %d: all that was sent is stored: %v, want %v", i+1, certain, want)
		}
	}
}

// unverifiedTerm is a term that cannot verify its epoch the first time.
type unverifiedTerm struct {
	*recovery.EpochTerm
	once sync.Once
	ends chan bool // of publications: certain
}

func (t *unverifiedTerm) Verify(ctx context.Context, term string) (err error) {
	t.once.Do(func() { err = errors.New("postgres does not answer") })
	if err != nil {
		return err
	}
	return t.EpochTerm.Verify(ctx, term)
}

func (t *unverifiedTerm) Publishing() func(certain bool) {
	done := t.EpochTerm.Publishing()
	return func(certain bool) { done(certain); t.ends <- certain }
}

// TestAnnounce_WaitedLongerThanLease_Dropped lets expired holds wait for their announcement until they are handed out
// again.
func TestAnnounce_WaitedLongerThanLease_Dropped(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.onlyHold(t, "room", 1)
	w.pass(t, time.Second)
	for i, waited := range []time.Duration{2 * holds.AnnounceLease, 0, 0} {
		stacktest.Must(t, w.expirer.AnnounceLate(t.Context(), waited))
		if got, want := len(w.takeAnnounced()), i%2; got != want {
			t.Errorf("sweep %d: %d announced, want %d", i+1, got, want)
		}
		w.pass(t, holds.AnnounceLease)
	}
}

// TestAnnounce_SlowReply_WaitsFromReply measures how long a hold waits for its announcement: from the reply of Redis
// on, however late that was.
func TestAnnounce_SlowReply_WaitsFromReply(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	client := stacktest.ConnectRedis(t, w.redisURL)
	var replies afterPipeline
	client.AddHook(&replies)
	w.onlyHold(t, "room", 1)
	w.pass(t, time.Second)
	x := holds.NewExpirer(w.newService(client, w.locker(t), w.store), w, holds.ExpirerOptions{}, zerolog.Nop())
	stacktest.Must(t, x.SweepOnly(t.Context()))
	if sizes, takenAt := x.Queued(); len(sizes) != 1 || takenAt.Before(replies.last) {
		t.Errorf("batches of %d wait, from %v before the reply", sizes, replies.last.Sub(takenAt))
	}
}

// afterPipeline is a hook that knows when the last pipeline had its replies.
type afterPipeline struct {
	stacktest.PassHook
	last time.Time
}

func (h *afterPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		defer func() { h.last = time.Now() }()
		return next(ctx, commands)
	}
}

// TestAnnounce_TwoWorkers_CountedOnce hands out a hold to a second worker, because the first is slow. Both announce it.
func TestAnnounce_TwoWorkers_CountedOnce(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	m := holds.NewMetrics(telemetry.NewSet())
	w.service.Measure(m)
	w.onlyHold(t, "room", 1)
	w.pass(t, time.Second)
	stacktest.Must(t, w.expirer.SweepOnly(t.Context()))
	w.pass(t, holds.AnnounceLease)
	for _, worker := range []*holds.Expirer{holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop()), w.expirer} {
		stacktest.Must(t, worker.AnnounceLate(t.Context(), 0))
		if got := len(w.takeAnnounced()); got != 1 {
			t.Errorf("%d announced", got)
		}
	}
	if n := m.Expired(); n != 1 {
		t.Errorf("counted %d expired holds", n)
	}
}
