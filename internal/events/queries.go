package events

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// HoldQuerier answers queries: *holds.Service.
type HoldQuerier interface {
	Availability(ctx context.Context, resource string, selection holds.SlotSelection) ([]holds.SlotAvailability, error)
	GetHold(ctx context.Context, id holds.HoldID) (view holds.HoldView, found bool, err error)
}

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

// SlotAvailability is the availability of a slot. Known says whether the slot has an inventory row.
// It is nil in an answer of a worker of an older version.
type SlotAvailability struct {
	holds.SlotAvailability
	Known *bool `json:"known,omitzero"`
}

// known returns the answer by NATS.
func (a Availability) known() KnownAvailability {
	answer := KnownAvailability{a.ResourceID, make([]SlotAvailability, len(a.Slots))}
	for i, slot := range a.Slots {
		answer.Slots[i] = SlotAvailability{slot, &slot.Known}
	}
	return answer
}

// GetAvailability returns the availability of slots.
func GetAvailability(
	ctx context.Context, r HoldQuerier, resource string, selection holds.SlotSelection,
) (Availability, error) {
	slots, err := r.Availability(ctx, resource, selection)
	return Availability{resource, slots}, err
}

// ErrUnknownHold is returned for a hold that is not remembered.
var ErrUnknownHold = errors.New("no hold with this id is remembered")

// GetHold returns a hold. It returns holds.ErrHoldID if id is not a hold id, and ErrUnknownHold if
// the hold is not remembered.
func GetHold(ctx context.Context, r HoldQuerier, id string) (holds.HoldView, error) {
	parsed, err := holds.ParseHoldID(id)
	if err != nil {
		return holds.HoldView{}, err
	}
	view, found, err := r.GetHold(ctx, parsed)
	if err == nil && !found {
		err = ErrUnknownHold
	}
	return view, err
}

// Problem is the answer to a query that failed, the same by HTTP and by NATS.
type Problem struct {
	Status int    `json:"-"` // of HTTP
	Reason string `json:"error"`
	Detail string `json:"detail"`
}

// unavailable is the reason of a problem that an operator has to solve.
const unavailable = "unavailable"

// Busy is the answer to a query that exceeds the number that a worker answers at a time.
var Busy = Problem{
	http.StatusServiceUnavailable, "busy",
	"this worker is answering as many queries as it may at a time; try again in a second",
}

// rebuilding is the detail of a query while Redis is being rebuilt.
const rebuilding = "redis has lost its data; no hold is granted until it is rebuilt"

// IsInternal reports whether the error must be logged, because the answer does not contain it.
func (p Problem) IsInternal() bool { return p.Reason == unavailable }

// ProblemOf returns the answer to a query that failed with an error.
func ProblemOf(err error) Problem {
	var malformed *members.Error
	var invalid *holds.InvalidError
	var lost *holds.RebuildingError
	switch {
	case errors.As(err, &malformed), errors.Is(err, holds.ErrHoldID):
		return Problem{http.StatusBadRequest, "bad_query", err.Error()}
	case errors.As(err, &invalid):
		return Problem{http.StatusBadRequest, "invalid_request", invalid.Error()}
	case errors.Is(err, ErrUnknownHold):
		return Problem{http.StatusNotFound, "unknown_hold", err.Error()}
	case errors.As(err, &lost):
		return Problem{http.StatusServiceUnavailable, "rebuilding", rebuilding + ": " + lost.Progress}
	case errors.Is(err, holds.ErrDataLost):
		return Problem{http.StatusServiceUnavailable, "rebuilding", rebuilding}
	default:
		const detail = "a server that this answer needs is unavailable; see /readyz"
		return Problem{http.StatusServiceUnavailable, unavailable, detail}
	}
}
