package audit

import (
	"cmp"
	"fmt"
	"slices"

	"holdfast/internal/holds"
)

// span is a time for which a hold takes its slots, by Redis' clock in ms: from its first moment up
// to, without it, its last.
type span struct {
	hold       *hold
	set        int32
	quantity   int64
	from, upTo int64
	seq        uint64 // of the outcome that began it, 0 = only Postgres tells
}

// spans are the times for which a hold certainly took its slots:
//
//   - from created_at, or from confirmed_at of a late payment,
//   - to released_at, or to the deadline, whether or not anybody has swept it by then,
//   - or, when it was paid, to the last moment that was told before anybody asked for the reservation
//     to be cancelled. cancelled_at is read after the slots were given back, so it says nothing.
func (r *resource) spans(g *group, h *hold) (found []span) {
	more := h.more
	if more == nil {
		more = &none
	}
	made := more.reservation
	set, quantity := h.set, h.quantity
	if set < 0 && made != nil {
		set, quantity = r.setNamed(joined(made.slots)), made.quantity
	}
	if set < 0 {
		return nil
	}
	add := func(from, upTo int64, seq uint64) {
		if upTo > from {
			found = append(found, span{h, set, quantity, from, upTo, seq})
		}
	}
	claimedAt := int64(0) // when it was paid, 0 = it was not
	late := more.lateOutcome != 0 || made != nil && slices.ContainsFunc(more.answers, func(a answer) bool { return a.row != nil && a.row.late })
	switch {
	case more.lateOutcome != 0:
		claimedAt = more.lateAt
	case made != nil:
		claimedAt = made.confirmedAt
	case h.end.String() == holds.EventHoldConfirmed:
		claimedAt = h.endedAt
	}
	paidUpTo := int64(maxTime)
	if more.cancelled != 0 || made != nil && made.cancelled || more.takenAtLeastUntil != 0 && g.inProgress(r.name, h) {
		paidUpTo = max(more.takenAtLeastUntil, claimedAt)
	}
	switch {
	case h.created == 0:
	case claimedAt != 0 && !late:
		add(h.createdAt, paidUpTo, h.created)
	case h.end != 0:
		add(h.createdAt, min(h.endedAt, h.deadline), h.created)
	default:
		add(h.createdAt, h.deadline, h.created)
	}
	if claimedAt != 0 && (late || h.created == 0) {
		add(claimedAt, paidUpTo, max(more.lateOutcome, h.ended))
	}
	return found
}

// checkCapacity replays the outcomes in the order of their times by Redis' clock, and finds slots of
// which more was taken at a moment than the highest capacity that is known of them.
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
	// What ended in a millisecond made room for what began in it.
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by), cmp.Compare(all[a.span].seq, all[b.span].seq))
	})
	taken, reported, cut := make([]int64, len(r.slots)), make([]bool, len(r.slots)), make([]bool, len(r.slots))
	recounts := 0
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
			if whole := g.in.whole || g.out.whole; !whole && (s.known == 0 || begun.from < s.known) {
				g.inconclusive.slots++
				reported[i] = true
				continue
			}
			if recounts++; recounts > recountsMax {
				g.inconclusive.recounts++
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
				g.inconclusive.cut++
			}
		}
	}
	return found
}

// recountsMax bounds how often a resource is recounted.
const recountsMax = 1000

// recount counts what was taken of a slot when a span began, without what had certainly been given
// back by then: that was stored before the event that led to the span. So a clock that is set back
// makes no fault.
func (r *resource) recount(all []span, begun *span, slot int32) (taken int64) {
	for i := range all {
		s := &all[i]
		if s.from > begun.from || s.upTo <= begun.from || !slices.Contains(r.sets[s.set], slot) {
			continue
		}
		if s.hold == begun.hold || !s.hold.gaveBackBefore(begun.hold.requestStored) && !begun.hold.gaveBackBefore(s.hold.requestStored) {
			taken += s.quantity
		}
	}
	return taken
}

// gaveBackBefore reports whether the end of a hold was stored before a moment, 0 = nobody knows when.
func (h *hold) gaveBackBefore(stored int64) bool {
	over := h.end.String() == holds.EventHoldReleased || h.end.String() == holds.EventHoldExpired
	return over && h.more.neverLate() && h.endedStored <= stored
}

// neverLate reports whether a hold was not paid late, so that its slots were not taken again.
func (m *more) neverLate() bool { return m == nil || m.lateOutcome == 0 && m.reservation == nil }

func (r *resource) oversold(g *group, begun *span, s *slot, taken, most int64) *Finding {
	name := r.name + "." + begun.hold.id.String()
	return &Finding{
		Kind: Oversold, Resource: r.name, Item: quoted(s.name), Where: g.out.name,
		Expected: fmt.Sprintf("at most %d", most), Found: fmt.Sprint(taken),
		Text: fmt.Sprintf("Of slot %s of %s %d were taken at %s, when hold %s was granted; the most that is known to have been for sale by then is %d. "+
			"(A capacity that was raised and lowered again by SQL leaves no trace.)",
			quoted(s.name), r.name, taken, moment(begun.from), name, most),
		Remedy: "Raise the capacity if there is as much (publisher inventory set), or tell a customer and cancel: publisher cancel, publisher cancel-reservation. " + notSafe,
		seq:    begun.seq,
	}
}

func joined(slots []string) string {
	text := ""
	for i, slot := range slices.Sorted(slices.Values(slots)) {
		if i > 0 {
			text += ","
		}
		text += slot
	}
	return text
}
