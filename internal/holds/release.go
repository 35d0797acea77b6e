package holds

import (
	"context"
	"fmt"
	"strings"

	"holdfast/internal/lua"
)

// ReleaseRequest requests the end of a hold before its deadline. It identifies the hold by its id
// or, for a publisher that never received the answer to its request, by the request key.
type ReleaseRequest struct {
	EventID    string // the same at every delivery of the event
	Hold       HoldID // zero when RequestKey identifies the hold
	Resource   string
	RequestKey string
	Withdraw   bool // the hold cannot be announced: its request is decided again when it is delivered again or replayed
}

// Release releases holds and returns one result for each request. A result is ErrBusy while a payment
// of the hold is being decided.
func (s *Service) Release(ctx context.Context, requests []ReleaseRequest) []Result {
	w := s.beginWork()
	results := make([]Result, len(requests))
	calls := make([]*lua.Call, len(requests))
	for i, r := range requests {
		by, name := "id", r.Hold.UUID
		switch {
		case r.Hold == (HoldID{}):
			by, name = "key", r.RequestKey
		case r.Withdraw:
			by = "withdraw"
		}
		calls[i] = w.newCall(scriptRelease, r.Resource, w.requestKeyTTLMS(), r.EventID, by, name)
	}
	w.run(ctx, calls...)
	for i, r := range requests {
		outcome, err := r.outcome(calls[i])
		if err != nil {
			w.reportUnread(r.Resource, calls[i].Err, err)
			err = fmt.Errorf("release hold %s%s: %w", r.Hold, r.RequestKey, err)
		}
		results[i] = Result{outcome, err}
	}
	return results
}

// outcome parses the reply of release.lua.
func (r ReleaseRequest) outcome(c *lua.Call) (Outcome, error) {
	if err := c.Expect(3); err != nil {
		return Outcome{}, err
	}
	word, line := c.Reply[0], c.Reply[1]
	if word == "cancelled" {
		line = ""
	}
	id := HoldID{Resource: r.Resource, UUID: c.Reply[2]}
	outcome := Outcome{Resource: r.Resource, Hold: id}
	if id.UUID == "" {
		outcome.Hold = HoldID{}
	}
	data := HoldData{ResourceID: r.Resource, HoldID: outcome.Hold, RequestKey: r.RequestKey}
	var hold Hold
	if line != "" {
		var err error
		if hold, err = parseRecord(id, line); err != nil {
			return Outcome{}, err
		}
		data = hold.HoldData
	}
	switch reason, refused := strings.CutPrefix(word, "refused_"); {
	case refused:
		outcome.Event, outcome.Data = EventReleaseRejected, ReleaseRejected{HoldData: data, Reason: reason}
	case word == "released":
		outcome.Event, outcome.At = EventHoldReleased, hold.EndedAt
		outcome.Data = HoldReleased{HoldData: data, ReleasedAt: hold.EndedAt}
	case word == "cancelled":
		var err error
		if outcome.At, err = parseMillis(c.Reply[1]); err != nil {
			return Outcome{}, err
		}
		outcome.Event = EventBookingCancelled
		outcome.Data = BookingCancelled{ResourceID: r.Resource, RequestKey: r.RequestKey}
	case word == "claimed":
		return Outcome{}, fmt.Errorf("a payment is being decided: %w", ErrBusy)
	default:
		return Outcome{}, fmt.Errorf("reply of release.lua: %w", ErrCorrupt)
	}
	return outcome, nil
}
