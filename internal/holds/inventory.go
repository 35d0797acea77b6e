package holds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/lua"
)

// InventoryRequest sets the capacity of slots.
type InventoryRequest struct {
	EventID   string         // names the event: the same at every delivery of it
	Position  StreamPosition // a later event wins whenever it is delivered
	Resource  string
	Selection SlotSelection
	Capacity  int64
}

// StreamPosition is where an event is in the inbound streams, which may have been created several times. Of
// two events the later is that of the stream created later, or the one with the higher Seq in it.
type StreamPosition struct {
	At              time.Time // by the clock of the server that led the stream then: it says nothing of the order
	StreamCreatedAt time.Time
	Seq             uint64
}

// CapacityChange sets the capacity of all of a resource's slots or of none of them.
type CapacityChange struct {
	EventID  string
	Position StreamPosition
	Resource string
	Names    []string // sorted
	Capacity int64
	Held     []int64 // what live holds take of each, only to be told in the answer
}

// CapacityDecision is the answer to a CapacityChange, the same whenever the same cause asks.
type CapacityDecision struct {
	BelowReserved bool         `json:"below_reserved,omitzero"` // refused: more is reserved of some slot
	Slots         []SlotCounts `json:"slots"`                   // as they are after the change; nil when refused
}

// BumpRevisions bumps rev, so that a decision on capacities or reservations of these resources that were read before
// is refused and made again. A name that is no resource id has no holds; it says that any row may have changed. Where
// rev is damaged nothing is decided until that is repaired.
func (s *Service) BumpRevisions(ctx context.Context, resources ...string) error {
	for _, resource := range resources {
		if ResourcePattern.MatchString(resource) {
			s.rows.drop(resource)
		} else {
			s.rows.syncLost()
		}
	}
	return errors.Join(slices.DeleteFunc(s.bump(ctx, resources), func(err error) bool { return errors.Is(err, ErrCorrupt) })...)
}

// bump bumps the rev of each resource. It returns ErrCorrupt for one whose rev is no number.
func (s *Service) bump(ctx context.Context, resources []string) []error {
	errs := make([]error, len(resources))
	if s.dry {
		return errs
	}
	var calls []*lua.Call
	var indices []int
	for i, resource := range resources {
		if ResourcePattern.MatchString(resource) {
			calls, indices = append(calls, s.newCall(scriptBump, resource)), append(indices, i)
		}
	}
	s.run(ctx, calls...)
	for j, c := range calls {
		if err := c.Expect(0); err != nil {
			errs[indices[j]] = fmt.Errorf("bump rev of %s: %w", resources[indices[j]], err)
		}
	}
	return errs
}

// SetInventory sets capacities and bumps rev, so that whoever has read the old ones decides again.
func (s *Service) SetInventory(ctx context.Context, r InventoryRequest) Result {
	reject := func(reason, field string) Result {
		return Result{Outcome: Outcome{
			Event: EventInventoryRejected, Resource: r.Resource,
			Data: InventoryRejected{ResourceID: r.Resource, Reason: reason, Field: field},
		}}
	}
	s, err := s.forCurrentEpoch()
	if err != nil {
		return Result{Err: err}
	}
	names, err := r.Selection.names(nightsWindow{max: InventorySlotsMax})
	if err == nil && r.Capacity < 0 {
		err = invalid("capacity", "must not be negative")
	}
	var wrong *InvalidError
	if errors.As(err, &wrong) {
		return reject(ReasonInvalidRequest, wrong.Field)
	}
	held, err := s.heldCounts(ctx, r.Resource, names)
	if err != nil {
		return Result{Err: fmt.Errorf("set inventory of %s: %w", r.Resource, err)}
	}
	answer, err := s.inventory.SetCapacity(ctx, CapacityChange{r.EventID, r.Position, r.Resource, names, r.Capacity, held})
	if err == nil {
		err = errors.Join(s.bump(ctx, []string{r.Resource})...)
	}
	if err != nil {
		return Result{Err: fmt.Errorf("set inventory of %s: %w", r.Resource, err)}
	}
	if answer.BelowReserved {
		return reject(ReasonBelowReserved, "capacity")
	}
	return Result{Outcome: Outcome{
		Event: EventInventoryUpdated, Resource: r.Resource,
		Data: InventoryUpdated{ResourceID: r.Resource, Slots: answer.Slots},
	}}
}
