package events

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	readAhead        = 1000                   // messages in one pull request
	readStallAfter   = 500 * time.Millisecond // without a message, before the reader asks the server whether there are more
	followCheckAfter = 5 * time.Second        // without a message, before a follower checks that the server still knows it
	readStallsMax    = 10                     // in a row, before the read is restarted
	readRestartsMax  = 5                      // without a message in between
	readIdle         = 30 * time.Second       // before the server removes the consumer of a reader
	readRequest      = 5 * time.Second        // for one request to JetStream
	cancelledLimit   = time.Second            // for the removal of a consumer whose reader was cancelled
)

// errReadStalled is the error of a read when the server has messages left and sends none.
var errReadStalled = errors.New("stream read stalled, try again")

// errRecreated is the error of a read whose stream was deleted and created again: other messages have its sequences.
var errRecreated = errors.New("it was deleted and created again")

// StoredMsg is a message of a stream, with its sequence and the time when it was stored.
type StoredMsg struct {
	*nats.Msg
	Meta *nats.MsgMetadata
}

// ReadStream returns the messages of a stream in their order, from the start that config says up to
// a sequence. It also ends when the messages that are left are removed meanwhile. If the server
// loses the consumer (its leader changes, or the server or the reader is suspended), ReadStream
// restarts behind the last message. An error ends it, also when the stream was deleted and created again.
func ReadStream(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, upTo uint64,
) iter.Seq2[StoredMsg, error] {
	mayPass := isAny(errReadStalled, context.DeadlineExceeded, nats.ErrNoResponders)
	return readRestarting(ctx, js, stream, config, upTo, func(err error, failures int) bool {
		return failures < readRestartsMax && mayPass(err)
	})
}

// FollowStream returns the messages of a stream in their order, from the start that config says on, also those that are
// stored later. It restarts behind the last message as ReadStream does, as often as necessary. It ends when ctx ends,
// and with an error when the stream was deleted or the connection is closed. It calls failed when a restart fails, once
// until the next message.
func FollowStream(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, config jetstream.OrderedConsumerConfig,
	failed func(err error),
) iter.Seq2[StoredMsg, error] {
	ended := isAny(jetstream.ErrStreamNotFound, errRecreated, nats.ErrConnectionClosed, jetstream.ErrConnectionClosed)
	return func(yield func(StoredMsg, error) bool) {
		reported := false
		restart := func(err error, _ int) bool {
			if !reported && !ended(err) && !errors.Is(err, errReadStalled) && ctx.Err() == nil {
				reported = true
				failed(err)
			}
			return !ended(err)
		}
		for m, err := range readRestarting(ctx, js, stream, config, forever, restart) {
			reported = false
			if err != nil && ctx.Err() != nil || !yield(m, err) {
				return
			}
		}
	}
}

// readRestarting reads messages, and restarts behind the last one after an error if restart returns true. failures
// counts the errors since that message.
func readRestarting(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, upTo uint64,
	restart func(err error, failures int) bool,
) iter.Seq2[StoredMsg, error] {
	return func(yield func(StoredMsg, error) bool) {
		config, created := config, stream.CachedInfo().Created
		wanted, failures := true, 0
		var check func() error // nil at the first attempt
		for {
			// Each attempt would leave a request in the buffer of a broken connection.
			for upTo == forever && js.Conn().IsReconnecting() {
				if err := pauseFor(ctx, readStallAfter); err != nil {
					yield(StoredMsg{}, err)
					return
				}
			}
			err := findStart(ctx, stream, &config)
			if err == nil {
				err = readOnce(ctx, js.Conn(), stream, config, upTo, check, func(m StoredMsg) bool {
					startAt(&config, m.Meta.Sequence.Stream+1)
					failures = 0
					wanted = yield(m, nil)
					return wanted
				})
			}
			if !wanted || err == nil {
				return
			}
			if failures++; !restart(err, failures) || pauseFor(ctx, readStallAfter) != nil {
				yield(StoredMsg{}, err)
				return
			}
			check = func() error { return checkCreated(ctx, js, stream, created) }
		}
	}
}

// checkCreated returns errRecreated unless a stream is still the one that was created at a time.
func checkCreated(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, created time.Time) error {
	now, err := js.Stream(ctx, stream.CachedInfo().Config.Name)
	if err == nil && !now.CachedInfo().Created.Equal(created) {
		err = errRecreated
	}
	return err
}

func startAt(config *jetstream.OrderedConsumerConfig, seq uint64) {
	config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = jetstream.DeliverByStartSequencePolicy, seq, nil
}

// findStart replaces the time from which a stream is to be read by the sequence of the first message that was stored
// then or later, if messages of the stream were deleted. It finds it by binary search, one request for each step. The
// server's own search skips messages: it takes a file block that only records deletions for one from 1970, and begins
// behind it (nats-server 2.15.2, selectMsgBlockForStart).
func findStart(ctx context.Context, stream jetstream.Stream, config *jetstream.OrderedConsumerConfig) error {
	if config.OptStartTime == nil {
		return nil
	}
	request := func(work func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, readRequest)
		defer cancel()
		return work(ctx)
	}
	var info *jetstream.StreamInfo
	err := request(func(ctx context.Context) (err error) { info, err = stream.Info(ctx); return err })
	if err != nil || info.State.NumDeleted == 0 {
		return err
	}
	low, high := info.State.FirstSeq, info.State.LastSeq+1
	for low < high {
		middle := low + (high-low)/2
		var m *jetstream.RawStreamMsg
		err := request(func(ctx context.Context) (err error) {
			m, err = stream.GetMsg(ctx, middle, jetstream.WithGetMsgSubject(">")) // it, or the next one
			return err
		})
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			high = middle
		case err != nil:
			return err
		case m.Time.Before(*config.OptStartTime):
			low = m.Sequence + 1
		default:
			high = middle
		}
	}
	startAt(config, low)
	return nil
}

// pauseFor returns nil after d, or the cause when ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// HeadersSince is the configuration of a read of headers, beginning ClockSkewMax before a time.
func HeadersSince(at time.Time) jetstream.OrderedConsumerConfig {
	at = at.Add(-ClockSkewMax)
	return jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &at, HeadersOnly: true,
	}
}

// ReadAll returns the messages that a stream has when it begins.
func ReadAll(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, config jetstream.OrderedConsumerConfig,
) iter.Seq2[StoredMsg, error] {
	return func(yield func(StoredMsg, error) bool) {
		info, err := stream.Info(ctx)
		if err != nil {
			yield(StoredMsg{}, err)
			return
		}
		ReadStream(ctx, js, stream, config, info.State.LastSeq)(yield)
	}
}

// forever is beyond the last message of every stream: readOnce then waits for more.
const forever = math.MaxUint64

// reading is a read of a stream by a consumer of its own.
type reading struct {
	stream   jetstream.Stream
	consumer jetstream.Consumer
	upTo     uint64
	puller   *puller
	stalls   int    // in a row
	passed   uint64 // messages
	last     uint64 // the sequence of the last message that was passed, 0 before the first
	left     uint64 // messages after it, as the server said with it
}

// readOnce passes messages to take until take returns false, or the last message up to a sequence is read. It calls
// check, unless that is nil, when it has a consumer.
func readOnce(
	ctx context.Context, nc *nats.Conn, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, upTo uint64,
	check func() error, take func(StoredMsg) bool,
) (err error) {
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: config.DeliverPolicy, OptStartSeq: config.OptStartSeq, OptStartTime: config.OptStartTime,
		FilterSubjects: config.FilterSubjects, HeadersOnly: config.HeadersOnly,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: readIdle, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer func() {
		// After another error the server may not answer. It removes the consumer itself after readIdle.
		if err == nil || ctx.Err() != nil && nc.IsConnected() {
			deleteReadConsumer(ctx, stream, consumer)
		}
	}()
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	if upTo != forever && info.NumPending == 0 {
		return checkEnd(ctx, stream, config, 0, upTo)
	}
	p := newPuller(nc, info.Stream, info.Name, 2*readAhead)
	defer p.close()
	r := &reading{stream: stream, consumer: consumer, upTo: upTo, puller: p}
	for {
		messages, err := r.next(ctx)
		if err != nil {
			return err
		}
		if more, err := r.pass(messages, take); !more || err != nil {
			return err
		}
		if upTo != forever && (len(messages) == 0 || r.left == 0) {
			return checkEnd(ctx, stream, config, r.last, upTo)
		}
	}
}

// next returns the messages that have arrived, or none when the consumer has none left.
func (r *reading) next(ctx context.Context) ([]pulledMsg, error) {
	wait := readStallAfter
	if r.upTo == forever {
		wait = followCheckAfter
	}
	for {
		if left := r.puller.outstanding(); left <= readAhead/2 {
			if _, err := r.puller.request(readAhead-left, readBytes, readIdle); err != nil {
				return nil, err
			}
		}
		messages, err := r.puller.take(ctx, wait)
		switch {
		case err == nil:
			r.stalls = 0
			return messages, nil
		case errors.Is(err, errPullEnded):
		case errors.Is(err, errNothingPulled):
			if none, err := r.checkStall(ctx); none || err != nil {
				return nil, err
			}
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		default:
			return nil, fmt.Errorf("%w: %w", errReadStalled, err)
		}
	}
}

// checkStall asks the server why it sends no messages, and reports whether it has none left. A follower restarts after the
// first failure: the node of its consumer may be gone, and it restarts without a limit.
func (r *reading) checkStall(ctx context.Context) (none bool, err error) {
	if r.upTo == forever && r.puller.nc.IsReconnecting() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readRequest)
	defer cancel()
	now, err := r.consumer.Info(ctx)
	if err == nil && r.upTo == forever {
		_, err = r.stream.Info(ctx) // on a server that is cut off from its cluster the consumer may answer; this needs the leader
	}
	switch {
	case err == nil && r.upTo == forever:
		if now.NumWaiting == 0 {
			r.puller.close() // its requests were lost, with a connection for example
		}
		return false, nil
	case err == nil && now.NumPending == 0 && now.Delivered.Consumer <= r.passed:
		return true, nil // what was left was removed meanwhile, and nothing that was sent has yet to arrive
	}
	if r.stalls++; r.stalls == readStallsMax || r.upTo == forever || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, nats.ErrConnectionClosed) {
		return false, errReadStalled
	}
	return false, nil
}

// pass passes messages to take, and reports whether more of them are wanted.
func (r *reading) pass(messages []pulledMsg, take func(StoredMsg) bool) (more bool, err error) {
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil {
			return false, err
		}
		if r.passed++; meta.Sequence.Consumer != r.passed {
			return false, errReadStalled // a message was lost on the way
		}
		r.last, r.left = meta.Sequence.Stream, meta.NumPending
		if r.last > r.upTo || !take(StoredMsg{m.Msg, meta}) || r.last == r.upTo {
			return false, nil
		}
	}
	return true, nil
}

// checkEnd returns errReadStalled when a consumer has no messages left after a sequence (0: none was read), and
// the leader of the stream has. A consumer of a stream with replicas may be on a server whose copy lacks the last
// messages, because it has fallen behind, or was replaced and has not copied them all yet.
func checkEnd(
	ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, read, upTo uint64,
) error {
	if stream.CachedInfo().Config.Replicas <= 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readRequest)
	defer cancel()
	subjects := config.FilterSubjects
	if len(subjects) == 0 {
		subjects = []string{">"}
	}
	for _, subject := range subjects {
		var m *jetstream.RawStreamMsg
		var err error
		isLeft := func() bool { return m.Sequence <= upTo }
		if read == 0 && config.OptStartTime != nil {
			m, err = stream.GetLastMsgForSubject(ctx, subject)
			isLeft = func() bool { return !m.Time.Before(*config.OptStartTime) } // it, or one before it
		} else {
			m, err = stream.GetMsg(ctx, max(read+1, config.OptStartSeq), jetstream.WithGetMsgSubject(subject))
		}
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
		case err != nil:
			return err
		case isLeft():
			return errReadStalled
		}
	}
	return nil
}

// deleteReadConsumer deletes the consumer of a read that has ended. The server would do so after
// readIdle; until then a Trimmer would keep the following messages for it.
func deleteReadConsumer(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) {
	limit := readRequest
	if ctx.Err() != nil {
		limit = cancelledLimit
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // the server deletes it later
}
