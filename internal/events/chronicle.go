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

// chronicleBatch is how many messages are decoded together.
const chronicleBatch = 1000

// setupWithin is by how much streams may differ in age that were created together.
const setupWithin = time.Minute

// Chronicle reads what was published: it implements holds.Chronicle.
type Chronicle struct {
	js  jetstream.JetStream
	ns  Subjects
	log zerolog.Logger

	setupWithin time.Duration // by how much streams may differ in age that were made together
}

// NewChronicle returns the Chronicle of a namespace.
func NewChronicle(js jetstream.JetStream, ns Subjects, log zerolog.Logger) *Chronicle {
	return &Chronicle{js, ns, log, setupWithin}
}

// Outcomes implements holds.Chronicle. A message that is no outcome of a worker is passed over.
func (c *Chronicle) Outcomes(ctx context.Context, since time.Time, after uint64, each func(holds.Told) error, progress func(done, all uint64)) (last uint64, err error) {
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
					if err := c.tell(m, each); err != nil {
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
		if batch = append(batch, m); len(batch) == chronicleBatch {
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

// Missing implements holds.Chronicle.
func (c *Chronicle) Missing(ctx context.Context, since time.Time) (what string, err error) {
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
func (c *Chronicle) read(ctx context.Context, name string, after uint64, config jetstream.OrderedConsumerConfig, each func(StoredMsg)) (last uint64, err error) {
	stream, err := c.js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	if last = stream.CachedInfo().State.LastSeq; last <= after {
		return last, nil
	}
	for m, err := range Read(ctx, stream, config, last) {
		if err != nil {
			return 0, err
		}
		each(m)
	}
	return last, nil
}

// tell reads an outcome and hands it on, unless it is of a kind that Redis does not remember.
func (c *Chronicle) tell(m StoredMsg, each func(holds.Told) error) error {
	var e Envelope
	err := json.Unmarshal(m.Data(), &e)
	if err != nil {
		return err
	}
	event, _ := eventOf(e.Type)
	told := holds.Told{ID: e.ID, StoredAt: holds.Time{Time: m.Meta.Timestamp.UTC()}}
	told.Event, told.At = event, e.Time
	switch event {
	case holds.EventHoldCreated:
		told.Data, err = readData[holds.HoldCreated](e)
	case holds.EventHoldRejected:
		told.Data, err = readData[holds.HoldRejected](e)
	case holds.EventHoldExtended:
		told.Data, err = readData[holds.HoldExtended](e)
	case holds.EventExtensionRejected:
		told.Data, err = readData[holds.ExtensionRejected](e)
	case holds.EventReleaseRejected:
		told.Data, err = readData[holds.ReleaseRejected](e)
	case holds.EventHoldReleased:
		told.Data, err = readData[holds.HoldReleased](e)
	case holds.EventHoldExpired:
		told.Data, err = readData[holds.HoldExpired](e)
	case holds.EventHoldConfirmed:
		told.Data, err = readData[holds.HoldConfirmed](e)
	case holds.EventBookingCancelled:
		told.Data, err = readData[holds.BookingCancelled](e)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	header := m.Headers()
	told.Memory = holds.Memory{
		Fingerprint: header.Get(headerFingerprint), Cause: header.Get(headerFirstCause), Started: header.Get(headerStarted) != "",
	}
	return each(told)
}

func readData[T any](e Envelope) (data T, err error) {
	err = json.Unmarshal(e.Data, &data)
	return data, err
}

// Waiting implements holds.Chronicle: it reads what lies above the last acknowledgement before which
// there is no gap. An event that has a dead letter does not wait: that is its answer.
func (c *Chronicle) Waiting(ctx context.Context, payment func(r holds.ConfirmRequest, storedAt holds.Time), cancel func(r holds.ReleaseRequest, storedAt holds.Time)) error {
	payments, err := c.waiting(ctx, ConsumerPayments, PaymentConfirmed)
	if err != nil {
		return err
	}
	cancellations, err := c.waiting(ctx, ConsumerChanges, BookingCancelled)
	if err != nil {
		return err
	}
	dead, err := c.dead(ctx, append(payments, cancellations...))
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

func (c *Chronicle) waiting(ctx context.Context, name, event string) (all []unacknowledged, err error) {
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

// leadersApart is by how much the clocks of servers that lead streams may be apart.
const leadersApart = time.Minute

// dead returns which of some events have a dead letter, by their sequences. A dead letter that was stored
// before the inbound stream was created is of another stream with that name.
func (c *Chronicle) dead(ctx context.Context, events []unacknowledged) (map[uint64]bool, error) {
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
	since = since.Add(-leadersApart)
	if created := in.CachedInfo().Created; created.After(since) {
		since = created
	}
	dead := make(map[uint64]bool)
	_, err = c.read(ctx, c.ns.DLQStream(), 0, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, HeadersOnly: true,
	}, func(m StoredMsg) {
		letter := c.ns.readDeadLetter(m.Subject(), m.Headers(), nil, m.Meta.Sequence.Stream, m.Meta.Timestamp)
		if subject, asked := subjects[letter.StreamSeq]; asked && subject == letter.Subject {
			dead[letter.StreamSeq] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", c.ns.DLQStream(), err)
	}
	return dead, nil
}
