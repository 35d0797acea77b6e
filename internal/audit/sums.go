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
// determine what a counter was when it was read. They leave open only what happened in the
// millisecond of the reading: the counters that it concerns are read again. After Redis' clock was
// set back the times of the records mean nothing. A record that began after its page was read, or a
// page that was read before the previous one, proves that. Then no counter is compared.
const (
	namedMax = 500 // counters that are read again in one step
	sureMax  = 5   // times that they are read again, when something happened in the millisecond of the reading

	latestMax = 1000 // tombstones of one millisecond that are returned by name: LATEST_MAX of page.lua
)

// counterName names a counter: the held quantity of a slot, or the number of a user's live holds.
type counterName struct{ what, name string }

// readTime is the moment at which counters were read.
type readTime struct {
	at     int64           // ms
	last   int64           // the highest time of a tombstone at that moment
	latest map[string]bool // the records whose tombstone had that time
}

// counter is a counter as it was read, and the sum of the records at that moment.
type counter struct {
	readTime
	found  string // its value; "-" when missing, "nonsense" when not a number
	sum    int64
	unsure bool // a hold that it counts changed in the millisecond of the reading
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
		return cmp.Or(strings.Compare(a.what, b.what), strings.Compare(a.name, b.name))
	})
	return names
}

// add adds what a hold took to its counters. With all, it also adds counters that were not found:
// they were missing at since.
func (cs counters) add(r *holdRecord, since readTime, all bool) {
	add := func(what, name string, quantity int64) {
		c := cs[counterName{what, name}]
		if c == nil && all {
			c = &counter{found: "-", readTime: since}
			cs[counterName{what, name}] = c
		}
		if c == nil {
			return
		}
		took, sure := r.tookAt(c.readTime)
		if took {
			c.sum += quantity
		}
		c.unsure = c.unsure || !sure
	}
	for slot := range strings.SplitSeq(r.slots, ",") {
		add(string(Counter), slot, r.quantity)
	}
	add(string(Users), r.user, 1)
}

// tookAt reports whether the hold took its slots at a moment, and whether that is certain. Only its
// tombstone states when a payment was settled. Tombstones are written in the order of their times,
// and those of the last millisecond are known by name.
func (r *holdRecord) tookAt(m readTime) (took, sure bool) {
	began := r.created
	if r.late {
		began = r.ended
	}
	switch {
	case began >= m.at:
		return false, began > m.at
	case r.live():
		return true, true
	case r.state != "confirmed":
		return r.ended > m.at, r.ended != m.at
	case r.ended >= m.at || !r.remembered: // it was claimed later, or is being settled
		return true, true
	}
	known := m.latest[r.name()]
	return r.over >= m.last && !known, r.over != m.last || known || len(m.latest) < latestMax
}

// pager reads a large resource page by page.
type pager struct {
	*inspector
	resource string
	records  bool     // all records are requested
	again    bool     // all differences except the counters are known
	setBack  bool     // Redis' clock was set back: the records do not determine what a counter was
	began    readTime // of the first page
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
	}
	if err := p.sum(ctx, seem, p.began, true); err != nil {
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
			err = p.sum(ctx, named, p.began, false)
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
			p.found.differences = append(p.found.differences, difference{name.what, name.name, c.found, c.expected()})
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
			args = append(args, n.what, n.name)
		}
		_, err := p.page(ctx, "named", "0", readTime{}, func(cs counters, _ []holdRecord) { maps.Copy(found, cs) }, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// sum adds what the records take to counters that were read since a moment. With all, it also adds
// counters that were not found.
func (p *pager) sum(ctx context.Context, cs counters, since readTime, all bool) error {
	type name struct {
		id   id
		late bool
	}
	seen := make(map[name]bool) // pages of HSCAN may repeat a record
	return p.partSince(ctx, "records", since, func(_ counters, records []holdRecord) {
		for i := range records {
			r := &records[i]
			if !seen[name{r.id, r.late}] {
				seen[name{r.id, r.late}] = true
				cs.add(r, since, all)
			}
		}
		if p.records {
			p.found.records = append(p.found.records, records...)
		}
	})
}

// part reads all pages of a part of the resource.
func (p *pager) part(ctx context.Context, part string, take func(counters, []holdRecord)) error {
	return p.partSince(ctx, part, readTime{}, take)
}

func (p *pager) partSince(ctx context.Context, part string, since readTime, take func(counters, []holdRecord)) (err error) {
	for cursor := "0"; !p.found.lost; {
		if cursor, err = p.page(ctx, part, cursor, since, take); err != nil || cursor == "0" {
			return err
		}
	}
	return nil
}

// page reads one page and returns the cursor of the next.
func (p *pager) page(
	ctx context.Context, part, cursor string, since readTime, take func(counters, []holdRecord), args ...any,
) (next string, err error) {
	args = append([]any{part, cursor, pageSize, since.at, since.last, flag(p.records)}, args...)
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
		func(r holdRecord) bool { return max(r.created, r.ended) > at.at })
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
