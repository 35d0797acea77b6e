package events

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// resumeLimit bounds the search for the first unanswered event.
const resumeLimit = 10 * time.Minute

// ensureConsumer creates a durable consumer of the inbound stream, or updates the configuration of
// the existing one. If the stream has events already, a new consumer starts at the first unanswered
// one: from the beginning of the stream it would decide events whose answers are no longer
// remembered. known are the floors that a worker has read, nil for none. An existing consumer whose configuration
// loses events is deleted and created as a new one: what it has skipped is below its ack floor.
func (ns Namespace) ensureConsumer(
	ctx context.Context, js jetstream.JetStream, name string, known *floors, log zerolog.Logger,
) error {
	config := ns.consumer(name)
	found, err := js.Consumer(ctx, ns.InStream(), name)
	if err == nil && losesEvents(found.CachedInfo().Config, config) {
		was := found.CachedInfo().Config
		config.Metadata, config.PauseUntil = was.Metadata, was.PauseUntil
		if err = js.DeleteConsumer(ctx, ns.InStream(), name); err == nil {
			err = jetstream.ErrConsumerNotFound
		}
	}
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if found, err = ns.createConsumer(ctx, js, config, known, log); found == nil && err == nil {
			return nil
		}
	}
	if err == nil { // its start cannot be changed, and need not be
		was := found.CachedInfo().Config
		config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = was.DeliverPolicy, was.OptStartSeq, was.OptStartTime
		config.Metadata = was.Metadata // the reason of a pause (see SetPause), which an update does not end
		_, err = js.UpdateConsumer(ctx, ns.InStream(), config)
	}
	if err != nil {
		return fmt.Errorf("consumer %s of stream %s: %w", name, ns.InStream(), err)
	}
	return nil
}

// createConsumer creates a missing consumer and returns nil. If another worker has created it
// meanwhile, it returns that one.
func (ns Namespace) createConsumer(
	ctx context.Context, js jetstream.JetStream, config jetstream.ConsumerConfig, known *floors,
	log zerolog.Logger,
) (jetstream.Consumer, error) {
	r, err := ns.newResumption(ctx, js, config, log)
	if err != nil {
		return nil, err
	}
	from, err := r.from(ctx, known)
	if err != nil {
		return nil, err
	}
	if from > 1 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	_, err = js.CreateConsumer(ctx, ns.InStream(), config)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return js.Consumer(ctx, ns.InStream(), config.Durable)
	}
	if err == nil && r.in.State.LastSeq > 0 { // at most r.openMax unanswered events are counted
		log.Warn().Str("consumer", config.Durable).Str("stream", ns.InStream()).Uint64("from_stream_seq", from).
			Uint64("last_stream_seq", r.in.State.LastSeq).Int("unanswered", len(r.open)).
			Msg("consumer missing, created at the first unanswered event")
	}
	return nil, err
}

// resumption is the search for the first unanswered event of a consumer. It reads the inbound
// stream and the outbound stream side by side, and keeps the events that have no outcome yet. When openMax of them
// wait, it reads no more events. If all that it has kept were answered later, it continues at the next event: a stream
// may have had a long outage, and the answers to millions of events after it.
type resumption struct {
	ns       Namespace
	config   jetstream.ConsumerConfig
	log      zerolog.Logger
	inbound  jetstream.Stream
	outcomes jetstream.Stream
	dlq      jetstream.Stream
	js       jetstream.JetStream
	in, out  *jetstream.StreamInfo
	complete time.Time // the outbound stream has all outcomes since then; zero: all outcomes

	openMax     int                  // unansweredMax, except in tests
	open        map[uint64]time.Time // when each event without an outcome so far was stored; at most openMax
	unread      uint64               // the sequence of the first event that found open full, 0 if none did
	ofID        map[string][]uint64  // the sequences of open events, by the ids of their outcomes
	recent      map[string]time.Time
	pruneAt     int
	answered    int
	floorKnown  bool // an outcome carries a floor of this consumer
	olderEvents int  // events from before complete that are assumed to be answered
}

func (ns Namespace) newResumption(
	ctx context.Context, js jetstream.JetStream, config jetstream.ConsumerConfig, log zerolog.Logger,
) (*resumption, error) {
	r := &resumption{
		js: js, ns: ns, config: config, log: log, openMax: unansweredMax,
		open: make(map[uint64]time.Time), ofID: make(map[string][]uint64),
		recent: make(map[string]time.Time), pruneAt: recentMin,
	}
	for name, stream := range map[string]*jetstream.Stream{
		ns.InStream(): &r.inbound, ns.OutStream(): &r.outcomes, ns.DLQStream(): &r.dlq,
	} {
		var err error
		if *stream, err = js.Stream(ctx, name); err != nil {
			return nil, fmt.Errorf("stream %s: %w", name, err)
		}
	}
	r.in, r.out = r.inbound.CachedInfo(), r.outcomes.CachedInfo()
	r.complete = completeSince(r.out, r.in, setupWithin)
	return r, nil
}

// from returns the sequence of the first unanswered event, or the one after the last event if all
// are answered.
func (r *resumption) from(ctx context.Context, known *floors) (uint64, error) {
	state := r.in.State
	if state.LastSeq == 0 {
		return 1, nil
	}
	floor, err := r.floor(ctx)
	if err != nil {
		return 0, err
	}
	floor = max(floor, known.on(r.in.Created, r.config.Durable))
	if floor > state.LastSeq { // another worker has created the consumer since, or an older state of the stream was restored
		now, err := r.inbound.Info(ctx)
		if err != nil {
			return 0, fmt.Errorf("stream %s: %w", r.ns.InStream(), err)
		}
		if floor > now.State.LastSeq { // other events get the sequences up to the floor
			floor = 0
		}
	}
	start := max(floor+1, state.FirstSeq)
	r.floorKnown = floor > 0
	never := r.out.State.LastSeq == 0 && r.dlq.CachedInfo().State.LastSeq == 0 && r.complete.IsZero()
	if never || start > state.LastSeq || state.Msgs == 0 {
		return start, nil // no event was ever answered, or all are
	}
	ctx, cancel := context.WithTimeout(ctx, resumeLimit)
	defer cancel()
	first, next := uint64(0), start
	for err == nil && next > 0 && len(r.open) == 0 {
		err = r.search(ctx, next)
		next = r.unread
	}
	if err == nil {
		first, err = r.first()
	}
	if err != nil {
		return 0, r.positionUnknown(start, err.Error())
	}
	return first, nil
}

// floor returns the highest floor of the consumer in the newest outcomes of each kind, 0 for none.
func (r *resumption) floor(ctx context.Context) (floor uint64, err error) {
	for _, event := range outcomeEvents {
		m, err := r.outcomes.GetLastMsgForSubject(ctx, r.ns.Out(event, "*"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read stream %s: %w", r.ns.OutStream(), err)
		}
		floor = max(floor, readFloors(m.Header.Get(headerFloors)).on(r.in.Created, r.config.Durable))
	}
	return floor, nil
}

// outcomeEvents are the outbound events that answer an inbound one.
var outcomeEvents = []string{
	holds.EventHoldCreated, holds.EventHoldRejected, holds.EventHoldExtended, holds.EventExtensionRejected,
	holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventHoldConfirmed, holds.EventConfirmRejected,
	holds.EventReservationCancelled, holds.EventCancelRejected, holds.EventInventoryUpdated, holds.EventInventoryRejected,
	holds.EventBookingCancelled,
}

// search reads the events from a sequence on, up to r.unread, and their outcomes and dead letters.
func (r *resumption) search(ctx context.Context, start uint64) error {
	r.unread = 0
	clear(r.recent)
	events := jetstream.OrderedConsumerConfig{
		FilterSubjects: r.config.FilterSubjects,
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: start,
	}
	var outcomes func() (StoredMsg, error, bool)
	var waiting StoredMsg
	more := false
	next := func() error {
		var err error
		if waiting, err, more = outcomes(); err != nil {
			return fmt.Errorf("read stream %s: %w", r.ns.OutStream(), err)
		}
		return nil
	}
	for m, err := range ReadStream(ctx, r.js, r.inbound, events, r.in.State.LastSeq) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", r.ns.InStream(), err)
		}
		if outcomes == nil {
			var stop func()
			since := HeadersSince(m.Meta.Timestamp.Add(-r.out.Config.Duplicates)) // see event
			outcomes, stop = iter.Pull2(ReadStream(ctx, r.js, r.outcomes, since, r.out.State.LastSeq))
			defer stop() // once: outcomes is set
			if err := next(); err != nil {
				return err
			}
		}
		for more && waiting.Meta.Timestamp.Before(m.Meta.Timestamp) {
			r.outcome(waiting)
			if err := next(); err != nil {
				return err
			}
		}
		if r.event(m); r.unread > 0 {
			break
		}
	}
	for more && (r.unread == 0 || len(r.open) > 0) {
		r.outcome(waiting)
		if err := next(); err != nil {
			return err
		}
	}
	return r.deadLetters(ctx)
}

// event records an event as open unless it is answered, or as unread when open is full. If the same event was published
// and answered shortly before, it has no outcome of its own, because JetStream drops that one as a duplicate.
func (r *resumption) event(m StoredMsg) {
	if r.ns.ConsumerOf(m.Subject()) != r.config.Durable {
		return
	}
	seq, stored := m.Meta.Sequence.Stream, m.Meta.Timestamp
	older := stored.Before(r.complete) && r.config.Durable != ConsumerPayments // see first
	if older {
		r.olderEvents++
		if stored.Before(r.complete.Add(-ClockSkewMax)) {
			return
		}
	}
	in, err := r.ns.Decode(m.Subject(), m.Headers(), m.Data(), stored)
	if err == nil { // otherwise it has, or gets, a dead letter
		if _, is := r.recent[in.OutcomeID]; is {
			r.answered++
			return
		}
	}
	if !older && len(r.open) == r.openMax {
		r.unread = seq
		return
	}
	if err == nil {
		r.ofID[in.OutcomeID] = append(r.ofID[in.OutcomeID], seq)
	}
	if !older {
		r.open[seq] = stored
	}
}

const (
	recentMin     = 10_000  // outcomes in recent before the first time that old ones are removed
	unansweredMax = 200_000 // open events in memory, some 250 bytes each
)

// outcome removes the events that an outcome answers.
func (r *resumption) outcome(m StoredMsg) {
	id, _, _ := strings.Cut(m.Headers().Get(headerMsgID), "#") // see checkDuplicate
	for _, seq := range r.ofID[id] {
		delete(r.open, seq)
		r.answered++
	}
	delete(r.ofID, id)
	r.recent[id] = m.Meta.Timestamp
	if len(r.recent) < r.pruneAt {
		return
	}
	for id, at := range r.recent {
		if m.Meta.Timestamp.Sub(at) > r.out.Config.Duplicates+ClockSkewMax {
			delete(r.recent, id)
		}
	}
	r.pruneAt = max(recentMin, 2*len(r.recent))
}

// deadLetters removes the events that have a dead letter.
func (r *resumption) deadLetters(ctx context.Context) error {
	oldest := time.Time{}
	for _, stored := range r.open {
		if oldest.IsZero() || stored.Before(oldest) {
			oldest = stored
		}
	}
	if oldest.IsZero() {
		return nil
	}
	for m, err := range ReadStream(ctx, r.js, r.dlq, HeadersSince(oldest), r.dlq.CachedInfo().State.LastSeq) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", r.ns.DLQStream(), err)
		}
		seq, err := strconv.ParseUint(m.Headers().Get(HeaderDLQStreamSeq), 10, 64)
		if stored, is := r.open[seq]; err == nil && is && r.isDeadLetterOf(m, seq, stored) {
			delete(r.open, seq)
			r.answered++
		}
	}
	return nil
}

// isDeadLetterOf reports whether a dead letter belongs to an event, and not to one of an earlier
// stream with the same sequence.
func (r *resumption) isDeadLetterOf(m StoredMsg, seq uint64, stored time.Time) bool {
	id, _, _ := strings.Cut(m.Headers().Get(headerMsgID), "#")
	return id == r.ns.deadLetterID(r.in.Created, seq) || id == r.ns.deadLetterID(stored, seq)
}

// first returns the sequence of the first unanswered event. If an event is older than the outbound
// stream, it is not known whether it was answered:
//
//   - Requests and changes count as answered if the consumer has answered any event since, because
//     it processes them in order.
//   - A payment that fails is retried without a limit, so it may wait between answered ones. It is
//     known to wait only if it lies above a floor.
func (r *resumption) first() (uint64, error) {
	first, lost := r.in.State.LastSeq+1, r.olderEvents > 0 && r.answered == 0
	for seq, stored := range r.open {
		lost = lost || stored.Before(r.complete) // a payment
		first = min(first, seq)
	}
	if lost && !r.floorKnown {
		return 0, fmt.Errorf("stream %s has no messages from before %s",
			r.ns.OutStream(), r.complete.UTC().Format(holds.TimeFormat))
	}
	if r.olderEvents > 0 {
		r.log.Warn().Str("consumer", r.config.Durable).Int("events", r.olderEvents).Time("outcomes_since", r.complete).
			Msg("events older than the outcome log assumed to be answered")
	}
	return first, nil
}

// positionUnknown is the error of a missing consumer whose first unanswered event cannot be
// determined.
func (r *resumption) positionUnknown(start uint64, why string) error {
	name, in := r.config.Durable, r.ns.InStream()
	return fmt.Errorf("consumer position unknown: it is missing, and it cannot be determined "+
		"which events from sequence %d on are answered: %s; "+
		"create it at the event where it must continue: "+
		"nats consumer add %s %s --pull --ack explicit --deliver SEQUENCE --defaults (%d: decide all of them, %d: none), "+
		"and run worker migrate, which completes its configuration", start, why, in, name, start, r.in.State.LastSeq+1)
}
