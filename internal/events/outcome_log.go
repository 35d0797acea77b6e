package events

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// outcomeBatch is the number of messages that are decoded together.
const outcomeBatch = 1000

// setupWithin bounds the time between the creation of two streams that Setup creates together.
const setupWithin = time.Minute

// OutcomeLog reads the outbound stream. It implements recovery.OutcomeLog.
type OutcomeLog struct {
	js  jetstream.JetStream
	ns  Namespace
	log zerolog.Logger

	setupWithin time.Duration // the constant, except in tests
}

// NewOutcomeLog returns the OutcomeLog of a namespace.
func NewOutcomeLog(js jetstream.JetStream, ns Namespace, log zerolog.Logger) *OutcomeLog {
	return &OutcomeLog{js, ns, log, setupWithin}
}

// Outcomes implements recovery.OutcomeLog. It skips messages that are not outcomes of a worker.
func (c *OutcomeLog) Outcomes(
	ctx context.Context, since time.Time, after uint64, each func(holds.StoredOutcome) error,
	progress func(done, all uint64),
) (last uint64, err error) {
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}
	if after > 0 || since.IsZero() {
		config = jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1}
	}
	stream, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return after, fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	if last = stream.CachedInfo().State.LastSeq; last <= after {
		return last, nil
	}
	batches := make(chan []StoredMsg, 1)
	var decoders sync.WaitGroup
	var applying sync.Mutex // while each runs
	for range runtime.GOMAXPROCS(0) {
		decoders.Go(func() {
			for batch := range batches {
				for _, m := range batch {
					outcome, err := readOutcome(m)
					if err == nil && slices.Contains(rememberedOutcomes, outcome.Event) {
						applying.Lock()
						err = each(outcome)
						applying.Unlock()
					}
					if err != nil {
						c.log.Warn().Err(err).Str("subject", m.Subject).Msg("skipped malformed outcome")
					}
				}
			}
		})
	}
	var batch []StoredMsg
	done := uint64(0)
	for m, readErr := range ReadStream(ctx, c.js, stream, config, last) {
		if err = readErr; err != nil {
			break
		}
		done++
		if batch = append(batch, m); len(batch) == outcomeBatch {
			batches <- batch
			batch = nil
			progress(done, done+m.Meta.NumPending)
		}
	}
	batches <- batch
	close(batches)
	decoders.Wait()
	if err != nil {
		return after, fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	return last, nil
}

// Position implements recovery.OutcomeLog and recovery.CommitLog.
func (c *OutcomeLog) Position(ctx context.Context) (holds.LogPosition, error) {
	stream, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return holds.LogPosition{}, fmt.Errorf("read stream %s: %w", c.ns.OutStream(), ofNATS(err))
	}
	return endOf(stream.CachedInfo()), nil
}

// endOf returns the position of the last message of a stream.
func endOf(info *jetstream.StreamInfo) holds.LogPosition {
	return holds.LogPosition{Created: info.Created, Seq: info.State.LastSeq, StoredAt: info.State.LastTime}
}

// GoneBack describes for operators why a stream in a state does not contain what it had up to a position: an older state of it
// was restored. It returns "" when the stream contains that. It takes what a limit has removed as it was.
func GoneBack(
	ctx context.Context, stream jetstream.Stream, state jetstream.StreamState, p holds.LogPosition,
) (what string, err error) {
	const other = "has another message than that of the marker"
	// What replaced the message was stored later. Postgres stores microseconds.
	isOther := func(stored time.Time) bool {
		return !p.StoredAt.IsZero() && stored.Truncate(time.Microsecond).After(p.StoredAt)
	}
	switch {
	case p.Seq == 0 || p.Seq < state.FirstSeq:
		return "", nil
	case p.Seq > state.LastSeq:
		return "ends before the marker", nil
	case p.Seq == state.LastSeq && isOther(state.LastTime):
		return other, nil
	case p.Seq == state.LastSeq || p.StoredAt.IsZero():
		return "", nil
	}
	switch m, err := stream.GetMsg(ctx, p.Seq); {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "has lost the message of the marker", nil
	case err != nil:
		return "", err
	case isOther(m.Time):
		return other, nil
	}
	return "", nil
}

// MissingAfter implements recovery.OutcomeLog.
func (c *OutcomeLog) MissingAfter(ctx context.Context, after holds.LogPosition) (what string, err error) {
	stream, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return "", fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	info := stream.CachedInfo()
	if info.State.NumDeleted > 0 {
		if info, err = stream.Info(ctx, jetstream.WithDeletedDetails(true)); err != nil {
			return "", fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
		}
	}
	back, err := GoneBack(ctx, stream, info.State, after)
	if err != nil {
		return "", fmt.Errorf("read stream %s: %w", c.ns.OutStream(), err)
	}
	state := info.State
	switch {
	case !info.Created.Equal(after.Created):
		what = "was created again"
	case back != "":
		what = back
	case state.FirstSeq > after.Seq+1:
		what = "begins after the marker"
	case slices.ContainsFunc(state.Deleted, func(seq uint64) bool { return seq > after.Seq }):
		what = "lacks messages after the marker"
	default:
		return "", nil
	}
	return fmt.Sprintf("stream %s %s", c.ns.OutStream(), what), nil
}

// Gaps implements recovery.OutcomeLog.
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
	if complete, why := completeSince(out.CachedInfo(), in.CachedInfo(), c.setupWithin); complete.After(since) {
		what = fmt.Sprintf("stream %s %s", c.ns.OutStream(), why)
	}
	if state.NumDeleted > 0 {
		if what != "" {
			what += ", and "
		}
		what += fmt.Sprintf("%d messages were removed between others in stream %s", state.NumDeleted, c.ns.OutStream())
	}
	return what, nil
}

// completeSince returns the time since which the outbound stream has every outcome, zero if it has
// all of them, and describes for operators what it lacks. Streams whose creations are less than together apart were
// created together. A stream is restored under a new creation time, from a copy that lacks what was published since.
func completeSince(out, in *jetstream.StreamInfo, together time.Duration) (complete time.Time, why string) {
	switch state := out.State; {
	case state.Msgs > 0 && state.FirstTime.Before(out.Created.Add(-together)):
		return out.Created, "was restored from a backup at " + out.Created.UTC().Format(holds.TimeFormat) +
			", and lacks what was published between the two"
	case state.Msgs == 0 && state.LastSeq > 0: // all were removed
		complete = state.LastTime
		if out.Created.After(complete) { // it was restored afterwards, and has no time of its last message
			complete = out.Created
		}
	case state.FirstSeq > 1:
		complete = state.FirstTime
	case out.Created.Before(in.Created.Add(together)):
	default: // an earlier stream of this name may have been deleted
		complete = out.Created
	}
	return complete, "has no messages from before " + complete.UTC().Format(holds.TimeFormat)
}

// rememberedOutcomes are the outcomes of which Redis remembers something.
var rememberedOutcomes = []string{
	holds.EventHoldCreated, holds.EventHoldRejected, holds.EventHoldExtended, holds.EventExtensionRejected, holds.EventHoldReleased,
	holds.EventReleaseRejected, holds.EventHoldExpired, holds.EventHoldConfirmed, holds.EventConfirmRejected,
	holds.EventBookingCancelled,
}

// readOutcome decodes a stored outcome. Its Data is nil when the event is unknown.
func readOutcome(m StoredMsg) (outcome holds.StoredOutcome, err error) {
	var e struct { // what is needed of an Envelope
		ID   string         `json:"id"`
		Type string         `json:"type"`
		Time holds.Time     `json:"time"`
		Data jsontext.Value `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		return outcome, err
	}
	event, _ := EventOf(e.Type)
	outcome = holds.StoredOutcome{ID: e.ID, StoredAt: holds.Time{Time: m.Meta.Timestamp.UTC()}}
	outcome.Event, outcome.Resource, outcome.At = event, resourceOf(m.Subject), e.Time
	if outcome.Data, _, err = holds.DecodeOutcomeData(event, e.Data); err != nil {
		return outcome, err
	}
	header := m.Header
	outcome.RebuildMetadata = holds.RebuildMetadata{
		Fingerprint: header.Get(headerFingerprint), FirstEventID: header.Get(headerFirstCause),
		Started: header.Get(headerStarted) != "", Amount: header.Get(headerAmount), Currency: header.Get(headerCurrency),
	}
	if text := header.Get(headerPosition); text != "" {
		outcome.RebuildMetadata.Position, err = parsePosition(text)
	}
	return outcome, err
}

// OldestPayment implements recovery.OutcomeLog.
func (c *OutcomeLog) OldestPayment(ctx context.Context) (time.Time, error) {
	in, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return time.Time{}, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	payments, err := c.consumerInfo(ctx, ConsumerPayments)
	if err != nil {
		return time.Time{}, err
	}
	_, oldest, err := FirstUnacknowledged(ctx, in, payments)
	if err != nil {
		return time.Time{}, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	return oldest, nil
}

// Unacknowledged implements recovery.OutcomeLog: it reads the events above the ack floor of their
// consumer. It skips those with a dead letter, which are answered.
func (c *OutcomeLog) Unacknowledged(
	ctx context.Context, after uint64, payment func(r holds.ConfirmRequest, storedAt holds.Time) error,
	cancel func(r holds.ReleaseRequest, storedAt holds.Time) error,
) (last uint64, err error) {
	in, err := c.js.Stream(ctx, c.ns.InStream())
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
	}
	if last = in.CachedInfo().State.LastSeq; last <= after {
		return last, nil
	}
	payments, err := c.consumerInfo(ctx, ConsumerPayments)
	if err != nil {
		return last, err
	}
	changes, err := c.consumerInfo(ctx, ConsumerChanges)
	if err != nil {
		return last, err
	}
	// While partitions are rebuilt no worker dead-letters what could be decoded, so the dead letters may be read first.
	dead, err := c.deadLettered(ctx, in, payments, changes)
	if err != nil {
		return last, err
	}
	each := func(e *Inbound, storedAt holds.Time) error {
		if r, isPayment := e.Request.(*holds.ConfirmRequest); isPayment {
			return payment(*r, storedAt)
		}
		return cancel(*e.Request.(*holds.ReleaseRequest), storedAt)
	}
	if err := c.eachUnacknowledged(ctx, in, payments, after, PaymentConfirmed, dead, each); err != nil {
		return last, err
	}
	return last, c.eachUnacknowledged(ctx, in, changes, after, BookingCancelled, dead, each)
}

func (c *OutcomeLog) consumerInfo(ctx context.Context, name string) (*jetstream.ConsumerInfo, error) {
	consumer, err := c.js.Consumer(ctx, c.ns.InStream(), name)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	return consumer.CachedInfo(), nil
}

// eachUnacknowledged calls each for the stored events of a kind, after a sequence and above the ack floor of their consumer,
// that have no dead letter.
func (c *OutcomeLog) eachUnacknowledged(
	ctx context.Context, stream jetstream.Stream, consumer *jetstream.ConsumerInfo, after uint64, event string,
	dead map[uint64]string, each func(in *Inbound, storedAt holds.Time) error,
) error {
	last := stream.CachedInfo().State.LastSeq
	after = max(after, consumer.AckFloor.Stream)
	if last <= after {
		return nil
	}
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{c.ns.In(event, ">")},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	}
	for m, err := range ReadStream(ctx, c.js, stream, config, last) {
		if err != nil {
			return fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
		}
		if dead[m.Meta.Sequence.Stream] == m.Subject {
			continue
		}
		in, err := c.ns.Decode(m.Subject, m.Header, m.Data, m.Meta.Timestamp)
		if err != nil {
			continue // it is dead-lettered
		}
		if err := each(in, holds.Time{Time: m.Meta.Timestamp.UTC()}); err != nil {
			return err
		}
	}
	return nil
}

// deadLettered returns the subjects of the payments and cancellations above the ack floors that have a dead letter, by
// their sequences. A dead letter that was stored before the inbound stream was created belongs to an earlier stream of
// that name.
func (c *OutcomeLog) deadLettered(
	ctx context.Context, in jetstream.Stream, consumers ...*jetstream.ConsumerInfo,
) (map[uint64]string, error) {
	var since time.Time
	for _, info := range consumers {
		_, oldest, err := FirstUnacknowledged(ctx, in, info)
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", c.ns.InStream(), err)
		}
		if !oldest.IsZero() && (since.IsZero() || oldest.Before(since)) {
			since = oldest
		}
	}
	if since.IsZero() {
		return nil, nil
	}
	stream, err := c.js.Stream(ctx, c.ns.DLQStream())
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", c.ns.DLQStream(), err)
	}
	dead := make(map[uint64]string)
	for m, err := range ReadAll(ctx, c.js, stream, HeadersSince(since)) {
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", c.ns.DLQStream(), err)
		}
		l := c.ns.ReadDeadLetter(m)
		isNeeded := strings.HasPrefix(l.Subject, c.ns.In(PaymentConfirmed, "")) || strings.HasPrefix(l.Subject, c.ns.In(BookingCancelled, ""))
		if isNeeded && !l.StoredAt.Before(in.CachedInfo().Created) {
			dead[l.StreamSeq] = l.Subject
		}
	}
	return dead, nil
}
