package recovery

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// outcomeWeight is what an outcome takes in a Projection beside its texts, in bytes, about.
const outcomeWeight = 500

// fold is what a rebuild keeps of a hold in Redis until it has read all outcomes: one line of JSON. A hold has a line
// for each cut in which outcomes of it were applied.
type fold struct {
	holdFacts
	Answer string `json:"answer,omitzero"` // to its request
}

// String returns the line.
func (f fold) String() string {
	// Ids in headers are any bytes; what is no UTF-8 is replaced.
	line, err := json.Marshal(f, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(err) // of strings and numbers: cannot happen
	}
	return string(line)
}

// refusedPrefix begins the name of the fold that says that a cancellation was rejected, before its event id. Other names
// are UUIDs.
const refusedPrefix = "refused "

// cut removes all that was applied since the last cut, and returns it, nil unless it has at least min bytes.
func (p *Projection) cut(min int) map[string]*projectedResource {
	if p.weight < min || len(p.resources) == 0 {
		return nil
	}
	resources := p.resources
	p.resources, p.weight = make(map[string]*projectedResource), 0
	return resources
}

// foldPlans plans how what was cut is added to what Redis has: holds to their folds, other answers where they are
// remembered. The order of cuts does not matter, see merge and lua/rebuild.lua.
func (p *Projection) foldPlans(cut map[string]*projectedResource) []*plan {
	plans := make([]*plan, 0, len(cut))
	for id, r := range cut {
		one := &plan{resource: id}
		of := make(map[string]*record.Answer, len(r.holds))
		for key, a := range r.answers {
			if hold, _ := createdHold(a); hold != "" {
				of[hold] = a
			} else {
				one.addRequest(key, a, a.At+p.requestKeyTTLMS(a.At))
			}
		}
		for uuid, h := range r.holds {
			f := fold{holdFacts: h.holdFacts}
			if a := of[uuid]; a != nil {
				f.Answer = a.String()
			}
			one.folds = append(one.folds, uuid, f.String())
		}
		for event := range r.refused {
			one.folds = append(one.folds, refusedPrefix+event, "{}")
		}
		plans = append(plans, one)
	}
	return plans
}

// addFolds adds the folds of a hold, which Redis has. It ignores a hold of which no outcome is stored.
func (p *Projection) addFolds(resource, uuid, lines string) error {
	r, h := p.resource(resource), new(projectedHold)
	if strings.HasPrefix(uuid, refusedPrefix) {
		return nil
	}
	for line := range strings.SplitSeq(lines, "\n") {
		var f fold
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			return fmt.Errorf("fold of hold %s.%s: %w", resource, uuid, holds.ErrCorrupt)
		}
		h.merge(f.holdFacts)
		if f.Answer == "" {
			continue
		}
		a, err := record.ParseAnswer(f.Answer)
		if err != nil {
			return fmt.Errorf("fold of hold %s.%s: %w", resource, uuid, holds.ErrCorrupt)
		}
		tail, _ := record.ParseTail(f.Tail) // holdInfoOf has written it
		p.addAnswer(resource, tail.RequestKey, a)
	}
	if h.Tail == "" {
		return nil
	}
	r.holds[uuid] = h
	return nil
}

// endForgotten ends the holds without an end that were created before the oldest outcome that was read, in ms. They were
// forgotten before Redis was lost, and their end is older too: only a later outcome repeats an answer about them. A payment
// that was stored before the deadline of its hold keeps it live: the outcomes are read from before that hold.
func (p *Projection) endForgotten(since int64) {
	for _, r := range p.resources {
		for id, h := range r.holds {
			deadline := p.deadline(id, h)
			paid := h.paidBy != "" && h.paidAt < deadline
			if h.State == "" && !paid && p.created(id, h) < since {
				h.State, h.Ended, h.By = holds.Expired, deadline, unknown
			}
		}
	}
}

// merge adds what other outcomes say. The order does not matter, and the same may be added twice, because a
// hold ends once; only what Postgres has of its payment comes after the outcomes, and counts.
func (h *holdFacts) merge(f holdFacts) {
	if f.OwnTail && !h.OwnTail || h.Tail == "" {
		h.Tail, h.OwnTail = f.Tail, f.OwnTail
	}
	h.Quantity, h.Created = max(h.Quantity, f.Quantity), max(h.Created, f.Created)
	h.Deadline, h.FirstDeadline = max(h.Deadline, f.Deadline), max(h.FirstDeadline, f.FirstDeadline)
	if h.Started == 0 || f.Started != 0 && f.Started < h.Started {
		h.Started = f.Started // a later time is that of an extension that was rejected because of it
	}
	h.PublishedAt = firstStored(h.PublishedAt, f.PublishedAt)
	h.LatePublishedAt = firstStored(h.LatePublishedAt, f.LatePublishedAt)
	if f.State != "" {
		h.State, h.Ended, h.By = f.State, f.Ended, f.By
	}
	if f.LateBy != "" {
		h.LateBy, h.LateAt = f.LateBy, f.LateAt
	}
	for event, x := range f.Extensions {
		h.addExtension(event, x)
	}
}
