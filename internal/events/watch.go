package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/telemetry"
)

// readRetry is the pause after a request for the limits of the account, or for a message of the inbound stream, that
// had no answer while other requests had one: the user may lack the permission, and each attempt is logged by the
// connection, or the read is slow.
const readRetry = 10 * time.Minute

// accountReadLimit bounds one request for the limits of the account: a request that the user may not send has no
// answer.
const accountReadLimit = time.Second

// answerLimit bounds the wait for an answer of NATS that shows that the connection works.
const answerLimit = time.Second

// ClockNATS is the label server of NATS' clock.
const ClockNATS = "nats"

// Watch reads the state of the streams and of the workers' consumers for the metrics. One goroutine
// uses it.
type Watch struct {
	js jetstream.JetStream
	ns Namespace

	pending, unacknowledged, oldest       *telemetry.Vec[telemetry.Gauge] // by consumer
	messages, bytes, fill, oldestMessages *telemetry.Vec[telemetry.Gauge] // by stream
	deadLetters                           *telemetry.Vec[telemetry.Gauge] // by reason
	skew                                  *telemetry.Gauge

	account          *jetstream.AccountInfo // the last one that was read, nil before
	oldestKnown      map[string]oldestEvent // by consumer, while it is the oldest one
	readAfter        time.Time              // when to read messages of the inbound stream again, see readRetry
	accountReadAfter time.Time              // when to read the account again, see readRetry
}

// oldestEvent is when the first event above the floor of a consumer was stored. It is the oldest one until the floor rises,
// unless it is removed from the stream.
type oldestEvent struct {
	created time.Time // of the consumer
	floor   uint64
	stored  time.Time
	readAt  time.Time // zero when it must be read again
}

// readOldestEvery is how often the oldest event of a consumer is read while its floor does not rise.
const readOldestEvery = time.Minute

// NewWatch adds the metrics to a set. skew receives how far NATS' clock is ahead of this machine's,
// in seconds.
func NewWatch(js jetstream.JetStream, ns Namespace, set *telemetry.Set, skew *telemetry.Gauge) *Watch {
	w := &Watch{
		js: js, ns: ns, skew: skew, oldestKnown: make(map[string]oldestEvent),
		pending: set.Gauges("holdfast.consumer.pending", "{event}",
			"Events in JetStream that the consumer has not delivered to any worker. requests counts the events "+
				"of the other consumers too, until it has passed over them.",
			"consumer"),
		unacknowledged: set.Gauges("holdfast.consumer.unacknowledged", "{event}",
			"Events that were delivered to a worker and not acknowledged yet.", "consumer"),
		oldest: set.Gauges("holdfast.consumer.oldest.age", "s",
			"Age of the oldest event that the consumer has not acknowledged, 0 when there is none.", "consumer"),
		messages: set.Gauges("holdfast.stream.messages", "{message}", "Messages in the stream.", "stream"),
		bytes:    set.Gauges("holdfast.stream.size", "By", "Bytes in the stream.", "stream"),
		fill: set.Gauges("holdfast.stream.fill", "1",
			"Largest part of a limit that is used: of the stream's messages or bytes, or of the account's storage "+
				"unless the stream has a limit of bytes. NaN without a limit.", "stream"),
		oldestMessages: set.Gauges("holdfast.stream.oldest.age", "s",
			"Age of the oldest message in the stream, 0 when it is empty.", "stream"),
		deadLetters: set.Gauges("holdfast.dead_letters", "{event}", "Dead letters in the stream, by reason.", "reason"),
	}
	for _, consumer := range ConsumerNames() {
		for _, v := range []*telemetry.Vec[telemetry.Gauge]{w.pending, w.unacknowledged, w.oldest} {
			v.With(consumer)
		}
	}
	for stream := range ns.streams() {
		for _, v := range []*telemetry.Vec[telemetry.Gauge]{w.messages, w.bytes, w.fill, w.oldestMessages} {
			v.With(stream)
		}
	}
	for _, reason := range append(DeadLetterReasons(), otherReason) {
		w.deadLetters.With(reason)
	}
	return w
}

// otherReason is the label reason of dead letters that no worker of this version writes.
const otherReason = "other"

// Observe updates the metrics. When a part cannot be read, its metrics keep their values, and
// Observe returns an error after it has read the others.
func (w *Watch) Observe(ctx context.Context) error {
	reconnects := w.js.Conn().Stats().Reconnects
	var errs []error
	accountErr := w.readAccount(ctx)
	var in jetstream.Stream
	for label, name := range w.ns.streams() {
		stream, err := w.stream(ctx, label, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", name, err))
		} else if name == w.ns.InStream() {
			in = stream
		}
	}
	var oldestErr error
	if in != nil {
		consumers, err := w.consumers(ctx, in)
		errs = append(errs, err)
		oldestErr = w.oldestAges(ctx, in, consumers) // last: a slow read takes the rest of the time
	}
	err := errors.Join(errs...)
	w.backOff(err, reconnects, accountErr, oldestErr)
	return errors.Join(accountErr, err, oldestErr)
}

// backOff delays the next read of the account or of messages when this one had no answer although NATS answers: the
// other reads have succeeded (others is nil), and the connection is the one with which they began.
func (w *Watch) backOff(others error, reconnects uint64, accountErr, oldestErr error) {
	noAnswer := isAny(context.DeadlineExceeded)
	if others != nil || !noAnswer(accountErr) && !noAnswer(oldestErr) {
		return
	}
	conn := w.js.Conn()
	if conn.FlushTimeout(answerLimit) != nil || conn.Stats().Reconnects != reconnects {
		return
	}
	after := time.Now().Add(readRetry)
	if noAnswer(accountErr) {
		w.accountReadAfter = after
	}
	if noAnswer(oldestErr) {
		w.readAfter = after
	}
}

// readAccount reads the usage and the limits of the account. After an error, those of the last read remain.
func (w *Watch) readAccount(ctx context.Context) error {
	err := errNotRead
	if !time.Now().Before(w.accountReadAfter) {
		ctx, cancel := context.WithTimeout(ctx, accountReadLimit)
		defer cancel()
		var account *jetstream.AccountInfo
		if account, err = w.js.AccountInfo(ctx); err == nil {
			w.account = account
			return nil
		}
	}
	return fmt.Errorf("limits of the account: %w", err)
}

// stream reads the state of a stream.
func (w *Watch) stream(ctx context.Context, label, name string) (jetstream.Stream, error) {
	asked := time.Now()
	stream, err := w.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	took := time.Since(asked)
	if name == w.ns.DLQStream() {
		if info, err = stream.Info(ctx, jetstream.WithSubjectFilter(w.ns.AllDLQ())); err != nil {
			return nil, err
		}
		w.countDeadLetters(info.State.Subjects)
	}
	state := info.State
	w.messages.With(label).Set(float64(state.Msgs))
	w.bytes.With(label).Set(float64(state.Bytes))
	w.fill.With(label).Set(fillOf(info, w.account))
	age := 0.0
	if state.Msgs > 0 {
		age = max(0, info.TimeStamp.Sub(state.FirstTime).Seconds())
	}
	w.oldestMessages.With(label).Set(age)
	if name == w.ns.InStream() {
		w.skew.Set(CertainSkew(asked, asked.Add(took), info.TimeStamp).Seconds())
	}
	return stream, nil
}

// fillOf returns the largest part of a limit that a stream has used, NaN when it has none. A stream with a limit of
// bytes has them reserved. Every other one shares the storage of the account, unless that is nil: never read.
func fillOf(info *jetstream.StreamInfo, account *jetstream.AccountInfo) float64 {
	fill := math.NaN()
	use := func(used uint64, limit int64) {
		if part := float64(used) / float64(limit); limit > 0 && !(fill > part) { // true for NaN
			fill = part
		}
	}
	use(info.State.Msgs, info.Config.MaxMsgs)
	use(info.State.Bytes, info.Config.MaxBytes)
	if info.Config.MaxBytes > 0 || account == nil {
		return fill
	}
	tier := TierOf(account, info.Config.Replicas)
	if info.Config.Storage == jetstream.MemoryStorage {
		use(tier.Memory, tier.Limits.MaxMemory)
	} else {
		use(tier.Store, tier.Limits.MaxStore)
	}
	return fill
}

// TierOf returns the usage and the limits of an account that a stream with these replicas shares with other streams.
func TierOf(account *jetstream.AccountInfo, replicas int) jetstream.Tier {
	if tier, has := account.Tiers["R"+strconv.Itoa(replicas)]; has {
		return tier
	}
	return account.Tier
}

func (w *Watch) countDeadLetters(bySubject map[string]uint64) {
	rest := 0.0
	for _, n := range bySubject {
		rest += float64(n)
	}
	for _, reason := range DeadLetterReasons() {
		n := float64(bySubject[w.ns.DLQ(reason)])
		w.deadLetters.With(reason).Set(n)
		rest -= n
	}
	w.deadLetters.With(otherReason).Set(rest)
}

// consumers reads the consumers of the workers, and returns those that were read.
func (w *Watch) consumers(ctx context.Context, in jetstream.Stream) (read []*jetstream.ConsumerInfo, err error) {
	var errs []error
	for _, config := range w.ns.Consumers() {
		consumer, err := in.Consumer(ctx, config.Durable)
		if err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: %w", config.Durable, err))
			continue
		}
		info := consumer.CachedInfo()
		w.pending.With(config.Durable).Set(float64(info.NumPending))
		w.unacknowledged.With(config.Durable).Set(float64(info.NumAckPending))
		read = append(read, info)
	}
	return read, errors.Join(errs...)
}

// errNotRead says that something was not read because the last attempt has failed.
var errNotRead = errors.New("not read since the last attempt has failed")

// oldestAges reads the ages of the oldest events that consumers have not acknowledged, by the server's time. After a
// failure it reads no other message.
func (w *Watch) oldestAges(ctx context.Context, in jetstream.Stream, consumers []*jetstream.ConsumerInfo) error {
	var errs []error
	skip := time.Now().Before(w.readAfter)
	for _, info := range consumers {
		known := w.oldestKnown[info.Name]
		if known.floor != info.AckFloor.Stream || !known.created.Equal(info.Created) {
			known = oldestEvent{created: info.Created, floor: info.AckFloor.Stream}
		}
		var err error
		switch {
		case info.NumPending == 0 && info.NumAckPending == 0:
			known = oldestEvent{}
		case time.Since(known.readAt) < readOldestEvery: // under load each request may be the one that takes too long
		case skip:
			err = errNotRead
		default:
			var stored time.Time
			if _, stored, err = FirstUnacknowledged(ctx, in, info); err == nil {
				known.stored, known.readAt = stored, time.Now()
			}
		}
		if err != nil {
			skip = true
			errs = append(errs, fmt.Errorf("oldest event of consumer %s: %w", info.Name, err))
			if known.readAt.IsZero() {
				continue
			}
		}
		if known.stored.IsZero() {
			known.readAt = time.Time{} // an event may come before the floor rises
		}
		w.oldestKnown[info.Name] = known
		age := 0.0
		if !known.stored.IsZero() {
			age = max(0, in.CachedInfo().TimeStamp.Sub(known.stored).Seconds())
		}
		w.oldest.With(info.Name).Set(age)
	}
	return errors.Join(errs...)
}

// FirstUnacknowledged returns the sequence of the first event above the floor of a consumer, up to which all events are
// acknowledged, and when it was stored; math.MaxUint64 and zero when there is none. The leader of the stream answers,
// which has all events.
func FirstUnacknowledged(
	ctx context.Context, in jetstream.Stream, info *jetstream.ConsumerInfo,
) (first uint64, stored time.Time, err error) {
	filters := filtersOf(info.Config)
	if len(filters) == 0 {
		filters = []string{">"}
	}
	first = math.MaxUint64
	for _, filter := range filters {
		m, err := in.GetMsg(ctx, info.AckFloor.Stream+1, jetstream.WithGetMsgSubject(filter))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return 0, time.Time{}, err
		case m.Sequence < first:
			first, stored = m.Sequence, m.Time
		}
	}
	return first, stored, nil
}

// CertainSkew returns by how much the clock of a server, which showed read, is ahead of this machine's for certain.
// The server reads it at some moment of the round trip, from sent to received, so a slow answer alone is no skew.
func CertainSkew(sent, received, read time.Time) time.Duration {
	switch {
	case read.Before(sent):
		return read.Sub(sent)
	case read.After(received):
		return read.Sub(received)
	}
	return 0
}
