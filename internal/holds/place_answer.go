package holds

import (
	"errors"
	"fmt"
	"strconv"

	"holdfast/internal/record"
)

// data returns the members that every outcome of a request has.
func (r *PlaceRequest) data() HoldData {
	return HoldData{
		ResourceID:    r.Resource,
		RequestKey:    r.RequestKey,
		UserID:        r.User,
		SlotSelection: r.Selection,
		Quantity:      &r.Quantity,
		Metadata:      r.Metadata,
	}
}

// reject returns the outcome of a refused request.
func (r *PlaceRequest) reject(at Time, rejected HoldRejected) Outcome {
	if rejected.Message == "" {
		rejected.Message = rejectionMessages[rejected.Reason]
	}
	return Outcome{Event: EventHoldRejected, Resource: r.Resource, Hold: rejected.HoldID, At: at, Data: rejected}
}

func rejectInvalid(r *PlaceRequest, err error) Result {
	var wrong *InvalidError
	if !errors.As(err, &wrong) {
		return Result{Err: err}
	}
	return Result{Outcome: r.reject(Time{}, HoldRejected{
		HoldData: r.data(), Reason: ReasonInvalidRequest, Message: wrong.Error(), Field: wrong.Field,
	})}
}

var rejectionMessages = map[string]string{
	ReasonKeyReused:       "this request key was used for a request with another user, slots, quantity or ttl",
	ReasonCancelled:       "this request was cancelled before it came",
	ReasonAlreadyHolding:  "this user has a live hold on these slots already",
	ReasonHoldLimit:       "this user has as many live holds on this resource as are allowed",
	ReasonUnknownResource: "at least one of these slots has no inventory",
	ReasonSoldOut:         "at least one of these slots has not enough left",
}

// outcome parses an answer of place.lua. answer is the line that is stored under the request key.
// tail is the tail of the hold's record when the hold was created by an earlier call.
func (p *placing) outcome(answer, tail string) (Outcome, error) {
	if answer == "reused" {
		return p.reject(Time{}, HoldRejected{HoldData: p.data(), Reason: ReasonKeyReused}), nil
	}
	a, err := record.ParseAnswer(answer)
	if err != nil {
		return Outcome{}, fmt.Errorf("answer to request %s: %w", p.RequestKey, ErrCorrupt)
	}
	word, at := a.Word, TimeFromMillis(a.At)
	data, replayed := p.data(), a.EventID != p.EventID
	metadata := RebuildMetadata{Fingerprint: a.Fingerprint}
	if replayed {
		metadata.FirstEventID = a.EventID
	}
	switch {
	case word == "cancelled":
		return p.reject(at, HoldRejected{HoldData: data, Reason: ReasonCancelled}), nil
	case word == "created":
		outcome, err := p.created(at, a.Detail, tail, replayed)
		outcome.RebuildMetadata = metadata
		return outcome, err
	case replayed:
		if data.SlotSelection, data.Metadata, err = parseEcho(a.Selection, a.Metadata); err != nil {
			return Outcome{}, fmt.Errorf("answer to request %s: %w", p.RequestKey, ErrCorrupt)
		}
	}
	rejected := HoldRejected{HoldData: data, Reason: word, Replayed: replayed}
	switch word {
	case ReasonAlreadyHolding:
		rejected.HoldID = HoldID{p.Resource, a.Detail}
	case ReasonSoldOut:
		if rejected.SoldOut, err = parseShortage(a.Detail); err != nil {
			return Outcome{}, fmt.Errorf("answer to request %s: %w", p.RequestKey, ErrCorrupt)
		}
	}
	outcome := p.reject(at, rejected)
	outcome.RebuildMetadata = metadata
	return outcome, nil
}

func (p *placing) created(at Time, detail, tail string, replayed bool) (Outcome, error) {
	answer, err := record.ParseCreated(detail)
	if err != nil {
		return Outcome{}, fmt.Errorf("answer to request %s: %w", p.RequestKey, ErrCorrupt)
	}
	id, data := HoldID{p.Resource, answer.UUID}, p.data()
	if replayed && tail != "" {
		first, err := parseTail(id, tail)
		if err != nil {
			return Outcome{}, err
		}
		data.SlotSelection, data.Metadata = first.SlotSelection, first.Metadata
	}
	data.HoldID = id
	return Outcome{Event: EventHoldCreated, Resource: p.Resource, Hold: id, At: at, Data: HoldCreated{
		HoldData: data, CreatedAt: at, ExpiresAt: TimeFromMillis(answer.Deadline), Replayed: replayed,
	}}, nil
}

func parseShortage(detail string) (*SoldOut, error) {
	shortage, err := record.ParseShortage(detail)
	if err != nil {
		return nil, err
	}
	short := SoldOut{Unavailable: shortage.Slots}
	if shortage.RetryAt != 0 {
		at := TimeFromMillis(shortage.RetryAt)
		short.RetryAt = &at
	}
	return &short, nil
}

// parseMillis parses a time in milliseconds since the Unix epoch. Its error does not contain the
// text, because corrupt data may contain the metadata of a user. This holds for every parser of
// Redis data.
func parseMillis(text string) (Time, error) {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return Time{}, fmt.Errorf("parse time: %w", ErrCorrupt)
	}
	return TimeFromMillis(ms), nil
}
