package audit

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

const dropMargin = 24 * time.Hour

// couldBeDropped reports whether what was stored at a moment could be gone from a stream because
// its older part was dropped.
func (s *stream) couldBeDropped(stored int64, margin time.Duration) bool {
	if stored < s.created.UnixMilli() { // the stream was made anew since
		return true
	}
	return !s.whole && (s.since.IsZero() || stored < s.since.Add(margin).UnixMilli())
}

// checkEvents finds events that have not exactly one outcome.
func (g *group) checkEvents() (found []*Finding) {
	for outcome, e := range g.events {
		dead, deadLetterSeq := 0, uint64(0)
		e.each(func(seq uint64) {
			if l := g.deadLetters[seq]; l != nil {
				l.found = true
				dead, deadLetterSeq = dead+1, l.seq
			}
		})
		copies := 1 + len(e.copies)
		another := g.another[outcome]
		switch {
		case another != 0:
			found = append(found, g.onEvent(TwoOutcomes, e.seq,
				fmt.Sprintf("sequence %d of %s", e.outcome, g.out.name), fmt.Sprintf("another one in sequence %d", another),
				"The outcome in sequence %d of %s and the one in sequence %d have the same id and say different things.", e.outcome, g.out.name, another))
		case e.outcome != 0 && dead == copies:
			found = append(found, g.onEvent(TwoOutcomes, e.seq,
				"one outcome, or one dead letter", fmt.Sprintf("sequence %d of %s and letter %d", e.outcome, g.out.name, deadLetterSeq),
				"It has an outcome, sequence %d of %s, and is a dead letter too, %d in %s.", e.outcome, g.out.name, deadLetterSeq, g.dlq.name))
		case e.outcome != 0 && e.outcomeName != 0 && !slices.Contains(outcomesOf[e.name.String()], e.outcomeName.String()):
			found = append(found, g.onEvent(WrongOutcome, e.seq, "an outcome of "+e.name.String(), e.outcomeName.String(),
				"It is a %s, and its outcome, sequence %d of %s, is %s.", e.name, e.outcome, g.out.name, e.outcomeName))
		case e.outcome != 0 || dead == copies:
		case g.isPending(e):
			g.waiting.event(e.stored)
		case g.out.couldBeDropped(e.stored, clockMargin):
			g.inconclusive.outcomesDropped++
		case e.stored < g.dlq.created.UnixMilli():
			g.inconclusive.deadLettersDropped++
		default:
			g.unanswered = append(g.unanswered, e.seq)
		}
	}
	for _, u := range g.unprocessable {
		switch l := g.deadLetters[u.seq]; {
		case l != nil:
			l.found = true
		case u.seq > g.floors[u.consumer]:
			g.waiting.event(u.stored)
		case u.stored < g.dlq.created.UnixMilli():
			g.inconclusive.deadLettersDropped++
		default:
			g.withoutDeadLetter = append(g.withoutDeadLetter, u.seq)
		}
	}
	// The event of an outcome was stored before it, by as long as an outage lasted that others have waited for too.
	margin := dropMargin + time.Duration(g.slowest)*time.Millisecond
	holes := g.in.state.NumDeleted >= len(g.orphans) // somebody has removed as many events one by one
	for _, o := range g.orphans {
		if holes || g.in.couldBeDropped(o.stored, margin) {
			g.inconclusive.eventsDropped++
			continue
		}
		f := &Finding{
			Kind: OutcomeWithoutEvent, Item: strconv.FormatUint(o.seq, 10), Where: g.out.name, Expected: "an event", Found: "none",
			Text:   fmt.Sprintf("Sequence %d of %s, a %s, is the outcome of no event in %s.", o.seq, g.out.name, o.name, g.in.name),
			Remedy: "See who may publish on " + g.subjects.AllOut() + ": only workers should. " + notSafe, seq: o.seq,
		}
		found = append(found, f)
	}
	for _, seq := range g.misplaced {
		found = append(found, g.misplacedAt(seq))
	}
	for _, seq := range g.unreadable {
		found = append(found, &Finding{
			Kind: Unreadable, Item: strconv.FormatUint(seq, 10), Where: g.out.name, Expected: "an outcome", Found: "something else",
			Text:   fmt.Sprintf("Sequence %d of %s is no outcome that can be read.", seq, g.out.name),
			Remedy: "See who may publish on " + g.subjects.AllOut() + ": only workers should. " + notSafe, seq: seq,
		})
	}
	return found
}

// misplacedAt is a finding about an outcome that is not where it belongs.
func (g *group) misplacedAt(seq uint64) *Finding {
	return &Finding{
		Kind: Misplaced, Item: strconv.FormatUint(seq, 10), Where: g.out.name, Expected: "the event and the resource of its subject", Found: "others",
		Text:   fmt.Sprintf("Sequence %d of %s is stored on the subject of another event or another resource than it says: who reads by subjects misses it.", seq, g.out.name),
		Remedy: "See who may publish on " + g.subjects.AllOut() + ": only workers should. " + notSafe, seq: seq,
	}
}

// clockMargin is by how much two servers of one kind may have different times.
const clockMargin = 10 * time.Second

// onEvent is a finding about an inbound event.
func (g *group) onEvent(kind Kind, seq uint64, expected, is, format string, args ...any) *Finding {
	return &Finding{
		Kind: kind, Item: strconv.FormatUint(seq, 10), Where: g.in.name, Expected: expected, Found: is,
		Text:   fmt.Sprintf("The event in sequence %d of %s: ", seq, g.in.name) + fmt.Sprintf(format, args...),
		Remedy: "Consumers have acted on one of them: find out which, and tell the others. " + notSafe,
		seq:    seq, inbound: true,
	}
}

// checkDeadLetters finds dead letters of no event.
func (g *group) checkDeadLetters() (found []*Finding) {
	stray := func(seq uint64, text string) {
		found = append(found, &Finding{
			Kind: OutcomeWithoutEvent, Item: strconv.FormatUint(seq, 10), Where: g.dlq.name, Expected: "an event", Found: "none",
			Text:   fmt.Sprintf("Letter %d of %s %s", seq, g.dlq.name, text),
			Remedy: fmt.Sprintf("See who may publish on %s: only workers should. publisher dlq show %d, and discard it if it is nobody's. ", g.subjects.AllDLQ(), seq) + notSafe,
		})
	}
	for _, seq := range g.strange {
		stray(seq, "does not say of which event it is.")
	}
	for inbound, l := range g.deadLetters {
		switch {
		case l.another != 0:
			found = append(found, g.onEvent(TwoOutcomes, inbound, "one dead letter", fmt.Sprintf("letters %d and %d", l.seq, l.another),
				"It is a dead letter twice, for different reasons: %d and %d in %s.", l.seq, l.another, g.dlq.name))
		case l.found:
		case inbound < g.in.state.FirstSeq, inbound <= g.in.read && g.in.state.NumDeleted > 0:
			g.inconclusive.eventsDropped++
		case inbound <= g.in.read:
			stray(l.seq, fmt.Sprintf("is said to be of the event in sequence %d of %s, which is not there.", inbound, g.in.name))
		default:
			stray(l.seq, fmt.Sprintf("is said to be of the event in sequence %d of %s, which has only %d.", inbound, g.in.name, g.in.state.LastSeq))
		}
	}
	return found
}

// checkUnanswered finds the events of all groups that were acknowledged and have neither outcome nor
// letter. Letters can be removed: as many events as letters were, of those that can only have been
// letters first, are taken for answered.
func (a *auditor) checkUnanswered(unanswered, withoutDeadLetter []uint64, removed uint64) (found []*Finding) {
	text := "It was acknowledged, and has neither an outcome nor a dead letter."
	remedy := fmt.Sprintf("Publish it again as it is, body and headers (nats stream get %s SEQ): a repeat within the time for which answers are remembered has the answer that was lost. "+notSafe, a.subjects.InStream())
	if n := uint64(len(withoutDeadLetter)); n <= removed {
		removed -= n
		a.report.addInconclusive(int(n), "event that cannot be processed has no dead letter any more: as many were removed", "events that cannot be processed have no dead letters any more: as many were removed")
		withoutDeadLetter = nil
	} else if removed > 0 {
		text += fmt.Sprintf(" (%d dead letters were removed, fewer than there are such events.)", removed)
		removed = 0
	}
	if n := uint64(len(unanswered)); n <= removed {
		a.report.addInconclusive(int(n), "event has no outcome and no dead letter, which may be one of those that were removed", "events have no outcome and no dead letter, which may be among those that were removed")
		unanswered = nil
	}
	for _, seq := range slices.Concat(unanswered, withoutDeadLetter) {
		found = append(found, &Finding{
			Kind: NoOutcome, Item: strconv.FormatUint(seq, 10), Where: a.subjects.InStream(), Expected: "one outcome, or one dead letter", Found: "none",
			Text:   fmt.Sprintf("The event in sequence %d of %s: %s", seq, a.subjects.InStream(), text),
			Remedy: remedy, seq: seq, inbound: true,
		})
	}
	return found
}
