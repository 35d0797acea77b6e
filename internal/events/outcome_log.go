package events

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// outcomeBatch is how many messages are decoded together.
const outcomeBatch = 1000

// setupWithin is by how much streams may differ in age that were created together.
const setupWithin = time.Minute

// OutcomeLog reads what was published: it implements holds.OutcomeLog.
type OutcomeLog struct {
	js  jetstream.JetStream
	ns  Namespace
	log zerolog.Logger

	setupWithin time.Duration // by how much streams may differ in age that were made together
}

// NewOutcomeLog returns the Chronicle of a namespace.
func NewOutcomeLog(js jetstream.JetStream, ns Namespace, log zerolog.Logger) *OutcomeLog {
	return &OutcomeLog{js, ns, log, setupWithin}
}

// Outcomes implements holds.OutcomeLog. A message that is no outcome of a worker is passed over.
func (c *OutcomeLog) Outcomes(ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error, progress func(done, all uint64)) (last uint64, err error) {
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}
	if after > 0 {
		config = jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1}
	}
	batches := make(chan []StoredMsg, 1)
	var decoders sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		decoders.Go(func() {
			for batch := range batches {
				for _, m := range batch {
					if err := c.readOutcome(m, each); err != nil {
						c.log.Warn().Err(err).Str("subject", m.Subject()).Msg("passed over what is no outcome")
					}
				}
			}
		})
	}
	var batch []StoredMsg
	done := uint64(0)
	last, err = c.read(ctx, c.ns.OutStream(), after, config, func(m StoredMsg) {
		done++
		if batch = append(batch, m); len(batch) == outcomeBatch {
			batches <- batch
			batch = nil
			progress(done, done+m.Meta.NumPending)
		}
	})
	batches <- batch
	close(batches)
	decoders.Wait()
	if err != nil {
		return after, fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	return last, nil
}

// Gaps implements holds.OutcomeLog.
func (c *OutcomeLog) Gaps(ctx context.Context, since time.Time) (what string, err error) {
	out, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return "", fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	in, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return "", fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	state := out.CachedInfo().State
	begins := completeSince(out.CachedInfo(), in.CachedInfo(), c.setupWithin)
	if begins.After(since) {
		what = fmt.Sprintf("stream %s has nothing of before %s", c.ns.OutStream(), begins.UTC().Format(holds.TimeFormat))
	}
	if state.NumDeleted > 0 {
		if what != "" {
			what += ", and "
		}
		what += fmt.Sprintf("%d messages were removed from the midst of stream %s", state.NumDeleted, c.ns.OutStream())
	}
	return what, nil
}

// completeSince returns since when the outbound stream has every outcome, zero when it has all. Streams that were
// created within a time of each other were created together.
func completeSince(out, in *jetstream.StreamInfo, together time.Duration) time.Time {
	switch state := out.State; {
	case state.Msgs == 0 && state.LastSeq > 0: // all were removed
		return state.LastTime
	case state.FirstSeq > 1:
		return state.FirstTime
	case out.Created.Before(in.Created.Add(together)):
		return time.Time{}
	default: // it may be the second of its name
		return out.Created
	}
}

// read hands to each the messages of a stream from a start up to the last that there is now, and
// returns the sequence of that one.
func (c *OutcomeLog) read(ctx context.Context, name string, after uint64, config jetstream.OrderedConsumerConfig, each func(StoredMsg)) (last uint64, err error) {
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	if last = stream.CachedInfo().State.LastSeq; last <= after {
		return last, nil
	}
	for m, err := range ReadStream(ctx, stream, config, last) {
		if err != nil {
			return 0, err
		}
		each(m)
	}
	return last, nil
}

// readOutcome reads an outcome and hands it on, unless it is of a kind that Redis does not remember.
func (c *OutcomeLog) readOutcome(m StoredMsg, each func(holds.StoredOutcome) error) error {
	var e Envelope
	err := json.Unmarshal(m.Data(), &e)
	if err != nil {
		return err
	}
	event, _ := EventOf(e.Type)
	outcome := holds.StoredOutcome{ID: e.ID, StoredAt: holds.Time{Time: m.Meta.Timestamp.UTC()}}
	outcome.Event, outcome.At = event, e.Time
	switch event {
	case holds.EventHoldCreated:
		outcome.Data, err = readData[holds.HoldCreated](e)
	case holds.EventHoldRejected:
		outcome.Data, err = readData[holds.HoldRejected](e)
	case holds.EventHoldExtended:
		outcome.Data, err = readData[holds.HoldExtended](e)
	case holds.EventExtensionRejected:
		outcome.Data, err = readData[holds.ExtensionRejected](e)
	case holds.EventReleaseRejected:
		outcome.Data, err = readData[holds.ReleaseRejected](e)
	case holds.EventHoldReleased:
		outcome.Data, err = readData[holds.HoldReleased](e)
	case holds.EventHoldExpired:
		outcome.Data, err = readData[holds.HoldExpired](e)
	case holds.EventHoldConfirmed:
		outcome.Data, err = readData[holds.HoldConfirmed](e)
	case holds.EventBookingCancelled:
		outcome.Data, err = readData[holds.BookingCancelled](e)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	header := m.Headers()
	outcome.RebuildMetadata = holds.RebuildMetadata{
		Fingerprint: header.Get(headerFingerprint), FirstEventID: header.Get(headerFirstCause), Started: header.Get(headerStarted) != "",
	}
	return each(outcome)
}

func readData[T any](e Envelope) (data T, err error) {
	err = json.Unmarshal(e.Data, &data)
	return data, err
}

// Unacknowledged implements holds.OutcomeLog: it reads what lies above the last acknowledgement before which
// there is no gap. An event that has a dead letter does not wait: that is its answer.
func (c *OutcomeLog) Unacknowledged(ctx context.Context, payment func(r holds.ConfirmRequest, storedAt holds.Time), cancel func(r holds.ReleaseRequest, storedAt holds.Time)) error {
	payments, err := c.readUnacknowledged(ctx, ConsumerPayments, PaymentConfirmed)
	if err != nil {
		return err
	}
	cancellations, err := c.readUnacknowledged(ctx, ConsumerChanges, BookingCancelled)
	if err != nil {
		return err
	}
	dead, err := c.deadLettered(ctx, append(payments, cancellations...))
	if err != nil {
		return err
	}
	for _, w := range payments {
		if !dead[w.seq] {
			payment(*w.in.Confirm, w.storedAt)
		}
	}
	for _, w := range cancellations {
		if !dead[w.seq] {
			cancel(*w.in.Release, w.storedAt)
		}
	}
	return nil
}

// unacknowledged is an inbound event that lies above the floor of its consumer.
type unacknowledged struct {
	in       *Inbound
	seq      uint64
	storedAt holds.Time
}

func (c *OutcomeLog) readUnacknowledged(ctx context.Context, name, event string) (all []unacknowledged, err error) {
	consumer, err := c.js.Consumer(ctx, c.ns.InStream(), name)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	after := consumer.CachedInfo().AckFloor.Stream
	_, err = c.read(ctx, c.ns.InStream(), after, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{c.ns.In(event, ">")},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	}, func(m StoredMsg) {
		// What cannot be read is dead-lettered.
		if in, err := c.ns.Decode(m.Subject(), m.Headers(), m.Data(), m.Meta.Timestamp); err == nil {
			all = append(all, unacknowledged{in, m.Meta.Sequence.Stream, holds.Time{Time: m.Meta.Timestamp.UTC()}})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	return all, nil
}

// deadLettered returns which of some events have a dead letter, by their sequences. A dead letter that was stored
// before the inbound stream was created is of another stream with that name.
func (c *OutcomeLog) deadLettered(ctx context.Context, events []unacknowledged) (map[uint64]bool, error) {
	if len(events) == 0 {
		return nil, nil
	}
	in, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	subjects, since := make(map[uint64]string, len(events)), events[0].storedAt.Time
	for _, e := range events {
		subjects[e.seq] = c.ns.In(e.in.Event, e.in.Resource)
		if e.storedAt.Before(since) {
			since = e.storedAt.Time
		}
	}
	since = since.Add(-ClockSkewMax)
	if created := in.CachedInfo().Created; created.After(since) {
		since = created
	}
	dead := make(map[uint64]bool)
	_, err = c.read(ctx, c.ns.DLQStream(), 0, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, HeadersOnly: true,
	}, func(m StoredMsg) {
		deadLetter := c.ns.ParseDeadLetter(&jetstream.RawStreamMsg{Subject: m.Subject(), Header: m.Headers()})
		if subject, found := subjects[deadLetter.StreamSeq]; found && subject == deadLetter.Subject {
			dead[deadLetter.StreamSeq] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", c.ns.DLQStream(), err)
	}
	return dead, nil
}
