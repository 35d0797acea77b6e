package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/holds"
)

// History says which commits a Postgres server has. A server that replaces another one, or that was
// restored, has another name; it may lack commits.
type History struct {
	Server   string    // the server and its timeline: every promotion and every restore to a time starts a timeline
	Started  time.Time // when the server was started last. Its files may be older ones since
	Compared string    // the Server whose commits were last compared with the published outcomes
	ID       string    // changes with each comparison
	// Marker is a position in the outbound stream: every outcome up to it follows from a commit
	// that the server has, or from one in LostCommits. It is zero when no worker has stored one.
	Marker    holds.LogPosition
	MarkerAge time.Duration
	Lost      int // number of lost commits that could not be put back
}

// continues reports whether a server has all commits that it, or another worker's server, had at an
// earlier check.
func (h History) continues(before History) bool {
	switch a, b := h.Marker, before.Marker; {
	case h.Server != h.Compared:
		return false
	case a.SameStream(b):
		return a.Seq >= b.Seq
	default:
		return a.Created.After(b.Created)
	}
}

// ErrHistoryChanged says that another worker has compared the history meanwhile, or that the server
// is another one. Nothing was changed.
var ErrHistoryChanged = errors.New("history of postgres changed concurrently")

// HistoryError is the error of a connection to a Postgres server that may lack commits, or was not checked for too long.
type HistoryError struct {
	Why       string
	Unchecked bool // Why says why it was not checked
}

func (e *HistoryError) Error() string {
	if e.Unchecked {
		return "postgres was not checked for too long: " + e.Why
	}
	return "postgres may lack commits: " + e.Why
}

// SafeToRetry makes it an error of a connection, as those of pgx: an outage, and the fault of no event.
func (*HistoryError) SafeToRetry() bool { return true }

// HistoryStore is implemented by Postgres.
type HistoryStore interface {
	// State is that of EpochStore.
	State(ctx context.Context, worker string) (PostgresState, error)
	// Mark moves the marker of a history forward, or back when the server has exactly the marker of h. It
	// changes nothing when the server has another history, or a lower marker than h, or was started again.
	Mark(ctx context.Context, h History, marker holds.LogPosition) error
	// PutBack writes what follows from outcomes and is missing, in the order of the outcomes. It
	// stores those that contradict what the server has as lost commits. It returns the number of
	// those that it has put back. When anything was missing, it marks the server as one that was not
	// compared, so that every worker compares it, also when this one is killed. It may be called again
	// with the same outcomes.
	PutBack(ctx context.Context, outcomes []holds.StoredOutcome) (restored int, err error)
	// PutBackLost does the same with the lost commits, and removes those that it has put back. It stores the
	// reasons of the others when they have changed. It returns holds.ErrBusy when it has tried all but those whose rows
	// another session has locked.
	PutBackLost(ctx context.Context) (restored int, err error)
	// SetCompared begins the next history of a server: everything up to marker was compared. It
	// returns ErrHistoryChanged when the server has another history than h, or was started again.
	SetCompared(ctx context.Context, h History, marker holds.LogPosition) (History, error)
	// EndRebuilds ends all rebuilds that run: CompleteEpoch and RenewEpochLease return ErrEpochChanged to them.
	EndRebuilds(ctx context.Context) error
	// KeepLease takes or renews a lease, and reports whether holder has it now.
	KeepLease(ctx context.Context, name, holder string, lease time.Duration) (held bool, err error)
	// ReleaseLease ends a lease if holder has it.
	ReleaseLease(ctx context.Context, name, holder string) error
}

// CommitLog reads the published outcomes that follow from commits in Postgres.
type CommitLog interface {
	// Position returns the end of the outbound stream.
	Position(ctx context.Context) (holds.LogPosition, error)
	// Commits passes these outcomes after a position, in their order and a bounded number at a
	// time, up to the last one at the time of the call. It returns the position of that one. When
	// the stream is another one than that of the position, or an older state of it was restored since, it
	// passes all of them.
	Commits(
		ctx context.Context, after holds.LogPosition, each func([]holds.StoredOutcome) error,
	) (last holds.LogPosition, err error)
}

// HistoryGuard permits connections to Postgres servers that have all commits. Every connection that
// decisions use is checked when it opens and each time that it is used. None is permitted that was not checked for
// knownFor. It is safe for concurrent use.
type HistoryGuard struct {
	knownFor time.Duration // after a check

	mu      sync.Mutex
	allowed *History // nil while no connection is permitted
	at      moment   // when allowed was read, or earlier
	why     string   // the reason while allowed is nil
	failed  string   // why the last check has failed, "" when it has not
}

// NewHistoryGuard returns a HistoryGuard that permits nothing.
func NewHistoryGuard() *HistoryGuard { return &HistoryGuard{knownFor: knownFor, why: notCheckedYet} }

// Check returns a *HistoryError unless a new connection to a server with a history is permitted.
// The connection is used only as long as Current returns the same ID.
func (g *HistoryGuard) Check(h History) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch err := g.refusal(); {
	case err != nil:
		return err
	case h.ID != g.allowed.ID || h.Server != g.allowed.Server || !h.Started.Equal(g.allowed.Started) || !h.continues(*g.allowed):
		return &HistoryError{Why: "another server, or an older state of the same: its commits were not compared yet"}
	}
	return nil
}

// Current returns the ID of the history whose connections are permitted, or a *HistoryError.
func (g *HistoryGuard) Current() (id string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refusal(); err != nil {
		return "", err
	}
	return g.allowed.ID, nil
}

// refusal returns the reason for which no connection is permitted, nil when some are. The caller holds the lock.
func (g *HistoryGuard) refusal() error {
	switch {
	case g.allowed == nil:
		return &HistoryError{Why: g.why}
	case g.at.since() > g.knownFor:
		return &HistoryError{Why: cmp.Or(g.failed, "this worker was stopped or cut off"), Unchecked: true}
	}
	return nil
}

// fail notes why a check has failed.
func (g *HistoryGuard) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = err.Error()
}

// hasLost reports whether a server is permitted that has lost commits.
func (g *HistoryGuard) hasLost() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allowed != nil && g.allowed.Lost > 0
}

// allow permits connections to a server whose history was read at a moment, or later, for knownFor from then on.
func (g *HistoryGuard) allow(h History, at moment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed, g.at, g.failed = &h, at, ""
}

func (g *HistoryGuard) block(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.allowed, g.why = nil, why
}

// errComparing is the error while another worker compares.
func errComparing(why string) error {
	return fmt.Errorf("another worker compares the commits of postgres: %w", &HistoryError{Why: why})
}
