package recovery_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestPublishing_Unanswered_MayBeStoredLater checks when what a worker has sent counts as stored.
func TestPublishing_Unanswered_MayBeStoredLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		term := recovery.NewEpochTerm()
		first, second := term.Publishing(), term.Publishing()
		want := func(stored bool) {
			t.Helper()
			if got := term.AwaitPublished(t.Context(), 0); got != stored {
				t.Errorf("everything is stored: %v, want %v", got, stored)
			}
		}
		want(false)
		second(true)
		want(false)
		first(true)
		want(true)
		third := term.Publishing()
		third(false)
		time.Sleep(recovery.PublishDelayMax)
		want(false)
		time.Sleep(time.Nanosecond)
		want(true)
	})
}

// drainingWorker is a worker that decides, beside one that recovers Redis.
type drainingWorker struct {
	*harness
	term       *recovery.EpochTerm
	supervisor *recovery.Supervisor
}

func newDrainingWorker(t *testing.T) *drainingWorker {
	t.Helper()
	d := &drainingWorker{harness: newRealTimeHarness(t), term: recovery.NewEpochTerm()}
	d.supervisor = d.newSupervisor(&replayLog{harness: d.harness}, "worker", d.term)
	d.check(t)
	if err := d.verify(t); err != nil {
		t.Fatalf("verify: %v", err)
	}
	return d
}

func (d *drainingWorker) check(t *testing.T) {
	t.Helper()
	if _, err := d.supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (d *drainingWorker) verify(t *testing.T) error {
	t.Helper()
	return d.term.Verify(t.Context(), holds.EpochID(0, d.epoch))
}

// undrained returns the workers for which a recovery under the present epoch waits.
func (d *drainingWorker) undrained(t *testing.T) []string {
	t.Helper()
	epochs, err := d.store.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := d.store.Undrained(t.Context(), []string{holds.EpochID(0, epochs[0].Name)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// rebuild rebuilds Redis in another worker, which waits for at most a time for the others. It returns when that
// one waits.
func (d *drainingWorker) rebuild(t *testing.T, drain time.Duration) (wait func()) {
	t.Helper()
	rebuilder := d.newSupervisor(&replayLog{harness: d.harness}, "rebuilder", recovery.NewEpochTerm())
	rebuilder.Drain = drain
	var running sync.WaitGroup
	waits := make(chan struct{})
	once := sync.OnceFunc(func() { close(waits) })
	running.Go(func() {
		if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(progress string) {
			if progress == "waiting for outcomes in flight" {
				once()
			}
		}); err != nil {
			t.Error(err)
		}
		once()
	})
	<-waits
	return running.Wait
}

// TestDrain_OutcomeInFlight_RecoveryWaitsForIt publishes an outcome while another worker recovers Redis. That one
// waits until it is stored, and not for a time.
func TestDrain_OutcomeInFlight_RecoveryWaitsForIt(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	stored := d.term.Publishing()
	wait := d.rebuild(t, time.Hour)
	d.check(t)
	if err := d.verify(t); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("verify: %v, want %v: the worker is about to say that it publishes nothing more", err, holds.ErrDataLost)
	}
	if left := d.undrained(t); len(left) != 1 {
		t.Errorf("the recovery waits for %v, want the worker that publishes", left)
	}
	stored(true)
	d.check(t)
	wait()
	if left := d.undrained(t); len(left) != 0 {
		t.Errorf("the recovery waits for %v after the end", left)
	}
}

// TestDrain_EachRecovery_WaitsAgain recovers Redis twice. What a worker has said of the first recovery does not
// count for the second.
func TestDrain_EachRecovery_WaitsAgain(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	for range 2 {
		wait := d.rebuild(t, time.Hour)
		if left := d.undrained(t); len(left) != 1 {
			t.Errorf("the recovery waits for %v, want the worker", left)
		}
		d.check(t)
		wait()
	}
}

// TestDrain_SameEpochLostAgain_WaitsAgain restores an older state of Postgres, which has as complete an epoch that was lost
// before. When it is lost again, a recovery waits for other workers from then on.
func TestDrain_SameEpochLostAgain_WaitsAgain(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	for range 2 {
		before := time.Now()
		d.execute(t, `UPDATE partition_epochs SET written = false, lost = epoch, lost_why = 'a test'`)
		d.check(t)
		if at := d.supervisor.LostAt(); at.Before(before) {
			t.Errorf("a recovery waits from %v on, the epoch was lost after %v", at, before)
		}
		d.execute(t, `UPDATE partition_epochs SET written = true, lost = NULL, lost_why = NULL`)
		d.check(t)
	}
}

// TestDrain_WorkerSilent_ForgottenAfterDrain recovers Redis while a worker is stopped. The recovery does not wait for
// it longer than it may publish, and the worker registers again before it decides.
func TestDrain_WorkerSilent_ForgottenAfterDrain(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	d.rebuild(t, 0)()
	if left := d.undrained(t); len(left) != 0 {
		t.Errorf("registered are %v, want none", left)
	}
	d.check(t)
	if left := d.undrained(t); len(left) != 1 {
		t.Errorf("registered are %v, want the worker", left)
	}
}

// TestDrain_ForgottenByAnother_RecoveryWaitsForIt lets a recovery forget a worker that still publishes. Another one, of
// what was lost later, waits for it nevertheless.
func TestDrain_ForgottenByAnother_RecoveryWaitsForIt(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	stored := d.term.Publishing()
	d.rebuild(t, 0)()
	wait := d.rebuild(t, time.Hour)
	left, err := d.store.Undrained(t.Context(), []string{"0 next"}, time.Hour)
	if err != nil || len(left) != 1 {
		t.Errorf("the second recovery waits for %v %v, want the worker", left, err)
	}
	stored(true)
	d.check(t) // registers again
	d.check(t)
	wait()
}

// TestDrain_NotRegistered_RecoversNothing fails the registration of a worker that would find a loss that another has
// stored: it has not noted when, and must not recover.
func TestDrain_NotRegistered_RecoversNothing(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	supervisor := w.newSupervisorWith(&lateStore{EpochStore: w.store}, &replayLog{harness: w}, "worker", recovery.NewEpochTerm())
	if epochs, err := supervisor.Check(t.Context()); !errors.Is(err, errReplyLost) || epochs != (recovery.Epochs{}) {
		t.Errorf("check: %v, and epochs: %v; want %v and none", err, epochs != recovery.Epochs{}, errReplyLost)
	}
}

// TestDrain_EpochsReadUnregistered_DoNotCount recovers Redis, without waiting for a worker that checks, between the
// moment at which the worker reads the epochs and the moment at which it finds out that it is not registered.
func TestDrain_EpochsReadUnregistered_DoNotCount(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	s := &overtakenStore{EpochStore: w.store}
	d := &drainingWorker{harness: w, term: recovery.NewEpochTerm()}
	d.supervisor = w.newSupervisorWith(s, &replayLog{harness: w}, "worker", d.term)
	d.check(t)
	if err := d.verify(t); err != nil {
		t.Fatalf("verify: %v", err)
	}
	s.read(t)
	d.rebuild(t, 0)()
	d.check(t)
	if err := d.verify(t); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("verify an epoch that no recovery expects any more: %v, want %v", err, holds.ErrDataLost)
	}
}

// overtakenStore is an EpochStore whose next answer may have epochs that were read some time ago.
type overtakenStore struct {
	recovery.EpochStore
	before *recovery.Epochs // the epochs of the answer, nil to read them
}

// read reads the epochs of what the next call of State returns.
func (s *overtakenStore) read(t *testing.T) {
	t.Helper()
	epochs, err := s.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.before = &epochs
}

func (s *overtakenStore) State(ctx context.Context, worker string) (recovery.PostgresState, error) {
	state, err := s.EpochStore.State(ctx, worker)
	if before := s.before; before != nil {
		s.before, state.Epochs = nil, *before
	}
	return state, err
}

// TestDrain_RegistrationLate_DoesNotHideThatItWasForgotten lets the registration whose reply a worker has lost
// arrive when another recovery has forgotten the worker, after the worker has read the epochs.
func TestDrain_RegistrationLate_DoesNotHideThatItWasForgotten(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	late := &lateStore{EpochStore: w.store}
	s := &overtakenStore{EpochStore: late}
	d := &drainingWorker{harness: w, term: recovery.NewEpochTerm()}
	d.supervisor = w.newSupervisorWith(s, &replayLog{harness: w}, "worker", d.term)
	if _, err := d.supervisor.Check(t.Context()); !errors.Is(err, errReplyLost) {
		t.Fatalf("check: %v, want %v", err, errReplyLost)
	}
	late.reads = 1 // the registration does not arrive after the next read
	d.check(t)
	if err := d.verify(t); err != nil {
		t.Fatalf("verify: %v", err)
	}
	s.read(t)
	d.rebuild(t, 0)()
	stacktest.Must(t, w.store.RegisterWorker(t.Context(), late.lost))
	d.check(t)
	if err := d.verify(t); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("verify an epoch that no recovery expects any more: %v, want %v", err, holds.ErrDataLost)
	}
}

// TestLeave_AllStored_RecoveryDoesNotWait stops workers: one that has published everything, and one that has not. For
// the latter a recovery waits only while it may still be stored.
func TestLeave_AllStored_RecoveryDoesNotWait(t *testing.T) {
	t.Parallel()
	d := newDrainingWorker(t)
	leave := func(stored bool, want int) {
		t.Helper()
		if err := d.supervisor.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := d.store.Undrained(t.Context(), []string{"0 next"}, time.Hour)
		if err != nil || len(left) != want {
			t.Errorf("everything is stored: %v: a recovery waits for %v %v, want %d", stored, left, err, want)
		}
		if left := d.undrained(t); len(left) != 0 {
			t.Errorf("everything is stored: %v: a later recovery waits for %v", stored, left)
		}
	}
	stored := d.term.Publishing()
	leave(false, 1)
	stored(true)
	leave(true, 0)
}

// TestDrain_RegistrationUnanswered_EpochsReadAgain loses the reply to a registration, which is done nevertheless, after
// the next check has read the epochs. These do not count.
func TestDrain_RegistrationUnanswered_EpochsReadAgain(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	s := &lateStore{EpochStore: w.store}
	supervisor := w.newSupervisorWith(s, &replayLog{harness: w}, "worker", recovery.NewEpochTerm())
	if _, err := supervisor.Check(t.Context()); !errors.Is(err, errReplyLost) {
		t.Fatalf("check: %v, want %v", err, errReplyLost)
	}
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.reads != 2 {
		t.Errorf("epochs were read %d times after the lost reply, want twice", s.reads)
	}
}

// lateStore is an EpochStore that registers a worker only after the next read of the epochs.
type lateStore struct {
	recovery.EpochStore
	lost  string // id of the registration that is late
	reads int    // of the epochs since then
}

var errReplyLost = errors.New("reply lost")

func (s *lateStore) RegisterWorker(ctx context.Context, id string) error {
	if s.lost == "" {
		s.lost, s.reads = id, 0
		return errReplyLost
	}
	return s.EpochStore.RegisterWorker(ctx, id)
}

func (s *lateStore) State(ctx context.Context, worker string) (recovery.PostgresState, error) {
	state, err := s.EpochStore.State(ctx, worker)
	if s.reads++; err == nil && s.lost != "" && s.reads == 1 {
		err = s.EpochStore.RegisterWorker(ctx, s.lost)
	}
	return state, err
}
