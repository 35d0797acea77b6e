package holds

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// plan is what one resource must have in Redis.
type plan struct {
	resource string

	// As lua/rebuild.lua has them: fields and values, times and ids, suffixes and values (and when
	// they expire).
	records                    []string
	due, departing, tombstones []string
	strings, lapsing           []string
	live                       *living

	earliest int64 // when to look at it next, 0 = need not be
	answers  int
}

// living is what the live holds of a resource add up to and how they are found: what lua/place.lua writes
// beside a record, and finish in lua/prelude.lua removes.
type living struct {
	holds  int
	counts map[string]int64  // by slot
	users  map[string]int64  // live holds
	index  map[string]string // fields beside them -> id, see indexField
}

func newLiving() *living {
	return &living{counts: make(map[string]int64), users: make(map[string]int64), index: make(map[string]string)}
}

func (l *living) add(id, user, slots string, quantity int64) {
	l.holds++
	for slot := range strings.SplitSeq(slots, ",") {
		l.counts[slot] += quantity
	}
	l.users[user]++
	// A user should not have two on the same slots. Whoever has them pays for both; the older is found.
	field := indexField(user, slots)
	if other, taken := l.index[field]; !taken || id < other {
		l.index[field] = id
	}
}

// plans returns what each resource must have at a time of Redis' clock, in any order.
func (p *Past) plans(now int64, each func(*plan) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, r := range p.resources {
		one := p.plan(id, r, now)
		if len(one.records) == 0 && one.answers == 0 {
			continue
		}
		if err := each(one); err != nil {
			return err
		}
	}
	return nil
}

func (p *Past) plan(resource string, r *pastResource, now int64) *plan {
	one := &plan{resource: resource, live: newLiving()}
	answers := make(map[string]*pastAnswer, len(r.answers)) // of what was created, by hold
	for key, a := range r.answers {
		if a.hold != "" {
			answers[a.hold] = a
		} else if until := a.at + p.memory(a.at); until > now {
			one.answer("request:"+key, a.line(), until)
		}
	}
	for id, h := range r.holds {
		was := p.fate(r, id, h)
		until := one.planHold(p, id, h, was, now)
		tail := h.words()
		if was.live() {
			one.live.add(id, tail.user, tail.slots, h.quantity)
		}
		a := answers[id]
		if a == nil && r.answers[tail.key] == nil {
			// Its hold.created was not stored, but something else about it was. Who asks for it
			// again has the same hold.
			a = &pastAnswer{
				word: "created", fingerprint: unknown, cause: unknown, at: p.created(id, h), asked: "-",
				detail: id + ":" + strconv.FormatInt(p.deadline(id, h), 10),
			}
		}
		if a != nil && (until == 0 || until > now) {
			one.answer("request:"+tail.key, a.line(), until)
		}
	}
	one.planExtensions(p, r, now)
	return one
}

// planHold plans all that follows from a hold, but for sums and its answer. It returns until when what is
// remembered of it is remembered, 0 = for ever.
func (one *plan) planHold(p *Past, id string, h *pastHold, was fate, now int64) (until int64) {
	record := func(name string, was fate) { one.records = append(one.records, name, p.record(id, h, was)) }
	until = was.ended + p.memory(was.ended)
	switch {
	case was.live():
		until = one.planLive(p, id, h, was)
		record(id, was)
	case was.departing:
		one.at(&one.departing, now, id)
		record(id, was)
		until = max(until, now+p.memory(now))
	case until > now:
		one.at(&one.tombstones, until, id)
		record(id, was)
	}
	if forgotten := h.lateAt + p.memory(h.lateAt); h.lateBy != "" && forgotten > now {
		one.at(&one.tombstones, forgotten, "late:"+id)
		record("late:"+id, fate{state: Confirmed, ended: h.lateAt, by: h.lateBy})
	}
	return until
}

// planLive plans what only live holds have, but for sums and index: the twins of lua/prelude.lua's
// started_key and show.
func (one *plan) planLive(p *Past, id string, h *pastHold, was fate) (until int64) {
	tail := h.words()
	if h.started != 0 {
		one.lapsing = append(one.lapsing, "started:"+id, strconv.FormatInt(h.started, 10), strconv.FormatInt(h.started+p.memory(h.started), 10))
	}
	if was.state != Held {
		return 0
	}
	deadline := p.deadline(id, h)
	at := one.at(&one.due, deadline, id)
	one.lapsing = append(one.lapsing, "hold:"+id,
		shown(tail.user, h.quantity, tail.asked)+`,"expires_at_ms":`+at+`}`, at)
	return deadline + max(p.memory(p.created(id, h)), p.memory(deadline))
}

// at adds a time to look at something.
func (one *plan) at(list *[]string, at int64, id string) string {
	if one.earliest == 0 || at < one.earliest {
		one.earliest = at
	}
	text := strconv.FormatInt(at, 10)
	*list = append(*list, text, id)
	return text
}

// answer adds an answer that is remembered until a time, 0 = for ever.
func (one *plan) answer(suffix, line string, until int64) {
	one.answers++
	if until == 0 {
		one.strings = append(one.strings, suffix, line)
	} else {
		one.lapsing = append(one.lapsing, suffix, line, strconv.FormatInt(until, 10))
	}
}

// planExtensions plans the answers to extensions.
func (one *plan) planExtensions(p *Past, r *pastResource, now int64) {
	byHold := make(map[string][]string) // the causes
	for cause, x := range r.extensions {
		byHold[x.hold] = append(byHold[x.hold], cause)
	}
	for hold, causes := range byHold {
		slices.SortFunc(causes, func(a, b string) int { return cmp.Compare(r.extensions[a].at, r.extensions[b].at) })
		deadline := int64(0)
		if h := r.holds[hold]; h != nil {
			deadline = h.first
		}
		for _, cause := range causes {
			x := r.extensions[cause]
			deadline = max(deadline, x.deadline) // which a refusal leaves as it was
			if until := x.at + p.memory(x.at); until > now {
				one.answer("extension:"+cause, x.word+" "+strconv.FormatInt(x.at, 10)+" "+strconv.FormatInt(deadline, 10), until)
			}
		}
	}
}

// numbers and pairs are fields and values of a hash, or suffixes and values.
func numbers(of map[string]int64) []string {
	list := make([]string, 0, 2*len(of))
	for name, number := range of {
		list = append(list, name, strconv.FormatInt(number, 10))
	}
	return list
}

func pairs(of map[string]string) []string {
	list := make([]string, 0, 2*len(of))
	for name, text := range of {
		list = append(list, name, text)
	}
	return list
}

// tailWords are the words of a record's tail, but for the metadata.
type tailWords struct{ user, key, slots, asked string }

func (h *pastHold) words() tailWords {
	words := strings.SplitN(h.tail, " ", 5)
	return tailWords{words[0], words[1], words[2], words[3]}
}

func (f fate) live() bool { return f.state == Held || f.state == Confirming }

// record is the line of a record.
func (p *Past) record(id string, h *pastHold, was fate) string {
	text := make([]byte, 0, 96+len(h.tail))
	text = append(text, was.state...)
	for _, n := range []int64{p.deadline(id, h), p.created(id, h), h.quantity, was.ended} {
		text = strconv.AppendInt(append(text, ' '), n, 10)
	}
	text = append(append(text, ' '), was.by...)
	text = append(append(text, ' '), h.tail...)
	return string(text)
}

// line is an answer as it is remembered, see lua/place.lua.
func (a *pastAnswer) line() string {
	return strings.Join([]string{a.word, a.fingerprint, a.cause, strconv.FormatInt(a.at, 10), a.detail, a.asked, a.metadata}, " ")
}
