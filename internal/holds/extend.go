package holds

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
)

// ExtendRequest requests a later deadline: TTLSeconds from now, or, when a payment was started, the
// payment window from now.
type ExtendRequest struct {
	EventID        string    // the same at every delivery of the event
	StoredAt       time.Time // when JetStream stored the event
	Hold           HoldID
	TTLSeconds     int64
	PaymentStarted bool // has an effect once for each hold; Extend ignores TTLSeconds
}

// Extend moves deadlines to a later time, within the policy's HoldLifetimeMax, and returns one result
// for each request. A result is ErrBusy while a payment of the hold is being decided.
func (s *Service) Extend(ctx context.Context, requests []ExtendRequest) []Result {
	w := s.beginWork()
	results := make([]Result, len(requests))
	calls := make([]*lua.Call, len(requests))
	for i, r := range requests {
		ttl, why := w.policy.PaymentWindow, "started"
		if !r.PaymentStarted {
			var err error
			if ttl, err = w.policyAt(r.StoredAt).ttl(r.TTLSeconds); err != nil {
				why = "invalid"
			} else {
				why = "requested"
			}
		}
		calls[i] = w.newCall(scriptExtend, r.Hold.Resource, w.requestKeyTTLMS(), r.EventID, r.Hold.UUID,
			ttl.Milliseconds(), w.policy.HoldLifetimeMax.Milliseconds(), why)
	}
	w.run(ctx, calls...)
	failpoint.Hit("extend.decided")
	for i, r := range requests {
		outcome, err := r.outcome(calls[i])
		if err != nil {
			w.reportUnread(r.Hold.Resource, calls[i].Err, err)
			err = fmt.Errorf("extend hold %s: %w", r.Hold, err)
		}
		results[i] = Result{outcome, err}
	}
	return results
}

// ttl returns a TTL in seconds as a duration. It returns an *InvalidError for one out of range.
func (p Policy) ttl(seconds int64) (time.Duration, error) {
	limit := int64(p.HoldTTLMax / time.Second)
	if seconds < 1 || seconds > limit {
		return 0, invalid("ttl_seconds", "must be 1 to %d", limit)
	}
	return time.Duration(seconds) * time.Second, nil
}

// outcome parses the reply of extend.lua.
func (r ExtendRequest) outcome(c *lua.Call) (Outcome, error) {
	if err := c.Expect(4); err != nil {
		return Outcome{}, err
	}
	word, line := c.Reply[0], c.Reply[3]
	if word == "claimed" {
		return Outcome{}, fmt.Errorf("a payment is being decided: %w", ErrBusy)
	}
	outcome := Outcome{
		Resource: r.Hold.Resource, Hold: r.Hold, RebuildMetadata: RebuildMetadata{Started: r.PaymentStarted},
	}
	data := HoldData{ResourceID: r.Hold.Resource, HoldID: r.Hold}
	if line != "" {
		hold, err := parseRecord(r.Hold, line)
		if err != nil {
			return Outcome{}, err
		}
		data = hold.HoldData
	}
	if c.Reply[1] != "0" {
		var err error
		if outcome.At, err = parseMillis(c.Reply[1]); err != nil {
			return Outcome{}, err
		}
	}
	if word == "extended" {
		deadline, err := parseMillis(c.Reply[2])
		if err != nil {
			return Outcome{}, err
		}
		outcome.Event = EventHoldExtended
		outcome.Data = HoldExtended{HoldData: data, ExtendedAt: outcome.At, ExpiresAt: deadline}
		return outcome, nil
	}
	rejected := ExtensionRejected{HoldData: data, Reason: word}
	if word == ReasonInvalidRequest {
		rejected.Field = "ttl_seconds"
	}
	outcome.Event, outcome.Data = EventExtensionRejected, rejected
	return outcome, nil
}
