package audit

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

const dropMargin = 24 * time.Hour

// couldBeDropped reports whether a message that was stored at a moment in ms may be missing because
// the older part of the stream was dropped. margin is added to the start of the stream.
func (s *stream) couldBeDropped(stored int64, margin time.Duration) bool {
	if stored < s.begun.UnixMilli() { // the stream was recreated since
		return true
	}
	return !s.isWhole() && (s.since.IsZero() || stored < s.since.Add(margin).UnixMilli())
}

// checkEvents finds events that do not have exactly one outcome, and outcomes without an event.
func (g *group) checkEvents() (found []*Finding) {
	for _, e := range g.events {
		if f := g.checkEvent(e); f != nil {
			found = append(found, f)
		}
	}
	for _, u := range g.unprocessable {
		switch l := g.deadLetters[u.seq]; {
		case l != nil:
			l.found = true
		case u.seq > g.floors[u.consumer]:
			g.waiting.event(u.stored)
		case u.stored < g.dlq.begun.UnixMilli():
			g.inconclusive[deadLettersDropped]++
		default:
			g.withoutDeadLetter = append(g.withoutDeadLetter, u.seq)
		}
	}
	return append(found, g.checkOutcomes()...)
}

// checkEvent compares an event with its outcome and its dead letter.
func (g *group) checkEvent(e *event) *Finding {
	first, dead, deadLetterSeq := e.seqs[0], 0, uint64(0)
	for _, seq := range e.seqs {
		if l := g.deadLetters[seq]; l != nil {
			l.found = true
			dead, deadLetterSeq = dead+1, l.seq
		}
	}
	switch {
	case e.another != 0:
		return g.onEvent(TwoOutcomes, first,
			fmt.Sprintf("sequence %d of %s", e.outcome, g.out.name),
			fmt.Sprintf("a different one in sequence %d", e.another),
			"The outcomes in sequences %[1]d and %[3]d of %[2]s have the same id and different content.", e.outcome,
			g.out.name, e.another)
	case e.outcome != 0 && dead == len(e.seqs):
		return g.onEvent(TwoOutcomes, first,
			"one outcome, or one dead letter",
			fmt.Sprintf("sequence %d of %s and dead letter %d", e.outcome, g.out.name, deadLetterSeq),
			"It has an outcome (sequence %d of %s) and also a dead letter (sequence %d of %s).", e.outcome,
			g.out.name, deadLetterSeq, g.dlq.name)
	case e.outcome != 0 && !slices.Contains(outcomesOf[e.name], e.outcomeName):
		return g.onEvent(WrongOutcome, first, "an outcome of "+e.name, e.outcomeName,
			"It is %s, and its outcome (sequence %d of %s) is %s, which cannot follow from it.", e.name, e.outcome,
			g.out.name, e.outcomeName)
	case e.outcome != 0 || dead == len(e.seqs):
	case g.isPending(e):
		g.waiting.event(e.stored)
	case g.out.couldBeDropped(e.stored, clockMargin):
		g.inconclusive[outcomesDropped]++
	case e.stored < g.dlq.begun.UnixMilli():
		g.inconclusive[deadLettersDropped]++
	default:
		g.unanswered = append(g.unanswered, first)
	}
	return nil
}

// checkOutcomes finds outcomes without an event, on a wrong subject, or without a readable body.
func (g *group) checkOutcomes() (found []*Finding) {
	// The event of an outcome was stored before it. An outage may lie between the two, which then
	// delayed other events as well.
	margin := dropMargin + time.Duration(g.slowest)*time.Millisecond
	holes := g.in.state.NumDeleted >= len(g.orphans) // as many events were removed one by one
	for _, o := range g.orphans {
		if holes || o.stored < g.in.created.UnixMilli() || g.in.couldBeDropped(o.stored, margin) {
			g.inconclusive[eventsDropped]++
			continue
		}
		found = append(found, g.onOutcome(OutcomeWithoutEvent, o.seq, "an event", "none",
			"Sequence %d of %s (%s) is an outcome, and %s has no event for it.", o.seq, g.out.name, o.name, g.in.name))
	}
	for _, seq := range g.misplaced {
		found = append(found, g.onOutcome(Misplaced, seq, "the event and the resource of its subject", "different ones",
			"Sequence %d of %s is stored on the subject of another event or resource than its own: "+
				"consumers that filter by subject miss it.", seq, g.out.name))
	}
	for _, seq := range g.unreadable {
		found = append(found, g.onOutcome(Unreadable, seq, "an outcome", "something else",
			"Sequence %d of %s is not a readable outcome.", seq, g.out.name))
	}
	return found
}

// onOutcome returns a finding about a message of the outbound stream.
func (g *group) onOutcome(kind Kind, seq uint64, expected, is, format string, args ...any) *Finding {
	return &Finding{
		Kind: kind, Item: strconv.FormatUint(seq, 10), Where: g.out.name, Expected: expected, Found: is,
		Text: fmt.Sprintf(format, args...),
		Remedy: "Check who may publish on " + g.subjects.AllOut() + ": only workers should. A message " +
			`{"stream":...,"seq":...} is a PubAck whose subject a publisher has chosen as its reply subject. ` + notSafe, seq: seq,
	}
}

// clockMargin is the largest difference between the clocks of two servers of one kind.
const clockMargin = 10 * time.Second

// onEvent returns a finding about an inbound event.
func (g *group) onEvent(kind Kind, seq uint64, expected, is, format string, args ...any) *Finding {
	return &Finding{
		Kind: kind, Item: strconv.FormatUint(seq, 10), Where: g.in.name, Expected: expected, Found: is,
		Text:   fmt.Sprintf("The event in sequence %d of %s: ", seq, g.in.name) + fmt.Sprintf(format, args...),
		Remedy: "Consumers have acted on one of them: find out which, and inform the other consumers. " + notSafe,
		seq:    seq, inbound: true,
	}
}

// checkDeadLetters finds dead letters without an event, and events with two different dead letters.
func (g *group) checkDeadLetters() (found []*Finding) {
	stray := func(seq uint64, text string) {
		found = append(found, &Finding{
			Kind: OutcomeWithoutEvent, Item: strconv.FormatUint(seq, 10), Where: g.dlq.name, Expected: "an event",
			Found: "none",
			Text:  fmt.Sprintf("Dead letter %d of %s %s", seq, g.dlq.name, text),
			Remedy: fmt.Sprintf("Check who may publish on %s: only workers should. Show it with publisher dlq show "+
				"%d, and discard it if it has no event. ", g.subjects.AllDLQ(), seq) + notSafe,
		})
	}
	for _, seq := range g.strange {
		stray(seq, "does not name its event.")
	}
	for inbound, l := range g.deadLetters {
		switch {
		case l.another != 0:
			found = append(found,
				g.onEvent(TwoOutcomes, inbound, "one dead letter",
					fmt.Sprintf("dead letters %d and %d", l.seq, l.another),
					"It has two dead letters with different reasons: %d and %d in %s.", l.seq, l.another, g.dlq.name))
		case l.found:
		case inbound < g.in.state.FirstSeq, inbound <= g.in.read && g.in.state.NumDeleted > 0:
			g.inconclusive[eventsDropped]++
		case inbound <= g.in.read:
			stray(l.seq, fmt.Sprintf("names the event in sequence %d of %s, which does not exist.", inbound, g.in.name))
		default:
			stray(l.seq, fmt.Sprintf("names the event in sequence %d of %s, whose last sequence is %d.", inbound,
				g.in.name, g.in.state.LastSeq))
		}
	}
	return found
}

// checkUnanswered finds the events of all groups that were acknowledged and have neither an outcome
// nor a dead letter. Dead letters can be removed: for each removed one, an event without a dead
// letter is taken as answered, first those that cannot be processed and so never had an outcome.
func (a *auditor) checkUnanswered(unanswered, withoutDeadLetter []uint64, removed uint64) (found []*Finding) {
	text := "It was acknowledged and has neither an outcome nor a dead letter."
	remedy := fmt.Sprintf("Publish it again with the same body and headers (nats stream get %s SEQ). While answers "+
		"are remembered, a repeat gets the answer that was lost. "+notSafe, a.subjects.InStream())
	if n := uint64(len(withoutDeadLetter)); n <= removed {
		removed -= n
		a.inconclusive[unprocessableRemoved] = int(n)
		withoutDeadLetter = nil
	} else if removed > 0 {
		text += fmt.Sprintf(" (%d dead letters were removed, fewer than there are such events.)", removed)
		removed = 0
	}
	if n := uint64(len(unanswered)); n <= removed {
		a.inconclusive[deadLettersRemoved] = int(n)
		unanswered = nil
	}
	for _, seq := range slices.Concat(unanswered, withoutDeadLetter) {
		found = append(found, &Finding{
			Kind: NoOutcome, Item: strconv.FormatUint(seq, 10), Where: a.subjects.InStream(),
			Expected: "one outcome, or one dead letter", Found: "none",
			Text:   fmt.Sprintf("The event in sequence %d of %s: %s", seq, a.subjects.InStream(), text),
			Remedy: remedy, seq: seq, inbound: true,
		})
	}
	return found
}
