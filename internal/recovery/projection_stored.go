package recovery

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// A resume begins its Projection with what Redis has, and applies only the later outcomes.

// storedHold is what Redis has of a hold before outcomes are applied to it.
type storedHold struct {
	line, late string // the records <id> and late:<id>, "" when missing
	claimedBy  string // the payment that has claimed the hold, "" when none has
	claimedAt  int64  // ms
}

// refs are names of one kind, by resource: ids of holds or request keys.
type refs map[string]map[string]struct{}

func (r refs) add(resource, name string) {
	if r[resource] == nil {
		r[resource] = make(map[string]struct{})
	}
	r[resource][name] = struct{}{}
}

// references returns the holds and the request keys that the applied outcomes concern.
func (p *Projection) references() (ids, requestKeys refs) {
	ids, requestKeys = make(refs), make(refs)
	for resource, r := range p.resources {
		for id := range r.holds {
			ids.add(resource, id)
		}
		for rejected := range r.rejected {
			id, _, _ := strings.Cut(rejected, " ")
			ids.add(resource, id)
		}
		for key := range r.answers {
			requestKeys.add(resource, key)
		}
	}
	return ids, requestKeys
}

// grantedUntil returns the time of the last grant on each resource, in ms.
func (p *Projection) grantedUntil() map[string]int64 {
	last := make(map[string]int64)
	for resource, r := range p.resources {
		for _, one := range r.grants {
			last[resource] = max(last[resource], one.at)
		}
	}
	return last
}

// addStoredAnswer adds the answer that Redis has to a request key. It returns the UUID of the hold that was
// created, "" when none was.
func (p *Projection) addStoredAnswer(resource, key, line string) (hold string, err error) {
	a, err := record.ParseAnswer(line)
	if err == nil {
		hold, err = createdHold(&a)
	}
	if err != nil {
		return "", fmt.Errorf("answer of resource %s: %w", resource, holds.ErrCorrupt)
	}
	p.addAnswer(resource, key, a)
	return hold, nil
}

// addStored adds the records that Redis has of a hold, each "" when it is missing. It returns the request
// key of the hold, "" when Redis does not know the hold.
//
// Redis has the data of a moment after the marker. So a hold that has ended there has ended for ever, and
// the outcomes do not contradict it.
func (p *Projection) addStored(resource, id, line, late string) (requestKey string, err error) {
	h := p.resource(resource).holds[id]
	if line == "" {
		if late != "" {
			return "", fmt.Errorf("hold %s.%s is forgotten, and its late payment is not: %w", resource, id, errNotResumable)
		}
		return "", nil
	}
	var tail record.Tail
	stored, err := record.Parse(line)
	if err == nil {
		tail, err = record.ParseTail(stored.Tail)
	}
	if err != nil {
		return "", fmt.Errorf("record %s of resource %s: %w", id, resource, holds.ErrCorrupt)
	}
	if h == nil {
		h = new(projectedHold)
		p.resource(resource).holds[id] = h
	}
	h.stored = &storedHold{line: line, late: late}
	p.weight += outcomeWeight + len(line) + len(late)
	h.Tail, h.OwnTail, h.Quantity, h.Created = stored.Tail, true, stored.Quantity, stored.Created
	h.Deadline = max(h.Deadline, stored.Deadline)
	if h.FirstDeadline == 0 {
		h.FirstDeadline = stored.Deadline
	}
	switch state := holds.State(stored.State); {
	case state == holds.Held:
	case state == holds.Confirming:
		h.stored.claimedBy, h.stored.claimedAt = stored.By, stored.Ended
	case h.State != "" && h.State != state:
		return "", fmt.Errorf("hold %s.%s is %s, and its outcome says %s: %w", resource, id, state, h.State, errNotResumable)
	default:
		h.State, h.Deadline, h.Ended, h.By = state, stored.Deadline, stored.Ended, stored.By
	}
	return tail.RequestKey, nil
}

// hasSettled reports whether Redis has a hold as confirmed by a payment, also by a late one. Redis settles a
// payment only after Postgres has committed it, and is read before Postgres here. So when Postgres has no
// decision, it has lost the commit, and what Redis has must not be resumed.
func (p *Projection) hasSettled(hold holds.HoldID, payment string) bool {
	h := p.resource(hold.Resource).holds[hold.UUID]
	if h == nil || h.stored == nil {
		return false
	}
	return isSettledBy(h.stored.line, payment) || isSettledBy(h.stored.late, payment)
}

// isSettledBy reports whether a record is that of a hold that a payment has confirmed.
func isSettledBy(line, payment string) bool {
	r, err := record.Parse(line)
	return err == nil && r.State == string(holds.Confirmed) && r.By == payment
}

// RejectPayment adds that a payment was rejected: it has no claim on the hold any more.
func (p *Projection) RejectPayment(hold holds.HoldID, payment string) {
	p.resource(hold.Resource).rejected[hold.UUID+" "+payment] = struct{}{}
}

// isClaimed reports whether the payment that has claimed a hold in Redis may still have the claim.
func (r *projectedResource) isClaimed(id string, h *projectedHold) bool {
	if h.stored == nil || h.stored.claimedBy == "" {
		return false
	}
	_, rejected := r.rejected[id+" "+h.stored.claimedBy]
	return !rejected
}

// eachChange calls each for the plan of each resource at a time of Redis' clock (ms), in any order. Its
// records that differ are in changes; the answers are as in other plans.
func (p *Projection) eachChange(now int64, each func(*plan) error) error {
	for id, r := range p.resources {
		p.dropForgotten(r, now)
		one := p.planResource(id, r, now)
		one.changes = r.changes(one)
		if len(one.changes) == 0 && one.answers == 0 {
			continue
		}
		if err := each(one); err != nil {
			return err
		}
	}
	return nil
}

// dropForgotten drops the holds that Redis had forgotten before it was lost: an outcome repeats an answer
// to their request. A hold that is younger than the time for which it is remembered is not forgotten, but
// lost.
func (p *Projection) dropForgotten(r *projectedResource, now int64) {
	for id, h := range r.holds {
		if created := p.created(id, h); h.stored == nil && created+p.requestKeyTTLMS(created) <= now {
			delete(r.holds, id)
		}
	}
}

// changes returns the records of a plan that differ from those in Redis, as lua/replay.lua takes them. Holds
// that end come first, because a new hold of the same user may be on the same slots.
func (r *projectedResource) changes(one *plan) []string {
	var ended, live []string
	for planned := range slices.Chunk(one.records, recordValues) {
		id, line := planned[0], planned[1]
		uuid, late := strings.CutPrefix(id, latePrefix)
		h, before := r.holds[uuid], ""
		if h.stored != nil {
			before = h.stored.line
		}
		if h.stored != nil && late {
			before = h.stored.late
		}
		announced := h.announced && !late // so that it is not announced again
		if line == before && !announced {
			continue
		}
		list := &ended
		if isLiveLine(line) {
			list = &live
		}
		*list = append(*list, planned...)
	}
	for uuid, h := range r.holds {
		if h.stored == nil || h.LateBy != "" || !isLiveLine(h.stored.late) {
			continue
		}
		claim, _ := record.Parse(h.stored.late) // addStored has checked the line of the hold only
		if _, rejected := r.rejected[uuid+" "+claim.By]; rejected {
			ended = append(ended, latePrefix+uuid, "", "", "")
		}
	}
	return append(ended, live...)
}

const latePrefix = "late:" // of the record of a late payment, see late_id in holds/lua/prelude.lua

func isLiveLine(line string) bool {
	state, _, _ := strings.Cut(line, " ")
	return state == string(holds.Held) || state == string(holds.Confirming)
}
