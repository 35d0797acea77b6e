package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/lua"
)

// The counters of a larger resource are compared with its records in pages, while scripts change
// both. A record states when its hold took its slots and when it gave them back, so the records
// determine what a counter was when it was read. They leave open what happened in the millisecond of
// the reading. No record states when a payment was settled: it is certain that a hold had its slots
// if its tombstone is higher than all that existed when the counter was read, and that it had none if
// its tombstone existed then, or if it was not live in the pass over the records before. The counters
// that other paid holds concern are read again.
//
// After Redis' clock was set back the times of the records mean nothing. A record that began after
// its page was read, or a page that was read before the previous one, proves that. Then no counter is
// compared.
const (
	namedMax = 500 // counters that are read again in one step
	sureMax  = 5   // times that they are read again while they are uncertain
)

// counterName names a counter: the held quantity of a slot, or the number of a user's live holds.
type counterName struct {
	kind Kind
	name string
}

// readTime is the moment at which counters were read.
type readTime struct {
	at     int64           // ms
	last   int64           // the highest time of a tombstone at that moment
	latest map[string]bool // some records that had a tombstone at that moment
}

// pass is a reading of all records.
type pass struct {
	readTime                  // before it began
	live     map[string]int64 // the live holds that it found, by record, and when each began
}

// counter is a counter as it was read, and the sum of the records at that moment.
type counter struct {
	readTime
	found  string // its value; "-" when missing, "nonsense" when not a number
	sum    int64
	unsure bool // a hold may have changed it before or after the reading
	moved  bool // a hold changed it after the reading
}

type counters map[counterName]*counter

// expected returns the correct value of the counter.
func (c *counter) expected() string {
	if c.sum == 0 {
		return "-"
	}
	return strconv.FormatInt(c.sum, 10)
}

// wrong returns the names of the counters that differ, sorted.
func (cs counters) wrong() (names []counterName) {
	for name, c := range cs {
		if c.found != c.expected() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b counterName) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
	return names
}

// add adds what a hold took to its counters. With all, it also adds counters that were not found:
// they were missing before the first pass over the records began.
func (cs counters) add(r *holdRecord, before pass, all bool) {
	record := r.name()
	add := func(kind Kind, name string, quantity int64) {
		c := cs[counterName{kind, name}]
		if c == nil && all {
			c = &counter{found: "-", readTime: before.readTime}
			cs[counterName{kind, name}] = c
		}
		if c == nil {
			return
		}
		took, sure := r.tookAt(record, c.readTime, before)
		if took {
			c.sum += quantity
		}
		c.unsure = c.unsure || !sure
		c.moved = c.moved || took != r.live()
	}
	for slot := range strings.SplitSeq(r.Slots, ",") {
		add(Counter, slot, r.Quantity)
	}
	add(Users, r.User, 1)
}

// tookAt reports whether the hold took its slots at a moment, and whether that is certain. before is
// the pass before that moment. It is empty for the first pass, which only finds counters that seem
// wrong. name is that of the record.
func (r *holdRecord) tookAt(name string, m readTime, before pass) (took, sure bool) {
	began := r.began()
	was, lived := before.live[name]
	switch {
	case lived && was == began && r.live():
		return true, true
	case began >= m.at:
		return false, began > m.at
	case r.live():
		return true, true
	case r.State != "confirmed":
		return r.Ended > m.at, r.Ended != m.at
	case before.live != nil && !lived && began < before.at, m.latest[name]:
		return false, true
	case r.Ended >= m.at || r.over > m.last: // it was claimed or settled later
		return true, true
	}
	return false, false
}

// pager reads a large resource page by page.
type pager struct {
	*inspector
	resource string
	records  bool     // all records are requested
	again    bool     // all differences except the counters are known
	setBack  bool     // Redis' clock was set back: the records do not determine what a counter was
	began    readTime // of the first page of counters
	before   pass     // over the records
	found    inspection
}

// large reads a resource page by page. It reads counters that seem wrong again and compares them
// with the records as of that moment.
func (l *inspector) large(ctx context.Context, resource string, records bool) (inspection, error) {
	p := &pager{inspector: l, resource: resource, records: records, found: inspection{resource: resource}}
	seem := make(counters)
	note := func(cs counters, _ []holdRecord) { maps.Copy(seem, cs) }
	for _, part := range []string{"counts", "users"} {
		if err := p.part(ctx, part, note); err != nil {
			return p.found, err
		}
		p.found.noCounts = p.found.noCounts || part == "counts" && len(seem) == 0
	}
	p.before.readTime = p.began
	if err := p.sum(ctx, seem, true); err != nil {
		return p.found, err
	}
	for _, part := range []string{"due", "departing", "tombstones"} {
		if err := p.part(ctx, part, func(counters, []holdRecord) {}); err != nil {
			return p.found, err
		}
	}
	p.records, p.again = false, true
	suspects := seem.wrong()
	for try := 0; try < sureMax && len(suspects) > 0 && p.comparable(); try++ {
		named, err := p.named(ctx, suspects)
		if err == nil {
			err = p.sum(ctx, named, false)
		}
		if err != nil {
			return p.found, err
		}
		suspects = p.compare(named)
	}
	p.found.unsure = p.setBack || len(suspects) > 0
	return p.found, nil
}

// comparable reports whether the records can be summed up.
func (p *pager) comparable() bool {
	return !p.found.lost && !p.setBack && !slices.ContainsFunc(p.found.differences, difference.unknowable)
}

// compare adds the counters that are wrong to the differences, and returns those that are
// uncertain.
func (p *pager) compare(cs counters) (unsure []counterName) {
	for _, name := range cs.wrong() {
		if c := cs[name]; c.unsure || p.setBack {
			unsure = append(unsure, name)
		} else {
			p.found.moved = p.found.moved || c.moved
			p.found.differences = append(p.found.differences, difference{name.kind, name.name, c.found, c.expected()})
		}
	}
	return unsure
}

// named reads some counters again.
func (p *pager) named(ctx context.Context, names []counterName) (found counters, err error) {
	found, p.began = make(counters), readTime{}
	for chunk := range slices.Chunk(names, namedMax) {
		args := make([]any, 0, 2*len(chunk))
		for _, n := range chunk {
			args = append(args, string(n.kind), n.name)
		}
		_, err := p.page(ctx, "named", "0", func(cs counters, _ []holdRecord) { maps.Copy(found, cs) }, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// sum adds what the records take to counters. With all, it also adds counters that were not found.
func (p *pager) sum(ctx context.Context, cs counters, all bool) error {
	seen, live := make(map[string]bool), make(map[string]int64) // pages of HSCAN may repeat a record
	err := p.part(ctx, "records", func(_ counters, records []holdRecord) {
		for i := range records {
			r := &records[i]
			name := r.name()
			if seen[name] {
				continue
			}
			seen[name] = true
			if r.live() {
				live[name] = r.began()
			}
			cs.add(r, p.before, all)
		}
		if p.records {
			p.found.records = append(p.found.records, records...)
		}
	})
	for name := range p.before.live {
		if !seen[name] { // its record was removed: a late payment was rejected
			for _, c := range cs {
				c.unsure = true
			}
			break
		}
	}
	p.before = pass{p.began, live}
	return err
}

// part reads all pages of a part of the resource.
func (p *pager) part(ctx context.Context, part string, take func(counters, []holdRecord)) (err error) {
	for cursor := "0"; !p.found.lost; {
		if cursor, err = p.page(ctx, part, cursor, take); err != nil || cursor == "0" {
			return err
		}
	}
	return nil
}

// page reads one page and returns the cursor of the next.
func (p *pager) page(
	ctx context.Context, part, cursor string, take func(counters, []holdRecord), args ...any,
) (next string, err error) {
	args = append([]any{part, cursor, pageSize, p.before.at, p.before.last, flag(p.records)}, args...)
	c := p.newCall(scriptPage, p.resource, args...)
	lua.Run(ctx, p.Redis, []*lua.Call{c})
	if c.Err == nil && c.Status == statusLost {
		p.found.lost = true
		return "0", nil
	}
	if err := c.Expect(6); err != nil {
		return "", err
	}
	w := &words{left: c.Reply}
	at := readTime{at: w.number()}
	next, at.last = w.text(), w.number()
	at.latest = w.set()
	counters, differences, records := w.counters(at), w.differences(), w.records()
	if w.err != nil {
		return "", fmt.Errorf("page of %s: %w", part, w.err)
	}
	p.setBack = p.setBack || at.at < p.found.now || slices.ContainsFunc(records,
		func(r holdRecord) bool { return max(r.Created, r.Ended) > at.at })
	p.found.now = at.at
	if p.began.at == 0 {
		p.began = at
	}
	if !p.again {
		p.found.differences = append(p.found.differences, differences...)
	}
	take(counters, records)
	return next, p.wait(ctx)
}
