package audit

import (
	"context"
	"maps"
	"slices"

	"holdfast/internal/holds"
)

// group is a part of the resources with all data about them. The largest group determines the
// memory that an audit needs.
type group struct {
	*auditor
	number, of int

	in, out, dlq *stream
	floors       floors
	floorsBefore floors // of the previous reading

	events            map[id]*event
	unprocessable     []unprocessable
	pending           map[string][]*event    // events that may not be answered yet, by the key of aboutKey or aboutHold
	deadLetters       map[uint64]*deadLetter // by the inbound sequence
	strange           []uint64               // dead letters that do not name their event
	orphans           []orphan
	slowest           int64 // the longest time from an event to its outcome, ms
	unreadable        []uint64
	misplaced         []uint64
	former            int             // outcomes that were published before the schema was created
	formerHolds       map[id]struct{} // the holds of former outcomes: Redis may have been rebuilt with them
	formerDeadLetters int             // dead letters of events of a deleted stream of the same name
	resources         map[string]*resource

	// The outcomes up to this sequence were published before Redis and Postgres were read.
	snapshotSeq uint64
	// Workers know that Postgres has what follows from the outcomes up to this sequence. When they start they put
	// back what it lacks of those after it.
	comparedSeq uint64

	waiting      Pending
	inconclusive inconclusive
	// Sequences of inbound events without an outcome or dead letter: of those that can be
	// processed, and of those that cannot.
	unanswered, withoutDeadLetter []uint64
}

// isMine reports whether a resource belongs to the group.
func (g *group) isMine(resource string) bool {
	if g.options.ResourceID != "" {
		return resource == g.options.ResourceID
	}
	return g.of == 1 || sum64(resource)%uint64(g.of) == uint64(g.number)
}

func (g *group) resource(name string) *resource {
	r := g.resources[name]
	if r == nil {
		r = &resource{name: name, holds: make(map[id]*hold), slotOf: make(map[string]int32), setOf: make(map[string]int32)}
		g.resources[name] = r
	}
	return r
}

// audit reads the resources of the group twice and returns what both readings have found. The
// second reading covers only the resources for which the first has findings.
//
// The order of reading keeps work in progress from looking like a fault. What was published before
// Redis and Postgres are read must be in them. What is in them must be published by the end, or its
// event is not acknowledged yet.
func (g *group) audit(ctx context.Context, keyed map[string][]difference) ([]*Finding, error) {
	if err := g.read(ctx); err != nil {
		return nil, err
	}
	first, err := g.inspect(ctx, keyed, nil)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	second, err := g.inspect(ctx, keyed, resourcesOf(first))
	return both(first, second), err
}

// read reads the floors of the consumers, then the inbound events, then the outcomes.
func (g *group) read(ctx context.Context) (err error) {
	g.floorsBefore = g.floors
	if g.floors, err = readFloors(ctx, g.in); err != nil {
		return err
	}
	if g.floorsBefore == nil {
		g.floorsBefore = g.floors
	}
	// Outcomes come after their events, so they are counted first and read last.
	for _, s := range []*stream{g.out, g.dlq, g.in} {
		if err := s.refresh(ctx); err != nil {
			return err
		}
	}
	inbound, outbound := "", ""
	if only := g.options.ResourceID; only != "" {
		inbound, outbound = g.subjects.In("*.*", only), g.subjects.Out("*.*", only)
	}
	for _, step := range []struct {
		s      *stream
		filter string
		note   func(message)
		// Shares of the time that a group takes, estimated.
		from, share float64
	}{{g.dlq, "", g.noteDeadLetter, 0, 0.1}, {g.in, inbound, g.noteInbound, 0.1, 0.4},
		{g.out, outbound, g.noteOutcome, 0.5, 0.3}} {
		err := step.s.catchUp(ctx, step.filter, func(m message) {
			if m.seq%progressEvery == 0 {
				g.show(step.s.name, step.from+step.share*float64(m.seq)/float64(step.s.state.LastSeq))
			}
			step.note(m)
		})
		if err != nil {
			return err
		}
	}
	g.adopt()
	for _, r := range g.resources {
		g.applyCancelRequests(r, maxTime)
	}
	return nil
}

const (
	maxTime       = 1 << 62
	progressEvery = 1000 // messages
	redisShare    = 0.9
)

// show reports the progress of the group.
func (g *group) show(what string, share float64) {
	g.options.Progress(what, (float64(g.number)+share)/float64(g.of))
}

// inspect reads Redis and Postgres, then the rest of the streams, and compares them. keyed has the
// differences among keys that were found by their names. only names the resources that are read
// again; nil means all.
func (g *group) inspect(ctx context.Context, keyed map[string][]difference, only []string) ([]*Finding, error) {
	g.snapshotSeq = g.out.read
	again := only != nil
	if !again {
		for name := range keyed {
			if g.isMine(name) && holds.ResourcePattern.MatchString(name) {
				g.resource(name)
			}
		}
	}
	counted := g.report.Stats
	if err := g.readPostgres(ctx, only); err != nil {
		return nil, err
	}
	if again {
		g.report.Stats = counted
	}
	names := only
	if !again {
		names = slices.Sorted(maps.Keys(g.resources))
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return g.resources[name] == nil })
	err := g.inspector.inspect(ctx, names, true, func(l inspection) {
		g.show("redis", redisShare)
		g.resources[l.resource].setInspection(l)
		if !again {
			g.report.Stats.Resources++
			g.report.Stats.Records += len(l.records)
		}
	})
	if err != nil {
		return nil, err
	}
	for name, differences := range keyed {
		r := g.resources[name]
		if r == nil || again && !slices.Contains(only, name) || len(differences) == 0 {
			continue
		}
		if again {
			if differences, err = g.recheckKeys(ctx, name, differences); err != nil {
				return nil, err
			}
		}
		r.differences = append(r.differences, differences...)
	}
	if err := g.read(ctx); err != nil {
		return nil, err
	}
	return g.check(), nil
}

// recheckKeys checks the keys of some differences again.
func (g *group) recheckKeys(ctx context.Context, resource string, differences []difference) ([]difference, error) {
	keys := make([]string, len(differences))
	for i, d := range differences {
		keys[i] = d.name
	}
	found, err := g.strays(ctx, map[string][]string{resource: keys})
	return found[resource], err
}

// setInspection stores what was found in Redis. It leaves out stuck claims: the streams show more
// reliably whether the event of a claim is lost.
func (r *resource) setInspection(l inspection) {
	r.inspected, r.lost, r.unsure, r.now = !l.lost, l.lost, l.unsure, l.now
	r.differences = slices.DeleteFunc(l.differences, func(d difference) bool { return d.kind == ClaimStuck })
	for _, h := range r.holds {
		h.rec, h.late = nil, nil
	}
	for i := range l.records {
		rec := &l.records[i]
		if h := r.hold(rec.id); rec.late {
			h.late = rec
		} else {
			h.rec = rec
		}
	}
}

// check compares everything that was read and returns all differences.
func (g *group) check() (found []*Finding) {
	g.waiting, g.unanswered, g.withoutDeadLetter = Pending{}, nil, nil
	g.inconclusive = inconclusive{former: g.former, eventsDropped: g.formerDeadLetters}
	found = append(g.checkEvents(), g.checkDeadLetters()...)
	for _, r := range g.resources {
		if r.lost {
			g.inconclusive[unread]++
		}
		if r.unsure {
			g.inconclusive[uncounted]++
		}
		its := r.check(g)
		for _, f := range g.reserved[r.name] {
			r.findOrigin(f)
			if freesSlots(f.difference) {
				r.checkLostSales(g, f)
			}
		}
		doubtful := slices.ContainsFunc(its, (*Finding).doubtsRecords)
		for _, d := range r.differences {
			f := g.keys.describe(r.name, d)
			r.findOrigin(f)
			if doubtful && f.Automatic && freesSlots(d) {
				f.Automatic = false
				f.Remedy = "The holds themselves are lost or changed. Run worker rebuild, which repairs this too. " +
					"Repairing it alone would sell slots that were granted to others. " + notSafe
			}
			its = append(its, f)
		}
		found = append(found, its...)
	}
	return found
}
