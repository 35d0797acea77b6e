package events

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	readAhead       = 1000                   // messages that are asked for at a time
	readStallAfter  = 500 * time.Millisecond // without a message, before the server is asked whether there are more
	readStallsMax   = 10                     // times in a row, after which it is asked anew
	readRestartsMax = 5                      // times without a message in between
	readIdle        = 30 * time.Second       // after which the server forgets who reads
	readRequest     = 5 * time.Second        // for one answer of JetStream
)

// errReadStalled says that a server has messages left and sends none.
var errReadStalled = errors.New("the server has more messages and does not send them, try again")

// StoredMsg is a message of a stream, and where and when it was stored.
type StoredMsg struct {
	jetstream.Msg
	Meta *jetstream.MsgMetadata
}

// ReadStream returns the messages of a stream from where config begins up to a sequence, in their order, and ends also when
// those that are left were removed meanwhile. A server that has forgotten what it was asked (its leader has changed,
// it stood still, or who reads has) is asked anew for what follows, whatever config says of where to begin. After an
// error there is no more.
func ReadStream(ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, upTo uint64) iter.Seq2[StoredMsg, error] {
	return func(yield func(StoredMsg, error) bool) {
		config := config
		// nats.go goes on by itself after a gap, but does not heed ctx then.
		config.InactiveThreshold, config.MaxResetAttempts = readIdle, 1
		wanted, fruitless := true, 0
		take := func(m StoredMsg) bool {
			config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = jetstream.DeliverByStartSequencePolicy, m.Meta.Sequence.Stream+1, nil
			fruitless = 0
			wanted = yield(m, nil)
			return wanted
		}
		for {
			err := readOnce(ctx, stream, config, upTo, take)
			if !wanted || err == nil {
				return
			}
			if fruitless++; fruitless == readRestartsMax || !canRestartRead(err) || pauseFor(ctx, readStallAfter) != nil {
				yield(StoredMsg{}, err)
				return
			}
		}
	}
}

// canRestartRead reports whether a server may answer when it is asked anew.
func canRestartRead(err error) bool {
	return errors.Is(err, errReadStalled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrMsgIteratorClosed) && !errors.Is(err, jetstream.ErrConnectionClosed)
}

// pauseFor returns after a while, or with the reason why ctx is over.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// ReadAll returns the messages of a stream that are there when it begins.
func ReadAll(ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig) iter.Seq2[StoredMsg, error] {
	return func(yield func(StoredMsg, error) bool) {
		info, err := stream.Info(ctx)
		if err != nil {
			yield(StoredMsg{}, err)
			return
		}
		ReadStream(ctx, stream, config, info.State.LastSeq)(yield)
	}
}

// readOnce hands messages to take for as long as that returns true.
func readOnce(ctx context.Context, stream jetstream.Stream, config jetstream.OrderedConsumerConfig, upTo uint64, take func(StoredMsg) bool) (err error) {
	consumer, err := stream.OrderedConsumer(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			deleteReadConsumer(ctx, stream, consumer)
		}
	}()
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(readAhead))
	if err != nil {
		return err
	}
	defer messages.Stop()
	var last *jetstream.MsgMetadata
	for silent := 0; ; {
		m, err := next(ctx, messages)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			// Those that are left may have been removed meanwhile.
			infoCtx, cancel := context.WithTimeout(ctx, readRequest)
			now, err := consumer.Info(infoCtx)
			cancel()
			if err == nil && drained(now, last) {
				return nil
			}
			if silent++; silent == readStallsMax || errors.Is(err, jetstream.ErrConsumerNotFound) {
				return errReadStalled
			}
			continue
		}
		if err != nil {
			return err
		}
		silent = 0
		if last, err = m.Metadata(); err != nil {
			return err
		}
		seq := last.Sequence.Stream
		if seq > upTo || !take(StoredMsg{m, last}) || seq == upTo || last.NumPending == 0 {
			return nil
		}
	}
}

// deleteReadConsumer removes the consumer of a reader that has come to its end. The server does so too after readIdle; until then
// a Trimmer would keep what follows for it.
func deleteReadConsumer(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readRequest)
	defer cancel()
	_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name) // see above
}

func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readStallAfter)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

// drained reports whether there is nothing left for who reads a consumer without acknowledging, and has taken the
// messages up to last, nil = none. A server that has no more may have sent some that are still on their way.
func drained(now *jetstream.ConsumerInfo, last *jetstream.MsgMetadata) bool {
	taken := uint64(0)
	if last != nil && last.Consumer == now.Name {
		taken = last.Sequence.Consumer
	}
	return now.NumPending == 0 && now.Delivered.Consumer <= taken
}
