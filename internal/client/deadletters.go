package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// deadLetterRequestLimit bounds one request to JetStream about a dead letter or a run.
const deadLetterRequestLimit = 5 * time.Second

// ErrDeadLetterNotFound reports that a dead letter does not exist, or was removed.
var ErrDeadLetterNotFound = errors.New("no such dead letter")

// DeadLetters reads, replays and removes the dead letters of the namespace of a client.
type DeadLetters struct {
	*Client
	stream jetstream.Stream
}

// DeadLetters returns the dead letters of the namespace.
func (c *Client) DeadLetters(ctx context.Context) (*DeadLetters, error) {
	stream, err := c.openStream(ctx, c.ns.DLQStream())
	if err != nil {
		return nil, err
	}
	return &DeadLetters{c, stream}, nil
}

// CreatedAt returns when the stream of the dead letters was created. A stream that is deleted and created again has others
// under the same sequences.
func (d *DeadLetters) CreatedAt() holds.Time {
	return holds.Time{Time: d.stream.CachedInfo().Created.UTC().Truncate(time.Millisecond)}
}

// DeadLetterFilter matches the dead letters that meet all its conditions. A zero field is no
// condition.
type DeadLetterFilter struct {
	Reasons    []string  `json:"reasons,omitzero"` // one of these
	Type       string    `json:"type,omitzero"`    // of the event, such as booking.requested
	ResourceID string    `json:"resource_id,omitzero"`
	UserID     string    `json:"user_id,omitzero"`
	Since      time.Time `json:"since,omitzero"`    // stored at this time or later
	Until      time.Time `json:"until,omitzero"`    // stored before this time
	Contains   string    `json:"contains,omitzero"` // text in the detail
}

// NeedsBody reports whether the filter has a condition on the bodies of events.
func (f DeadLetterFilter) NeedsBody() bool {
	return f.Type != "" || f.ResourceID != "" || f.UserID != ""
}

// Matches reports whether a dead letter meets all conditions.
func (f DeadLetterFilter) Matches(l *events.DeadLetter) bool {
	switch {
	case len(f.Reasons) > 0 && !slices.Contains(f.Reasons, l.Reason),
		f.Type != "" && f.Type != l.Event.Type,
		f.ResourceID != "" && f.ResourceID != l.Event.Resource,
		f.UserID != "" && f.UserID != l.Event.User,
		!f.Since.IsZero() && l.StoredAt.Before(f.Since),
		!f.Until.IsZero() && !l.StoredAt.Before(f.Until):
		return false
	}
	return strings.Contains(l.Detail, f.Contains)
}

// All returns the dead letters that match a filter, oldest first. It reads those that exist when it
// begins, and ends after the first error. Without bodies, and unless the filter needs them, only
// headers are read: then the body of each event, and what only the body has, such as the event
// id, are missing.
func (d *DeadLetters) All(ctx context.Context, f DeadLetterFilter, bodies bool) iter.Seq2[*events.DeadLetter, error] {
	return d.After(ctx, f, bodies, 0)
}

// After is All for the dead letters with a sequence above seq.
func (d *DeadLetters) After(
	ctx context.Context, f DeadLetterFilter, bodies bool, seq uint64,
) iter.Seq2[*events.DeadLetter, error] {
	return func(yield func(*events.DeadLetter, error) bool) {
		info, err := d.stream.Info(ctx)
		if err != nil {
			yield(nil, fmt.Errorf("read dead letters: %w", err))
			return
		}
		if seq < info.State.LastSeq {
			d.between(ctx, f, bodies, seq+1, info.State.LastSeq)(yield)
		}
	}
}

// newestBlock is how many sequences Before reads first, and how many dead letters it keeps of a block. After a block
// without matches it reads twice as many, up to newestBlockMax.
const (
	newestBlock    = 200
	newestBlockMax = newestBlock << 12
)

// Before is All for the dead letters with a sequence below seq, newest first. A seq of 0 is no
// bound.
func (d *DeadLetters) Before(
	ctx context.Context, f DeadLetterFilter, bodies bool, seq uint64,
) iter.Seq2[*events.DeadLetter, error] {
	return func(yield func(*events.DeadLetter, error) bool) {
		info, err := d.stream.Info(ctx)
		if err != nil {
			yield(nil, fmt.Errorf("read dead letters: %w", err))
			return
		}
		first, last := info.State.FirstSeq, info.State.LastSeq
		if seq > 0 {
			last = min(last, seq-1)
		}
		if !f.Since.IsZero() {
			first = last + 1
			for l, err := range d.between(ctx, DeadLetterFilter{Since: f.Since}, false, 1, last) {
				if err != nil {
					yield(nil, err)
					return
				}
				first = l.Seq
				break
			}
		}
		for size := uint64(newestBlock); last >= first && last > 0; {
			from := max(first, last-min(last, size)+1)
			var block []*events.DeadLetter
			for l, err := range d.between(ctx, f, bodies, from, last) {
				if err != nil {
					yield(nil, err)
					return
				}
				if len(block) == newestBlock { // drop the oldest one: the next block reads it again
					from = block[0].Seq + 1
					block[0], block = nil, block[1:]
				}
				block = append(block, l)
			}
			for _, l := range slices.Backward(block) {
				if !yield(l, nil) {
					return
				}
			}
			if size = newestBlock; len(block) == 0 {
				size = min(newestBlockMax, 2*(last-from+1))
			}
			last = from - 1
		}
	}
}

// between returns the dead letters that match a filter, with sequences from one to another, oldest
// first.
func (d *DeadLetters) between(
	ctx context.Context, f DeadLetterFilter, bodies bool, from, to uint64,
) iter.Seq2[*events.DeadLetter, error] {
	config := jetstream.OrderedConsumerConfig{HeadersOnly: !bodies && !f.NeedsBody()}
	for _, reason := range f.Reasons {
		if subject := d.ns.DLQ(reason); !slices.Contains(config.FilterSubjects, subject) { // the server refuses one twice
			config.FilterSubjects = append(config.FilterSubjects, subject)
		}
	}
	switch {
	case from > 1:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	case !f.Since.IsZero():
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &f.Since
	}
	return func(yield func(*events.DeadLetter, error) bool) {
		for m, err := range events.ReadStream(ctx, d.js, d.stream, config, to) {
			if err != nil {
				yield(nil, fmt.Errorf("read dead letters: %w", err))
				return
			}
			l := d.ns.ReadDeadLetter(m)
			if !f.Until.IsZero() && !l.StoredAt.Before(f.Until) {
				return // the following ones were stored later
			}
			if !config.HeadersOnly {
				d.resolveClaimCheck(ctx, l)
			}
			if f.Matches(l) && !yield(l, nil) {
				return
			}
		}
	}
}

// Get returns a dead letter with its event, by its sequence in the stream of dead letters. It
// returns ErrDeadLetterNotFound when it does not exist.
func (d *DeadLetters) Get(ctx context.Context, seq uint64) (*events.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	m, err := d.stream.GetMsg(ctx, seq)
	switch {
	case seq == 0, errors.Is(err, jetstream.ErrMsgNotFound): // no message has the sequence 0
		return nil, fmt.Errorf("dead letter %d: %w", seq, ErrDeadLetterNotFound)
	case err != nil:
		return nil, fmt.Errorf("read dead letter %d: %w", seq, err)
	}
	l := d.ns.ParseDeadLetter(m)
	d.resolveClaimCheck(ctx, l)
	return l, nil
}

// Remove removes a dead letter. It returns ErrDeadLetterNotFound when it does not exist.
func (d *DeadLetters) Remove(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	err := d.stream.DeleteMsg(ctx, seq)
	if err == nil {
		return nil
	}
	if _, getErr := d.stream.GetMsg(ctx, seq); seq == 0 || errors.Is(getErr, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("dead letter %d: %w", seq, ErrDeadLetterNotFound)
	}
	return fmt.Errorf("remove dead letter %d: %w", seq, err)
}

// resolveClaimCheck reads the event of a dead letter that is a claim check. It stores a failure in
// l.Missing: the rest of the dead letter can be shown without the event.
func (d *DeadLetters) resolveClaimCheck(ctx context.Context, l *events.DeadLetter) {
	if l.ClaimCheck == nil {
		return
	}
	if l.ClaimCheck.Stream != d.ns.InStream() {
		l.Resolve(nil, errors.New("not the inbound stream"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	stream, err := d.openStream(ctx, d.ns.InStream())
	if err != nil {
		l.Resolve(nil, err)
		return
	}
	l.Resolve(stream.GetMsg(ctx, l.ClaimCheck.Seq))
}
