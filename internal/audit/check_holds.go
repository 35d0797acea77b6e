package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/holds"
)

// check returns what differs between what was told of a resource's holds, what Redis remembers of
// them, and what Postgres has.
func (r *resource) check(g *group) (found []*Finding) {
	corrupt := make(map[string]bool) // what Redis knows of them cannot be read
	for _, d := range r.differences {
		corrupt[d.name] = d.what == string(RecordCorrupt) || corrupt[d.name]
	}
	for _, h := range r.holds {
		found = append(found, r.checkEnds(g, h)...)
		if r.inspected && !corrupt[h.id.String()] {
			found = append(found, r.checkRedis(g, h)...)
		}
		found = append(found, r.checkPayments(g, h)...)
	}
	for _, seq := range r.misplaced {
		found = append(found, g.misplacedAt(seq))
	}
	return slices.Concat(found, r.checkGrants(g), r.checkCapacity(g))
}

// onHold is a finding about a hold; seq is the outcome after which it is so.
func (r *resource) onHold(kind Kind, h *hold, where string, seq uint64, expected, is, remedy, format string, args ...any) *Finding {
	name := r.name + "." + h.id.String()
	return &Finding{
		Kind: kind, Resource: r.name, Item: name, Where: where, Expected: expected, Found: is,
		Text:   "Hold " + name + " " + fmt.Sprintf(format, args...),
		Remedy: remedy, seq: seq,
	}
}

// checkEnds judges what was told of a hold by itself.
func (r *resource) checkEnds(g *group, h *hold) (found []*Finding) {
	const remedy = "Consumers have acted on both: find out which is true, and tell them. " + notSafe
	more := h.more
	if more == nil {
		more = &none
	}
	if more.other != 0 {
		found = append(found, r.onHold(TwoEnds, h, g.out.name, more.other, h.end.String(), more.otherEnd.String(), remedy,
			"ended twice: as %s in sequence %d of %s, and as %s in sequence %d.", h.end, h.ended, g.out.name, more.otherEnd, more.other))
	}
	deadline, kept := h.deadline, h.deadline // kept by extensions that came in time
	if len(more.extensions) > 0 && h.created != 0 {
		slices.SortFunc(more.extensions, func(a, b extension) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.deadline, b.deadline)) })
		deadline, kept = h.granted, h.granted
		for _, x := range more.extensions {
			if x.at >= deadline {
				found = append(found, r.onHold(AfterEnd, h, g.out.name, x.seq, "before "+moment(deadline), moment(x.at), remedy,
					"lapsed at %s and was extended at %s.", moment(deadline), moment(x.at)))
			}
			if x.at < kept {
				kept = max(kept, x.deadline)
			}
			deadline = max(deadline, x.deadline)
		}
	}
	released, confirmed := h.end.String() == holds.EventHoldReleased, h.end.String() == holds.EventHoldConfirmed
	if h.created != 0 && h.endedAt >= deadline && (released || confirmed && !g.extensionMayBeLost(h, deadline)) {
		found = append(found, r.onHold(AfterEnd, h, g.out.name, h.ended, "before "+moment(deadline), moment(h.endedAt), remedy,
			"lapsed at %s, and its end is told as %s at %s.", moment(deadline), h.end, moment(h.endedAt)))
	}
	found = append(found, r.checkGranted(g, h, more, kept)...)
	if more.lateOutcome != 0 && h.end != 0 && h.end.String() != holds.EventHoldExpired {
		found = append(found, r.onHold(TwoEnds, h, g.out.name, more.lateOutcome, h.end.String(), "a late payment", remedy,
			"ended as %s in sequence %d of %s, and was paid late in sequence %d.", h.end, h.ended, g.out.name, more.lateOutcome))
	}
	return found
}

// extensionMayBeLost reports whether a hold that was paid after its deadline, as that was told, may have been
// extended before: Postgres has the payment at its time, Redis has lost its data since the schema was made, and
// what asked for an extension before the deadline was not granted when it was decided anew.
func (g *group) extensionMayBeLost(h *hold, deadline int64) bool {
	paid := slices.ContainsFunc(h.extra().answers, func(a answer) bool {
		return a.row != nil && a.row.confirmed && !a.row.late && a.row.at == h.endedAt
	})
	return paid && g.wasRebuilt() && slices.ContainsFunc(h.more.extends, func(e *event) bool {
		return e.stored < deadline+cancelMargin && (e.outcome == 0 || e.outcomeName.String() == holds.EventExtensionRejected)
	})
}

// none is what is more of a hold of which there is no more.
var none more

// sweepGrace is how late a sweep may be, in ms, before a hold that is over is looked for.
const sweepGrace = 2000

// checkRedis compares what was told of a hold with what Redis remembers of it.
func (r *resource) checkRedis(g *group, h *hold) (found []*Finding) {
	where := g.keys.Prefix(r.name) + "records"
	add := func(f *Finding) { found = append(found, f) }
	rec := h.rec
	switch {
	case rec == nil && h.created != 0 && h.end == 0 && h.created <= g.snapshotSeq && h.deadline > r.now:
		add(r.onHold(HoldLost, h, where, h.last(), "held until "+moment(h.deadline), "nothing",
			"worker rebuild fills Redis again from the outbound stream and Postgres; until then the hold cannot be paid. "+notSafe,
			"was granted until %s, and Redis does not know it.", moment(h.deadline)))
	case rec == nil && h.created != 0 && h.end == 0 && h.created <= g.snapshotSeq && h.deadline+sweepGrace < r.now:
		add(r.onHold(NoEnd, h, g.out.name, h.last(), "hold.released, hold.expired or hold.confirmed", "nothing",
			"Tell its publisher that it lapsed. "+notSafe,
			"was granted until %s and is over, and nothing tells how it ended.", moment(h.deadline)))
	case rec == nil:
	case rec.live() && h.end != 0 && h.ended <= g.snapshotSeq:
		add(r.onHold(HoldStillLive, h, where, h.ended, "ended", rec.state,
			"Give it back: publisher cancel --hold-id "+r.name+"."+h.id.String()+"; or wait for its deadline. "+notSafe,
			"ended as %s, and Redis takes it for %s.", h.end, rec.state))
	case rec.live() && h.end != 0: // told since
	case rec.state == "confirming":
		if !g.inProgress(r.name, h) {
			add(r.onHold(ClaimStuck, h, where, h.last(), "a payment that is being decided", "payment "+quoted(rec.by)+", which is not",
				"Publish the payment again: publisher pay --hold-id "+r.name+"."+h.id.String()+" --payment-id "+quoted(rec.by)+". "+notSafe,
				"is claimed by payment %s since %s, and no such event waits: it can neither lapse nor be paid.", quoted(rec.by), moment(rec.ended)))
		}
		fallthrough
	case rec.live():
		if rec.state == "held" && rec.deadline <= r.now {
			g.waiting.Expirations++
		}
		found = append(found, r.checkLiveHold(g, h, where)...)
	case h.end == 0:
		if rec.state == "expired" && !rec.remembered {
			g.waiting.Announcements++
			break
		}
		if g.out.couldBeDropped(rec.ended, clockSkewMax) || g.predatesSchema(h) || g.inProgress(r.name, h) {
			break
		}
		add(r.onHold(EndUnannounced, h, g.out.name, h.last(), "hold."+rec.state, "nothing",
			"Tell its publisher. "+notSafe,
			"is %s in Redis since %s, and that was never told.", rec.state, moment(rec.ended)))
	case h.end.String() != "hold."+rec.state && (h.more == nil || h.more.other == 0): // two ends are told as such
		add(r.onHold(HoldDiffers, h, where, h.ended, h.end.String(), rec.state,
			"What was told counts for those who were told: find out which is true. "+notSafe,
			"ended as %s, and Redis remembers it as %s.", h.end, rec.state))
	}
	if late := h.late; late != nil && late.state == "confirming" && !g.inProgress(r.name, h) {
		add(r.onHold(ClaimStuck, h, where, h.last(), "a payment that is being decided", "payment "+quoted(late.by)+", which is not",
			"Publish the payment again: publisher pay --hold-id "+r.name+"."+h.id.String()+" --payment-id "+quoted(late.by)+". "+notSafe,
			"was paid late, payment %s has taken its slots again since %s, and no such event waits.", quoted(late.by), moment(late.ended)))
	}
	return found
}

// checkLiveHold compares a live hold with what was told of it.
func (r *resource) checkLiveHold(g *group, h *hold, where string) (found []*Finding) {
	rec := h.rec
	if h.created == 0 {
		if g.out.couldBeDropped(rec.created, clockSkewMax) || g.predatesSchema(h) || g.inProgress(r.name, h) {
			return nil
		}
		return append(found, r.onHold(HoldUnannounced, h, where, 0, "hold.created", "nothing",
			"It lapses by itself at its deadline. Who asked for it does not know that they have it: publisher cancel --hold-id "+r.name+"."+h.id.String()+". "+notSafe,
			"is %s in Redis until %s, and was never told.", rec.state, moment(rec.deadline)))
	}
	differs := func(what, reported, is string) {
		found = append(found, r.onHold(HoldDiffers, h, where, h.last(), reported, is,
			"What was told counts for those who were told. Cancel it (publisher cancel), or mend the record by hand. "+notSafe,
			"was told with %s %s, and Redis has %s.", what, reported, is))
	}
	if rec.deadline < h.deadline && max(h.created, h.extended) <= g.snapshotSeq {
		differs("the deadline", moment(h.deadline), moment(rec.deadline))
	} else if rec.deadline > h.deadline && !g.inProgress(r.name, h) {
		differs("the deadline", moment(h.deadline), moment(rec.deadline))
	}
	if h.quantity != rec.quantity {
		differs("the quantity", fmt.Sprint(h.quantity), fmt.Sprint(rec.quantity))
	}
	if h.set >= 0 && r.setNames[h.set] != rec.slots {
		differs("the slots", r.setNames[h.set], quoted(rec.slots))
	}
	if h.user != sum64(rec.user) {
		differs("the user", "another", quoted(rec.user))
	}
	return found
}

// predatesSchema reports whether something was told of a hold before the schema was made: that is not judged.
func (g *group) predatesSchema(h *hold) bool {
	_, reported := g.formerHolds[h.id]
	return reported
}

// last is the sequence of the last outcome about a hold.
func (h *hold) last() uint64 {
	last := max(h.created, h.extended, h.ended)
	if h.more != nil {
		last = max(last, h.more.lateOutcome, h.more.cancelled)
	}
	return last
}

// lastTaken is the sequence of the last outcome after which a hold took other slots than before.
func (h *hold) lastTaken() uint64 {
	last := max(h.created, h.ended)
	if h.more != nil {
		last = max(last, h.more.lateOutcome)
	}
	return last
}

// findOrigin finds the first outcome after which a difference in Redis can have been so: the last that
// changed what differs.
func (g *group) findOrigin(r *resource, f *Finding) {
	name := f.difference.name
	switch f.difference.what {
	case string(Counter):
		if s, known := r.slotOf[name]; known {
			f.seq = r.lastOf((*hold).lastTaken, func(h *hold) bool { return h.set >= 0 && slices.Contains(r.sets[h.set], s) })
		}
		return
	case string(Users):
		user := sum64(name)
		f.seq = r.lastOf((*hold).lastTaken, func(h *hold) bool { return h.user == user && h.set >= 0 })
		return
	case string(Agenda), string(Rev), string(WrongType):
		f.seq = r.lastOf((*hold).last, func(*hold) bool { return true })
		return
	case string(Residue):
		_, name, _ = strings.Cut(name, ":")
	}
	if uuid, ok := parseID(strings.TrimPrefix(name, "late:")); ok && r.holds[uuid] != nil {
		f.seq = r.holds[uuid].last()
	}
}

// lastReserved is the sequence of the last outcome about a reservation of a slot.
func (r *resource) lastReserved(slot string) uint64 {
	s, known := r.slotOf[slot]
	if !known {
		return 0
	}
	return r.lastOf(func(h *hold) uint64 {
		if h.end.String() == holds.EventHoldConfirmed {
			return max(h.ended, h.extra().lateOutcome, h.more.cancelled)
		}
		return max(h.extra().lateOutcome, h.more.cancelled)
	}, func(h *hold) bool { return h.more != nil && h.set >= 0 && slices.Contains(r.sets[h.set], s) })
}

// lastOf is the sequence of the last outcome about some holds.
func (r *resource) lastOf(last func(*hold) uint64, which func(*hold) bool) (seq uint64) {
	for _, h := range r.holds {
		if which(h) {
			seq = max(seq, last(h))
		}
	}
	return seq
}

// freesSlots reports whether mending a difference gives back what somebody may have been told that it is
// theirs.
func freesSlots(d difference) bool {
	if delta, isNumber := d.delta(); isNumber {
		return delta > 0
	}
	return d.expected == "-" || d.what == string(WrongType) || d.what == string(Counter)
}
