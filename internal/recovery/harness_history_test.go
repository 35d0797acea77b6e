package recovery_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// commitLog is a recovery.CommitLog of what a harness has published.
type commitLog struct {
	*harness
	late  []holds.StoredOutcome // published after the first read
	other time.Duration         // by how much later another stream was created, 0 for the first
}

func (l *commitLog) Position(context.Context) (holds.LogPosition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position(), nil
}

// position is Position for a caller that has locked mu.
func (l *commitLog) position() holds.LogPosition {
	return holds.LogPosition{Created: logCreated.Add(l.other), Seq: uint64(len(l.outcomes))}
}

func (l *commitLog) Commits(
	_ context.Context, after holds.LogPosition, each func([]holds.StoredOutcome) error,
) (last holds.LogPosition, err error) {
	var some []holds.StoredOutcome
	l.mu.Lock()
	if after.Seq > uint64(len(l.outcomes)) {
		after.Seq = 0
	}
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
	w.guard.KeepLong()
	w.log, w.commits = &replayLog{harness: w.harness}, &commitLog{harness: w.harness}
	w.supervisor = w.newSupervisor(w.log, "w1", recovery.NewEpochTerm())
	w.supervisor.Drain = 0 // no other worker publishes
	w.restart()
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

// maintain checks, and moves the marker, when its last move is long enough ago.
func (w *guardedWorker) maintain(t *testing.T) {
	t.Helper()
	w.execute(t, `UPDATE commit_marker SET marked_at = now() - interval '1 minute'`)
	w.check(t)
	if err := w.checker.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
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

// restart replaces the checker by that of a worker that starts.
func (w *guardedWorker) restart() {
	w.checker = &recovery.HistoryChecker{Store: w.store, Log: w.commits, Guard: w.guard}
	w.supervisor.CheckHistory(w.checker)
}

// history returns the name of the history that Postgres has.
func (w *guardedWorker) history(t *testing.T) string {
	t.Helper()
	return w.execute(t, `SELECT history FROM commit_marker`)
}

// readHistory reads the history that Postgres has.
func (w *guardedWorker) readHistory(t *testing.T) (recovery.History, error) {
	t.Helper()
	state, err := w.store.State(t.Context(), "")
	return state.History, err
}

// compareElsewhere lets another worker begin to compare.
func (w *guardedWorker) compareElsewhere(t *testing.T) {
	t.Helper()
	if held, err := w.store.KeepLease(t.Context(), "commit history", "other", 30*time.Second); err != nil || !held {
		t.Fatalf("%v %v", held, err)
	}
}

// startWhileComparedElsewhere starts the worker again on an older state, which lacks a published payment, while another worker
// compares: it is refused.
func (w *guardedWorker) startWhileComparedElsewhere(t *testing.T) {
	t.Helper()
	w.paidAndForgotten(t)
	w.compareElsewhere(t)
	w.restart()
	if _, err := w.supervisor.Check(t.Context()); !isRefused(err) {
		t.Errorf("while another worker compares: %v", err)
	}
}

// paidAndForgotten restores an older state of the same server, which lacks a published payment.
func (w *guardedWorker) paidAndForgotten(t *testing.T) {
	t.Helper()
	w.maintain(t) // the marker of no outcome
	w.paid(t)
	w.forget(t)
}

// paidUnpublished pays a hold and loses its outcome: the payment waits in the log.
func (w *guardedWorker) paidUnpublished(t *testing.T) holds.HoldID {
	t.Helper()
	id := w.paid(t)
	w.outcomes = w.outcomes[:1] // hold.confirmed was not published
	w.log.payments = []holds.Payment{{ConfirmRequest: holds.ConfirmRequest{Hold: id, PaymentID: "p"},
		At: holds.Time{Time: w.now}}}
	return id
}

// rebuildAsSupervisor rebuilds Redis, and the harness decides under the new epoch.
func (w *guardedWorker) rebuildAsSupervisor(t *testing.T) {
	t.Helper()
	if _, err := w.supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	w.adoptEpoch(t)
}
