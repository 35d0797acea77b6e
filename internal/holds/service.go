package holds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// sweepMax is the maximum number of holds that one call of a script expires.
const sweepMax = 200

// InventoryRow has the numbers of one slot in Postgres. Known is false when the slot has no row. With LostCommits
// Postgres has lost commits of the resource: nothing of it is granted, and Capacity is what is reserved.
type InventoryRow struct {
	Known       bool
	LostCommits bool
	Capacity    int64
	Reserved    int64
}

// Inventory reads and writes inventory, payments and reservations in Postgres.
type Inventory interface {
	// InventoryRows reads the rows of each resource's slots in one query. The result has the shape
	// of slots. Every row in it was committed at some moment after the call began, or before.
	InventoryRows(ctx context.Context, resources []string, slots [][]string) ([][]InventoryRow, error)
	// FindDecisions reads the permanent answers that payments already have. DecidedAt is zero for a
	// payment without an answer. It has ErrBusy while nothing is granted on its resource.
	FindDecisions(ctx context.Context, payments []Payment) ([]PaymentDecision, error)
	// Decide returns the permanent answer to each payment: the existing one or a new one. A caller
	// may retry after any error. A payment that could not be decided while others could has an
	// error in its answer: ErrDataLost unless the epoch under which it was claimed is the current
	// one of its partition until everything is committed.
	Decide(ctx context.Context, payments []Payment) ([]PaymentDecision, error)
	// Cancel cancels reservations and gives their slots back. It calls now after the commit. A
	// repeated event id gets its first answer. A caller may retry after any error. A request that
	// could not be decided while others could has an error in its answer.
	Cancel(
		ctx context.Context, requests []CancelRequest, now func(context.Context) (Time, error),
	) ([]CancelDecision, error)
	// SetCapacities makes changes, each of the capacity of all its slots or of none, once for each event
	// id. A repeated event id gets the first answer. An event that was stored before one that has been
	// applied changes nothing. SetCapacities only copies Held to the answers. Each answer may have an error.
	SetCapacities(ctx context.Context, changes []CapacityChange) []CapacityDecision
}

// Announcer stores a hold.expired for each outcome. It returns those that are stored, and an error
// when others are not. It accepts the same hold more than once.
type Announcer interface {
	Announce(ctx context.Context, outcomes []Outcome) (stored []Outcome, err error)
}

// Result is the outcome of one event, or the error for which it has no outcome yet.
type Result struct {
	Outcome Outcome
	Err     error
}

// ErrBusy says that other work on the same slots or hold prevented a decision. Nothing was written,
// and the caller should retry soon.
var ErrBusy = errors.New("resource busy")

// Service decides about holds. It is safe for concurrent use.
type Service struct {
	keys      record.Keyspace
	redis     redis.UniversalClient
	locker    *locking.Locker
	inventory Inventory
	term      Term
	rows      *rowCache
	tries     *postgresTries
	policy    Policy // of this worker; work has the one that is in force
	dry       bool   // decide, but write nothing

	// onCorruption is called with each resource in which a script finds corruption. It may be nil.
	onCorruption func(resource string)

	metrics *Metrics // nil when nothing is measured
}

// NewService returns a Service for a namespace. The client must have MaxRetries -1, because a
// script may have run although its reply was lost. The locker must work on the same Redis.
func NewService(
	namespace string, client redis.UniversalClient, locker *locking.Locker, inventory Inventory, term Term, policy Policy,
) *Service {
	return &Service{
		keys: record.Keyspace(namespace), redis: client, locker: locker, inventory: inventory, term: term,
		rows: newRowCache(), tries: new(postgresTries), policy: policy,
	}
}

// OnCorruption sets the function that is called with each resource in which a script finds
// corruption. Call it before the first decision. f must not block.
func (s *Service) OnCorruption(f func(resource string)) { s.onCorruption = f }

// Measure sets the metrics of the Service and of its Expirer. Call it before the first decision.
func (s *Service) Measure(m *Metrics) { s.metrics = m }

// InBatch returns a context for the decisions of one batch. When a server of a Redis Cluster hangs, only the first
// decision that needs it waits for it, so that those that need other servers are made in time.
func InBatch(ctx context.Context) context.Context { return lua.TimeOutOnce(ctx) }

// TermID names what is decided under on a resource: the epoch of its partition, the version of the stored
// policies and the compared history of Postgres. It is "" while nothing is decided there. A call that
// begins later decides under these or later ones.
func (s *Service) TermID(resource string) string { return s.term.Current().Of(resource).TermID }

// AnswerTTL returns the least time for which the answer to an event that was stored at storedAt is remembered.
func (s *Service) AnswerTTL(storedAt time.Time) time.Duration {
	w := s.beginWork()
	return min(w.policyAt(storedAt).RequestKeyTTL, w.policy.RequestKeyTTL)
}

// Ready reports whether there is an epoch to decide under in any partition.
func (s *Service) Ready() bool { return s.term.Current().Ready != 0 }

// WaitReady and Verify are those of the Term.
func (s *Service) WaitReady(ctx context.Context) error           { return s.term.WaitReady(ctx) }
func (s *Service) Unreachable() error                            { return s.term.Unreachable() }
func (s *Service) Verify(ctx context.Context, term string) error { return s.term.Verify(ctx, term) }

// Publishing calls Term.Publishing.
func (s *Service) Publishing() (done func(certain bool)) { return s.term.Publishing() }

// Now reads Redis' clock. In a cluster it returns the time of the server whose clock is the most
// behind, of those that answer and have a partition in which something is decided now: no later
// than what each of them will read.
func (s *Service) Now(ctx context.Context) (Time, error) {
	of := s.term.Current().Ready
	if of == 0 {
		of = record.AllPartitions
	}
	return s.nowIn(ctx, of)
}

// nowIn is Now for the servers of some partitions.
func (s *Service) nowIn(ctx context.Context, of record.PartitionSet) (Time, error) {
	keys := make([]string, 0, of.Len())
	for p := range of.Each() {
		keys = append(keys, s.keys.Epoch(p))
	}
	now, err := lua.Time(ctx, s.redis, keys...)
	if err != nil {
		return Time{}, fmt.Errorf("read redis clock: %w", err)
	}
	return TimeFromMillis(now.UnixMilli()), nil
}
