package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/record"
)

// The bounds of one call of a script.
const (
	sweepMax         = 200             // holds that one call lapses
	groupSlotsMax    = 1000            // slots in the union of a group (unpack breaks near 8,000 values), and
	groupRequestsMax = 256             // requests in it: others wait for the end of the script, and place.lua writes 2 values a slot and 4 a request at once
	readAge          = 2 * time.Second // what was read from Postgres is decided on within it
	announceLease    = 5 * time.Second
	staleRoundsMax   = 100 // times that Postgres is read again because rev changed meanwhile
)

// InventoryRow is Postgres' row for one slot. Known is false when there is none.
type InventoryRow struct {
	Known    bool
	Capacity int64
	Reserved int64
}

// Inventory is what Postgres decides.
type Inventory interface {
	// InventoryRows reads the rows of each resource's slots, all in one query: the answer has the shape
	// of slots. What it reads was committed at some moment after the call began.
	InventoryRows(ctx context.Context, resources []string, slots [][]string) ([][]InventoryRow, error)
	// FindDecisions reads the permanent answers that payments have already. DecidedAt is zero where
	// there is none yet.
	FindDecisions(ctx context.Context, payments []Payment) ([]PaymentDecision, error)
	// Decide gives each payment its permanent answer: the one that it has, or a new one. It
	// may be repeated after any error. Where only some could not be decided, their answers say so.
	// It returns ErrDataLost unless the epoch, under which they were claimed, is the current one
	// until all is committed.
	Decide(ctx context.Context, epoch string, payments []Payment) ([]PaymentDecision, error)
	// Cancel cancels reservations and gives their slots back; now is asked after the commit. A
	// repeated cause gets its first answer. It may be repeated after any error. Where only some
	// could not be decided, their answers say so.
	Cancel(ctx context.Context, requests []CancelRequest, now func(context.Context) (Time, error)) ([]CancelDecision, error)
	// SetCapacity sets the capacity of all slots or of none, once for each cause: a repeated
	// cause gets the first answer, and an event that was stored before one that has been applied
	// changes nothing. Held is only for the answer.
	SetCapacity(ctx context.Context, change CapacityChange) (CapacityDecision, error)
}

// Announcer stores a hold.expired for each outcome and returns when all are stored. It may be
// asked to announce the same hold more than once.
type Announcer interface {
	Announce(ctx context.Context, outcomes []Outcome) error
}

// Result is what became of one event: its outcome, or an error that says why there is none yet.
type Result struct {
	Outcome Outcome
	Err     error
}

// ErrBusy says that the work was kept from being decided by other work on the same slots or
// hold. Nothing was written; it should be tried again soon.
var ErrBusy = errors.New("busy")

// Service decides about holds.
type Service struct {
	keys      record.Keyspace
	redis     redis.UniversalClient
	locker    *locking.Locker
	inventory Inventory
	term      Term
	rows      *rowCache
	policy    Policy
	dry       bool // nothing is written

	// onCorruption is called for each resource that a script finds damaged, nil = nobody is told.
	onCorruption func(resource string)

	// Of one piece of work, see under.
	epoch    string
	epochArg string   // what every script is given of it
	policies Policies // that are stored, nil = the policy is the worker's own
}

// NewService returns a Service for a namespace. The client must have MaxRetries -1 (see run),
// and the locker must do its work on the same Redis.
func NewService(namespace string, client redis.UniversalClient, locker *locking.Locker, inventory Inventory, term Term, policy Policy) *Service {
	return &Service{keys: record.Keyspace(namespace), redis: client, locker: locker, inventory: inventory, term: term, rows: newRowCache(), policy: policy}
}

// OnCorruption has f called for each resource that a script finds damaged, before anything is decided.
// It must not wait.
func (s *Service) OnCorruption(f func(resource string)) { s.onCorruption = f }

// forCurrentEpoch returns a Service for one piece of work: all of it is done under one epoch, the one that is
// the current one now. What it reads before Redis loses its data does not go with what others have
// written after. It returns an ErrDataLost while there is none.
func (s *Service) forCurrentEpoch() (*Service, error) {
	current, err := s.term.Current()
	if err != nil {
		return nil, err
	}
	work := *s
	work.epoch, work.epochArg = current.Name, current.ScriptArg()
	if work.policies = current.Policies; work.policies != nil {
		work.policy = work.policies.At(time.Now())
		work.policy.LockWait = s.policy.LockWait
	}
	return &work, nil
}

// policyAt is the policy by which a request is validated, by when its event was stored.
func (s *Service) policyAt(storedAt time.Time) Policy {
	if s.policies == nil {
		return s.policy
	}
	return s.policies.At(storedAt)
}

// emitErrors is the result of each of n requests.
func emitErrors(n int, err error, emit func(i int, r Result)) {
	for i := range n {
		emit(i, Result{Err: err})
	}
}

// Epoch returns the epoch that is the current one now and the version of the stored policies, "" while
// Redis is not used. What is decided by a call that begins after it is decided under these, or later ones.
func (s *Service) Epoch() string {
	current, _ := s.term.Current() // "" when there is none
	return current.TermID
}

// WaitReady and Verify are those of the Term.
func (s *Service) WaitReady(ctx context.Context) error            { return s.term.WaitReady(ctx) }
func (s *Service) Verify(ctx context.Context, epoch string) error { return s.term.Verify(ctx, epoch) }

// requestKeyTTLMS is how long ended holds and answers are remembered, in ms, as an argument.
func (s *Service) requestKeyTTLMS() int64 { return s.policy.RequestKeyTTL.Milliseconds() }

// Now reads Redis' clock.
func (s *Service) Now(ctx context.Context) (Time, error) {
	now, err := s.redis.Time(ctx).Result()
	if err != nil {
		return Time{}, fmt.Errorf("read the clock of redis: %w", err)
	}
	return TimeFromMillis(now.UnixMilli()), nil
}
