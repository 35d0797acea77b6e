package events

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	searchLimit = 2 * time.Second // for the outcomes of one resource
	searchedMax = deferredMax     // events whose last search a lane remembers: those that come again are mostly deferred
)

// dropAnswered acknowledges the events of a batch whose outcomes were stored at earlier deliveries, so long ago that Redis
// may have forgotten the answers: decided once more, they would have second outcomes. It returns the other events.
//
// It searches for each event that is old and may have been delivered before, but not again while what was decided since
// its last search is surely remembered: an event may be deferred for days. Payments have their answers in Postgres. An
// event is decided if the search takes too long: a busy resource may have millions of outcomes.
func (l *lane) dropAnswered(ctx context.Context, batch []*delivery) []*delivery {
	c, now := l.consumer, time.Now().Round(0) // the wall clock, see ackWaitOver
	old := make(map[string][]*delivery)       // by resource
	var searchUntil time.Time
	for _, d := range batch {
		if d.result.Err != nil || c.isFirstDelivery(d) || c.isPayment(d) {
			continue
		}
		// The other half allows for the delay between a decision and its outcome, and for the difference of the clocks.
		memory := c.service.AnswerTTL(d.meta.Timestamp)
		before := now.Add(-memory / 2)
		if d.meta.Timestamp.After(before) || now.Sub(l.searched[d.origin()]) < memory/4 {
			continue
		}
		old[d.in.Resource] = append(old[d.in.Resource], d)
		if before.After(searchUntil) {
			searchUntil = before
		}
	}
	answered := make(map[string]bool) // by the id of the outcome
	ctx, cancel := context.WithTimeout(ctx, outcomeSearchLimit)
	defer cancel()
	for resource, deliveries := range old {
		found, err := c.storedOutcomes(ctx, deliveries, searchUntil, searchLimit)
		if errors.Is(err, errTooManyOutcomes) {
			c.log.Debug().Err(err).Str("resource", resource).Msg("redelivered events are decided without a search")
			err = nil
		}
		for _, d := range deliveries {
			if d.result.Err = err; err == nil {
				l.searched[d.origin()] = now
				dropExcess(l.searched, searchedMax, d.origin())
			}
		}
		maps.Copy(answered, found)
	}
	return slices.DeleteFunc(batch, func(d *delivery) bool {
		if d.in == nil || !answered[d.in.OutcomeID] {
			return false
		}
		l.markDecided(d)
		c.ack(d)
		return true
	})
}

// hasOutcome reports whether the outcome of an event is stored.
func (c *Consumer) hasOutcome(ctx context.Context, d *delivery) (bool, error) {
	found, err := c.storedOutcomes(ctx, []*delivery{d}, time.Time{}, outcomeSearchLimit)
	return len(found) > 0, err
}

// errTooManyOutcomes is returned by a search that has read outcomes, and not all of them in time.
var errTooManyOutcomes = errors.New("too many outcomes")

// storedOutcomes returns which ids of the outcomes of some events are stored. The events are of one resource. Unless
// before is zero, only outcomes that were stored until then are searched.
func (c *Consumer) storedOutcomes(
	ctx context.Context, of []*delivery, before time.Time, within time.Duration,
) (found map[string]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out, err := c.js.Stream(ctx, c.ns.OutStream())
	if err != nil {
		return nil, ofNATS(fmt.Errorf("search for the outcomes of events: %w", err))
	}
	since, sought := of[0].meta.Timestamp, make(map[string]bool)
	for _, d := range of {
		if d.meta.Timestamp.Before(since) {
			since = d.meta.Timestamp
		}
		sought[d.in.OutcomeID] = true
	}
	config := HeadersSince(since)
	config.FilterSubjects = []string{c.ns.Out("*.*", of[0].in.Resource)}
	found = make(map[string]bool)
	progress := false
	for m, err := range ReadAll(ctx, c.js, out, config) {
		if progress && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", errTooManyOutcomes, err)
		}
		if err != nil {
			return nil, ofNATS(fmt.Errorf("search for the outcomes of events: %w", err))
		}
		progress = true
		if !before.IsZero() && m.Meta.Timestamp.After(before) {
			break
		}
		id, _, _ := strings.Cut(m.Headers().Get(headerMsgID), "#") // see checkDuplicate
		if sought[id] {
			found[id] = true
		}
		if len(found) == len(of) {
			break
		}
	}
	return found, nil
}
