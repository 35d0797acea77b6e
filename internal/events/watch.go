package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/telemetry"
)

// The label stream.
const (
	streamIn   = "in"
	streamOut  = "out"
	streamDLQ  = "dlq"
	streamRuns = "runs"
)

// readRetry is the pause after a failure to read a message of the inbound stream: the user may lack
// the permission, and each attempt is logged by the connection.
const readRetry = 10 * time.Minute

// accountReadLimit bounds one request for the limits of the account: a request that the user may not send has no
// answer.
const accountReadLimit = time.Second

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

	readAfter        time.Time // when to read messages of the inbound stream again, after a failure
	accountReadAfter time.Time // when to read the account again, after a failure
}

// NewWatch adds the metrics to a set. skew receives how far NATS' clock is ahead of this machine's,
// in seconds.
func NewWatch(js jetstream.JetStream, ns Namespace, set *telemetry.Set, skew *telemetry.Gauge) *Watch {
	w := &Watch{
		js: js, ns: ns, skew: skew,
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
	for _, stream := range []string{streamIn, streamOut, streamDLQ, streamRuns} {
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
	var errs []error
	account, err := w.account(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("limits of the account: %w", err))
	}
	for label, name := range map[string]string{
		streamIn: w.ns.InStream(), streamOut: w.ns.OutStream(), streamDLQ: w.ns.DLQStream(), streamRuns: w.ns.RunsStream(),
	} {
		if err := w.stream(ctx, label, name, account); err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// account returns the usage and the limits of the account, nil when they are not known.
func (w *Watch) account(ctx context.Context) (*jetstream.AccountInfo, error) {
	if time.Now().Before(w.accountReadAfter) {
		return nil, errNotRead
	}
	ctx, cancel := context.WithTimeout(ctx, accountReadLimit)
	defer cancel()
	account, err := w.js.AccountInfo(ctx)
	if err != nil {
		w.accountReadAfter = time.Now().Add(readRetry)
	}
	return account, err
}

func (w *Watch) stream(ctx context.Context, label, name string, account *jetstream.AccountInfo) error {
	asked := time.Now()
	stream, err := w.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	took := time.Since(asked)
	if label == streamDLQ {
		if info, err = stream.Info(ctx, jetstream.WithSubjectFilter(w.ns.AllDLQ())); err != nil {
			return err
		}
		w.countDeadLetters(info.State.Subjects)
	}
	state := info.State
	w.messages.With(label).Set(float64(state.Msgs))
	w.bytes.With(label).Set(float64(state.Bytes))
	w.fill.With(label).Set(fillOf(info, account))
	age := 0.0
	if state.Msgs > 0 {
		age = max(0, info.TimeStamp.Sub(state.FirstTime).Seconds())
	}
	w.oldestMessages.With(label).Set(age)
	if label != streamIn {
		return nil
	}
	w.skew.Set(stream.CachedInfo().TimeStamp.Sub(asked.Add(took / 2)).Seconds())
	return w.consumers(ctx, stream, info.TimeStamp)
}

// fillOf returns the largest part of a limit that a stream has used, NaN when it has none. A stream with a limit of
// bytes has them reserved. Every other one shares the storage of the account, unless that is nil: not known.
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
	tier, has := account.Tiers["R"+strconv.Itoa(info.Config.Replicas)]
	if !has {
		tier = account.Tier
	}
	if info.Config.Storage == jetstream.MemoryStorage {
		use(tier.Memory, tier.Limits.MaxMemory)
	} else {
		use(tier.Store, tier.Limits.MaxStore)
	}
	return fill
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

// consumers reads the consumers of the workers. now is the server's time.
func (w *Watch) consumers(ctx context.Context, in jetstream.Stream, now time.Time) error {
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
		age, err := w.oldestAge(ctx, in, info, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("oldest event of consumer %s: %w", config.Durable, err))
			continue
		}
		w.oldest.With(config.Durable).Set(age)
	}
	return errors.Join(errs...)
}

// errNotRead says that a message was not read because the last attempt has failed.
var errNotRead = errors.New("not read since the last attempt has failed")

// oldestAge returns the age in seconds of the oldest event that a consumer has not acknowledged, 0 for none.
func (w *Watch) oldestAge(
	ctx context.Context, in jetstream.Stream, info *jetstream.ConsumerInfo, now time.Time,
) (float64, error) {
	if info.NumPending == 0 && info.NumAckPending == 0 {
		return 0, nil
	}
	if time.Now().Before(w.readAfter) {
		return 0, errNotRead
	}
	stored, err := OldestUnacknowledged(ctx, in, info)
	if err != nil {
		w.readAfter = time.Now().Add(readRetry)
	}
	if err != nil || stored.IsZero() {
		return 0, err
	}
	return max(0, now.Sub(stored).Seconds()), nil
}

// OldestUnacknowledged returns when the first event above the floor of a consumer was stored, up to
// which all events are acknowledged; zero when there is none.
func OldestUnacknowledged(
	ctx context.Context, in jetstream.Stream, info *jetstream.ConsumerInfo,
) (stored time.Time, err error) {
	_, stored, err = firstUnacknowledged(ctx, in, info)
	return stored, err
}

// firstUnacknowledged returns the sequence of that event too; math.MaxUint64 when there is none. The leader of the
// stream answers, which has all events.
func firstUnacknowledged(
	ctx context.Context, in jetstream.Stream, info *jetstream.ConsumerInfo,
) (first uint64, stored time.Time, err error) {
	filters := info.Config.FilterSubjects
	if len(filters) == 0 {
		filters = []string{cmp.Or(info.Config.FilterSubject, ">")}
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
