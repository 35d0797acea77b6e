package holds

import (
	"maps"
	"slices"

	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// The bounds of a group. place.lua writes 2 values for each slot and 4 for each request in one
// command, unpack fails near 8,000 values, and other clients wait while it runs.
const (
	groupSlotsMax    = 1000
	GroupRequestsMax = 256 // that one call of place.lua decides for a resource
)

// group contains requests of one resource that are decided together, under one lock on the sorted
// union of their slots.
type group struct {
	resource string
	requests []*placing
	names    []string       // sorted
	read     revReading     // rev, read before the rows
	rows     []InventoryRow // of names, in Postgres
	lock     *locking.Lock  // nil when it is decided in one step
}

// groupByResource makes one group for each resource. A request that would give its group too many
// slots or requests for one script is returned in later, with all requests that follow it on the
// same resource.
func groupByResource(requests []*placing) (groups []*group, later []*placing) {
	type draft struct {
		*group
		union map[string]struct{} // of the names, nil while all requests have the same
		full  bool
	}
	drafts := make(map[string]*draft)
	for _, p := range requests {
		d := drafts[p.Resource]
		if d == nil {
			d = &draft{group: &group{resource: p.Resource, names: p.names}}
			drafts[p.Resource] = d
			groups = append(groups, d.group)
		}
		same := d.union == nil && slices.Equal(p.names, d.names)
		tooMany := len(d.requests) == GroupRequestsMax ||
			!same && max(len(d.union), len(d.names))+len(p.names) > groupSlotsMax
		if d.full || tooMany {
			d.full = true
			later = append(later, p)
			continue
		}
		d.requests = append(d.requests, p)
		if same {
			continue
		}
		names := p.names
		if d.union == nil {
			d.union, names = make(map[string]struct{}), slices.Concat(d.names, names)
		}
		for _, name := range names {
			d.union[name] = struct{}{}
		}
	}
	for _, d := range drafts {
		if d.union != nil {
			d.names = slices.Sorted(maps.Keys(d.union))
		}
	}
	return groups, later
}

// sortByIndex restores the order in which the requests were given.
func sortByIndex(requests []*placing) {
	slices.SortFunc(requests, func(a, b *placing) int { return a.index - b.index })
}

// deliverReply calls done with the reply of place.lua to each request of the group. It reports
// whether they were decided.
func (g *group) deliverReply(c *lua.Call, done answerFunc) bool {
	if c.Expect(2*len(g.requests)) != nil {
		fail(g.requests, c.Err, done)
		return false
	}
	for j, p := range g.requests {
		done(p, c.Reply[2*j], c.Reply[1+2*j], nil)
	}
	return true
}
