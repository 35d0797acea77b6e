package audit

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

var contentSeed = maphash.MakeSeed()

// readOutcome reads an outcome.
func (g *group) readOutcome(m message) (note func()) {
	if !g.isMine(resourceOf(m.Subject())) {
		return nil
	}
	e, outcome, name := decodeOutcome(m.Data())
	var apply applyFunc
	if name != 0 {
		var err error
		if apply, err = decodeData(name.String(), e.Data); err != nil {
			name = 0
		}
	}
	if name == 0 {
		return func() {
			g.stats.Outcomes++
			g.unreadable = append(g.unreadable, m.seq)
		}
	}
	content := maphash.String(contentSeed, e.Type) ^ maphash.Bytes(contentSeed, e.Data)
	at := int64(0)
	if !e.Time.IsZero() {
		at = e.Time.UnixMilli()
	}
	return func() {
		g.stats.Outcomes++
		if name.String() != holds.EventHoldExpired {
			g.addOutcome(outcome, m, name, content)
		}
		if m.stored < g.installed { // by workers on another database
			g.former++
			if about, err := holds.ParseHoldID(e.Subject); err == nil && about.Resource == resourceOf(m.Subject()) {
				uuid, _ := parseID(about.UUID) // ParseHoldID has seen that it is one
				g.formerHolds[uuid] = struct{}{}
			}
			return
		}
		if m.Subject() != g.subjects.Out(name.String(), resourceOf(m.Subject())) {
			g.misplaced = append(g.misplaced, m.seq)
		}
		r := g.resource(resourceOf(m.Subject()))
		g.applyCancelRequests(r, m.stored)
		r.latest = max(r.latest, at)
		if apply != nil {
			apply(g, r, m, outcome)
		}
	}
}

// decodeOutcome reads an outcome and its id. The name is 0 when it is none.
func decodeOutcome(body []byte) (e events.Envelope, outcome id, name name) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, outcome, 0
	}
	parsed, err := uuid.Parse(e.ID)
	if err != nil {
		return e, outcome, 0
	}
	return e, id(parsed), nameOf(strings.TrimSuffix(strings.TrimPrefix(e.Type, "holdfast."), ".v1"))
}

// addOutcome notes the outcome of an event.
func (g *group) addOutcome(outcome id, m message, name name, content uint64) {
	e := g.events[outcome]
	switch {
	case e == nil:
		g.orphans = append(g.orphans, orphan{outcome, m.seq, m.stored, name, content})
	case e.outcome == 0:
		g.slowest = max(g.slowest, m.stored-e.stored)
		e.outcome, e.outcomeName, e.content = m.seq, name, content
	case e.content != content:
		g.another[outcome] = m.seq
	}
}

// adopt notes the outcomes whose events were read after them.
func (g *group) adopt() {
	g.orphans = slices.DeleteFunc(g.orphans, func(o orphan) bool {
		if g.events[o.outcome] == nil {
			return false
		}
		g.addOutcome(o.outcome, message{seq: o.seq, stored: o.stored}, o.name, o.content)
		return true
	})
}

// applyCancelRequests notes up to when reservations took their slots at least: what was told before
// somebody asked for them to be cancelled was decided before.
func (g *group) applyCancelRequests(r *resource, stored int64) {
	for len(r.cancels) > 0 && r.cancels[0].stored-cancelMargin <= stored {
		more := r.hold(r.cancels[0].hold).extra()
		if more.takenAtLeastUntil == 0 {
			more.takenAtLeastUntil = max(r.latest, 1)
		}
		r.cancels = r.cancels[1:]
	}
}

// cancelMargin is by how much the clocks of the two streams, or of a stream and Redis, may differ, in ms.
const cancelMargin = 1000

// applyFunc notes what an outcome says.
type applyFunc func(g *group, r *resource, m message, outcome id)

// decodeData reads what an outcome says, nil when that is of no interest.
func decodeData(name string, data []byte) (applyFunc, error) {
	switch name {
	case holds.EventHoldCreated:
		return as(data, func(d *holds.HoldCreated, g *group, r *resource, m message, outcome id) {
			h := r.describe(m, d.HoldData)
			if h == nil {
				return
			}
			if h.created != 0 { // repeated, or replayed: with the same content
				if h.createdAt != d.CreatedAt.UnixMilli() || h.granted != d.ExpiresAt.UnixMilli() || h.user != sum64(d.UserID) || h.key != sum64(d.RequestKey) {
					h.extra().otherGrant = m.seq
				}
				return
			}
			h.created, h.createdAt, h.createdStored = m.seq, d.CreatedAt.UnixMilli(), m.stored
			h.granted = d.ExpiresAt.UnixMilli()
			h.deadline = max(h.deadline, h.granted)
			if e := g.events[outcome]; e != nil {
				h.requestStored = e.stored
			}
		})
	case holds.EventHoldRejected:
		return as(data, func(d *holds.HoldRejected, _ *group, r *resource, m message, _ id) {
			if d.SoldOut == nil {
				return
			}
			for _, s := range d.Unavailable {
				r.addCapacity(s.Slot, s.Capacity, m.stored)
			}
		})
	case holds.EventHoldExtended:
		return as(data, func(d *holds.HoldExtended, _ *group, r *resource, m message, _ id) {
			h := r.describe(m, d.HoldData)
			if h == nil {
				return
			}
			h.extra().extensions = append(h.more.extensions, extension{m.seq, d.ExtendedAt.UnixMilli(), d.ExpiresAt.UnixMilli()})
			if at := d.ExpiresAt.UnixMilli(); at >= h.deadline {
				h.deadline, h.extended = at, m.seq
			}
		})
	case holds.EventHoldReleased:
		return as(data, func(d *holds.HoldReleased, _ *group, r *resource, m message, outcome id) {
			r.describe(m, d.HoldData).addEnd(m, outcome, name, d.ReleasedAt)
		})
	case holds.EventHoldExpired:
		return as(data, func(d *holds.HoldExpired, _ *group, r *resource, m message, outcome id) {
			h := r.describe(m, d.HoldData)
			h.addEnd(m, outcome, name, d.ExpiresAt)
			if h != nil && d.RestoredAt.Before(d.ExpiresAt.Time) {
				h.extra().restoredEarly = d.RestoredAt.UnixMilli()
			}
		})
	case holds.EventHoldConfirmed:
		return as(data, applyConfirmed)
	case holds.EventConfirmRejected:
		return as(data, func(d *holds.ConfirmRejected, _ *group, r *resource, m message, _ id) {
			if h := r.describe(m, d.HoldData); h != nil {
				h.addAnswer(m.seq, answer{payment: d.PaymentID, reason: d.Reason})
			}
		})
	case holds.EventReservationCancelled:
		return as(data, func(d *holds.ReservationCancelled, _ *group, r *resource, m message, _ id) {
			if h := r.describe(m, d.HoldData); h != nil && h.extra().cancelled == 0 {
				h.more.cancelled, h.more.cancelledAt = m.seq, d.CancelledAt.UnixMilli()
			}
		})
	case holds.EventInventoryUpdated:
		return as(data, func(d *holds.InventoryUpdated, g *group, r *resource, m message, outcome id) {
			for _, s := range d.Slots {
				r.addCapacity(s.Slot, s.Capacity, m.stored)
				if e := g.events[outcome]; e != nil {
					r.addCapacityChange(s.Slot, capacityChange{s.Capacity, e.stored, m.stored})
				}
			}
		})
	}
	return nil, nil //nolint:nilnil // of other outcomes it only counts that they are there
}

func applyConfirmed(d *holds.HoldConfirmed, _ *group, r *resource, m message, _ id) {
	h := r.describe(m, d.HoldData)
	if h == nil {
		return
	}
	if d.Late {
		h.extra().lateOutcome, h.more.lateAt = m.seq, d.ConfirmedAt.UnixMilli()
	} else {
		// By the payment, not the event: the same payment may be told by several.
		h.addEnd(m, id{}, holds.EventHoldConfirmed+" "+d.PaymentID, d.ConfirmedAt)
	}
	h.addAnswer(m.seq, answer{payment: d.PaymentID, confirmed: true, late: d.Late, at: d.ConfirmedAt.UnixMilli()})
}

// as reads data and returns what notes it.
func as[T any](data []byte, apply func(d *T, g *group, r *resource, m message, outcome id)) (applyFunc, error) {
	d := new(T)
	if err := json.Unmarshal(data, d); err != nil {
		return nil, err
	}
	return func(g *group, r *resource, m message, outcome id) { apply(d, g, r, m, outcome) }, nil
}

// describe returns the hold that an outcome means, with what it says of it. It returns nil when
// it means none, or none of this resource.
func (r *resource) describe(m message, d holds.HoldData) *hold {
	uuid, ok := parseID(d.HoldID.UUID)
	if !ok {
		return nil
	}
	if d.HoldID.Resource != r.name || d.ResourceID != r.name {
		r.misplaced = append(r.misplaced, m.seq)
		return nil
	}
	h := r.hold(uuid)
	if h.set < 0 && d.Quantity != nil {
		slots := strings.Join(slices.Collect(slotsOf(d.SlotSelection)), ",")
		h.set, h.quantity, h.user = r.setNamed(slots), *d.Quantity, sum64(d.UserID)
		h.key = sum64(d.RequestKey)
	}
	return h
}

// addEnd notes that a hold has ended. The same outcome may be told more than once.
func (h *hold) addEnd(m message, outcome id, what string, at holds.Time) {
	if h == nil {
		return
	}
	event, _, _ := strings.Cut(what, " ")
	by := sum32(what + string(outcome[:]))
	switch {
	case h.end == 0:
		h.end, h.endedBy, h.ended, h.endedStored, h.endedAt = nameOf(event), by, m.seq, m.stored, at.UnixMilli()
	case h.endedBy != by && h.extra().other == 0:
		h.more.otherEnd, h.more.other = nameOf(event), m.seq
	}
}

// addAnswer notes the answer to a payment.
func (h *hold) addAnswer(seq uint64, a answer) {
	for i := range h.extra().answers {
		known := &h.more.answers[i]
		if known.payment != a.payment {
			continue
		}
		if known.confirmed != a.confirmed || known.late != a.late || known.reason != a.reason || known.at != a.at {
			known.another = seq
		}
		return
	}
	a.payment, a.reason, a.outcome = strings.Clone(a.payment), strings.Clone(a.reason), seq
	h.more.answers = append(h.more.answers, a)
}
