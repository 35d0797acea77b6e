package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
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

// Policy is what may be asked for, and for how long things last.
type Policy struct {
	HoldTTL         time.Duration // of a request that names none
	HoldTTLMax      time.Duration // longest ttl of a request
	HoldLifetimeMax time.Duration // longest life of a hold, extensions included
	PaymentWindow   time.Duration // what a hold has at least when its payment was started
	LatePayment     LatePayment   // what becomes of a payment for a hold that has lapsed
	HoldsPerUser    int           // live holds of one user on one resource
	NightsMax       int           // nights in one request
	HorizonDays     int           // days ahead that can be asked for
	RequestKeyTTL   time.Duration // how long answers and ended holds are remembered
	LockWait        time.Duration // how long a group waits for its lock
}

// LatePayment is what becomes of a payment for a hold that has lapsed.
type LatePayment string

// A late payment is rejected, or takes the slots of its hold again if they are free.
const (
	LateRejected       LatePayment = "reject"
	LateAcceptedIfFree LatePayment = "accept_if_free"
)

// Stock is Postgres' row for one slot. Known is false when there is none.
type Stock struct {
	Known    bool
	Capacity int64
	Reserved int64
}

// Inventory is what Postgres decides.
type Inventory interface {
	// Stock reads the rows of each resource's slots, all in one query: the answer has the shape
	// of slots. What it reads was committed at some moment after the call began.
	Stock(ctx context.Context, resources []string, slots [][]string) ([][]Stock, error)
	// Answered reads the permanent answers that payments have already. DecidedAt is zero where
	// there is none yet.
	Answered(ctx context.Context, payments []Payment) ([]PaymentAnswer, error)
	// Decide gives each payment its permanent answer: the one that it has, or a new one. It
	// may be repeated after any error. Where only some could not be decided, their answers say so.
	Decide(ctx context.Context, payments []Payment) ([]PaymentAnswer, error)
	// Cancel cancels reservations and gives their slots back; now is asked after the commit. A
	// repeated cause gets its first answer. It may be repeated after any error. Where only some
	// could not be decided, their answers say so.
	Cancel(ctx context.Context, requests []CancelRequest, now func(context.Context) (Time, error)) ([]CancelAnswer, error)
	// SetCapacity sets the capacity of all slots or of none, once for each cause: a repeated
	// cause gets the first answer, and an event that was stored before one that has been applied
	// changes nothing. Held is only for the answer.
	SetCapacity(ctx context.Context, change CapacityChange) (CapacityAnswer, error)
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
	keys      keyspace
	redis     redis.UniversalClient
	locker    *locking.Locker
	inventory Inventory
	epoch     string
	policy    Policy
	dry       bool // nothing is written
}

// NewService returns a Service for a namespace. The client must have MaxRetries -1 (see run),
// the locker must do its work on the same Redis, and epoch must be what Initialise wrote.
func NewService(namespace string, client redis.UniversalClient, locker *locking.Locker, inventory Inventory, epoch string, policy Policy) *Service {
	return &Service{keys: keyspace(namespace), redis: client, locker: locker, inventory: inventory, epoch: epoch, policy: policy}
}

// memory is how long ended holds and answers are remembered, in ms, as an argument.
func (s *Service) memory() int64 { return s.policy.RequestKeyTTL.Milliseconds() }

// Now reads Redis' clock.
func (s *Service) Now(ctx context.Context) (Time, error) {
	now, err := s.redis.Time(ctx).Result()
	if err != nil {
		return Time{}, fmt.Errorf("read the clock of redis: %w", err)
	}
	return TimeFromMillis(now.UnixMilli()), nil
}

// Initialise writes the epoch to every partition of an empty Redis. Where there is another
// epoch it returns ErrDataLost: this Redis belongs to another database.
func Initialise(ctx context.Context, namespace string, client redis.UniversalClient, epoch string) error {
	keys := keyspace(namespace)
	for p := range Partitions {
		if err := client.SetNX(ctx, keys.epoch(p), epoch, 0).Err(); err != nil {
			return fmt.Errorf("write epoch of partition %d: %w", p, err)
		}
	}
	return CheckEpoch(ctx, namespace, client, epoch)
}

// CheckEpoch returns ErrDataLost unless every partition has the epoch.
func CheckEpoch(ctx context.Context, namespace string, client redis.UniversalClient, epoch string) error {
	keys := keyspace(namespace)
	pipe := client.Pipeline()
	found := make([]*redis.StringCmd, Partitions)
	for p := range found {
		found[p] = pipe.Get(ctx, keys.epoch(p))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read epochs: %w", err)
	}
	for p, cmd := range found {
		if cmd.Val() != epoch {
			return fmt.Errorf("partition %d: %w", p, ErrDataLost)
		}
	}
	return nil
}
