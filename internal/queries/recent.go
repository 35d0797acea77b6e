package queries

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// The bounds of one reading of recent outcomes.
const (
	recentMax    = 20_000 // outcomes of the stream
	recentWithin = 2 * time.Second
)

// RecentOutcome is what an outcome says about holds, without private data.
type RecentOutcome struct {
	At         time.Time           `json:"-"`      // when it was stored
	Event      string              `json:"-"`      // such as hold.created
	Reason     string              `json:"reason"` // of a refusal
	ResourceID string              `json:"resource_id"`
	HoldID     string              `json:"hold_id"`
	Slots      holds.SlotSelection `json:",embed"`
	Deadline   holds.Time          `json:"expires_at"` // of a hold that expired, like Restored
	Restored   holds.Time          `json:"restored_at"`
}

// RecentOutcomes are outcomes in the order in which they were stored.
type RecentOutcomes struct {
	Since    time.Time // all outcomes from then on were read
	Outcomes []RecentOutcome
}

// Recent returns the outcomes of the last time, of a resource or, with "*", of all. When there are
// too many to read, those of other resources included, it returns the latest, and Since says from when on.
func (i *Inquiry) Recent(ctx context.Context, resource string, last time.Duration) (r RecentOutcomes, err error) {
	stream, err := i.js.Stream(ctx, i.ns.OutStream())
	if err != nil {
		return r, fmt.Errorf("stream %s: %w", i.ns.OutStream(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	end := stream.CachedInfo().State.LastSeq
	r.Since = time.Now().Add(-last)
	first := max(recentMax, end) - recentMax + 1
	if first > 1 {
		// The subject makes NATS return the next message when this one does not exist.
		m, err := stream.GetMsg(ctx, first, jetstream.WithGetMsgSubject(i.ns.Out("*.*", "*")))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return r, fmt.Errorf("read stream %s: %w", i.ns.OutStream(), err)
		}
		if err == nil && m.Time.After(r.Since) {
			r.Since = m.Time
		}
	}
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{i.ns.Out("*.*", resource)},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: first,
	}
	for m, err := range events.ReadStream(ctx, i.js, stream, config, end) {
		if err != nil {
			return r, fmt.Errorf("read stream %s: %w", i.ns.OutStream(), err)
		}
		if m.Meta.Timestamp.Before(r.Since) {
			continue
		}
		var e events.Envelope
		if json.Unmarshal(m.Data(), &e) != nil {
			continue // it is no outcome of a worker
		}
		event, ours := events.EventOf(e.Type)
		o := RecentOutcome{At: m.Meta.Timestamp, Event: event}
		if ours && event != holds.EventInventoryUpdated && json.Unmarshal(e.Data, &o) == nil {
			r.Outcomes = append(r.Outcomes, o)
		}
	}
	return r, nil
}
