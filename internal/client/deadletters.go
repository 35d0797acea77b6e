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
)

// deadLetterRequestLimit bounds one answer of JetStream.
const deadLetterRequestLimit = 5 * time.Second

// ErrDeadLetterNotFound says that there is no such dead letter, or no more.
var ErrDeadLetterNotFound = errors.New("no such dead letter")

// DeadLetters is the stream of dead letters, for who reads and tends it.
type DeadLetters struct {
	c       *Client
	stream  jetstream.Stream
	inbound jetstream.Stream // nil until a pointer is read
}

// DeadLetters returns the dead letters of the namespace.
func (c *Client) DeadLetters(ctx context.Context) (*DeadLetters, error) {
	stream, err := c.js.Stream(ctx, c.ns.DLQStream())
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.ns.DLQStream(), err)
	}
	return &DeadLetters{c: c, stream: stream}, nil
}

// DeadLetterFilter says which letters are meant: those for which all of it holds. The zero filter
// means all letters.
type DeadLetterFilter struct {
	Reasons    []string  `json:"reasons,omitzero"` // one of these
	Type       string    `json:"type,omitzero"`    // the event, like booking.requested
	ResourceID string    `json:"resource_id,omitzero"`
	UserID     string    `json:"user_id,omitzero"`
	Since      time.Time `json:"since,omitzero"` // when the letter was stored
	Until      time.Time `json:"until,omitzero"` // likewise; exclusive
	Contains   string    `json:"contains,omitzero"`
}

// NeedsBody reports whether the filter must see the events themselves.
func (f DeadLetterFilter) NeedsBody() bool {
	return f.Type != "" || f.ResourceID != "" || f.UserID != ""
}

// Matches reports whether a letter is meant.
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

// All returns the letters that a filter means, oldest first, of those that are there when it
// begins. bodies says whether the events themselves are wanted; without them the id and what
// else stands in a body is not known. After an error there is no more.
func (d *DeadLetters) All(ctx context.Context, f DeadLetterFilter, bodies bool) iter.Seq2[*events.DeadLetter, error] {
	return d.After(ctx, f, bodies, 0)
}

// After is All of those with a higher sequence than seq.
func (d *DeadLetters) After(ctx context.Context, f DeadLetterFilter, bodies bool, seq uint64) iter.Seq2[*events.DeadLetter, error] {
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

// newestBlock is how many sequences are read at a time to return the newest first; many more where all of those
// were removed.
const (
	newestBlock    = 200
	newestBlockMax = newestBlock << 12
)

// Before is All of those with a lower sequence than seq, or of all when that is 0, newest first.
func (d *DeadLetters) Before(ctx context.Context, f DeadLetterFilter, bodies bool, seq uint64) iter.Seq2[*events.DeadLetter, error] {
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

// between returns the letters that a filter means from one sequence to another, oldest first.
func (d *DeadLetters) between(ctx context.Context, f DeadLetterFilter, bodies bool, from, to uint64) iter.Seq2[*events.DeadLetter, error] {
	config := jetstream.OrderedConsumerConfig{HeadersOnly: !bodies && !f.NeedsBody()}
	for _, reason := range f.Reasons {
		config.FilterSubjects = append(config.FilterSubjects, d.c.ns.DLQ(reason))
	}
	switch {
	case from > 1:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	case !f.Since.IsZero():
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &f.Since
	}
	return func(yield func(*events.DeadLetter, error) bool) {
		for m, err := range events.ReadStream(ctx, d.stream, config, to) {
			if err != nil {
				yield(nil, fmt.Errorf("read dead letters: %w", err))
				return
			}
			l, err := d.c.ns.ReadDeadLetter(m.Msg)
			if err != nil {
				yield(nil, err)
				return
			}
			if !f.Until.IsZero() && !l.StoredAt.Before(f.Until) {
				return // they come in order
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

// Get returns a letter with its event. It returns ErrDeadLetterNotFound when there is none.
func (d *DeadLetters) Get(ctx context.Context, seq uint64) (*events.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	m, err := d.stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, fmt.Errorf("letter %d: %w", seq, ErrDeadLetterNotFound)
	case err != nil:
		return nil, fmt.Errorf("read letter %d: %w", seq, err)
	}
	l := d.c.ns.ParseDeadLetter(m)
	d.resolveClaimCheck(ctx, l)
	return l, nil
}

// Remove removes a letter. It returns ErrDeadLetterNotFound when there is none.
func (d *DeadLetters) Remove(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	err := d.stream.DeleteMsg(ctx, seq)
	if err == nil {
		return nil
	}
	if _, gone := d.stream.GetMsg(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("letter %d: %w", seq, ErrDeadLetterNotFound)
	}
	return fmt.Errorf("remove letter %d: %w", seq, err)
}

// resolveClaimCheck reads the event of a letter that is a pointer. What is wrong with it is in l.Missing:
// the letter itself can be shown nevertheless.
func (d *DeadLetters) resolveClaimCheck(ctx context.Context, l *events.DeadLetter) {
	if l.ClaimCheck == nil {
		return
	}
	if l.ClaimCheck.Stream != d.c.ns.InStream() {
		l.Resolve(nil, errors.New("that is not the inbound stream"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
	defer cancel()
	var err error
	if d.inbound == nil {
		if d.inbound, err = d.c.js.Stream(ctx, d.c.ns.InStream()); err != nil {
			l.Resolve(nil, err)
			return
		}
	}
	l.Resolve(d.inbound.GetMsg(ctx, l.ClaimCheck.Seq))
}
