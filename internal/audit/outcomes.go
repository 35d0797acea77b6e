package audit

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

var contentSeed = maphash.MakeSeed()

// noteOutcome notes an outcome.
func (g *group) noteOutcome(m message) {
	resource := resourceOf(m.Subject)
	if !g.isMine(resource) {
		return
	}
	g.report.Stats.Outcomes++
	var e events.Envelope
	err := json.Unmarshal(m.Data, &e)
	parsed, idErr := uuid.Parse(e.ID)
	event, known := events.EventOf(e.Type)
	var data holds.OutcomeData
	var dataErr error
	if known && !slices.Contains(countedOutcomes, event) {
		data, known, dataErr = holds.DecodeOutcomeData(event, e.Data)
	}
	if !known || cmp.Or(err, idErr, dataErr) != nil {
		g.unreadable = append(g.unreadable, m.seq)
		return
	}
	outcome := id(parsed)
	if event != holds.EventHoldExpired {
		g.addOutcome(outcome, m, event, maphash.String(contentSeed, e.Type)^maphash.Bytes(contentSeed, e.Data))
	}
	if m.stored < g.installed { // by workers on another database
		g.former++
		if about, err := holds.ParseHoldID(e.Subject); err == nil && about.Resource == resource {
			uuid, _ := parseID(about.UUID) // ParseHoldID has validated it
			g.formerHolds[uuid] = struct{}{}
		}
		return
	}
	if m.Subject != g.subjects.Out(event, resource) {
		g.misplaced = append(g.misplaced, m.seq)
	}
	r := g.resource(resource)
	g.applyCancelRequests(r, m.stored)
	if !e.Time.IsZero() {
		r.latest = max(r.latest, e.Time.UnixMilli())
	}
	g.apply(r, g.events[outcome], m, outcome, data)
}

// addOutcome notes the outcome of an event.
func (g *group) addOutcome(outcome id, m message, name string, content uint64) {
	e := g.events[outcome]
	switch {
	case e == nil:
		g.orphans = append(g.orphans, orphan{outcome, m.seq, m.stored, name, content})
	case e.outcome == 0:
		g.slowest = max(g.slowest, m.stored-e.stored)
		e.outcome, e.outcomeName, e.content = m.seq, name, content
	case e.content != content:
		e.another = m.seq
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

// applyCancelRequests notes up to when reservations took their slots at least. An outcome that was
// stored before the cancellation of a reservation was requested was decided before it.
func (g *group) applyCancelRequests(r *resource, stored int64) {
	for len(r.cancels) > 0 && r.cancels[0].stored-cancelMargin <= stored {
		h := r.hold(r.cancels[0].hold)
		if h.takenAtLeastUntil == 0 {
			h.takenAtLeastUntil = max(r.latest, 1)
		}
		r.cancels = r.cancels[1:]
	}
}

// cancelMargin is the largest difference between the clocks of two streams, or of a stream and Redis, in
// ms.
const cancelMargin = 1000

// countedOutcomes are the outcomes whose data an audit does not read. It only counts them.
var countedOutcomes = []string{
	holds.EventExtensionRejected, holds.EventReleaseRejected, holds.EventCancelRejected, holds.EventInventoryRejected,
	holds.EventBookingCancelled,
}

// apply notes what an outcome says. e is its event, nil when it was not found. data is nil for an outcome
// that is only counted.
func (g *group) apply(r *resource, e *event, m message, outcome id, data holds.OutcomeData) {
	switch data := data.(type) {
	case nil:
	case holds.HoldRejected:
		if data.SoldOut != nil {
			for _, s := range data.Unavailable {
				r.addCapacity(s.Slot, s.Capacity, m.stored)
			}
		}
	case holds.InventoryUpdated:
		for _, s := range data.Slots {
			r.addCapacity(s.Slot, s.Capacity, m.stored)
			if e != nil {
				r.addCapacityChange(s.Slot, capacityChange{s.Capacity, e.stored, m.stored})
			}
		}
	default:
		if h := g.describe(r, m, data.Hold()); h != nil {
			h.apply(e, m, outcome, data)
		}
	}
}

// apply notes what an outcome says of a hold.
func (h *hold) apply(e *event, m message, outcome id, data holds.OutcomeData) {
	switch data := data.(type) {
	case holds.HoldCreated:
		h.applyCreated(e, m, data)
	case holds.HoldExtended:
		h.applyExtended(m, data)
	case holds.HoldReleased:
		h.addEnd(m, holds.EventHoldReleased, string(outcome[:]), data.ReleasedAt)
	case holds.HoldExpired:
		h.addEnd(m, holds.EventHoldExpired, string(outcome[:]), data.ExpiresAt)
		if data.RestoredAt.Before(data.ExpiresAt.Time) {
			h.restoredEarly = data.RestoredAt.UnixMilli()
		}
	case holds.HoldConfirmed:
		h.applyConfirmed(e, m, data)
	case holds.ConfirmRejected:
		h.addAnswer(m.seq, data.PaymentID, decision{reason: data.Reason})
	case holds.ReservationCancelled:
		if h.cancelled == 0 {
			h.cancelled, h.cancelledAt, h.cancelledStored = m.seq, data.CancelledAt.UnixMilli(), m.stored
		}
	}
}

func (h *hold) applyCreated(e *event, m message, data holds.HoldCreated) {
	createdAt, granted := data.CreatedAt.UnixMilli(), data.ExpiresAt.UnixMilli()
	if h.created != 0 { // a repeat or a replay has the same content
		if h.createdAt != createdAt || h.granted != granted || h.user != sum64(data.UserID) ||
			h.key != sum64(data.RequestKey) {
			h.otherGrant = m.seq
		}
		return
	}
	h.created, h.createdAt, h.createdStored, h.granted = m.seq, createdAt, m.stored, granted
	// A recovery of Redis knows no other time of a hold whose end alone was published.
	h.guessed = data.Replayed && createdAt == holds.HoldID{UUID: h.id.String()}.CreatedAt().UnixMilli()
	h.deadline = max(h.deadline, h.granted)
	if e != nil {
		h.requestStored = e.stored
	}
}

func (h *hold) applyExtended(m message, data holds.HoldExtended) {
	deadline := data.ExpiresAt.UnixMilli()
	h.extensions = append(h.extensions, extension{m.seq, data.ExtendedAt.UnixMilli(), deadline})
	if deadline >= h.deadline {
		h.deadline, h.extended = deadline, m.seq
	}
}

func (h *hold) applyConfirmed(e *event, m message, data holds.HoldConfirmed) {
	if data.Late {
		h.lateOutcome, h.lateAt = m.seq, data.ConfirmedAt.UnixMilli()
		if e != nil {
			h.lateRequested = e.stored
		}
	} else {
		// The payment identifies this end, not the event: several events may confirm the same payment.
		h.addEnd(m, holds.EventHoldConfirmed, data.PaymentID, data.ConfirmedAt)
	}
	h.addAnswer(m.seq, data.PaymentID, decision{confirmed: true, late: data.Late, at: data.ConfirmedAt.UnixMilli()})
}

// describe returns the hold that an outcome is about, and notes what the outcome says of it. It returns
// nil for an outcome without a hold, and for one about a hold of another resource, which it notes as
// misplaced.
func (g *group) describe(r *resource, m message, d *holds.HoldData) *hold {
	if d == nil {
		return nil
	}
	uuid, ok := parseID(d.HoldID.UUID)
	if !ok {
		return nil
	}
	if d.HoldID.Resource != r.name || d.ResourceID != r.name {
		g.misplaced = append(g.misplaced, m.seq)
		return nil
	}
	h := r.hold(uuid)
	if h.set < 0 && d.Quantity != nil {
		slots, _ := d.ReservedSlots() // none for nights that no hold can have
		h.set, h.quantity, h.user = r.setNamed(strings.Join(slots, ",")), *d.Quantity, sum64(d.UserID)
		h.key = sum64(d.RequestKey)
	}
	return h
}

// addEnd notes that a hold has ended. The same outcome may be stored more than once: what identifies the end
// among those of the same event.
func (h *hold) addEnd(m message, event, what string, at holds.Time) {
	by := uint32(sum64(event + what))
	switch {
	case h.end == "":
		h.end, h.endedBy, h.ended, h.endedStored, h.endedAt = event, by, m.seq, m.stored, at.UnixMilli()
	case h.endedBy != by && h.other == 0:
		h.otherEnd, h.other = event, m.seq
	}
}

// addAnswer notes the published answer to a payment.
func (h *hold) addAnswer(seq uint64, payment string, d decision) {
	a := h.answerTo(payment)
	switch {
	case a.outcome == 0:
		d.reason = strings.Clone(d.reason)
		a.decision, a.outcome = d, seq
	case a.decision != d:
		a.another = seq
	}
}

// answerTo returns the answer to a payment, which it adds if it is new.
func (h *hold) answerTo(payment string) *answer {
	for i := range h.answers {
		if a := &h.answers[i]; a.payment == payment {
			return a
		}
	}
	h.answers = append(h.answers, answer{payment: strings.Clone(payment)})
	return &h.answers[len(h.answers)-1]
}
