package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// ensureConsumer creates a durable consumer of the inbound stream, or updates the configuration of
// the existing one. If the stream has events already, a new consumer starts behind the last floor that is known: from the
// beginning of the stream it would deliver every event once more. Those behind the floor that have an answer get it again,
// see dropAnswered for those whose answer is forgotten. known are the floors that a worker has read, nil for none. An
// existing consumer whose configuration loses events is deleted and created as a new one: what it has skipped is below its
// ack floor.
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
	from, last, err := ns.resumeFrom(ctx, js, config, known)
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
	if err == nil && last > 0 {
		log.Warn().Str("consumer", config.Durable).Str("stream", ns.InStream()).Uint64("from_stream_seq", from).
			Uint64("last_stream_seq", last).Msg("consumer missing, created behind the last event up to which all are answered")
	}
	return nil, err
}

// resumeFrom returns the sequence at which a missing consumer starts: behind the highest floor that the newest outcomes of
// each kind carry, or known. It returns an error when there is none although outcomes were removed: then it is not known
// which payments and requests have an answer. last is the last sequence of the stream.
func (ns Namespace) resumeFrom(
	ctx context.Context, js jetstream.JetStream, config jetstream.ConsumerConfig, known *floors,
) (from, last uint64, err error) {
	inbound, err := js.Stream(ctx, ns.InStream())
	if err != nil {
		return 0, 0, fmt.Errorf("stream %s: %w", ns.InStream(), err)
	}
	outcomes, err := js.Stream(ctx, ns.OutStream())
	if err != nil {
		return 0, 0, fmt.Errorf("stream %s: %w", ns.OutStream(), err)
	}
	in := inbound.CachedInfo()
	if last = in.State.LastSeq; last == 0 {
		return 1, 0, nil
	}
	floor := known.on(in.Created, config.Durable)
	for _, event := range outcomeEvents {
		m, err := outcomes.GetLastMsgForSubject(ctx, ns.Out(event, "*"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read stream %s: %w", ns.OutStream(), err)
		}
		floor = max(floor, readFloors(m.Header.Get(headerFloors)).on(in.Created, config.Durable))
	}
	if floor > last { // another worker has created the consumer since, or an older state of the stream was restored
		now, err := inbound.Info(ctx)
		if err != nil {
			return 0, 0, fmt.Errorf("stream %s: %w", ns.InStream(), err)
		}
		if floor > now.State.LastSeq { // other events get the sequences up to the floor
			floor = 0
		}
	}
	from = max(floor+1, in.State.FirstSeq)
	if complete, why := completeSince(outcomes.CachedInfo(), in, setupWithin); floor == 0 && !complete.IsZero() {
		_, oldest, err := FirstUnacknowledged(ctx, inbound, &jetstream.ConsumerInfo{Config: config})
		if err != nil {
			return 0, 0, fmt.Errorf("read stream %s: %w", ns.InStream(), err)
		}
		if !oldest.IsZero() && oldest.Before(complete) {
			return 0, 0, ns.positionUnknown(config.Durable, from, last, why)
		}
	}
	return from, last, nil
}

// outcomeEvents are the outbound events that answer an inbound one.
var outcomeEvents = []string{
	holds.EventHoldCreated, holds.EventHoldRejected, holds.EventHoldExtended, holds.EventExtensionRejected,
	holds.EventHoldReleased, holds.EventReleaseRejected, holds.EventHoldConfirmed, holds.EventConfirmRejected,
	holds.EventReservationCancelled, holds.EventCancelRejected, holds.EventInventoryUpdated, holds.EventInventoryRejected,
	holds.EventBookingCancelled,
}

// errPositionUnknown is the error of a missing consumer of which it is not known where it was.
var errPositionUnknown = errors.New("consumer position unknown")

// positionUnknown adds to it how an operator creates the consumer.
func (ns Namespace) positionUnknown(name string, start, last uint64, why string) error {
	in := ns.InStream()
	return fmt.Errorf("%w: it is missing, and it cannot be determined "+
		"which events from sequence %d on are answered: stream %s %s; "+
		"create it at the event where it must continue: "+
		"nats consumer add %s %s --pull --ack explicit --deliver SEQUENCE --defaults (%d: decide all of them, %d: none), "+
		"and run worker migrate, which completes its configuration", errPositionUnknown, start, ns.OutStream(), why,
		in, name, start, last+1)
}
