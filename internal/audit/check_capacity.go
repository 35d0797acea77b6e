package audit

import (
	"cmp"
	"fmt"
	"slices"

	"holdfast/internal/holds"
)

// span is a period in which a hold takes its slots, by Redis' clock in ms. from is included, upTo
// is not.
type span struct {
	hold       *hold
	set        int32
	quantity   int64
	from, upTo int64
	seq        uint64 // of the outcome that began it, 0 when only Postgres has it
	requested  int64  // when the event that led to that was stored, 0 when unknown
}

// spans returns the periods in which a hold certainly took its slots. Each begins at created_at, unless that is guessed, or
// at confirmed_at of a late payment. It ends:
//
//   - at released_at or at the deadline, whichever is earlier, whether or not the hold was swept by then;
//   - for a paid hold, at the last moment that was published before the cancellation of its reservation
//     was requested. cancelled_at is no end: it is read after the slots were given back.
func (r *resource) spans(g *group, h *hold) (found []span) {
	made := h.reservation
	set, quantity := h.set, h.quantity
	if set < 0 && made != nil {
		set, quantity = r.setNamed(made.names()), made.quantity
	}
	if set < 0 {
		return nil
	}
	add := func(from, upTo int64, seq uint64, requested int64) {
		if upTo > from {
			found = append(found, span{h, set, quantity, from, upTo, seq, requested})
		}
	}
	claimedAt := int64(0) // when the hold was paid, 0 when it was not
	late := h.lateOutcome != 0 ||
		made != nil && slices.ContainsFunc(h.answers, func(a answer) bool { return a.row != nil && a.row.late })
	switch {
	case h.lateOutcome != 0:
		claimedAt = h.lateAt
	case made != nil:
		claimedAt = made.confirmedAt
	case h.end == holds.EventHoldConfirmed:
		claimedAt = h.endedAt
	}
	paidUpTo := int64(maxTime)
	if h.cancelled != 0 || made != nil && made.cancelled || h.takenAtLeastUntil != 0 && g.inProgress(r.name, h) {
		paidUpTo = max(h.takenAtLeastUntil, claimedAt)
	}
	switch {
	case h.created == 0 || h.guessed:
	case claimedAt != 0 && !late:
		add(h.createdAt, paidUpTo, h.created, h.requestStored)
	case h.end != "":
		add(h.createdAt, min(h.endedAt, h.deadline), h.created, h.requestStored)
	default:
		add(h.createdAt, h.deadline, h.created, h.requestStored)
	}
	if claimedAt != 0 && (late || h.created == 0 || h.guessed) {
		add(claimedAt, paidUpTo, max(h.lateOutcome, h.ended), h.lateRequested)
	}
	return found
}

// checkCapacity replays the outcomes in the order of their times by Redis' clock. It finds slots of
// which more was taken at a moment than their highest known capacity.
func (r *resource) checkCapacity(g *group) (found []*Finding) {
	var all []span
	for _, h := range r.holds {
		all = append(all, r.spans(g, h)...)
	}
	type change struct {
		at   int64
		by   int64
		span int32
	}
	changes := make([]change, 0, 2*len(all))
	for i, s := range all {
		changes = append(changes, change{s.from, s.quantity, int32(i)}, change{s.upTo, -s.quantity, int32(i)})
	}
	// What ended in a millisecond makes room for what began in it.
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by), cmp.Compare(all[a.span].seq, all[b.span].seq))
	})
	taken, reported, cut := make([]int64, len(r.slots)), make([]bool, len(r.slots)), make([]bool, len(r.slots))
	recounted := 0
	for _, c := range changes {
		begun := &all[c.span]
		for _, i := range r.sets[begun.set] {
			taken[i] += c.by
			s := &r.slots[i]
			if c.by < 0 || reported[i] || len(s.changes) > 0 && taken[i] <= s.lowest {
				continue
			}
			most := s.capacity
			if begun.seq != 0 && begun.seq == begun.hold.created {
				most = s.inForce(begun.hold.requestStored, begun.hold.createdStored)
			}
			if taken[i] <= most || taken[i] <= s.capacity && cut[i] {
				continue
			}
			if !g.in.isWhole() && !g.out.isWhole() && (s.known == 0 || begun.from < s.known) {
				g.inconclusive[slotsFormer]++
				reported[i] = true
				continue
			}
			if recounted++; recounted > recountsMax {
				g.inconclusive[recounts]++
				reported[i] = true
				continue
			}
			switch sold := r.recount(all, begun, i); {
			case sold <= most:
			case sold > s.capacity || g.options.CapacityByEvents:
				reported[i] = true
				found = append(found, r.oversold(g, begun, s, sold, most))
			default:
				cut[i] = true
				g.inconclusive[slotsCut]++
			}
		}
	}
	return found
}

// recountsMax bounds how often the slots of a resource are recounted.
const recountsMax = 1000

// recount returns how much of a slot was taken when a span began. It leaves out what had certainly
// been given back by then: its end was stored before the request that led to the span. So a clock
// that was set back causes no finding.
func (r *resource) recount(all []span, begun *span, slot int32) (taken int64) {
	for i := range all {
		s := &all[i]
		if s.from > begun.from || s.upTo <= begun.from || !slices.Contains(r.sets[s.set], slot) {
			continue
		}
		if s.hold == begun.hold ||
			!s.hold.gaveBackBefore(begun.requested) && !begun.hold.gaveBackBefore(s.requested) {
			taken += s.quantity
		}
	}
	return taken
}

// gaveBackBefore reports whether the end of a hold, or the cancellation of its reservation, was stored before a moment in
// ms; 0 for an unknown moment.
func (h *hold) gaveBackBefore(stored int64) bool {
	if h.cancelled != 0 {
		return h.cancelledStored <= stored
	}
	over := h.end == holds.EventHoldReleased || h.end == holds.EventHoldExpired
	neverLate := h.lateOutcome == 0 && h.reservation == nil // else it took its slots a second time
	return over && neverLate && h.endedStored <= stored
}

func (r *resource) oversold(g *group, begun *span, s *slot, taken, most int64) *Finding {
	name := r.name + "." + begun.hold.id.String()
	return &Finding{
		Kind: Oversold, Resource: r.name, Item: quoted(s.name), Where: g.out.name,
		Expected: fmt.Sprintf("at most %d", most), Found: fmt.Sprint(taken),
		Text: fmt.Sprintf("Slot %s of %s: %d were taken at %s, when hold %s was granted. The highest known capacity "+
			"at that time is %d. "+
			"(A capacity that was raised and lowered again by SQL leaves no trace.)",
			quoted(s.name), r.name, taken, moment(begun.from), name, most),
		Remedy: "Raise the capacity if there is more to sell (publisher inventory set), or inform a customer and " +
			"cancel: publisher cancel, publisher cancel-reservation. " + notSafe,
		seq: begun.seq,
	}
}
