package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/events"
)

// searchFiltersMax is the maximum number of resources that a search filters by. With more it reads all outcomes.
const searchFiltersMax = 64

// search finds the results of events in the inbound stream to which this process gets no reply: another process has
// stored them, or they were too large to request one.
type search struct {
	*replayer
	since     time.Time              // when the first of the events was stored
	byEvent   map[uint64]RunResult   // of the dead letters, by the sequences of their events
	byOutcome map[string][]RunResult // likewise by the ids of the outcomes
	subjects  map[string]struct{}    // of the outcomes
	found     map[uint64]RunResult   // by dead letter
}

// findResults returns the results of dead letters whose events are stored. stored has the sequences of the events by
// those of the dead letters. It reads outcomes and new dead letters once for all events, and then waits for those to
// come, until the timeout passes. When ctx ends, it returns those that it has found.
func (r *replayer) findResults(ctx context.Context, stored map[uint64]uint64) map[uint64]RunResult {
	s := newSearch(r)
	if len(stored) > 0 {
		s.addAll(ctx, stored)
	}
	if len(s.byEvent) == 0 {
		return s.found
	}
	err := s.read(ctx, len(stored))
	if ctx.Err() != nil {
		return s.found
	}
	for _, result := range s.byEvent {
		if _, found := s.found[result.Seq]; !found {
			s.found[result.Seq] = result.withoutOutcome(err)
		}
	}
	return s.found
}

func newSearch(r *replayer) *search {
	return &search{
		replayer: r, byEvent: make(map[uint64]RunResult), byOutcome: make(map[string][]RunResult),
		subjects: make(map[string]struct{}), found: make(map[uint64]RunResult),
	}
}

// addAll adds events and their dead letters, until ctx ends. It gives up when it could read none for the timeout.
func (s *search) addAll(ctx context.Context, stored map[uint64]uint64) {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	limit := time.AfterFunc(s.timeout, func() { stop(fmt.Errorf("no event could be read for %s", s.timeout)) })
	defer limit.Stop()
	in, err := s.openStream(reading, s.ns.InStream())
	for deadLetter, seq := range stored {
		var event *jetstream.RawStreamMsg
		if err == nil {
			event, err = readMsg(reading, in, seq)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			limit.Reset(s.timeout)
			s.add(deadLetter, event)
		default:
			s.found[deadLetter] = RunResult{Seq: deadLetter}.withoutOutcome(err)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				err = nil
			}
		}
	}
}

// readMsg returns a message of a stream. Unless it does not exist, it tries until ctx ends.
func readMsg(ctx context.Context, stream jetstream.Stream, seq uint64) (*jetstream.RawStreamMsg, error) {
	return backoff.Retry(ctx, func() (*jetstream.RawStreamMsg, error) {
		limited, cancel := context.WithTimeout(ctx, deadLetterRequestLimit)
		defer cancel()
		m, err := stream.GetMsg(limited, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			err = backoff.Permanent(err)
		}
		return m, err
	}, backoff.WithMaxElapsedTime(0))
}

// add adds an event and its dead letter.
func (s *search) add(deadLetter uint64, event *jetstream.RawStreamMsg) {
	if len(s.byEvent) == 0 || event.Time.Before(s.since) {
		s.since = event.Time
	}
	result := RunResult{Seq: deadLetter, EventID: events.Summarize(event.Subject, event.Header, event.Data).ID}
	s.byEvent[event.Sequence] = result
	// An event that cannot be decoded has no outcome.
	if in, err := s.ns.Decode(event.Subject, event.Header, event.Data, event.Time); err == nil {
		s.byOutcome[in.OutcomeID] = append(s.byOutcome[in.OutcomeID], result)
		s.subjects[s.ns.Out("*.*", in.Resource)] = struct{}{}
	}
}

// read reads both streams until it has found a number of results, ctx ends, or the timeout has passed since it read the
// last message that was stored when it began. Then it returns nil. It returns an error if it cannot read.
func (s *search) read(ctx context.Context, number int) error {
	dlq, err := s.openStream(ctx, s.ns.DLQStream())
	if err != nil {
		return err
	}
	out, err := s.openStream(ctx, s.ns.OutStream())
	if err != nil {
		return err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	limit := time.AfterFunc(s.timeout, stop)
	defer limit.Stop()
	followers, following := errgroup.WithContext(waiting)
	results := make(chan RunResult)
	follow := func(
		stream jetstream.Stream, config jetstream.OrderedConsumerConfig, resultsOf func(m events.StoredMsg) []RunResult,
	) {
		last := stream.CachedInfo().State.LastSeq
		followers.Go(func() error {
			return s.follow(following, stream, config, func(m events.StoredMsg) {
				if m.Meta.Sequence.Stream <= last {
					limit.Reset(s.timeout)
				}
				for _, result := range resultsOf(m) {
					select {
					case results <- result:
					case <-following.Done():
					}
				}
			}, func(error) {}) // the timeout ends what cannot be read
		})
	}
	follow(dlq, events.HeadersSince(s.since), s.ofDeadLetter)
	if len(s.byOutcome) > 0 {
		follow(out, s.outcomes(out), func(m events.StoredMsg) []RunResult { return s.ofOutcome(following, out, m) })
	}
	for len(s.found) < number {
		select {
		case result := <-results:
			s.found[result.Seq] = result
		case <-following.Done():
			if err := followers.Wait(); waiting.Err() == nil {
				return err
			}
			return nil
		}
	}
	stop()
	_ = followers.Wait() // all are found
	return nil
}

// ofDeadLetter returns the result if a dead letter is that of an event.
func (s *search) ofDeadLetter(m events.StoredMsg) []RunResult {
	l := s.ns.ReadDeadLetter(m)
	if result, found := s.byEvent[l.StreamSeq]; found {
		return []RunResult{result.deadLettered(l.Reason, l.Detail)}
	}
	return nil
}

// outcomes returns the configuration of the reader of outcomes. Within its duplicate window the outbound stream drops
// an outcome that repeats an earlier one: the outcome of an event may be that of an earlier copy.
func (s *search) outcomes(out jetstream.Stream) jetstream.OrderedConsumerConfig {
	config := events.HeadersSince(s.since.Add(-out.CachedInfo().Config.Duplicates))
	if len(s.subjects) <= searchFiltersMax {
		config.FilterSubjects = slices.Sorted(maps.Keys(s.subjects))
	}
	return config
}

// ofOutcome returns the results of the dead letters whose events have an outcome.
func (s *search) ofOutcome(ctx context.Context, out jetstream.Stream, m events.StoredMsg) (results []RunResult) {
	id, _, _ := strings.Cut(m.Header.Get(jetstream.MsgIDHeader), "#")
	if len(s.byOutcome[id]) == 0 {
		return nil
	}
	outcome, err := readMsg(ctx, out, m.Meta.Sequence.Stream)
	if ctx.Err() != nil {
		return nil
	}
	for _, result := range s.byOutcome[id] {
		if err != nil {
			result = result.withoutOutcome(err)
		} else {
			result = result.withReply(&nats.Msg{Header: outcome.Header, Data: outcome.Data})
		}
		results = append(results, result)
	}
	return results
}
