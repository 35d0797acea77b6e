package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// InventoryRequest requests a new capacity of slots.
type InventoryRequest struct {
	EventID   string         // the same at every delivery of the event
	Position  StreamPosition // the event with the later position wins, in whatever order they are delivered
	Resource  string
	Selection SlotSelection
	Capacity  int64
}

// StreamPosition is the position of an event in the inbound stream, which may have been deleted and
// created again. Of two events, the one in the stream created later is later; in one stream, the
// one with the higher Seq. Creations that differ by less than ten seconds may be of one stream, if both events were
// stored after them: each leader of a stream that was restored in a cluster may have another time of its creation.
type StreamPosition struct {
	At              time.Time // by the clock of the stream's leader at that time
	StreamCreatedAt time.Time
	Seq             uint64
}

// CapacityChange sets the capacity of all the named slots of a resource or of none.
type CapacityChange struct {
	EventID  string
	Position StreamPosition
	Resource string
	Names    []string // sorted
	Capacity int64
	Held     []int64 // what live holds take of each slot, for the answer only
}

// CapacityDecision is the answer to a CapacityChange. It is the same for every delivery of an
// event.
type CapacityDecision struct {
	Err           error        `json:"-"`                       // ErrBusy when rows are locked
	BelowReserved bool         `json:"below_reserved,omitzero"` // rejected: a slot has more reservations
	Slots         []SlotCounts `json:"slots"`                   // after the change; nil when it was rejected
}

// BumpRevisions bumps the rev of each resource, so that a decision on capacities or reservations
// that were read before is refused and retried. A name that is not a resource id means that any row
// may have changed. BumpRevisions ignores a corrupt rev: place.lua decides nothing on that resource
// until it is repaired. When one shard of a Redis Cluster fails, it drops all cached rows instead:
// some may have been read before the change.
func (s *Service) BumpRevisions(ctx context.Context, resources ...string) error {
	var named []string
	for _, resource := range resources {
		if ValidResource(resource) {
			s.rows.drop(resource)
			named = append(named, resource)
		} else {
			s.rows.syncLost()
		}
	}
	isShards := func(err error) bool { _, is := errors.AsType[*lua.ShardError](err); return is }
	failed := s.bump(ctx, named)
	if slices.ContainsFunc(failed, isShards) {
		s.rows.syncLost()
	}
	return errors.Join(slices.DeleteFunc(failed, func(err error) bool {
		return errors.Is(err, ErrCorrupt) || isShards(err)
	})...)
}

// bump bumps the rev of each resource. It returns ErrCorrupt for a resource whose rev is not a
// number.
func (s *Service) bump(ctx context.Context, resources []string) []error {
	errs := make([]error, len(resources))
	if s.dry {
		return errs
	}
	calls := make([]*lua.Call, len(resources))
	for i, resource := range resources {
		calls[i] = s.newCallUnder(&anyEpoch, record.Partition(resource), scriptBump, resource)
	}
	lua.Run(ctx, s.redis, calls)
	for i, c := range calls {
		resource := resources[i]
		if SetReplyError(c); errors.Is(c.Err, ErrCorrupt) {
			p := record.Partition(resource)
			s.reportCorruption(p, s.term.Current().Partition(p).Name, resource, c.Err)
		}
		if err := c.Expect(0); err != nil {
			errs[i] = fmt.Errorf("bump rev of %s: %w", resource, err)
		}
	}
	return errs
}

// anyEpoch is the epoch for bump.lua, the only script that works under any epoch, or none.
var anyEpoch = CurrentEpoch{arg: ""}

// SetInventory sets capacities, and returns one result for each request. Then it bumps rev, so that a decision on the
// old ones is refused and retried.
func (s *Service) SetInventory(ctx context.Context, requests []InventoryRequest) []Result {
	w := s.beginWork()
	if err := w.epochs.Err(); err != nil { // an invalid request waits, too
		return slices.Repeat([]Result{{Err: err}}, len(requests))
	}
	results := make([]Result, len(requests))
	var changes []CapacityChange
	var resources []string
	var indices []int // in requests, of the changes
	for i, r := range requests {
		change, err := w.capacityChange(ctx, r)
		if wrong, is := errors.AsType[*InvalidError](err); is {
			results[i].Outcome = r.rejected(ReasonInvalidRequest, wrong.Field)
		} else if err != nil {
			results[i].Err = r.failed(err)
		} else {
			changes, resources, indices = append(changes, change), append(resources, r.Resource), append(indices, i)
		}
	}
	if len(changes) == 0 {
		return results
	}
	answers := s.inventory.SetCapacities(ctx, changes)
	bumped := s.bump(ctx, resources)
	for j, i := range indices {
		r := requests[i]
		switch err := cmp.Or(answers[j].Err, bumped[j]); {
		case err != nil:
			results[i].Err = r.failed(err)
		case answers[j].BelowReserved:
			results[i].Outcome = r.rejected(ReasonBelowReserved, "capacity")
		default:
			results[i].Outcome = Outcome{
				Event: EventInventoryUpdated, Resource: r.Resource,
				Data: InventoryUpdated{ResourceID: r.Resource, Slots: answers[j].Slots}, RebuildMetadata: RebuildMetadata{Position: r.Position},
			}
		}
	}
	return results
}

// capacityChange returns the change that a request asks for, or an *InvalidError.
func (w *work) capacityChange(ctx context.Context, r InventoryRequest) (CapacityChange, error) {
	names, err := r.Selection.names(nightsWindow{max: InventorySlotsMax})
	if err == nil && r.Capacity < 0 {
		err = invalid("capacity", "must not be negative")
	}
	if err != nil {
		return CapacityChange{}, err
	}
	held, err := w.heldCounts(ctx, r.Resource, names)
	return CapacityChange{r.EventID, r.Position, r.Resource, names, r.Capacity, held}, err
}

func (r InventoryRequest) failed(err error) error {
	return fmt.Errorf("set inventory of %s: %w", r.Resource, err)
}

func (r InventoryRequest) rejected(reason, field string) Outcome {
	return Outcome{
		Event: EventInventoryRejected, Resource: r.Resource,
		Data: InventoryRejected{ResourceID: r.Resource, Reason: reason, Field: field},
	}
}
