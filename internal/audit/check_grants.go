package audit

import (
	"cmp"
	"slices"

	"holdfast/internal/holds"
)

// pair identifies a user and a set of slots. A user may have one live hold for each pair.
type pair struct {
	user uint64
	set  int32
}

// checkGrants finds two holds of one request key, or of one user on the same slots, of which the
// first was certainly live when the second was granted.
func (r *resource) checkGrants(g *group) (found []*Finding) {
	granted := make([]*hold, 0, len(r.holds))
	for _, h := range r.holds {
		if h.created != 0 && !h.guessed {
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
			found = append(found,
				r.onHold(TwoGrants, h, g.out.name, h.created, "refused, or the same hold", "another hold",
					"One of the two holds is not wanted: find out which, and release it (publisher cancel). "+notSafe,
					"was granted while hold %s.%s of the same %s was live.", r.name, first.id, of))
		}
		byKey[h.key], byUser[its] = later(byKey[h.key], h), later(byUser[its], h)
	}
	return found
}

// livedWhen reports whether a hold was certainly live when another was granted, which was created
// later by Redis' clock. That clock may have been set back: a hold does not count as live if the
// end of either was stored before the other was requested.
func (h *hold) livedWhen(other *hold) bool {
	return h.liveUpTo() > other.createdAt && !h.overBefore(other.requestStored) && !other.overBefore(h.requestStored)
}

// overBefore reports whether the end of a hold was stored before a moment in ms; 0 for an unknown
// moment.
func (h *hold) overBefore(stored int64) bool {
	return h.end != "" && h.endedStored <= stored+cancelMargin
}

// liveUpTo returns the moment up to which a hold was certainly live. It may have been live longer,
// until a sweep ended it or a payment with a claim on it was settled.
func (h *hold) liveUpTo() int64 {
	if h.end != "" {
		return min(h.endedAt, h.deadline)
	}
	return h.deadline
}

// later returns the one of two holds that was live longer. a may be nil.
func later(a, b *hold) *hold {
	if a == nil || b.liveUpTo() >= a.liveUpTo() {
		return b
	}
	return a
}

// checkGranted compares the outcomes of a hold with its grant. deadline includes the extensions
// that came in time.
func (r *resource) checkGranted(g *group, h *hold, deadline int64) (found []*Finding) {
	const remedy = "Consumers have acted on the published outcomes: find out what is true, and inform them. " + notSafe
	if h.otherGrant != 0 {
		found = append(found,
			r.onHold(TwoGrants, h, g.out.name, h.otherGrant, "granted once", "granted with different content",
				remedy,
				"was granted in sequence %d of %s, and with different content in sequence %d.", h.created, g.out.name,
				h.otherGrant))
	}
	isExpired := h.end == holds.EventHoldExpired
	if h.created != 0 && isExpired && h.endedAt < deadline {
		found = append(found, r.onHold(EndedEarly, h, g.out.name, h.ended, moment(deadline), moment(h.endedAt), remedy,
			"was granted until %s, and was published as expired at %s.", moment(deadline), moment(h.endedAt)))
	} else if h.restoredEarly != 0 {
		found = append(found,
			r.onHold(EndedEarly, h, g.out.name, h.ended, "not before "+moment(h.endedAt), moment(h.restoredEarly),
				remedy,
				"expired at %s, and its slots were given back before that, at %s.", moment(h.endedAt),
				moment(h.restoredEarly)))
	}
	reported := h.end != "" || h.extended != 0 || h.lateOutcome != 0 || h.reservation != nil
	if h.created != 0 || !reported {
		return found
	}
	createdAt := holds.HoldID{UUID: h.id.String()}.CreatedAt().UnixMilli()
	if createdAt >= g.installed && !g.out.couldBeDropped(createdAt, clockSkewMax) && !g.inProgress(r.name, h) {
		found = append(found, r.onHold(NeverGranted, h, g.out.name, h.last(), "hold.created", "nothing", remedy,
			"was extended, paid or ended, and no outcome grants it."))
	}
	return found
}
