package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/holds"
	"holdfast/internal/terminal"
)

// check compares the outcomes of a resource's holds with what Redis remembers of them and with what
// Postgres has.
func (r *resource) check(g *group) (found []*Finding) {
	r.last = nil
	corrupt := make(map[string]bool) // holds whose record in Redis cannot be read
	for _, d := range r.differences {
		corrupt[d.name] = d.kind == RecordCorrupt || corrupt[d.name]
	}
	for _, h := range r.holds {
		found = append(found, r.checkEnds(g, h)...)
		if r.inspected && !corrupt[h.id.String()] {
			found = append(found, r.checkRedis(g, h)...)
		}
		found = append(found, r.checkPayments(g, h)...)
	}
	return slices.Concat(found, r.checkGrants(g), r.checkCapacity(g))
}

// onHold returns a finding about a hold. seq is the outcome after which it is true.
func (r *resource) onHold(
	kind Kind, h *hold, where string, seq uint64, expected, is, remedy, format string, args ...any,
) *Finding {
	name := r.name + "." + h.id.String()
	return &Finding{
		Kind: kind, Resource: r.name, Item: name, Where: where, Expected: expected, Found: is,
		Text:   "Hold " + name + " " + fmt.Sprintf(format, args...),
		Remedy: remedy, seq: seq,
	}
}

// checkEnds checks the outcomes of a hold against each other.
func (r *resource) checkEnds(g *group, h *hold) (found []*Finding) {
	const remedy = "Consumers have acted on both: find out which is true, and inform them. " + notSafe
	if h.other != 0 {
		found = append(found,
			r.onHold(TwoEnds, h, g.out.name, h.other, h.end, h.otherEnd, remedy,
				"ended twice: as %s in sequence %d of %s, and as %s in sequence %d.", h.end, h.ended, g.out.name,
				h.otherEnd, h.other))
	}
	deadline, kept := h.deadline, h.deadline // kept counts only extensions that came in time
	if len(h.extensions) > 0 && h.created != 0 {
		slices.SortFunc(h.extensions,
			func(a, b extension) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.deadline, b.deadline)) })
		deadline, kept = h.granted, h.granted
		for _, x := range h.extensions {
			if x.at >= deadline {
				found = append(found,
					r.onHold(AfterEnd, h, g.out.name, x.seq, "before "+moment(deadline), moment(x.at), remedy,
						"expired at %s and was extended at %s.", moment(deadline), moment(x.at)))
			}
			if x.at < kept {
				kept = max(kept, x.deadline)
			}
			deadline = max(deadline, x.deadline)
		}
	}
	released, confirmed := h.end == holds.EventHoldReleased, h.end == holds.EventHoldConfirmed
	if h.created != 0 && h.endedAt >= deadline && (released || confirmed && !g.extensionMayBeLost(h, deadline)) {
		found = append(found,
			r.onHold(AfterEnd, h, g.out.name, h.ended, "before "+moment(deadline), moment(h.endedAt), remedy,
				"expired at %s, and was published as %s at %s.", moment(deadline), h.end, moment(h.endedAt)))
	}
	found = append(found, r.checkGranted(g, h, kept)...)
	if h.lateOutcome != 0 && h.end != "" && h.end != holds.EventHoldExpired {
		found = append(found,
			r.onHold(TwoEnds, h, g.out.name, h.lateOutcome, h.end, "a late payment", remedy,
				"ended as %s in sequence %d of %s, and was paid late in sequence %d.", h.end, h.ended, g.out.name,
				h.lateOutcome))
	}
	return found
}

// extensionMayBeLost reports whether a hold that was paid after its published deadline may have
// been extended before. Then Postgres has the payment at that time, Redis was rebuilt since the
// schema was created, and an extension that was requested before the deadline has no outcome, or
// was refused when it was decided again.
func (g *group) extensionMayBeLost(h *hold, deadline int64) bool {
	paid := slices.ContainsFunc(h.answers, func(a answer) bool {
		return a.row != nil && a.row.confirmed && !a.row.late && a.row.at == h.endedAt
	})
	return paid && g.wasRebuilt() && slices.ContainsFunc(h.extends, func(e *event) bool {
		return e.stored < deadline+cancelMargin &&
			(e.outcome == 0 || e.outcomeName == holds.EventExtensionRejected)
	})
}

// sweepGrace is how long a sweep may take, in ms, before a hold past its deadline must have an end.
const sweepGrace = 2000

// checkRedis compares the outcomes of a hold with what Redis remembers of it.
func (r *resource) checkRedis(g *group, h *hold) (found []*Finding) {
	where := g.keys.Prefix(r.name) + "records"
	add := func(f *Finding) { found = append(found, f) }
	rec := h.rec
	switch {
	case rec == nil && h.created != 0 && h.end == "" && h.created <= g.snapshotSeq && h.deadline > r.now:
		add(r.onHold(HoldLost, h, where, h.last(), "held until "+moment(h.deadline), "nothing",
			"Run worker rebuild, which rebuilds Redis from the outbound stream and Postgres. The hold cannot be paid "+
				"until then. "+notSafe,
			"was granted until %s, and Redis has no record of it.", moment(h.deadline)))
	case rec == nil && h.created != 0 && h.end == "" && h.created <= g.snapshotSeq && h.deadline+sweepGrace < r.now:
		if g.out.couldBeDropped(h.createdAt, clockSkewMax) { // all that is left of it may be a repeated answer
			g.inconclusive[endsDropped]++
			break
		}
		add(r.onHold(NoEnd, h, g.out.name, h.last(), "hold.released, hold.expired or hold.confirmed", "nothing",
			"Inform its publisher that it has expired. "+notSafe,
			"was granted until %s, which has passed, and no outcome ends it.", moment(h.deadline)))
	case rec == nil:
	case rec.live() && h.end != "" && h.ended <= g.snapshotSeq:
		add(r.onHold(HoldStillLive, h, where, h.ended, "ended", rec.State,
			"Run worker rebuild, which restores its end: else it ends a second time. "+notSafe,
			"ended as %s, and in Redis it is %s.", h.end, rec.State))
	case rec.live() && h.end != "": // published after Redis was read
	case rec.State == "confirming":
		if !g.inProgress(r.name, h) {
			add(r.stuckClaim(h, rec, where,
				"is claimed by payment %s since %s, and no such event is pending: it can neither expire nor be paid."))
		}
		fallthrough
	case rec.live():
		if rec.State == "held" && rec.Deadline <= r.now {
			g.waiting.Expirations++
		}
		found = append(found, r.checkLiveHold(g, h, where)...)
	case h.end == "":
		if rec.State == "expired" && rec.over == 0 && rec.Ended >= rec.Deadline {
			g.waiting.Announcements++
			break
		}
		published := max(rec.Created, rec.Ended) // at the earliest
		if g.out.couldBeDropped(published, clockSkewMax) || g.predatesSchema(h) || g.inProgress(r.name, h) {
			break
		}
		add(r.onHold(EndUnannounced, h, g.out.name, h.last(), "hold."+rec.State, "nothing",
			"Run worker rebuild, which restores it from the outbound stream and Postgres, or inform its publisher that "+
				"it has ended. "+notSafe,
			"is %s in Redis since %s, and no outcome says so.", rec.State, moment(rec.Ended)))
	// two ends are a finding of their own
	case h.end != "hold."+rec.State && h.other == 0:
		add(r.onHold(HoldDiffers, h, where, h.ended, h.end, rec.State,
			"Consumers rely on the published end: find out which is true. "+notSafe,
			"ended as %s, and Redis remembers it as %s.", h.end, rec.State))
	}
	if late := h.late; late != nil && late.State == "confirming" && !g.inProgress(r.name, h) {
		add(r.stuckClaim(h, late, where,
			"was paid late: payment %s has taken its slots again since %s, and no such event is pending."))
	}
	return found
}

// stuckClaim returns a finding about a claim whose payment is not in progress. The format has its payment and time.
func (r *resource) stuckClaim(h *hold, claim *holdRecord, where, format string) *Finding {
	return r.onHold(ClaimStuck, h, where, h.last(), "a payment in progress",
		"payment "+quoted(claim.By)+", which is not in progress",
		"Publish the payment again: "+r.payAgain(h, claim.By)+". "+notSafe, format, quoted(claim.By), moment(claim.Ended))
}

// payAgain returns the command that publishes a payment of a hold again. An operator pastes it into a shell: the id of the
// payment is whole, and a shell interprets nothing in it.
func (r *resource) payAgain(h *hold, payment string) string {
	return "publisher pay --hold-id " + r.name + "." + h.id.String() + " " +
		terminal.Flag("--payment-id", terminal.Printable(payment))
}

// checkLiveHold compares a live hold with its outcomes.
func (r *resource) checkLiveHold(g *group, h *hold, where string) (found []*Finding) {
	rec := h.rec
	if h.created == 0 {
		if g.predatesSchema(h) || g.inProgress(r.name, h) {
			return nil
		}
		g.unstored = true
		if g.out.couldBeDropped(rec.Created, clockSkewMax) {
			return nil
		}
		return append(found, r.onHold(HoldUnannounced, h, where, 0, "hold.created", "nothing",
			"It expires by itself at its deadline. Its publisher does not know that it was granted; to release it "+
				"now: publisher cancel --hold-id "+r.name+"."+h.id.String()+". "+notSafe,
			"is %s in Redis until %s, and no outcome was published.", rec.State, moment(rec.Deadline)))
	}
	differs := func(what, reported, is string) {
		found = append(found, r.onHold(HoldDiffers, h, where, h.last(), reported, is,
			"Consumers rely on the published outcome. Run worker rebuild, which restores it. "+notSafe,
			"was published with %s %s, and Redis has %s.", what, reported, is))
	}
	if rec.Deadline < h.deadline && max(h.created, h.extended) <= g.snapshotSeq {
		differs("the deadline", moment(h.deadline), moment(rec.Deadline))
	} else if rec.Deadline > h.deadline && !g.inProgress(r.name, h) {
		differs("the deadline", moment(h.deadline), moment(rec.Deadline))
	}
	if h.quantity != rec.Quantity {
		differs("the quantity", fmt.Sprint(h.quantity), fmt.Sprint(rec.Quantity))
	}
	if h.set >= 0 && r.setNames[h.set] != rec.Slots {
		differs("the slots", r.setNames[h.set], quoted(rec.Slots))
	}
	if h.user != sum64(rec.User) {
		differs("the user", "another", quoted(rec.User))
	}
	return found
}

// predatesSchema reports whether an outcome of a hold was published before the schema was created.
// Such a hold is not checked.
func (g *group) predatesSchema(h *hold) bool {
	_, reported := g.formerHolds[h.id]
	return reported
}

// last returns the sequence of the last outcome about a hold.
func (h *hold) last() uint64 {
	return max(h.created, h.extended, h.ended, h.lateOutcome, h.cancelled)
}

// lastOutcomes has the sequences of the last outcomes that changed something of a resource.
type lastOutcomes struct {
	ofAny    uint64
	ofUser   map[uint64]uint64 // the slots that a user's holds take, by sum64 of the user id
	ofSlot   []uint64          // what holds take of a slot
	reserved []uint64          // what reservations take of a slot
}

// lastOutcomes returns the last outcomes of the resource, which it computes once, whatever differs.
func (r *resource) lastOutcomes() *lastOutcomes {
	if r.last != nil {
		return r.last
	}
	last := &lastOutcomes{
		ofUser: make(map[uint64]uint64), ofSlot: make([]uint64, len(r.slots)), reserved: make([]uint64, len(r.slots)),
	}
	r.last = last
	for _, h := range r.holds {
		last.ofAny = max(last.ofAny, h.last())
		if h.set < 0 {
			continue
		}
		taken, reserved := max(h.created, h.ended, h.lateOutcome), max(h.lateOutcome, h.cancelled)
		if h.end == holds.EventHoldConfirmed {
			reserved = max(reserved, h.ended)
		}
		last.ofUser[h.user] = max(last.ofUser[h.user], taken)
		for _, s := range r.sets[h.set] {
			last.ofSlot[s], last.reserved[s] = max(last.ofSlot[s], taken), max(last.reserved[s], reserved)
		}
	}
	return last
}

// findOrigin sets the first outcome after which a difference can be true: the last outcome that
// changed the data that differs.
func (r *resource) findOrigin(f *Finding) {
	name := f.difference.name
	switch f.Kind {
	case Counter, Reserved:
		of := r.lastOutcomes().ofSlot
		if f.Kind == Reserved {
			of = r.lastOutcomes().reserved
		}
		if s, known := r.slotOf[name]; known {
			f.seq = of[s]
		}
		return
	case Users:
		f.seq = r.lastOutcomes().ofUser[sum64(name)]
		return
	case Agenda, Rev, WrongType:
		f.seq = r.lastOutcomes().ofAny
		return
	case Residue:
		_, name, _ = strings.Cut(name, ":")
	default: // its name is that of a record
	}
	if uuid, ok := parseID(strings.TrimPrefix(name, "late:")); ok && r.holds[uuid] != nil {
		f.seq = r.holds[uuid].last()
	}
}

// doubtsRecords reports whether a finding shows that the records of a resource may take fewer slots than
// the published outcomes have granted: a hold is missing, differs, or has ended unpublished.
func (f *Finding) doubtsRecords() bool {
	return f.Kind == HoldLost || f.Kind == HoldDiffers || f.Kind == EndUnannounced
}

// freesSlots reports whether repairing a difference frees slots that a published outcome may have
// granted, now or before their deadline.
func freesSlots(d difference) bool {
	if d.kind == Counter && d.found == "-" {
		return true // the whole key may be missing, and scripts grant nothing: written from the records, it frees what they lack
	}
	if delta, isNumber := d.delta(); isNumber {
		return delta > 0
	}
	switch d.kind {
	case WrongType, Counter:
		return true
	case Due:
		return d.found != "-"
	case Departing:
		return d.expected != "-" // hold.expired would be announced
	default:
		return d.expected == "-"
	}
}
