package events

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

// The limits of one step of a Trimmer.
const (
	trimPurgeMax   = 100_000 // sequences in one purge
	trimDeleteMax  = 1_000   // events that are deleted one by one, between those that dead letters need
	trimReadMax    = 500_000 // dead letters
	trimRecheckMax = 1_000   // dead letters with claim checks, read again
	trimLimit      = time.Minute
)

// ErrTrimBlocked is returned while a durable consumer of the workers is missing, or loses events: it is not known
// which events it must still answer.
var ErrTrimBlocked = errors.New("a consumer of the inbound stream is missing, or its configuration loses events")

// Trimmer removes an event from the inbound stream when all of this holds:
//
//   - It was stored longer ago than a given time, by the clock of the server.
//   - Every consumer of the stream has acknowledged it, or does not take it, those of operators and readers included.
//     While one of the workers' is missing or loses events, nothing is removed.
//   - No dead letter is a claim check for it.
//
// Any number of workers may do so: a step removes all events up to a sequence. JetStream has no condition for a purge.
// If the stream is deleted and recreated in the one round trip between the check of its creation and the purge, events
// that are published in that time are lost.
type Trimmer struct {
	js   jetstream.JetStream
	ns   Namespace
	keep time.Duration
	log  zerolog.Logger

	purgeMax, deleteMax, readMax uint64

	dlqCreated     time.Time
	dlqNext        uint64            // the dead letters before this sequence were read
	claims         map[uint64]uint64 // the claim checks in them: the sequence of the dead letter, and that of its event
	rechecked      uint64            // the last dead letter in claims that was read once more, 0 at the beginning
	waited         uint64            // the first event above the ack floors of the workers in the last step
	loggedConsumer string            // the consumer that was logged last
}

// NewTrimmer returns a Trimmer that keeps each event for at least keep after it was stored. Only
// one goroutine may use it.
func NewTrimmer(js jetstream.JetStream, ns Namespace, keep time.Duration, log zerolog.Logger) *Trimmer {
	return &Trimmer{
		js: js, ns: ns, keep: keep, log: log,
		purgeMax: trimPurgeMax, deleteMax: trimDeleteMax, readMax: trimReadMax,
	}
}

// TrimResult is the result of a step.
type TrimResult struct {
	Removed uint64 // sequences
	More    bool   // work remains: call RunOnce again now
	// Answered reports whether the workers have acknowledged every event that is older than keep.
	Answered bool
}

// RunOnce does one bounded step. It returns ErrTrimBlocked while it must not remove events.
func (t *Trimmer) RunOnce(ctx context.Context) (done TrimResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, trimLimit)
	defer cancel()
	inbound, err := t.js.Stream(ctx, t.ns.InStream())
	if err != nil {
		return done, fmt.Errorf("trim stream %s: %w", t.ns.InStream(), err)
	}
	if done, err = t.step(ctx, inbound); err != nil {
		return done, fmt.Errorf("trim stream %s: %w", t.ns.InStream(), err)
	}
	return done, nil
}

func (t *Trimmer) step(ctx context.Context, inbound jetstream.Stream) (done TrimResult, err error) {
	info := inbound.CachedInfo()
	expired, err := t.expired(ctx, inbound)
	if err != nil {
		return done, err
	}
	// The order matters. Events that are stored after the state was read have higher sequences, so a
	// consumer without pending events has acknowledged all up to the last sequence of the state. A
	// dead letter is stored before its event is acknowledged.
	acked, err := t.acknowledged(ctx, inbound, info.State.LastSeq)
	if err != nil {
		return done, err
	}
	done.Answered = acked.ours >= expired
	upTo := min(expired, acked.all)
	t.logSlowestConsumer(acked, expired)
	if upTo < max(info.State.FirstSeq, 1) { // it is 0 while no event was ever stored
		return done, nil
	}
	needed, complete, err := t.claimChecks(ctx)
	if err != nil || !complete {
		done.More = true
		return done, err
	}
	now, err := inbound.Info(ctx)
	if err != nil {
		return done, err
	}
	if !now.Created.Equal(info.Created) {
		return done, errors.New("it was deleted and recreated meanwhile")
	}
	removed, more, err := t.remove(ctx, inbound, upTo, needed)
	done.Removed, done.More = removed, more
	return done, err
}

// expired returns the last sequence that was stored more than keep ago, or that is already removed.
func (t *Trimmer) expired(ctx context.Context, inbound jetstream.Stream) (uint64, error) {
	info := inbound.CachedInfo()
	cutoff := info.TimeStamp.Add(-t.keep)
	if info.State.Msgs == 0 || !info.State.FirstTime.Before(cutoff) {
		return max(info.State.FirstSeq, 1) - 1, nil
	}
	for m, err := range ReadStream(ctx, t.js, inbound, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &cutoff, HeadersOnly: true,
	}, info.State.LastSeq) {
		if err != nil {
			return 0, err
		}
		return m.Meta.Sequence.Stream - 1, nil
	}
	return info.State.LastSeq, nil
}

// acknowledged is the sequence up to which consumers have acknowledged all events of their filters.
type acknowledged struct {
	ours, all     uint64 // by the consumers of the workers, and by all
	slowestOfOurs string
	slowest       string // the consumer of another program that is behind all others, "" if there is none
}

// acknowledged reads the ack floors of all consumers. last is the last sequence of an earlier state
// of the stream.
func (t *Trimmer) acknowledged(
	ctx context.Context, inbound jetstream.Stream, last uint64,
) (acked acknowledged, err error) {
	acked.ours, acked.all = last, last
	missing := make(map[string]jetstream.ConsumerConfig)
	for _, config := range t.ns.Consumers() {
		missing[config.Durable] = config
	}
	names := inbound.ConsumerNames(ctx)
	for name := range names.Name() {
		wanted, isOurs := missing[name]
		info, err := consumerInfo(ctx, inbound, name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) || err == nil && isOurs && losesEvents(info.Config, wanted) {
			continue // if it is one of the workers', it stays in missing
		}
		floor := uint64(0)
		if err == nil {
			floor, err = floorOf(ctx, inbound, info, last)
		}
		if err != nil {
			return acked, fmt.Errorf("consumer %s: %w", name, err)
		}
		delete(missing, name)
		if isOurs && floor < acked.ours {
			acked.ours, acked.slowestOfOurs = floor, name
		}
		if !isOurs && floor < acked.all {
			acked.slowest = name
		}
		acked.all = min(acked.all, floor)
	}
	if err := names.Err(); err != nil {
		return acked, fmt.Errorf("list consumers: %w", err)
	}
	for name := range missing {
		return acked, fmt.Errorf("%w: %s", ErrTrimBlocked, name)
	}
	return acked, nil
}

// logSlowestConsumer logs, once, which consumer keeps events that could be removed otherwise.
func (t *Trimmer) logSlowestConsumer(acked acknowledged, expired uint64) {
	keeps, message := "", "consumer of another program keeps inbound events"
	switch {
	case acked.all < min(expired, acked.ours):
		keeps = acked.slowest
	case acked.ours < expired && acked.ours+1 == t.waited: // since the step before: an ack floor may be old
		keeps, message = acked.slowestOfOurs, "event that waits keeps inbound events"
	}
	t.waited = acked.ours + 1
	if keeps != "" && keeps != t.loggedConsumer {
		t.log.Warn().Str("consumer", keeps).Uint64("stream_seq", acked.all+1).Msg(message)
	}
	t.loggedConsumer = keeps
}

// floorOf returns the sequence up to which a consumer has acknowledged all events of its filters. Its ack floor may be
// far below: it does not count events that the filters exclude.
func floorOf(ctx context.Context, inbound jetstream.Stream, info *jetstream.ConsumerInfo, last uint64) (uint64, error) {
	if info.NumPending == 0 && info.NumAckPending == 0 && inbound.CachedInfo().Config.Replicas <= 1 {
		return last, nil // of several servers, the one that has the consumer may lack the last events (see checkEnd)
	}
	first, _, err := FirstUnacknowledged(ctx, inbound, info)
	if first == math.MaxUint64 && (info.NumPending > 0 || info.NumAckPending > 0) {
		return info.AckFloor.Stream, err // a replica that is behind has answered
	}
	return min(first-1, last), err
}

// consumerInfo reads the state of a pull or push consumer.
func consumerInfo(ctx context.Context, stream jetstream.Stream, name string) (*jetstream.ConsumerInfo, error) {
	pull, err := stream.Consumer(ctx, name)
	if err == nil {
		return pull.CachedInfo(), nil
	}
	if !errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, err
	}
	push, err := stream.PushConsumer(ctx, name)
	if err != nil {
		return nil, err
	}
	return push.CachedInfo(), nil
}

// claimChecks returns the sequences of the events that dead letters have claim checks for. It reads each dead letter once,
// at most readMax in a step: without all of them complete is false, and the next step continues there.
func (t *Trimmer) claimChecks(ctx context.Context) (needed map[uint64]struct{}, complete bool, err error) {
	stream, err := t.js.Stream(ctx, t.ns.DLQStream())
	if err != nil {
		return nil, false, fmt.Errorf("stream %s: %w", t.ns.DLQStream(), err)
	}
	info := stream.CachedInfo()
	if !info.Created.Equal(t.dlqCreated) {
		t.dlqCreated, t.dlqNext, t.claims, t.rechecked = info.Created, 1, make(map[uint64]uint64), 0
	} else if info.State.LastSeq+1 < t.dlqNext { // an older state was restored, or a new leader does not know the end yet
		t.dlqNext = 1
	}
	t.dlqNext = max(t.dlqNext, info.State.FirstSeq)
	upTo := min(info.State.LastSeq, t.dlqNext+t.readMax-1)
	if t.dlqNext <= upTo && info.State.Msgs > 0 {
		for m, err := range ReadStream(ctx, t.js, stream, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: t.dlqNext, HeadersOnly: true,
		}, upTo) {
			if err != nil {
				return nil, false, fmt.Errorf("read stream %s: %w", t.ns.DLQStream(), err)
			}
			l := t.ns.ReadDeadLetter(m)
			t.dlqNext = l.Seq + 1
			if l.ClaimCheck != nil && l.ClaimCheck.Stream == t.ns.InStream() {
				t.claims[l.Seq] = l.ClaimCheck.Seq
			}
		}
	}
	t.dlqNext = max(t.dlqNext, upTo+1) // the last ones may have been removed
	if err := t.forgetRemoved(ctx, stream); err != nil {
		return nil, false, err
	}
	needed = make(map[uint64]struct{}, len(t.claims))
	for _, seq := range t.claims {
		needed[seq] = struct{}{}
	}
	return needed, upTo == info.State.LastSeq, nil
}

// forgetRemoved forgets claim checks whose dead letters an operator has removed. It reads at most trimRecheckMax of them in a
// step, in turn: one that is forgotten later keeps its event for longer. It leaves those behind the end of the stream: a new
// leader may not know the last dead letters yet.
func (t *Trimmer) forgetRemoved(ctx context.Context, dlq jetstream.Stream) error {
	deadLetters := slices.Sorted(maps.Keys(t.claims))
	next, _ := slices.BinarySearch(deadLetters, t.rechecked+1)
	for _, seq := range deadLetters[next:min(next+trimRecheckMax, len(deadLetters))] {
		_, err := dlq.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			var info *jetstream.StreamInfo
			if info, err = dlq.Info(ctx); err == nil && info.State.LastSeq >= seq {
				delete(t.claims, seq)
			}
		}
		if err != nil {
			return fmt.Errorf("read stream %s: %w", t.ns.DLQStream(), err)
		}
		t.rechecked = seq
	}
	if next+trimRecheckMax >= len(deadLetters) {
		t.rechecked = 0
	}
	return nil
}

// remove removes events up to a sequence, except those that are needed, within the limits of a
// step.
func (t *Trimmer) remove(
	ctx context.Context, inbound jetstream.Stream, upTo uint64, needed map[uint64]struct{},
) (removed uint64, more bool, err error) {
	state := inbound.CachedInfo().State
	first := upTo + 1 // the first event that stays
	for seq := range needed {
		if seq >= state.FirstSeq {
			first = min(first, seq)
		}
	}
	if first > state.FirstSeq {
		purge := min(first, state.FirstSeq+t.purgeMax)
		if err := inbound.Purge(ctx, jetstream.WithPurgeSequence(purge)); err != nil {
			return 0, false, fmt.Errorf("purge up to sequence %d: %w", purge-1, err)
		}
		return purge - state.FirstSeq, purge <= upTo, nil
	}
	return t.removeBetween(ctx, inbound, upTo, needed)
}

// deletesAtOnce is the number of messages whose removal is requested at a time.
const deletesAtOnce = 32

// removeBetween deletes, each by its sequence, the events above the first one that is needed.
func (t *Trimmer) removeBetween(
	ctx context.Context, inbound jetstream.Stream, upTo uint64, needed map[uint64]struct{},
) (removed uint64, more bool, err error) {
	deleting, ctx := errgroup.WithContext(ctx)
	deleting.SetLimit(deletesAtOnce)
	for m, readErr := range ReadStream(ctx, t.js, inbound, jetstream.OrderedConsumerConfig{HeadersOnly: true}, upTo) {
		if err = readErr; err != nil {
			break
		}
		seq := m.Meta.Sequence.Stream
		if _, stays := needed[seq]; stays {
			continue
		}
		if more = removed == t.deleteMax; more {
			break
		}
		removed++
		deleting.Go(func() error {
			err := inbound.DeleteMsg(ctx, seq)
			if err != nil && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) { // another worker has removed it
				return fmt.Errorf("remove sequence %d: %w", seq, err)
			}
			return nil
		})
	}
	if failed := deleting.Wait(); failed != nil { // the read then ends, too
		err = failed
	}
	return removed, more && err == nil, err
}
