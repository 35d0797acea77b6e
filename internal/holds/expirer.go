package holds

import (
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/record"
)

// ExpirerOptions disable the triggers of the sweep, for tests. Even without triggers, place.lua
// expires due holds before it decides, and claim.lua the hold that it would claim.
type ExpirerOptions struct {
	NoTimer         bool
	NoNotifications bool
}

// Expirer ends holds whose deadline has come and restores their counts. It announces each of them
// with hold.expired and forgets it when the event is stored. Any number of Expirers, in any number
// of workers, may work on the same holds: expire.lua restores each hold once and hands it out to
// one Expirer at a time.
//
//	timer ──────────┐
//	notifications ──┼─► sweep: expire.lua ──► announce: hold.expired stored ──► forget.lua
//	subscribed ─────┘
type Expirer struct {
	service   *Service
	announcer Announcer
	options   ExpirerOptions
	log       zerolog.Logger

	// How long after failedAt an outage may end, and after succeededAt another one may begin; a constant, except in tests.
	recoveredAfter time.Duration

	toAnnounce  chan expiredBatch
	failedAt    time.Time // when an announcement failed last, zero without an outage; used by Announce only
	loggedAt    time.Time // when a failure was logged last; likewise
	succeededAt time.Time // when a hold was announced last; likewise

	mu        sync.Mutex
	requested record.PartitionSet // partitions to sweep now
	wake      chan struct{}       // has one element when requested is not empty
	// notificationErrs says for each server to which Watch listens why notifications are unavailable,
	// nil when they are available.
	notificationErrs map[string]error
}

// NewExpirer returns an Expirer. The caller must run all three of Sweep, Watch and Announce.
func NewExpirer(s *Service, a Announcer, o ExpirerOptions, log zerolog.Logger) *Expirer {
	return &Expirer{
		service: s, announcer: a, options: o, log: log, recoveredAfter: unsettledFor,
		toAnnounce:       make(chan expiredBatch, announceQueue),
		wake:             make(chan struct{}, 1),
		notificationErrs: make(map[string]error),
	}
}

// requestSweep makes Sweep read the agenda of some partitions now.
func (e *Expirer) requestSweep(partitions record.PartitionSet) {
	e.mu.Lock()
	e.requested |= partitions
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// takeRequested returns the partitions that were requested since the last call.
func (e *Expirer) takeRequested() record.PartitionSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	partitions := e.requested
	e.requested = 0
	return partitions
}
