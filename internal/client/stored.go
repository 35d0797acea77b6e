package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
)

// findResult returns the result of an event that another process stored in the inbound stream: the reply goes to
// that process. It waits for the outcome or the dead letter until ctx ends.
func (r *Replayer) findResult(ctx context.Context, result RunResult, seq uint64) RunResult {
	event, err := r.storedEvent(ctx, seq)
	if err == nil {
		result.EventID = events.Summarize(event.Subject, event.Header, event.Data).ID
		var found RunResult
		if found, err = r.storedResult(ctx, result, event); err == nil {
			return found
		}
	}
	result.Result, result.Detail = ReplayNoOutcome, "stored by another replay"
	if ctx.Err() == nil {
		result.Detail = fmt.Sprintf("stored by another replay; find its outcome: %v", err)
	}
	return result
}

func (r *Replayer) storedEvent(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	stream, err := r.d.c.js.Stream(ctx, r.d.c.ns.InStream())
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", r.d.c.ns.InStream(), err)
	}
	return stream.GetMsg(ctx, seq)
}

// storedResult reads outcomes and dead letters from the time on when an event was stored, until it finds that of the
// event.
func (r *Replayer) storedResult(
	ctx context.Context, result RunResult, event *jetstream.RawStreamMsg,
) (found RunResult, err error) {
	since := event.Time.Add(-events.ClockSkewMax)
	following, stop := context.WithCancel(ctx)
	defer stop()
	followers, following := errgroup.WithContext(following)
	results := make(chan RunResult, 2)
	follow := func(stream string, config jetstream.OrderedConsumerConfig, resultOf func(m events.StoredMsg) (RunResult, bool)) {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
		followers.Go(func() error {
			s, err := r.d.c.js.Stream(following, stream)
			if err != nil {
				return fmt.Errorf("stream %s: %w", stream, err)
			}
			for m, err := range events.FollowStream(following, r.d.c.js, s, config) {
				if err != nil {
					return fmt.Errorf("read stream %s: %w", stream, err)
				}
				if found, is := resultOf(m); is {
					results <- found
					stop()
					return nil
				}
			}
			return nil
		})
	}
	ns := r.d.c.ns
	follow(ns.DLQStream(), jetstream.OrderedConsumerConfig{HeadersOnly: true}, func(m events.StoredMsg) (RunResult, bool) {
		l := ns.ReadDeadLetter(m)
		if l.StreamSeq != event.Sequence {
			return RunResult{}, false
		}
		return result.deadLettered(l.Reason, l.Detail), true
	})
	// An event that cannot be decoded has no outcome.
	if in, err := ns.Decode(event.Subject, event.Header, event.Data, event.Time); err == nil {
		ofResource := jetstream.OrderedConsumerConfig{FilterSubjects: []string{ns.Out("*.*", in.Resource)}}
		follow(ns.OutStream(), ofResource, func(m events.StoredMsg) (RunResult, bool) {
			id, _, _ := strings.Cut(m.Headers().Get(jetstream.MsgIDHeader), "#")
			if !slices.Contains(in.OutcomeIDs(), id) {
				return RunResult{}, false
			}
			return result.withReply(&nats.Msg{Header: m.Headers(), Data: m.Data()}), true
		})
	}
	err = followers.Wait()
	select {
	case found = <-results:
		return found, nil
	default:
		return RunResult{}, cmp.Or(err, ctx.Err())
	}
}
