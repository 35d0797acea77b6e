package audit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// inboundDots is the number of dots in the subject of an inbound event.
const inboundDots = 4

// noteInbound notes an inbound event.
func (g *group) noteInbound(m message) {
	if !g.isMine(resourceOf(m.Subject)) {
		return
	}
	g.report.Stats.Events++
	consumer := g.subjects.ConsumerOf(m.Subject)
	in, err := g.subjects.Decode(m.Subject, m.Header, m.Data, m.Meta.Timestamp)
	if err != nil { // its only possible outcome is a dead letter
		g.unprocessable = append(g.unprocessable, unprocessable{m.seq, m.stored, consumer})
		return
	}
	outcome := id(uuid.MustParse(in.OutcomeID)) // Decode returns a valid UUID
	e := g.events[outcome]
	if e == nil {
		e = &event{stored: m.stored, name: in.Event}
		g.events[outcome] = e
	}
	e.seqs = append(e.seqs, m.seq)
	if m.seq > g.floorsBefore[consumer] {
		if about := subjectOf(in); about != "" {
			g.pending[about] = append(g.pending[about], e)
		}
	}
	r := g.resource(in.Resource)
	switch request := in.Request.(type) {
	case *holds.ExtendRequest:
		if hold, ok := parseID(request.Hold.UUID); ok && len(e.seqs) == 1 {
			h := r.hold(hold)
			h.extends = append(h.extends, e)
		}
	case *holds.CancelRequest:
		if hold, ok := parseID(request.Hold.UUID); ok {
			r.cancels = append(r.cancels, cancel{m.stored, hold})
		}
	case *holds.InventoryRequest:
		slots, _ := request.Selection.ReservedSlots() // none for nights that are not valid
		for _, slot := range slots {
			r.addCapacity(slot, request.Capacity, m.stored)
			r.addCapacityChange(slot, capacityChange{request.Capacity, m.stored, maxTime})
		}
	}
}

// subjectOf returns the key under which an event is pending: that of its hold or of its request
// key, "" for an event that is about neither. See inProgress.
func subjectOf(in *events.Inbound) string {
	switch r := in.Request.(type) {
	case *holds.PlaceRequest:
		return aboutKey(in.Resource, r.RequestKey)
	case *holds.ReleaseRequest:
		if r.RequestKey != "" {
			return aboutKey(in.Resource, r.RequestKey)
		}
		return aboutHold(in.Resource, r.Hold.UUID)
	case *holds.ExtendRequest:
		return aboutHold(in.Resource, r.Hold.UUID)
	case *holds.ConfirmRequest:
		return aboutHold(in.Resource, r.Hold.UUID)
	case *holds.CancelRequest:
		return aboutHold(in.Resource, r.Hold.UUID)
	}
	return ""
}

func aboutKey(resource, key string) string   { return resource + " key " + key }
func aboutHold(resource, uuid string) string { return resource + " hold " + uuid }

// isPending reports whether an event has no outcome yet and may still get one.
func (g *group) isPending(e *event) bool {
	return e.outcome == 0 && slices.Max(e.seqs) > g.floors[g.subjects.ConsumerOf(g.subjects.In(e.name, ""))]
}

// inProgress reports whether an event about a hold, or about its request key, is still being
// answered, or was answered after Redis and Postgres were read. Then what they have may differ from
// the outcomes.
func (g *group) inProgress(resource string, h *hold) bool {
	keys := []string{aboutHold(resource, h.id.String())}
	if h.rec != nil {
		keys = append(keys, aboutKey(resource, h.rec.RequestKey))
	}
	for _, key := range keys {
		for _, e := range g.pending[key] {
			if g.isPending(e) || e.outcome > g.snapshotSeq {
				return true
			}
		}
	}
	return false
}

// noteDeadLetter notes a dead letter.
func (g *group) noteDeadLetter(m message) {
	header := m.Header
	subject := header.Get(events.HeaderDLQSubject)
	if !g.isMine(resourceOf(subject)) || g.options.ResourceID != "" && strings.Count(subject, ".") != inboundDots {
		return
	}
	g.report.Stats.DeadLetters++
	seq, err := strconv.ParseUint(header.Get(events.HeaderDLQStreamSeq), 10, 64)
	reason := header.Get(events.HeaderDLQReason)
	switch l := g.deadLetters[seq]; {
	case m.Meta.Timestamp.Before(g.in.created): // of an event of a deleted stream of the same name, or from before a restore of this one
		g.formerDeadLetters++
	case err != nil || seq == 0:
		g.strange = append(g.strange, m.seq)
	case l == nil:
		g.deadLetters[seq] = &deadLetter{seq: m.seq, reason: reason}
	case l.reason != reason:
		l.another = m.seq
	}
}
