package queries

import (
	"context"
	"errors"

	"holdfast/internal/holds"
)

// Availability is the answer to a query for available slots, by HTTP.
type Availability struct {
	ResourceID string                   `json:"resource_id"`
	Slots      []holds.SlotAvailability `json:"slots"`
}

// KnownAvailability is the answer by NATS, which also says which slots are known.
type KnownAvailability struct {
	ResourceID string             `json:"resource_id"`
	Slots      []SlotAvailability `json:"slots"`
}

// SlotAvailability is the availability of a slot. Known says whether the slot has an inventory row, LostCommits that nothing
// is granted because Postgres has lost commits of the resource: the capacity is then not the one that was set.
type SlotAvailability struct {
	holds.SlotAvailability
	Known       bool `json:"known"`
	LostCommits bool `json:"lost_commits,omitzero"`
}

// known returns the answer by NATS.
func (a Availability) known() KnownAvailability {
	answer := KnownAvailability{a.ResourceID, make([]SlotAvailability, len(a.Slots))}
	for i, slot := range a.Slots {
		answer.Slots[i] = SlotAvailability{slot, slot.Known, slot.LostCommits}
	}
	return answer
}

// Availability returns the availability of slots.
func (i *Inquiry) Availability(ctx context.Context, resource string, selection holds.SlotSelection) (Availability, error) {
	slots, err := i.querier.Availability(ctx, resource, selection)
	return Availability{resource, slots}, err
}

// ErrUnknownHold is returned for a hold that is not remembered.
var ErrUnknownHold = errors.New("no hold with this id is remembered")

// Hold returns a hold. It returns holds.ErrHoldID if id is not a hold id, and ErrUnknownHold if
// the hold is not remembered.
func (i *Inquiry) Hold(ctx context.Context, id string) (holds.HoldView, error) {
	parsed, err := holds.ParseHoldID(id)
	if err != nil {
		return holds.HoldView{}, err
	}
	view, found, err := i.querier.GetHold(ctx, parsed)
	if err == nil && !found {
		err = ErrUnknownHold
	}
	return view, err
}
