package recovery_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

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
			w.maintain(t)
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
	w.startWhileComparedElsewhere(t)
	h, err := w.readHistory(t)
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

// TestHistoryChecker_PutBackAtStart_IsCounted starts a worker on an older state of the same server while another worker
// compares. When the new one compares itself, its log has the number of outcomes that it has put back at its start.
func TestHistoryChecker_PutBackAtStart_IsCounted(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.startWhileComparedElsewhere(t)
	var log bytes.Buffer
	w.supervisor.Log = zerolog.New(&log)
	if err := w.store.ReleaseLease(t.Context(), "commit history", "other"); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	if !strings.Contains(log.String(), `"restored":1,"message":"postgres compared`) {
		t.Errorf("one outcome was put back, the log has\n%s", &log)
	}
}

// overtakenCommits is a CommitLog that calls a function after each read of commits.
type overtakenCommits struct {
	recovery.CommitLog
	read func()
}

func (l overtakenCommits) Commits(
	ctx context.Context, after holds.LogPosition, each func([]holds.StoredOutcome) error,
) (holds.LogPosition, error) {
	defer l.read()
	return l.CommitLog.Commits(ctx, after, each)
}

// TestHistoryChecker_ComparedByOtherWhileStarting_IsUsed lets another worker compare the same server while this one, which
// starts, compares it, too. Decisions need not wait for its next check.
func TestHistoryChecker_ComparedByOtherWhileStarting_IsUsed(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	w.maintain(t)
	w.paid(t)
	w.maintain(t)
	w.restart()
	w.checker.Log = overtakenCommits{w.commits, func() {
		h, err := w.readHistory(t)
		if err == nil {
			_, err = w.store.SetCompared(t.Context(), h, h.Marker)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	w.check(t)
	if id, err := w.guard.Current(); err != nil || id != w.history(t) {
		t.Errorf("connections to the history %s are allowed (%v), want %s", id, err, w.history(t))
	}
	if n, err := reserved(t, w.openGuarded(t)); n != 1 || err != nil {
		t.Errorf("%d are reserved (%v), want 1", n, err)
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
	version := func() string { return w.execute(t, `SELECT xmin || ' ' || seq FROM commit_marker`) }
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
	h, err := w.readHistory(t)
	if err != nil {
		t.Fatal(err)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	h.Server = "7/00000001" // the server that the worker has checked
	if err := w.store.Mark(t.Context(), h, holds.LogPosition{Created: time.Unix(1, 0), Seq: 9}); err != nil {
		t.Fatal(err)
	}
	if seq := w.execute(t, `SELECT seq::text FROM commit_marker`); seq != "0" {
		t.Errorf("the marker is %s", seq)
	}
}

// TestHistoryChecker_ClockSetBack_MarkerMoves sets the clock of Postgres back by an hour: the marker seems to have been
// written in the future.
func TestHistoryChecker_ClockSetBack_MarkerMoves(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.maintain(t) // the marker of no outcome
	w.paid(t)
	w.execute(t, `UPDATE commit_marker SET marked_at = now() + interval '1 hour'`)
	w.check(t)
	if err := w.checker.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seq := w.execute(t, `SELECT seq::text FROM commit_marker`); seq != "2" {
		t.Errorf("the marker is %s, want 2", seq)
	}
}

// TestHistoryChecker_StreamGoneBack_MarkerGoesBack restores an older state of the outbound stream while two workers run. One
// moves the marker back, and logs that once. Neither takes it for an older state of Postgres, nor refuses connections.
func TestHistoryChecker_StreamGoneBack_MarkerGoesBack(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	var log bytes.Buffer
	w.supervisor.Log = zerolog.New(&log)
	w.paid(t)
	w.maintain(t)
	w.check(t)
	first := w.checker
	w.restart()
	w.check(t) // another worker has seen the marker, too
	second := w.checker
	before := w.history(t)
	w.outcomes = w.outcomes[:1]
	w.checker = first
	w.supervisor.CheckHistory(first)
	for range 2 {
		w.maintain(t)
		if seq := w.execute(t, `SELECT seq::text FROM commit_marker`); seq != "1" {
			t.Fatalf("the marker is %s, want 1", seq)
		}
		if _, err := reserved(t, w.openGuarded(t)); err != nil {
			t.Error(err)
		}
	}
	w.supervisor.CheckHistory(second)
	w.check(t)
	if _, err := reserved(t, w.openGuarded(t)); err != nil {
		t.Error(err)
	}
	if w.history(t) != before {
		t.Error("a worker has paused and compared")
	}
	if n := strings.Count(log.String(), "outbound stream has gone back"); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, &log)
	}
}

// TestHistoryChecker_StreamGoneBackAndOlderState_IsCompared restores older states of the outbound stream and of Postgres at
// once, before the marker of the worker was moved back.
func TestHistoryChecker_StreamGoneBackAndOlderState_IsCompared(t *testing.T) {
	t.Parallel()
	for _, marker := range []string{"seq = 1", "seq = 0, stream_created_at = NULL"} {
		w := newGuardedWorker(t)
		w.paid(t)
		w.outcomes = append(w.outcomes, w.outcomes[0])
		w.maintain(t)
		w.check(t)
		before := w.history(t)
		w.outcomes = w.outcomes[:2]
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET `+marker)
		w.check(t)
		if n, err := reserved(t, w.guarded); n != 1 || err != nil || w.history(t) == before {
			t.Errorf("%s: %d reserved, %v", marker, n, err)
		}
	}
}

// TestHistoryStore_MarkedBack_OnlyFromWhatWasRead lets a worker that was suspended write a lower marker after another worker
// has moved it on.
func TestHistoryStore_MarkedBack_OnlyFromWhatWasRead(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	at := func(seq uint64) holds.LogPosition {
		return holds.LogPosition{Created: time.Unix(1, 0), Seq: seq, StoredAt: time.Unix(int64(seq), 0)}
	}
	mark := func(seq uint64) (before recovery.History) {
		t.Helper()
		h, err := w.readHistory(t)
		if err == nil {
			err = w.store.Mark(t.Context(), h, at(seq))
		}
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	mark(8)
	old := mark(9)
	if err := w.store.Mark(t.Context(), old, at(3)); err != nil {
		t.Fatal(err)
	}
	if h := mark(4); h.Marker.Seq != 9 || !h.Marker.StoredAt.Equal(time.Unix(9, 0)) {
		t.Errorf("the suspended worker has written the marker %+v", h.Marker)
	}
	if h := mark(5); h.Marker.Seq != 4 || !h.Marker.StoredAt.Equal(time.Unix(4, 0)) {
		t.Errorf("the marker is %+v, want 4", h.Marker)
	}
}

// TestHistoryStore_ServerStartedAgain_NothingIsStored lets a worker that was suspended write to a server that was started
// since it has read the history, and may have older files.
func TestHistoryStore_ServerStartedAgain_NothingIsStored(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	before, err := w.readHistory(t)
	stacktest.Must(t, err)
	old, marker := before, holds.LogPosition{Created: time.Unix(1, 0), Seq: 9}
	old.Started = old.Started.Add(-time.Microsecond)
	stacktest.Must(t, w.store.Mark(t.Context(), old, marker))
	if _, err := w.store.SetCompared(t.Context(), old, marker); !errors.Is(err, recovery.ErrHistoryChanged) {
		t.Errorf("the history of the server before its start is compared: %v", err)
	}
	after, err := w.readHistory(t)
	stacktest.Must(t, err)
	if after.ID != before.ID || after.Marker != before.Marker {
		t.Errorf("the history is %+v, want %+v", after, before)
	}
}

// TestHistoryChecker_MarkerOfAnotherStream_SaysSo lets a worker with another NATS, whose stream is older, write the marker.
func TestHistoryChecker_MarkerOfAnotherStream_SaysSo(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	var log bytes.Buffer
	w.supervisor.Log = zerolog.New(&log)
	w.commits.other = time.Hour
	w.paid(t)
	w.maintain(t)
	w.check(t)
	w.execute(t, `UPDATE commit_marker SET stream_created_at = '1970-01-01T00:00:01Z'`)
	w.compareElsewhere(t)
	_, err := w.supervisor.Check(t.Context())
	const want = "another outbound stream, created at 1970-01-01T00:00:01.000Z, and this worker's was created at " +
		"2026-09-21T15:13:20.000Z: it was created again, or a worker uses another NATS"
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(log.String(), want) {
		t.Errorf("it says %v, and logs\n%s", err, &log)
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

// TestHistoryChecker_LostCommitLocked_OthersGoOn fails over while an operator removes a lost commit in a transaction that
// stays open. Decisions go on, and the log says what to do. When the row is not removed, the reservation is put back.
func TestHistoryChecker_LostCommitLocked_OthersGoOn(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	var log bytes.Buffer
	w.supervisor.Log = zerolog.New(zerolog.SyncWriter(&log))
	w.check(t)
	w.paid(t)
	w.forget(t)
	failOver := func() {
		w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
		w.check(t)
	}
	w.execute(t, `UPDATE inventory SET capacity = 0`)
	failOver()
	w.execute(t, `UPDATE inventory SET capacity = 1`)
	operator := stacktest.ConnectPostgres(t, stacktest.Shared().PostgresURL+"&search_path="+w.namespace)
	stacktest.Exec(t, operator, `BEGIN; DELETE FROM lost_commits`)
	failOver()
	next := make(chan *store.Store)
	w.checker.Store = retriedStore{w.checker.Store, next}
	w.checker.RetryLostEvery(time.Millisecond)
	stop := w.run(t, w.supervisor)
	for range 3 {
		next <- w.store // those before have ended
	}
	stacktest.Exec(t, operator, `ROLLBACK`)
	close(next)
	stacktest.Eventually(t, "the reservation to be put back", func() bool {
		n, err := reserved(t, w.guarded)
		return n == 1 && err == nil
	})
	stop()
	if n := strings.Count(log.String(), "end its transaction"); n != 1 {
		t.Errorf("the lock is logged %d times, want once:\n%s", n, &log)
	}
}

// retriedStore is a HistoryStore that puts lost commits back with one of others at a time, until there are no more.
type retriedStore struct {
	recovery.HistoryStore
	next <-chan *store.Store
}

func (s retriedStore) PutBackLost(ctx context.Context) (int, error) {
	select {
	case next, more := <-s.next:
		if !more {
			return s.HistoryStore.PutBackLost(ctx)
		}
		return next.PutBackLost(ctx)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// TestHistoryChecker_PutBackDenied_LoggedOnce has a lost commit, and a worker that may not insert reservations. That is
// logged once, and an outage of Postgres before and after it is not.
func TestHistoryChecker_PutBackDenied_LoggedOnce(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	var log bytes.Buffer
	w.supervisor.Log = zerolog.New(zerolog.SyncWriter(&log))
	w.execute(t, `INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
		VALUES ('o', 'room', 'hold.confirmed', 'a test', '{"event": "hold.confirmed", "data": {"resource_id": "room",
			"hold_id": "`+holds.NewHoldID("room").String()+`", "request_key": "k", "user_id": "ana", "quantity": 1,
			"payment_id": "p", "confirmed_at": "2026-11-21T09:00:00.000Z"}}')`)
	w.execute(t, `CREATE FUNCTION denies() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'permission denied for table reservations'; END $$`)
	w.execute(t, `CREATE TRIGGER denies BEFORE INSERT ON reservations EXECUTE FUNCTION denies()`)
	w.check(t)
	down, err := store.Open(t.Context(), "postgres://127.0.0.1:1/none", w.namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(down.Close)
	next := make(chan *store.Store)
	w.checker.Store = retriedStore{w.checker.Store, next}
	w.checker.RetryLostEvery(time.Millisecond)
	stop := w.run(t, w.supervisor)
	for _, db := range []*store.Store{down, w.store, w.store, down, w.store, w.store} {
		next <- db // those before have ended
	}
	stop()
	if n := strings.Count(log.String(), `"level":"error"`); n != 1 || !strings.Contains(log.String(), "permission denied") {
		t.Errorf("%d errors are logged, want 1:\n%s", n, &log)
	}
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

// TestCheck_NothingHasChanged_AsksPostgresOnce counts the round trips of a check. The epochs are relied on for a time from
// the first one on: with four, a server that took half a second for each ended every event.
func TestCheck_NothingHasChanged_AsksPostgresOnce(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.maintain(t) // the next check compares nothing
	var trips atomic.Int64
	db, err := store.Open(t.Context(), stacktest.Shared().PostgresURL, w.namespace, func(config *pgxpool.Config) {
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &tripsConn{Conn: conn, trips: &trips}, err
		}
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // however slow the machine is
	})
	stacktest.Must(t, err)
	t.Cleanup(db.Close)
	w.supervisor.EpochStore, w.checker.Store = db, db
	w.check(t) // opens the connection and prepares the statements
	trips.Store(0)
	w.check(t)
	if n := trips.Load(); n != 1 {
		t.Errorf("a check takes %d round trips to postgres, want 1", n)
	}
}

// tripsConn counts how often something is read after something was written.
type tripsConn struct {
	net.Conn
	trips *atomic.Int64
	wrote atomic.Bool
}

func (c *tripsConn) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *tripsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.wrote.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}

// TestHistoryChecker_CutOffWhileDumpRestored_Compares cuts a worker off while a dump is restored into the running server
// that lacks a published payment. The marker of the dump is not lower than the last one that the worker knows.
func TestHistoryChecker_CutOffWhileDumpRestored_Compares(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.paidAndForgotten(t)
	w.check(t)
	if n, err := reserved(t, w.guarded); n != 0 || err != nil {
		t.Fatalf("%d reserved %v: the payment is not forgotten", n, err)
	}
	w.checker.Age()
	const unchecked = "postgres was not checked for too long: "
	if _, err := reserved(t, w.guarded); !isRefused(err) || !strings.Contains(err.Error(), unchecked+"this worker was stopped or cut off") {
		t.Errorf("a connection that was open before is %v", err)
	}
	if _, err := reserved(t, w.openGuarded(t)); !isRefused(err) {
		t.Errorf("a new connection is %v", err)
	}
	w.execute(t, `ALTER TABLE workers RENAME TO other`)
	if _, err := w.supervisor.Check(t.Context()); err == nil {
		t.Error("a check without a table succeeds")
	}
	if _, err := reserved(t, w.guarded); !isRefused(err) || !strings.Contains(err.Error(), unchecked+"read history") {
		t.Errorf("after a failed check a connection is %v", err)
	}
	w.execute(t, `ALTER TABLE other RENAME TO workers`)
	w.check(t)
	if n, err := reserved(t, w.guarded); n != 1 || err != nil {
		t.Errorf("%d reserved %v, want 1: the payment is put back", n, err)
	}
}

// suspendingStore is an EpochStore of a worker that is suspended when it has read the state.
type suspendingStore struct {
	recovery.EpochStore
	suspend func()
}

func (s *suspendingStore) State(ctx context.Context, worker string) (recovery.PostgresState, error) {
	state, err := s.EpochStore.State(ctx, worker)
	s.suspend()
	return state, err
}

// TestHistoryChecker_SuspendedAndComparedByOther_NotPublished suspends a worker within a check, for longer than a term is
// valid. Meanwhile Postgres fails over, and another worker compares the new server.
func TestHistoryChecker_SuspendedAndComparedByOther_NotPublished(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	w.check(t)
	term := w.supervisor.Term
	before := term.Current().Of("room").TermID
	w.supervisor.EpochStore = &suspendingStore{w.store, sync.OnceFunc(func() {
		h, err := w.readHistory(t)
		if err == nil {
			_, err = w.store.SetCompared(t.Context(), h, h.Marker)
		}
		if err != nil {
			t.Error(err)
		}
		time.Sleep(recovery.TermValidity) // the time of the suspension
	})}
	w.check(t)
	atOnce, cancel := context.WithCancel(t.Context())
	cancel()
	if term.Verify(atOnce, before) == nil {
		t.Error("what was decided before the failover may be published")
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
	h, err := w.readHistory(t)
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
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	w.check(t) // it is not the first comparison, which finds nothing in Redis
	const moving = 5
	key := record.Keyspace(w.namespace).Epoch(moving)
	cluster.Move(key, (cluster.NodeOf(key)+1)%3).Begin()
	w.execute(t, `UPDATE commit_marker SET server = '8/00000001'`)
	epochs, err := w.supervisor.Check(t.Context())
	if lost := record.AllPartitions &^ epochs.Complete(); err != nil || lost&^record.PartitionSetOf(moving) != 0 {
		t.Errorf("%v are rebuilt, want %d at most (%v)", lost, moving, err)
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

// TestHistoryChecker_OnlyDrainedServerAnswers_WaitsForOthers lets Postgres fail over while only that one of two servers
// answers whose partitions have all been moved to the other one. Nothing is rebuilt, and nothing decided, until that one
// answers again.
func TestHistoryChecker_OnlyDrainedServerAnswers_WaitsForOthers(t *testing.T) {
	t.Parallel()
	w := newGuardedWorker(t)
	drained := stacktest.StartRedis(t)
	both := &shards{urls: [2]string{w.redisURL, drained.RedisURL}, has: [2]record.PartitionSet{record.AllPartitions}}
	supervisor := w.newSupervisorOf(both.servers, w.store, w.log, "w1", recovery.NewEpochTerm())
	supervisor.Drain = 0
	supervisor.CheckHistory(w.checker)
	if _, err := supervisor.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.execute(t, `UPDATE commit_marker SET server = '7/00000001'`)
	both.urls[0] = "redis://127.0.0.1:1"
	if _, err := supervisor.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no partition") {
		t.Errorf("while no partition can be read: %v", err)
	}
	if _, err := w.guard.Current(); err == nil {
		t.Error("decisions are not refused")
	}
	both.urls[0] = w.redisURL
	if epochs, err := supervisor.Check(t.Context()); err != nil || epochs.Complete() != record.AllPartitions {
		t.Errorf("%v are complete: %v", epochs.Complete(), err)
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

// TestHistory_OlderStateRestoredBeforeMark_IsCompared suspends the only worker after it has checked Postgres and before it
// moves the marker forward. Meanwhile an older state of the same server is restored. The marker shows that.
func TestHistory_OlderStateRestoredBeforeMark_IsCompared(t *testing.T) {
	t.Parallel()
	for _, marker := range []string{"seq = 0", "seq = 0, stream_created_at = NULL"} {
		w := newGuardedWorker(t)
		w.check(t)
		w.maintain(t)
		w.paid(t)
		w.maintain(t)
		w.outcomes = append(w.outcomes, w.outcomes[0]) // another outcome is published
		w.execute(t, `UPDATE commit_marker SET marked_at = now() - interval '1 minute'`)
		w.check(t)
		w.forget(t)
		w.execute(t, `UPDATE commit_marker SET `+marker)
		if err := w.checker.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.check(t)
		if n, err := reserved(t, w.guarded); n != 1 || err != nil {
			t.Errorf("%s: %d reserved, %v", marker, n, err)
		}
	}
}
