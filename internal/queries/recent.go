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
	recentBlock  = 2_000  // that are read at a time
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
// too many to read, or reading takes longer than recentWithin, it returns the latest, and Since says from when
// on. It returns errTooSlow when it could read none in this time.
func (i *Inquiry) Recent(ctx context.Context, resource string, last time.Duration) (r RecentOutcomes, err error) {
	reading, cancel := context.WithTimeout(ctx, i.recentWithin)
	defer cancel()
	r, err = i.readRecent(reading, resource, last)
	switch {
	case err == nil || ctx.Err() != nil || reading.Err() == nil:
		return r, err
	case r.Since.IsZero():
		return r, fmt.Errorf("%w: %w", errTooSlow, err)
	}
	return r, nil
}

// readRecent reads blocks of outcomes, the latest first. With an error it returns those of the blocks before it; Since is
// zero when there are none.
func (i *Inquiry) readRecent(ctx context.Context, resource string, last time.Duration) (r RecentOutcomes, err error) {
	stream, err := i.js.Stream(ctx, i.ns.OutStream())
	if err != nil {
		return r, fmt.Errorf("stream %s: %w", i.ns.OutStream(), err)
	}
	now, state, older := time.Now(), stream.CachedInfo().State, false
	earliest, end := now.Add(-last), state.LastSeq
	for first := max(state.FirstSeq, end-min(end, recentMax)+1); end >= first && end > 0 && !older; {
		from, since := max(first, end-min(end, recentBlock)+1), earliest
		if from > 1 {
			// The subject makes NATS return the next message when this one does not exist.
			m, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(i.ns.Out("*.*", "*")))
			switch older = err == nil && m.Time.Before(earliest); {
			case errors.Is(err, jetstream.ErrMsgNotFound):
				since = now
			case err != nil:
				return r, fmt.Errorf("read stream %s: %w", i.ns.OutStream(), err)
			case !older:
				since = m.Time
			}
		}
		block, err := i.readBlock(ctx, stream, resource, from, end, since)
		if err != nil {
			return r, fmt.Errorf("read stream %s: %w", i.ns.OutStream(), err)
		}
		r.Since, r.Outcomes, end = since, append(block, r.Outcomes...), from-1
	}
	if r.Since.IsZero() { // the stream is empty
		r.Since = earliest
	}
	return r, nil
}

// readBlock returns the outcomes of a resource with sequences from one to another that were stored at a time or later.
func (i *Inquiry) readBlock(
	ctx context.Context, stream jetstream.Stream, resource string, from, to uint64, since time.Time,
) (outcomes []RecentOutcome, err error) {
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{i.ns.Out("*.*", resource)},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
	}
	for m, err := range events.ReadStream(ctx, i.js, stream, config, to) {
		if err != nil {
			return nil, err
		}
		if m.Meta.Timestamp.Before(since) {
			continue
		}
		var e events.Envelope
		if json.Unmarshal(m.Data, &e) != nil {
			continue // it is no outcome of a worker
		}
		event, ours := events.EventOf(e.Type)
		o := RecentOutcome{At: m.Meta.Timestamp, Event: event}
		if ours && event != holds.EventInventoryUpdated && json.Unmarshal(e.Data, &o) == nil {
			outcomes = append(outcomes, o)
		}
	}
	return outcomes, nil
}
