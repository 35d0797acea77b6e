package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

const (
	searchLimit = 2 * time.Second // for the outcomes of one resource, or the dead letters
	searchedMax = deferredMax     // events whose last search a lane remembers: those that come again are mostly deferred
)

// dropAnswered acknowledges the events of a batch whose outcomes were stored at earlier deliveries, so long ago that Redis
// may have forgotten the answers: decided once more, they would have second outcomes. It does the same with events whose
// dead letters were stored so long ago that JetStream may have forgotten their ids. It returns the other events.
//
// It searches for each event that is old and may have been delivered before, or is the replay of an old dead letter, but
// not again while what was answered since its last search is surely remembered: an event may be deferred for days. Payments
// have their answers in Postgres. An event is processed if its search takes too long: a busy resource may have millions of
// outcomes. It is delivered again if the batch needs so many searches that there was no time for its own. The publisher gets
// the stored answer as a reply: the first one may be lost, and one who replays has had none.
func (l *lane) dropAnswered(ctx context.Context, batch []*delivery) []*delivery {
	c, now := l.consumer, time.Now().Round(0) // the wall clock, see ackWaitOver
	searching, cancel := context.WithTimeout(ctx, c.searchWithin)
	defer cancel()
	answered := make(map[*delivery]bool)
	for key, s := range l.searches(searching, batch, now) {
		var found map[string]uint64
		var err error
		late := key.replay && time.Since(now) > c.searchEach // other events wait: they may have searches later
		if !late {
			found, err = c.storedAnswers(searching, s, c.searchEach)
		}
		switch {
		case late, err != nil && searching.Err() != nil && ctx.Err() == nil:
			err = fmt.Errorf("earlier searches of the batch have taken too long: %w", holds.ErrBusy)
		case errors.Is(err, errTooManyAnswers):
			c.log.Debug().Err(err).Str("subject", s.subject).Msg("redelivered events are processed without a search")
			err = nil
		}
		for id, deliveries := range s.events {
			for _, d := range deliveries {
				if err != nil {
					d.result.Err = err
					continue
				}
				if seq := found[id]; seq != 0 {
					answered[d] = true
					c.replyStored(searching, d, s.stream, seq)
				}
				l.searched[d.origin()] = now
				dropExcess(l.searched, searchedMax, d.origin())
			}
		}
	}
	return slices.DeleteFunc(batch, func(d *delivery) bool {
		if answered[d] {
			l.markDecided(d)
			c.ack(d)
		}
		return answered[d]
	})
}

// replyStored sends the stored outcome or dead letter of an event to its publisher.
func (c *Consumer) replyStored(ctx context.Context, d *delivery, stream string, seq uint64) {
	if replyTo(d.msg.Header) == "" {
		return
	}
	if found, known := c.readStored(ctx, &jetstream.PubAck{Stream: stream, Sequence: seq}); known {
		message := &nats.Msg{Header: found.Header, Data: found.Data}
		c.reply(pendingMsg{delivery: d, message: message, dead: stream == c.ns.DLQStream()})
	}
}

// searchKey identifies a search of dropAnswered. Replays have searches of their own: theirs may begin long before those of
// other events.
type searchKey struct {
	subject string
	replay  bool
}

// searches returns the searches of dropAnswered for a batch.
func (l *lane) searches(ctx context.Context, batch []*delivery, now time.Time) map[searchKey]*answerSearch {
	c, searches := l.consumer, make(map[searchKey]*answerSearch)
	for _, d := range batch {
		dead := is[*UnprocessableError](d.result.Err)
		if !dead && (d.result.Err != nil || c.isPayment(d)) {
			continue
		}
		first := d.meta.Timestamp // when the event, or an earlier copy, was stored
		died, replay := replayOf(d.msg.Header)
		if replay = replay && !dead && died.Before(first); replay {
			first = died
		} else if c.isFirstDelivery(d) {
			continue
		}
		memory := dlqDuplicates
		if !dead {
			memory = c.service.AnswerTTL(d.meta.Timestamp)
		}
		// The other half allows for the delay between a decision and its outcome, and for the difference of the clocks.
		until := now.Add(-memory / 2)
		searched := now.Sub(l.searched[d.origin()]) // before now, unless the clock was set back
		if first.After(until) || 0 <= searched && searched < memory/4 {
			continue
		}
		var search answerSearch
		var id string
		if dead {
			var err error
			if id, err = c.deadLetterID(ctx, d); err != nil {
				d.result.Err = err
				continue
			}
			search, until = answerSearch{stream: c.ns.DLQStream(), subject: c.ns.AllDLQ()}, time.Time{}
		} else {
			search, id = c.outcomeSearch(d), d.in.OutcomeID
		}
		key := searchKey{search.subject, replay}
		if searches[key] == nil {
			searches[key] = &search
		}
		searches[key].add(id, d, first, until)
	}
	return searches
}

// hasOutcome reports whether the outcome of an event is stored. An event that cannot be decoded has none.
func (c *Consumer) hasOutcome(ctx context.Context, d *delivery) (bool, error) {
	if d.in == nil {
		return false, nil
	}
	s := c.outcomeSearch(d)
	s.add(d.in.OutcomeID, d, d.meta.Timestamp, time.Time{})
	found, err := c.storedAnswers(ctx, &s, outcomeSearchLimit)
	return len(found) > 0, err
}

// answerSearch is a search of a stream for the outcomes, or the dead letters, of events.
type answerSearch struct {
	stream, subject string
	since, until    time.Time              // when they were stored; no end if until is zero
	events          map[string][]*delivery // by the ids of their outcomes or dead letters: a batch may have an event twice
}

// outcomeSearch returns a search of the outcomes of the resource of an event, so far for none.
func (c *Consumer) outcomeSearch(d *delivery) answerSearch {
	return answerSearch{stream: c.ns.OutStream(), subject: c.ns.Out("*.*", d.in.Resource)}
}

// add adds an event that was first stored at since. What was stored after until need not be searched for it, unless that
// is zero.
func (s *answerSearch) add(id string, d *delivery, since, until time.Time) {
	if s.events == nil {
		s.events, s.since = make(map[string][]*delivery), since
	}
	if since.Before(s.since) {
		s.since = since
	}
	if until.After(s.until) {
		s.until = until
	}
	s.events[id] = append(s.events[id], d)
}

// errTooManyAnswers is returned by a search that has read outcomes or dead letters, and not all of them in time.
var errTooManyAnswers = errors.New("too many messages")

// storedAnswers returns the sequences of the ids of a search that are stored.
func (c *Consumer) storedAnswers(
	ctx context.Context, s *answerSearch, within time.Duration,
) (found map[string]uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	stream, err := c.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, ofNATS(fmt.Errorf("search %s for the answers to events: %w", s.stream, err))
	}
	since := s.since
	if s.stream == c.ns.OutStream() { // it drops the outcome of an event that was published and answered shortly before
		since = since.Add(-stream.CachedInfo().Config.Duplicates)
	}
	config := HeadersSince(since)
	config.FilterSubjects = []string{s.subject}
	found = make(map[string]uint64)
	progress := false
	for m, err := range ReadAll(ctx, c.js, stream, config) {
		if progress && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", errTooManyAnswers, err)
		}
		if err != nil {
			return nil, ofNATS(fmt.Errorf("search %s for the answers to events: %w", s.stream, err))
		}
		progress = true
		if !s.until.IsZero() && m.Meta.Timestamp.After(s.until) {
			break
		}
		id, _, _ := strings.Cut(m.Header.Get(headerMsgID), "#") // see checkDuplicate
		if s.events[id] != nil {
			found[id] = m.Meta.Sequence.Stream
		}
		if len(found) == len(s.events) {
			break
		}
	}
	return found, nil
}
