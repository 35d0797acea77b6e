package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/failpoint"
	"holdfast/internal/holds"
)

// The times of a HistoryChecker.
const (
	commitMarkEvery  = 400 * time.Millisecond // between two markers, of all workers together
	commitMarkWithin = time.Second
	compareLease     = 30 * time.Second // of the worker that compares
	compareLeaseName = "commit history"
	lostRetryEvery   = 10 * time.Second // between two attempts to put lost commits back
	// knownFor is how long after a check the history counts as known. No dump of later commits than those that the worker
	// knows can have been taken and restored within that, and a slow server is checked more often.
	knownFor = 10 * time.Second
)

// HistoryChecker notices that Postgres may lack commits, and compares it with the published
// outcomes before any decision reads from it. One of the workers compares while the others wait.
//
//	check ──► same history and start, marker not lower ──── else ──► compare from the marker of that server
//	  ▲            │ guard: allow                                      │ guard: block
//	  └── 500 ms ──┴───────────────── next history ────────────────────┘
//
// See doc.go for what it puts back, and what becomes a lost commit. One goroutine uses it, but for retryLost.
type HistoryChecker struct {
	Store HistoryStore
	Log   CommitLog
	Guard *HistoryGuard

	supervisor     *Supervisor   // whose name, log and metrics it uses; Supervisor.CheckHistory sets it
	lostRetryEvery time.Duration // between two attempts to put lost commits back

	known     History   // of the last check that succeeded; its ID is "" before
	knownAt   moment    // when known was read, or earlier
	readAt    time.Time // when the history was last read, or earlier
	noticed   History   // the history that is not compared yet
	noticedAt time.Time // when it was noticed, zero when there is none
	restored  int       // outcomes put back since the last check that succeeded
}

// Check checks the history of Postgres, which was read at readAt, or later. It returns an error, and the guard
// permits no connection, until the history was compared. It reports whether it has compared it: then what was read
// before may be too old.
func (c *HistoryChecker) Check(ctx context.Context, h History, readAt time.Time) (compared bool, err error) {
	c.readAt = readAt
	again := c.known.ID == "" || !h.Started.Equal(c.known.Started) || c.knownAt.since() > c.Guard.knownFor
	if !again && h.Server == h.Compared && h.Marker.SameStream(c.known.Marker) && !h.continues(c.known) {
		// Another worker has moved the marker back with the stream, or this is an older state of the server.
		if again, err = c.goneBack(ctx, c.known.Marker); err != nil {
			return false, err
		}
	}
	switch {
	case again && h.Server == h.Compared:
		compared = true
		h, err = c.begin(ctx, h)
	case again || !h.continues(c.known):
		compared = true
		h, err = c.compare(ctx, h)
	}
	if err != nil {
		return false, err
	}
	c.known, c.knownAt, c.noticedAt, c.restored = h, momentAt(c.readAt), time.Time{}, 0
	c.Guard.allow(h, c.knownAt)
	c.supervisor.Metrics.lostCommits.Set(float64(h.Lost))
	return compared, nil
}

func (c *HistoryChecker) read(ctx context.Context) (History, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresCheckTimeout)
	defer cancel()
	c.readAt = time.Now()
	state, err := c.Store.State(ctx, "")
	return state.History, err
}

// goneBack reports whether the outbound stream ends before a position that it had.
func (c *HistoryChecker) goneBack(ctx context.Context, p holds.LogPosition) (bool, error) {
	end, err := c.end(ctx)
	return err == nil && end.SameStream(p) && end.Seq < p.Seq, err
}

// end returns the end of the outbound stream.
func (c *HistoryChecker) end(ctx context.Context) (holds.LogPosition, error) {
	ctx, cancel := context.WithTimeout(ctx, commitMarkWithin)
	defer cancel()
	return c.Log.Position(ctx)
}

// begin compares once when the worker starts: the data may have been replaced by older data of the
// same server while no worker ran. It does so again when the server was started again, or not checked for knownFor,
// because a worker that could not reach it before knows too little to notice older data by their marker, and when the
// marker was moved back.
func (c *HistoryChecker) begin(ctx context.Context, h History) (History, error) {
	if h.Marker == (holds.LogPosition{}) {
		return h, nil // no worker has marked it: what was published before is taken to be there
	}
	if _, err := c.putBack(ctx, h.Marker); err != nil {
		return h, err
	}
	now, err := c.read(ctx)
	switch {
	case err == nil && !now.Started.Equal(h.Started):
		return h, ErrHistoryChanged
	case err != nil || now.continues(h):
		return now, err // also the history that another worker has begun meanwhile
	}
	return c.compare(ctx, h) // it lacked something
}

// compare puts back what a server lacks, and begins its next history.
func (c *HistoryChecker) compare(ctx context.Context, h History) (next History, err error) {
	why := c.whyCompared(ctx, h)
	// Another worker may have compared what was noticed before, and have decided there until this one replaced it.
	if c.noticedAt.IsZero() || h.Server != c.noticed.Server || h.ID != c.noticed.ID {
		c.noticed, c.noticedAt = h, time.Now()
		c.supervisor.Log.Warn().Str("server", h.Server).Str("server_before", h.Compared).Uint64("marker", h.Marker.Seq).
			Str("why", why).Msg("postgres may lack commits, paused until compared with the outbound stream")
	}
	c.Guard.block(why)
	failpoint.Hit("history.noticed")
	held, err := c.Store.KeepLease(ctx, compareLeaseName, c.supervisor.Name, compareLease)
	if err != nil {
		return h, err
	}
	if !held {
		return h, errComparing(why)
	}
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgresCheckTimeout)
		defer cancel()
		_ = c.Store.ReleaseLease(release, compareLeaseName, c.supervisor.Name) // or the lease expires
	}()
	last, err := c.putBack(ctx, h.Marker)
	if err != nil {
		return h, err
	}
	if err := sleep(ctx, time.Until(c.noticedAt.Add(c.supervisor.Drain))); err != nil {
		return h, err
	}
	if last, err = c.putBack(ctx, last); err != nil {
		return h, err
	}
	again, err := c.Store.PutBackLost(ctx)
	c.restored += again
	if err != nil && !errors.Is(err, holds.ErrBusy) { // retryLost logs that
		return h, err
	}
	if err := c.supervisor.afterLostCommits(ctx); err != nil {
		return h, err
	}
	failpoint.Hit("history.compared")
	if next, err = c.Store.SetCompared(ctx, h, last); err != nil {
		return h, err
	}
	c.supervisor.Log.Warn().Str("server", h.Server).Int("restored", c.restored).
		Msg("postgres compared, processing resumed")
	return c.afterCompare(ctx, next)
}

// whyCompared describes for operators why a server is compared.
func (c *HistoryChecker) whyCompared(ctx context.Context, h History) string {
	why := fmt.Sprintf("server %s, compared %s, marker %d", h.Server, h.Compared, h.Marker.Seq)
	if h.Server != h.Compared || h.Marker == (holds.LogPosition{}) {
		return why
	}
	end, err := c.end(ctx)
	if err != nil || end.SameStream(h.Marker) {
		return why
	}
	return fmt.Sprintf("its marker is of another outbound stream, created at %s, and this worker's was created at %s: "+
		"it was created again, or a worker uses another NATS (all workers of a namespace must use the same)",
		h.Marker.Created.UTC().Format(holds.TimeFormat), end.Created.UTC().Format(holds.TimeFormat))
}

// afterCompare reads how many lost commits remain, and reports them.
func (c *HistoryChecker) afterCompare(ctx context.Context, h History) (History, error) {
	found, err := c.read(ctx)
	if err == nil && (found.ID != h.ID || !found.Started.Equal(h.Started)) {
		err = ErrHistoryChanged
	}
	if err == nil && found.Lost > 0 {
		c.supervisor.Log.Error().Int("lost_commits", found.Lost).
			Msg("published outcomes cannot be put back into postgres, nothing is granted on their resources")
	}
	return found, err
}

// putBack puts back what is missing of the outcomes after a position, and counts it in restored.
func (c *HistoryChecker) putBack(ctx context.Context, after holds.LogPosition) (last holds.LogPosition, err error) {
	renewed := time.Now()
	return c.Log.Commits(ctx, after, func(outcomes []holds.StoredOutcome) error {
		if !c.noticedAt.IsZero() && time.Since(renewed) > compareLease/3 {
			renewed = time.Now()
			if held, err := c.Store.KeepLease(ctx, compareLeaseName, c.supervisor.Name, compareLease); err != nil || !held {
				return fmt.Errorf("lease of the comparison lost: %w", errComparing("replaced"))
			}
		}
		n, err := c.Store.PutBack(ctx, outcomes)
		c.restored += n
		return err
	})
}

// Maintain moves the marker to the end of the outbound stream. It writes nothing while nothing is published. Its errors
// need no reaction: the next call repeats it.
//
// The marker goes back when the stream ends before it: an older state of the stream was restored, or a leader that was
// just elected does not know its last messages yet. A lower marker is always right, it only makes a comparison longer.
// When the stream has grown beyond the marker before any worker has seen that, the marker is right again, because this
// server has every commit until now. A marker in an older state of this server is not: Commits recognizes it by the time
// of its message, and passes everything. What remains: a dump is restored on this server while a worker runs, and
// while the stream still ends before the marker of that state. It is taken for a marker that another worker has moved
// forward, and goes back without a comparison. A worker that starts on that state compares everything.
func (c *HistoryChecker) Maintain(ctx context.Context) error {
	h := c.known
	if h.ID == "" || !c.noticedAt.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitMarkWithin)
	defer cancel()
	// A marker of the future is from before the clock was set back.
	if h.Marker != (holds.LogPosition{}) && h.MarkerAge >= 0 && h.MarkerAge < commitMarkEvery {
		return nil
	}
	end, err := c.Log.Position(ctx)
	if err != nil {
		return err
	}
	if end.Seq == h.Marker.Seq && end.SameStream(h.Marker) {
		return nil
	}
	if err := c.Store.Mark(ctx, h, end); err != nil {
		return err
	}
	if end.SameStream(h.Marker) && end.Seq < h.Marker.Seq {
		c.known.Marker = end // else the next check takes the server for an older state
		c.Guard.allow(c.known, c.knownAt)
		c.supervisor.Log.Warn().Uint64("marker", h.Marker.Seq).Uint64("last", end.Seq).
			Msg("outbound stream has gone back, restored from a backup? commit marker moved back")
	}
	return nil
}

// refusedError is an error of Postgres that may be no outage. *postgres.Error implements it.
type refusedError interface {
	error
	Rejected() bool // an invalid value or a violated constraint
	Denied() string // the message when the role lacks a privilege, "" for other errors
}

// retryLost tries again to put lost commits back, until ctx ends. It has a goroutine of its own, because
// many of them take long. Several workers may do it at once: a transaction that meets another one is repeated.
func (c *HistoryChecker) retryLost(ctx context.Context) {
	var failed failure
	for sleep(ctx, c.lostRetryEvery) == nil {
		if !c.Guard.hasLost() { // or compare does it
			failed = failure{}
			continue
		}
		restored, err := c.Store.PutBackLost(ctx)
		switch refused, is := errors.AsType[refusedError](err); {
		case err == nil, errors.Is(err, holds.ErrBusy), is && (refused.Rejected() || refused.Denied() != ""):
			if failed.isNew(err) {
				c.supervisor.Log.Error().Err(err).Msg("lost commits not put back, will retry")
			}
		default: // an outage, which the checks log
			c.supervisor.Log.Debug().Err(err).Msg("lost commits not put back, will retry")
		}
		if restored > 0 {
			c.supervisor.Log.Info().Int("restored", restored).Msg("lost commits put back")
		}
	}
}
