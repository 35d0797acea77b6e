package client

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
)

// findResult returns the result of an event in the inbound stream to which this process gets no reply: another process
// has stored it, or it was too large to request one. It waits for the outcome or the dead letter until ctx ends.
func (r *replayer) findResult(ctx context.Context, result RunResult, seq uint64) RunResult {
	event, err := r.inboundEvent(ctx, seq)
	if err == nil {
		result.EventID = events.Summarize(event.Subject, event.Header, event.Data).ID
		var found RunResult
		if found, err = r.storedResult(ctx, result, event); err == nil {
			return found
		}
	}
	result.Result, result.Detail = ReplayNoOutcome, "stored, and no reply comes here"
	if ctx.Err() == nil {
		result.Detail = fmt.Sprintf("stored, and no reply comes here; find its outcome: %v", err)
	}
	return result
}

// storedResult reads outcomes and dead letters from the time on when an event was stored, until it finds that of the
// event.
func (r *replayer) storedResult(
	ctx context.Context, result RunResult, event *jetstream.RawStreamMsg,
) (found RunResult, err error) {
	out, err := r.openStream(ctx, r.ns.OutStream())
	if err != nil {
		return RunResult{}, err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	followers, following := errgroup.WithContext(following)
	results := make(chan RunResult, 1)
	follow := func(stream jetstream.Stream, config jetstream.OrderedConsumerConfig, resultOf func(m events.StoredMsg) (RunResult, bool)) {
		followers.Go(func() error {
			return r.follow(following, stream, config, func(m events.StoredMsg) {
				if found, is := resultOf(m); is {
					select {
					case results <- found:
					default: // there is one already
					}
					stop()
				}
			})
		})
	}
	config := events.HeadersSince(event.Time)
	follow(r.stream, config, func(m events.StoredMsg) (RunResult, bool) {
		l := r.ns.ReadDeadLetter(m)
		return result.deadLettered(l.Reason, l.Detail), l.StreamSeq == event.Sequence
	})
	// An event that cannot be decoded has no outcome.
	if in, err := r.ns.Decode(event.Subject, event.Header, event.Data, event.Time); err == nil {
		config.HeadersOnly, config.FilterSubjects = false, []string{r.ns.Out("*.*", in.Resource)}
		follow(out, config, func(m events.StoredMsg) (RunResult, bool) {
			id, _, _ := strings.Cut(m.Headers().Get(jetstream.MsgIDHeader), "#")
			if id != in.OutcomeID {
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
