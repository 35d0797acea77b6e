package audit

import (
	"cmp"
	"slices"

	"holdfast/internal/holds"
)

// pair is what a user may hold once at a time.
type pair struct {
	user uint64
	set  int32
}

// checkGrants finds two holds of one request key, or of one user and the same slots, of which the first was
// live for certain when the second was granted.
func (r *resource) checkGrants(g *group) (found []*Finding) {
	granted := make([]*hold, 0, len(r.holds))
	for _, h := range r.holds {
		if h.created != 0 {
			granted = append(granted, h)
		}
	}
	slices.SortFunc(granted, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.createdAt, b.createdAt), cmp.Compare(a.created, b.created))
	})
	byKey, byUser := make(map[uint64]*hold), make(map[pair]*hold)
	for _, h := range granted {
		its := pair{h.user, h.set}
		of := "request key"
		first := byKey[h.key]
		if first == nil || !first.livedWhen(h) {
			first, of = byUser[its], "user and the same slots"
		}
		if first != nil && first.livedWhen(h) {
			found = append(found, r.onHold(TwoGrants, h, g.out.name, h.created, "refused, or the same hold", "another hold",
				"One of them is not wanted: find out which, and give it back (publisher cancel). "+notSafe,
				"was granted while hold %s.%s of the same %s was live.", r.name, first.id, of))
		}
		byKey[h.key], byUser[its] = later(byKey[h.key], h), later(byUser[its], h)
	}
	return found
}

// livedWhen reports whether a hold was live for certain when another was granted, that was created later by
// Redis' clock. That clock may have been set back: neither's end was stored before the other was asked for.
func (h *hold) livedWhen(other *hold) bool {
	return h.liveUpTo() > other.createdAt && !h.overBefore(other.requestStored) && !other.overBefore(h.requestStored)
}

// overBefore reports whether the end of a hold was stored before a moment, 0 = nobody knows when.
func (h *hold) overBefore(stored int64) bool {
	return h.end != 0 && h.endedStored <= stored+cancelMargin
}

// liveUpTo is the moment up to which a hold was live for certain: it may not have been swept, and a payment
// that has claimed it may not have been settled, for longer.
func (h *hold) liveUpTo() int64 {
	if h.end != 0 {
		return min(h.endedAt, h.deadline)
	}
	return h.deadline
}

// later is the one of two holds that was live longer.
func later(a, b *hold) *hold {
	if a == nil || b.liveUpTo() >= a.liveUpTo() {
		return b
	}
	return a
}

// checkGranted judges what was told of a hold against how it was granted.
func (r *resource) checkGranted(g *group, h *hold, more *more, deadline int64) (found []*Finding) {
	const remedy = "Consumers have acted on what was told: find out what is true, and tell them. " + notSafe
	if more.otherGrant != 0 {
		found = append(found, r.onHold(TwoGrants, h, g.out.name, more.otherGrant, "granted once", "granted otherwise", remedy,
			"was granted in sequence %d of %s, and otherwise in sequence %d.", h.created, g.out.name, more.otherGrant))
	}
	isExpired := h.end.String() == holds.EventHoldExpired
	if h.created != 0 && isExpired && h.endedAt < deadline {
		found = append(found, r.onHold(EndedEarly, h, g.out.name, h.ended, moment(deadline), moment(h.endedAt), remedy,
			"was granted until %s, and is told to have lapsed at %s.", moment(deadline), moment(h.endedAt)))
	} else if more.restoredEarly != 0 {
		found = append(found, r.onHold(EndedEarly, h, g.out.name, h.ended, "not before "+moment(h.endedAt), moment(more.restoredEarly), remedy,
			"lapsed at %s, and its slots were given back at %s.", moment(h.endedAt), moment(more.restoredEarly)))
	}
	reported := h.end != 0 || h.extended != 0 || more.lateOutcome != 0 || more.reservation != nil
	if createdAt := h.id.unixMilli(); h.created == 0 && reported && createdAt >= g.installed && !g.out.couldBeDropped(createdAt, clockSkewMax) && !g.inProgress(r.name, h) {
		found = append(found, r.onHold(NeverGranted, h, g.out.name, h.last(), "hold.created", "nothing", remedy,
			"was extended, paid or ended, and nothing tells that it was granted."))
	}
	return found
}
