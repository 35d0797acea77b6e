package recovery

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"holdfast/internal/holds"
	"holdfast/internal/record"
)

// plan is the data that one resource must have in Redis.
type plan struct {
	resource string

	// Lists as lua/rebuild.lua takes them. Folds are names and lines; records have recordValues each; requests are
	// suffixes, lines and times; expiring are suffixes, values and times.
	folds, records, requests, expiring []string

	live int // number of live holds

	changes []string // records, as lua/replay.lua takes them: only of a resume

	earliest int64 // time (ms) of the resource in the agenda, 0 when it needs none
	answers  int
}

// recordValues is how many values each record has in lists and in scripts: its name and line, the sorted set that the
// name belongs to ("" for none), and its time there (ms).
const recordValues = 4

// plans returns the plan of each resource at a time of Redis' clock (ms), in any order.
func (p *Projection) plans(now int64) (all []*plan) {
	for id, r := range p.resources {
		if one := p.planResource(id, r, now); len(one.records) > 0 || one.answers > 0 {
			all = append(all, one)
		}
	}
	return all
}

func (p *Projection) planResource(resource string, r *projectedResource, now int64) *plan {
	one := &plan{resource: resource}
	answers := make(map[string]*record.Answer, len(r.answers)) // of created holds, by hold
	for key, a := range r.answers {
		if hold, _ := createdHold(a); hold != "" {
			answers[hold] = a
		} else if until := a.At + p.requestKeyTTLMS(a.At); until > now {
			one.addRequest(key, a, until)
		}
	}
	for id, h := range r.holds {
		was := p.resolve(r, id, h)
		until := one.planHold(p, id, h, was, now)
		tail, _ := record.ParseTail(h.Tail) // holdInfoOf has written it
		if was.live() {
			one.live++
		}
		a := answers[id]
		if a == nil && r.answers[tail.RequestKey] == nil {
			// Its hold.created is missing, but another outcome of it exists. The same request is
			// answered with this hold again.
			a = &record.Answer{
				Word: "created", Fingerprint: unknown, EventID: unknown, At: p.created(id, h), Selection: "-",
				Detail: record.Created{UUID: id, Deadline: p.deadline(id, h)}.String(),
			}
		}
		if a != nil && (until == 0 || until > now) {
			one.addRequest(tail.RequestKey, a, until)
		}
		one.planExtensions(p, h, now)
	}
	return one
}

// planHold plans what follows from a hold, except for its answer. It returns the time (ms)
// until which the hold is remembered, 0 when it has no end yet.
func (one *plan) planHold(p *Projection, id string, h *projectedHold, was resolution, now int64) (until int64) {
	until = p.rememberedUntil(was.ended, now, h.stored != nil && isLiveLine(h.stored.line))
	switch {
	case was.live():
		until = one.planLive(p, id, h, was)
	case was.unannounced:
		one.addRecord(id, p.recordLine(id, h, was), "departing", now)
		until = max(until, now+p.requestKeyTTLMS(now))
	case until > now:
		one.addRecord(id, p.recordLine(id, h, was), "tombstones", until)
	}
	forgotten := p.rememberedUntil(h.LateAt, now, h.stored != nil && isLiveLine(h.stored.late))
	if h.LateBy != "" && forgotten > now {
		was := resolution{state: holds.Confirmed, ended: h.LateAt, by: h.LateBy}
		one.addRecord(latePrefix+id, p.recordLine(id, h, was), "tombstones", forgotten)
	}
	return until
}

// rememberedUntil returns until when a hold is remembered that has ended at a time. When Redis has it as live, it ends
// there only now, and must be written: a claim may have waited for longer than an ended hold is remembered. Times are in
// ms.
func (p *Projection) rememberedUntil(ended, now int64, storedLive bool) int64 {
	if storedLive {
		ended = max(ended, now)
	}
	return ended + p.requestKeyTTLMS(ended)
}

// planLive plans the record of a live hold and what only live holds have, except for sums and index, which the script adds. The keys are those of
// started_key and set_hold_key in holds/lua/prelude.lua. It returns the same as planHold.
func (one *plan) planLive(p *Projection, id string, h *projectedHold, was resolution) (until int64) {
	deadline := p.deadline(id, h)
	until = deadline + max(p.requestKeyTTLMS(p.created(id, h)), p.requestKeyTTLMS(deadline))
	if h.Started != 0 {
		one.expiring = append(one.expiring, "started:"+id, strconv.FormatInt(h.Started, 10), strconv.FormatInt(until, 10))
	}
	line := p.recordLine(id, h, was)
	if was.state != holds.Held {
		one.records = append(one.records, id, line, "", "")
		return 0
	}
	at := one.addRecord(id, line, "due", deadline)
	one.expiring = append(one.expiring, "hold:"+id, at, at)
	return until
}

// addRecord adds a record and its time (ms) in a sorted set, and returns the time as text.
func (one *plan) addRecord(name, line, set string, at int64) string {
	if one.earliest == 0 || at < one.earliest {
		one.earliest = at
	}
	text := strconv.FormatInt(at, 10)
	one.records = append(one.records, name, line, set, text)
	return text
}

// addRequest adds the answer to a request key that is remembered until a time (ms), without end when it is 0.
func (one *plan) addRequest(key string, a *record.Answer, until int64) {
	one.answers++
	one.requests = append(one.requests, "request:"+key, a.String(), strconv.FormatInt(until, 10))
}

// planExtensions plans the answers to the extensions of a hold.
func (one *plan) planExtensions(p *Projection, h *projectedHold, now int64) {
	byTime := func(a, b string) int { return cmp.Compare(h.Extensions[a].At, h.Extensions[b].At) }
	deadline := h.FirstDeadline
	for _, id := range slices.SortedFunc(maps.Keys(h.Extensions), byTime) {
		x := h.Extensions[id]
		if x.Deadline != 0 { // else a rejection, which does not change it
			deadline = x.Deadline // also below firstDeadline: a resume has that of the last extension there
		}
		if until := x.At + p.requestKeyTTLMS(x.At); until > now {
			one.answers++
			line := record.ExtensionAnswer(x.Word, x.At, deadline)
			one.expiring = append(one.expiring, "extension:"+id, line, strconv.FormatInt(until, 10))
		}
	}
}

func (r resolution) live() bool { return r.state == holds.Held || r.state == holds.Confirming }

// recordLine returns the record of a hold.
func (p *Projection) recordLine(id string, h *projectedHold, was resolution) string {
	return record.Record{
		State: string(was.state), Deadline: p.deadline(id, h), Created: p.created(id, h), Quantity: h.Quantity,
		Ended: was.ended, By: was.by, Tail: h.Tail,
	}.String()
}
