package recovery_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// commitLog is a recovery.CommitLog of what a harness has published.
type commitLog struct {
	*harness
	late []holds.StoredOutcome // published after the first read
}

func (l *commitLog) Position(context.Context) (holds.LogPosition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position(), nil
}

// position is Position for a caller that has locked mu.
func (l *commitLog) position() holds.LogPosition {
	return holds.LogPosition{Created: time.Unix(1, 0), Seq: uint64(len(l.outcomes))}
}

func (l *commitLog) Commits(
	_ context.Context, after holds.LogPosition, each func([]holds.StoredOutcome) error,
) (last holds.LogPosition, err error) {
	var some []holds.StoredOutcome
	l.mu.Lock()
	for _, o := range l.outcomes[after.Seq:] {
		if o.Event == holds.EventHoldConfirmed || o.Event == holds.EventConfirmRejected {
			some = append(some, o)
		}
	}
	last = l.position()
	l.outcomes, l.late = append(l.outcomes, l.late...), nil
	l.mu.Unlock()
	if len(some) > 0 {
		err = each(some)
	}
	return last, err
}

// guardedWorker is a worker that checks the history of Postgres.
type guardedWorker struct {
	*harness
	log        *replayLog
	commits    *commitLog
	supervisor *recovery.Supervisor
	checker    *recovery.HistoryChecker
	guard      *recovery.HistoryGuard
	guarded    *store.Store
}

func newGuardedWorker(t *testing.T) *guardedWorker { return newGuardedWorkerOn(t, newHarness(t)) }

func newGuardedWorkerOn(t *testing.T, on *harness) *guardedWorker {
	t.Helper()
	w := &guardedWorker{harness: on, guard: recovery.NewHistoryGuard()}
	w.log, w.commits = &replayLog{harness: w.harness}, &commitLog{harness: w.harness}
	w.supervisor = w.newSupervisor(w.log, "w1", recovery.NewEpochTerm())
	w.supervisor.Drain = 0 // no other worker publishes
	w.checker = &recovery.HistoryChecker{Store: w.store, Log: w.commits, Guard: w.guard, Name: "w1",
		Logger: zerolog.Nop()}
	w.supervisor.CheckHistory(w.checker)
	w.guarded = w.openGuarded(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	return w
}

func (w *guardedWorker) openGuarded(t *testing.T) *store.Store {
	t.Helper()
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL, w.namespace, store.Guard(w.guard))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// reserved reads as a decision does.
func reserved(t *testing.T, db *store.Store) (int64, error) {
	t.Helper()
	rows, err := db.InventoryRows(t.Context(), []string{"room"}, [][]string{{holds.StockSlot}})
	if err != nil {
		return 0, err
	}
	return rows[0][0].Reserved, nil
}

// check checks once, and returns the epoch of the partition of room.
func (w *guardedWorker) check(t *testing.T) recovery.Epoch {
	t.Helper()
	epochs, err := w.supervisor.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return epochs[record.Partition("room")]
}

// forget removes what the last payment has written.
func (w *guardedWorker) forget(t *testing.T) {
	t.Helper()
	w.execute(t, `DELETE FROM reservations`)
	w.execute(t, `DELETE FROM payments`)
	w.execute(t, `UPDATE inventory SET reserved = 0`)
}

// paid places a hold and pays it.
func (w *guardedWorker) paid(t *testing.T) holds.HoldID {
	t.Helper()
	id := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	w.pay(t, id, "p")
	return id
}

func isRefused(err error) bool {
	var history *recovery.HistoryError
	return errors.As(err, &history)
}

// TestHistoryChecker_AnotherServer_NothingIsReadUntilCompared replaces Postgres by a server that
// lacks a commit. Nothing reads from it until the commit is put back.
func TestHistoryChecker_AnotherServer_NothingIsReadUntilCompared(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	if _, err := reserved(t, w.guarded); !isRefused(err) {
		t.Errorf("before the first check: %v", err)
	}
	w.check(t)
	w.paid(t)
	if n, err := reserved(t, w.guarded); n != 1 || err != nil {
		t.Errorf("%d are reserved (%v), want 1", n, err)
	}
	w.forget(t)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	fresh := w.openGuarded(t)
	if n, err := reserved(t, fresh); !isRefused(err) {
		t.Errorf("a new connection to the other server reads %d: %v", n, err)
	}
	w.check(t)
	for _, db := range []*store.Store{w.guarded, fresh} {
		if n, err := reserved(t, db); n != 1 || err != nil {
			t.Errorf("after the comparison %d are reserved (%v), want 1", n, err)
		}
	}
}

// TestHistoryChecker_OlderStateOfSameServer_IsCompared restores an older state of the same server:
// only its marker is lower than the one that this worker has seen, or than the outbound stream when
// the worker starts.
func TestHistoryChecker_OlderStateOfSameServer_IsCompared(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		w := newGuardedWorker(t)
		w.check(t)
		for range 2 {
			w.execute(t, `UPDATE commit_marker SET marked_at = now() - interval '1 minute'`)
			w.check(t)
			if err := w.checker.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(w.outcomes) == 0 {
				w.paid(t)
			}
		}
		w.check(t)
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET seq = 0`)
		if restarted {
			w.restart()
		} else if _, err := reserved(t, w.openGuarded(t)); !isRefused(err) {
			t.Errorf("a connection to the older state: %v", err)
		}
		w.check(t)
		if n, err := reserved(t, w.guarded); n != 1 || err != nil {
			t.Errorf("restarted %v: %d are reserved (%v), want 1", restarted, n, err)
		}
	}
}

// restart replaces the checker by that of a worker that starts.
func (w *guardedWorker) restart() {
	w.checker = &recovery.HistoryChecker{Store: w.store, Log: w.commits, Guard: w.guard, Name: "w2",
		Logger: zerolog.Nop()}
	w.supervisor.CheckHistory(w.checker)
}

// history returns the name of the history that Postgres has.
func (w *guardedWorker) history(t *testing.T) string {
	t.Helper()
	return w.one(t, `SELECT history FROM commit_marker`)
}

// compareElsewhere lets another worker begin to compare.
func (w *guardedWorker) compareElsewhere(t *testing.T) {
	t.Helper()
	if held, err := w.store.KeepLease(t.Context(), "commit history", "other", 30*time.Second); err != nil || !held {
		t.Fatalf("%v %v", held, err)
	}
}

// paidAndForgotten restores an older state of the same server, which lacks a published payment.
func (w *guardedWorker) paidAndForgotten(t *testing.T) {
	t.Helper()
	w.check(t)
	if err := w.checker.Maintain(t.Context()); err != nil { // the marker of no outcome
		t.Fatal(err)
	}
	w.paid(t)
	w.forget(t)
}

// TestHistoryChecker_ComparisonAtStartFails_IsRepeated starts a worker on an older state of the same server while another
// worker compares. The new one has put back what the server lacks when it notices that; nothing is decided nevertheless,
// also by the next worker that starts.
func TestHistoryChecker_ComparisonAtStartFails_IsRepeated(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.paidAndForgotten(t)
	before := w.history(t)
	w.compareElsewhere(t)
	for range 2 {
		w.restart()
		for i := range 2 {
			if _, err := w.supervisor.Check(t.Context()); !isRefused(err) {
				t.Errorf("check %d while another worker compares: %v", i, err)
			}
		}
	}
	if err := w.store.ReleaseLease(t.Context(), "commit history", "other"); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	compared := w.history(t)
	if compared == before {
		t.Error("the older state was not compared")
	}
	w.check(t)
	if again := w.history(t); again != compared {
		t.Error("it was compared twice")
	}
}

// TestHistoryChecker_ComparedByOtherAtStart_NotRepeated lets another worker finish the comparison that this one has begun
// at its start.
func TestHistoryChecker_ComparedByOtherAtStart_NotRepeated(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.paidAndForgotten(t)
	w.compareElsewhere(t)
	w.restart()
	if _, err := w.supervisor.Check(t.Context()); !isRefused(err) {
		t.Errorf("while another worker compares: %v", err)
	}
	h, err := w.store.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h, err = w.store.SetCompared(t.Context(), h, h.Marker); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	if history := w.history(t); history != h.ID {
		t.Error("it was compared twice")
	}
}

// TestHistoryChecker_NothingPutBackAtStart_IsCompared starts a worker on an older state of the same server, in which the
// capacity is too low for the published payment that it lacks: Redis may disagree with it nevertheless.
func TestHistoryChecker_NothingPutBackAtStart_IsCompared(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.paidAndForgotten(t)
	w.execute(t, `UPDATE inventory SET capacity = 0`)
	before := w.history(t)
	w.restart()
	w.check(t)
	compared := w.history(t)
	if compared == before {
		t.Error("the older state was not compared")
	}
	w.restart()
	w.check(t)
	if again := w.history(t); again != compared {
		t.Error("it was compared again, although it lacks nothing else")
	}
}

// TestHistoryChecker_Idle_WritesNothing checks and maintains without a new outcome.
func TestHistoryChecker_Idle_WritesNothing(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.paid(t)
	w.check(t)
	version := func() string { return w.one(t, `SELECT xmin || ' ' || seq FROM commit_marker`) }
	maintain := func() string {
		w.execute(t, `UPDATE commit_marker SET marked_at = now() - interval '1 minute'`)
		w.check(t)
		before := version()
		if err := w.checker.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if version() == before {
			return "nothing"
		}
		return version()
	}
	if written := maintain(); !strings.HasSuffix(written, " 2") {
		t.Errorf("after two outcomes it has written %s, want the sequence 2", written)
	}
	if written := maintain(); written != "nothing" {
		t.Errorf("without a new outcome it has written %s", written)
	}
}

// TestHistoryChecker_PublishedMeanwhile_IsPutBack publishes an outcome while Postgres is compared: a worker that
// has not noticed the failover yet.
func TestHistoryChecker_PublishedMeanwhile_IsPutBack(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	w.paid(t)
	w.outcomes, w.commits.late = w.outcomes[:1], w.outcomes[1:]
	w.forget(t)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	w.check(t)
	if n, err := reserved(t, w.guarded); n != 1 || err != nil {
		t.Errorf("%d are reserved (%v), want 1", n, err)
	}
}

// TestHistoryChecker_MarkerOfAnotherServer_IsNotMoved lets Postgres fail over between the check of a worker and
// its next marker. The marker would hide what the new server lacks.
func TestHistoryChecker_MarkerOfAnotherServer_IsNotMoved(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	h, err := w.store.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	h.Server = "7/00000001" // the server that the worker has checked
	if err := w.store.Mark(t.Context(), h, holds.LogPosition{Created: time.Unix(1, 0), Seq: 9}); err != nil {
		t.Fatal(err)
	}
	if seq := w.one(t, `SELECT seq::text FROM commit_marker`); seq != "0" {
		t.Errorf("the marker is %s", seq)
	}
}

// TestHistoryChecker_ClockSetBack_MarkerMoves sets the clock of Postgres back by an hour: the marker seems to have been
// written in the future.
func TestHistoryChecker_ClockSetBack_MarkerMoves(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	if err := w.checker.Maintain(t.Context()); err != nil { // the marker of no outcome
		t.Fatal(err)
	}
	w.paid(t)
	w.execute(t, `UPDATE commit_marker SET marked_at = now() + interval '1 hour'`)
	w.check(t)
	if err := w.checker.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seq := w.one(t, `SELECT seq::text FROM commit_marker`); seq != "2" {
		t.Errorf("the marker is %s, want 2", seq)
	}
}

// TestHistoryChecker_NoticedServerReplaced_DrainsAgain notices a failover that another worker then compares. Before this
// worker reads that, Postgres fails over again: what the other worker has decided meanwhile may still be published.
func TestHistoryChecker_NoticedServerReplaced_DrainsAgain(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	w.compareElsewhere(t)
	refused := func() {
		t.Helper()
		if _, err := w.supervisor.Check(t.Context()); !isRefused(err) {
			t.Fatalf("while another worker compares: %v", err)
		}
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	refused()
	first := w.checker.NoticedAt(time.Hour)
	refused()
	if again := w.checker.NoticedAt(0); !again.Equal(first) {
		t.Errorf("the same server was noticed at %v and at %v", first, again)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000002', history = gen_random_uuid()`)
	refused()
	if again := w.checker.NoticedAt(0); !again.After(first) {
		t.Errorf("the next server counts as noticed at %v, with the one before", again)
	}
}

// TestHistoryChecker_CapacityRaised_LostCommitPutBack raises a capacity that was too low for a published reservation. A
// worker that runs puts the reservation back.
func TestHistoryChecker_CapacityRaised_LostCommitPutBack(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	w.paid(t)
	w.forget(t)
	w.execute(t, `UPDATE inventory SET capacity = 0`)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	w.check(t)
	if n, err := reserved(t, w.guarded); n != 0 || err != nil {
		t.Fatalf("%d are reserved (%v), want 0", n, err)
	}
	w.checker.RetryLostEvery(time.Millisecond)
	stop := w.run(t, w.supervisor)
	w.execute(t, `UPDATE inventory SET capacity = 1`)
	stacktest.Eventually(t, "the reservation to be put back", func() bool {
		n, err := reserved(t, w.guarded)
		return n == 1 && err == nil
	})
	stop()
}

// TestHistoryChecker_DecidedBefore_NotPublished lets Postgres fail over after a worker has committed a decision and before
// it publishes it: the new server may lack the commit, and the comparison is over.
func TestHistoryChecker_DecidedBefore_NotPublished(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	term := w.supervisor.Term
	before := term.Current().Of("room").TermID
	if err := term.Verify(t.Context(), before); err != nil {
		t.Errorf("before the failover: %v", err)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	w.check(t)
	if err := term.Verify(t.Context(), before); !errors.Is(err, holds.ErrBusy) {
		t.Errorf("what was decided before the failover may be published: %v", err)
	}
	if err := term.Verify(t.Context(), term.Current().Of("room").TermID); err != nil {
		t.Errorf("what is decided after it: %v", err)
	}
}

// TestHistoryChecker_ComparedByOther_IsUsed lets another worker compare first.
func TestHistoryChecker_ComparedByOther_IsUsed(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	w.compareElsewhere(t)
	if _, err := w.supervisor.Check(t.Context()); !isRefused(err) {
		t.Errorf("while another worker compares: %v", err)
	}
	if _, err := reserved(t, w.openGuarded(t)); !isRefused(err) {
		t.Errorf("while another worker compares a connection is %v", err)
	}
	h, err := w.store.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.SetCompared(t.Context(), h, h.Marker); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.SetCompared(t.Context(), h, h.Marker); !errors.Is(err, recovery.ErrHistoryChanged) {
		t.Errorf("a slow worker stores its comparison: %v", err)
	}
	w.check(t)
	if _, err := reserved(t, w.openGuarded(t)); err != nil {
		t.Error(err)
	}
}

// TestHistoryChecker_UnpublishedPaymentLost_HoldIsLiveAgain loses a payment that Redis has settled
// and that was not published. Its slot must not be granted before the payment is delivered again.
func TestHistoryChecker_UnpublishedPaymentLost_HoldIsLiveAgain(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := w.paid(t)
	w.outcomes = w.outcomes[:1] // hold.confirmed was not published
	w.log.payments = []holds.Payment{{ConfirmRequest: holds.ConfirmRequest{Hold: id, PaymentID: "p"},
		At: holds.Time{Time: w.now}}}
	w.forget(t)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	if e := w.check(t); e.Complete {
		t.Error("the epoch is still complete: redis has the payment and postgres has not")
	}
	w.rebuildAsSupervisor(t)
	w.checkHeldUntilPaid(t, id)
}

// TestHistoryChecker_RebuildMeanwhile_StartsAgain loses the payment while another worker rebuilds Redis, which has read it
// and written its hold as confirmed. The slot must not be granted before the payment is delivered again.
func TestHistoryChecker_RebuildMeanwhile_StartsAgain(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := w.paid(t)
	w.outcomes = w.outcomes[:1] // hold.confirmed was not published
	w.log.payments = []holds.Payment{{ConfirmRequest: holds.ConfirmRequest{Hold: id, PaymentID: "p"},
		At: holds.Time{Time: w.now}}}
	rebuilder := w.newSupervisorWith(&completingStore{w.store, sync.OnceFunc(func() {
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
	})}, w.log, "w2", recovery.NewEpochTerm())
	rebuilder.Drain = 0
	if _, err := rebuilder.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	e := w.check(t)
	w.epoch, w.term = e.Name, recovery.StaticTerm(e.Name, e.Server)
	w.startNewTerm(t)
	w.checkHeldUntilPaid(t, id)
}

// pausingInventory is the Inventory of a worker that is suspended when Postgres has committed its decisions.
type pausingInventory struct {
	holds.Inventory
	meanwhile func()
}

func (p *pausingInventory) Decide(ctx context.Context, payments []holds.Payment) ([]holds.PaymentDecision, error) {
	answers, err := p.Inventory.Decide(ctx, payments)
	p.meanwhile()
	return answers, err
}

// TestHistoryChecker_PaymentNotSettledLost_SlotIsKept suspends a worker between the commit of a payment and its settlement.
// Meanwhile Postgres loses the commit, and is compared. The worker must not give back the slot of the hold.
func TestHistoryChecker_PaymentNotSettledLost_SlotIsKept(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	payment := holds.ConfirmRequest{Hold: id, PaymentID: "p"}
	w.log.payments = []holds.Payment{{ConfirmRequest: payment, At: holds.Time{Time: w.now}}}
	suspended := w.newService(t, w.client, &pausingInventory{w.store, func() {
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
	}})
	if got := suspended.Confirm(t.Context(), []holds.ConfirmRequest{payment})[0]; !errors.Is(got.Err, holds.ErrBusy) {
		t.Errorf("the worker that was suspended: %s %v, want %v", brief(got.Outcome), got.Err, holds.ErrBusy)
	}
	w.checkHeldUntilPaid(t, id)
}

// TestHistoryChecker_RejectionNotSettledLost_PaymentIsSettled suspends a worker between the rejection of a payment and its
// settlement. Postgres loses the rejection, and another worker confirms the payment and is about to settle it.
func TestHistoryChecker_RejectionNotSettledLost_PaymentIsSettled(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	id := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	payments := []holds.ConfirmRequest{{Hold: id, PaymentID: "p"}}
	w.log.payments = []holds.Payment{{ConfirmRequest: payments[0], At: holds.Time{Time: w.now}}}
	w.execute(t, `UPDATE inventory SET capacity = 0`)
	committed, settle, confirmed := make(chan struct{}), make(chan struct{}), make(chan []holds.Result, 1)
	other := w.newService(t, w.client, &pausingInventory{w.store, func() { close(committed); <-settle }})
	suspended := w.newService(t, w.client, &pausingInventory{w.store, func() {
		w.execute(t, `DELETE FROM payments; UPDATE inventory SET capacity = 1`)
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
		go func() { confirmed <- other.Confirm(t.Context(), payments) }()
		select {
		case <-committed:
		case results := <-confirmed:
			t.Errorf("the other worker has decided nothing: %v", results[0].Err)
			confirmed <- results
		}
	}})
	if got := suspended.Confirm(t.Context(), payments)[0]; !errors.Is(got.Err, holds.ErrBusy) {
		t.Errorf("the worker that was suspended: %s %v, want %v", brief(got.Outcome), got.Err, holds.ErrBusy)
	}
	close(settle)
	if got := (<-confirmed)[0]; got.Err != nil || got.Outcome.Event != holds.EventHoldConfirmed {
		t.Errorf("the other worker: %s %v", brief(got.Outcome), got.Err)
	}
	if view, _, err := w.service.GetHold(t.Context(), id); err != nil || view.State != holds.Confirmed {
		t.Errorf("the hold is %v %v, want %v", view.State, err, holds.Confirmed)
	}
}

// TestHistoryChecker_RedisFull_IsCompared replaces Postgres while Redis is out of memory.
func TestHistoryChecker_RedisFull_IsCompared(t *testing.T) {
	t.Parallel()
	w := newGuardedWorkerOn(t, newHarnessOn(t, stacktest.StartRedis(t).RedisURL))
	w.check(t)
	if err := w.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	if e := w.check(t); !e.Complete {
		t.Error("redis is rebuilt, although it has lost nothing")
	}
	if _, err := reserved(t, w.guarded); err != nil {
		t.Error(err)
	}
}

// TestHistoryChecker_SlotMoves_OthersStay replaces Postgres while resharding moves the hash slot of one partition.
func TestHistoryChecker_SlotMoves_OthersStay(t *testing.T) {
	t.Parallel()
	w, cluster := newGuardedWorker(t), stacktest.StartRedisCluster(t, 3, 0)
	w.supervisor = w.newSupervisorOf(w.moveToCluster(t, cluster).Servers, w.store, w.log, "w1", recovery.NewEpochTerm())
	w.supervisor.Drain = 0
	w.supervisor.CheckHistory(w.checker)
	w.check(t)
	const moving = 5
	key := record.Keyspace(w.namespace).Epoch(moving)
	cluster.Move(key, (cluster.NodeOf(key)+1)%3).Begin()
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	epochs, err := w.supervisor.Check(t.Context())
	if lost := record.AllPartitions &^ epochs.Complete(); err != nil || lost&^record.PartitionSetOf(moving) != 0 {
		t.Errorf("%v are rebuilt, want %d at most (%v)", lost, moving, err)
	}
}

// TestHistoryChecker_SettledPaymentReservedAgain_RowsAreRead delivers a payment again that Redis has settled and Postgres
// has lost. Rows that a worker has read before have another reserved.
func TestHistoryChecker_SettledPaymentReservedAgain_RowsAreRead(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 2)
	id := w.paid(t)
	w.forget(t)
	rely := func() { // on the rows in memory
		now, err := w.service.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.service.InventorySynced(now)
	}
	rely()
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
	if got := brief(w.pay(t, id, "p")); got != holds.EventHoldConfirmed {
		t.Fatalf("the payment is delivered again: %s", got)
	}
	rely()
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "cid"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("with a capacity of 2, one reserved and one held: %s", got)
	}
}

// checkHeldUntilPaid checks that the only slot belongs to a hold, which is confirmed when its payment is delivered again.
func (w *guardedWorker) checkHeldUntilPaid(t *testing.T, id holds.HoldID) {
	t.Helper()
	if n := w.held(t, "room"); n != 1 {
		t.Errorf("%d are held, want 1", n)
	}
	if got := brief(w.place(t, holds.PlaceRequest{Resource: "room", User: "eve"})[0]); got != "hold.rejected sold_out" {
		t.Errorf("another request: %s", got)
	}
	if got := brief(w.pay(t, id, "p")); got != holds.EventHoldConfirmed {
		t.Errorf("the payment is delivered again: %s", got)
	}
}

// completingStore is an EpochStore that is overtaken before an epoch is complete.
type completingStore struct {
	recovery.EpochStore
	overtake func()
}

func (s *completingStore) CompleteEpoch(ctx context.Context, of record.PartitionSet, epoch, server, rebuilder string) error {
	s.overtake()
	return s.EpochStore.CompleteEpoch(ctx, of, epoch, server, rebuilder)
}

// TestHistoryChecker_EpochRowWentBack_NextEpochIsNew loses the rebuild of Redis from the row of the
// epoch. The next epoch has a name that Redis has not seen.
func TestHistoryChecker_EpochRowWentBack_NextEpochIsNew(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	old := w.epoch
	if _, err := w.supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	second := w.check(t).Name
	w.execute(t, `UPDATE partition_epochs SET epoch = '`+old+`', generation = 1`)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	if e := w.check(t); e.Complete {
		t.Errorf("epoch %s is taken for complete, redis has %s", e.Name, second)
	}
	w.rebuildAsSupervisor(t)
	if w.epoch == old || w.epoch == second {
		t.Errorf("the next epoch is %s, after %s and %s", w.epoch, old, second)
	}
}

// TestHistoryChecker_ShardDown_OthersGoOn lets Postgres fail over, and lose a rebuild, while one of two servers does not
// answer. The partitions of the other one are decided. Those of the first are rebuilt when it answers again, under an
// epoch that it has not had.
func TestHistoryChecker_ShardDown_OthersGoOn(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	const low = record.PartitionSet(1<<32 - 1)
	other := stacktest.StartRedis(t)
	client, keys := stacktest.ConnectRedis(t, other.RedisURL), record.Keyspace(w.namespace)
	lost := w.epoch + "/2" // the epoch of the rebuild that postgres loses
	for p := range (^low).Each() {
		client.Set(t.Context(), keys.Epoch(p), lost, 0)
	}
	const down = "redis://127.0.0.1:1"
	both := &shards{urls: [2]string{w.redisURL, down}, has: [2]record.PartitionSet{low, ^low}}
	term := recovery.NewEpochTerm()
	supervisor := w.newSupervisorOf(both.servers, w.store, w.log, "w1", term)
	supervisor.Drain = 0
	supervisor.CheckHistory(w.checker)
	check := func(what string, complete record.PartitionSet) recovery.Epochs {
		t.Helper()
		epochs, err := supervisor.Check(t.Context())
		if err != nil || epochs.Complete() != complete || term.Current().Ready != low {
			t.Fatalf("%s: %v are complete, %v ready, %v", what, epochs.Complete(), term.Current().Ready, err)
		}
		return epochs
	}
	check("shard down", record.AllPartitions)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	check("postgres failed over", low)
	if _, err := w.guard.Current(); err != nil {
		t.Errorf("decisions are refused: %v", err)
	}
	both.urls[1] = other.RedisURL
	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the other partitions to be rebuilt", func() bool { return term.Paused() == nil })
	stop()
	epochs, err := w.store.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for p, e := range epochs {
		if stored := client.Get(t.Context(), keys.Epoch(p)).Val(); low.Has(p) && e.Name != w.epoch ||
			!low.Has(p) && (e.Name == w.epoch || e.Name == lost || e.Name != stored) {
			t.Errorf("epoch of partition %d is %s, stored %q", p, e.Name, stored)
		}
	}
}

// TestHistoryChecker_PartitionMoved_IsRebuilt lets Postgres fail over just after resharding has moved a partition, when
// the worker asks its former server for it. The partition counts as one that was not read.
func TestHistoryChecker_PartitionMoved_IsRebuilt(t *testing.T) {
	t.Parallel()
	w, cluster := newGuardedWorker(t), stacktest.StartRedisCluster(t, 3, 0)
	servers := w.moveToCluster(t, cluster)
	found, err := servers.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := func(context.Context) ([]recovery.Server, error) { return found, nil }
	supervisor := w.newSupervisorOf(before, w.store, w.log, "w1", recovery.NewEpochTerm())
	supervisor.Drain = 0
	supervisor.CheckHistory(w.checker)
	check := func(what string, complete record.PartitionSet) {
		t.Helper()
		if epochs, err := supervisor.Check(t.Context()); err != nil || epochs.Complete() != complete {
			t.Fatalf("%s: %v are complete, %v", what, epochs.Complete(), err)
		}
	}
	check("at first", record.AllPartitions)
	const moved = 5
	key := record.Keyspace(w.namespace).Epoch(moved)
	cluster.MoveAll(key, (cluster.NodeOf(key)+1)%3)
	check("moved", record.AllPartitions)
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	check("postgres failed over", record.AllPartitions&^(1<<moved))
}

// rebuildAsSupervisor rebuilds Redis, and the harness decides under the new epoch.
func (w *guardedWorker) rebuildAsSupervisor(t *testing.T) {
	t.Helper()
	if _, err := w.supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	e := w.check(t)
	w.epoch, w.term = e.Name, recovery.StaticTerm(e.Name, e.Server)
	w.startNewTerm(t)
}

// one returns a value from Postgres.
func (w *guardedWorker) one(t *testing.T, sql string) (value string) {
	t.Helper()
	config, err := pgx.ParseConfig(stacktest.Shared().PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = w.namespace
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestHistory_OlderStateRestoredBeforeMark_IsCompared suspends the only worker after it has checked Postgres and before it
// moves the marker forward. Meanwhile an older state of the same server is restored. The marker shows that.
func TestHistory_OlderStateRestoredBeforeMark_IsCompared(t *testing.T) {
	t.Parallel()
	for _, marker := range []string{"seq = 0", "seq = 0, stream_created_at = NULL"} {
		w := newGuardedWorker(t)
		mark := func() {
			t.Helper()
			if err := w.checker.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		age := func() {
			w.execute(t, `UPDATE commit_marker SET marked_at = now() - interval '1 minute'`)
			w.check(t)
		}
		w.check(t)
		age()
		mark()
		w.paid(t)
		age()
		mark()
		w.outcomes = append(w.outcomes, w.outcomes[0]) // another outcome is published
		age()
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET `+marker)
		mark()
		w.check(t)
		if n, err := reserved(t, w.guarded); n != 1 || err != nil {
			t.Errorf("%s: %d reserved, %v", marker, n, err)
		}
	}
}
