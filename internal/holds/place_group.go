package holds

import (
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
	of, full := make(map[string]*group), make(map[string]bool)
	for _, p := range requests {
		g := of[p.Resource]
		if g == nil {
			g = &group{resource: p.Resource, names: slices.Clip(p.names)} // an insertion copies them
			of[p.Resource], groups = g, append(groups, g)
		}
		tooMany := len(g.requests) == GroupRequestsMax ||
			!slices.Equal(p.names, g.names) && len(g.names)+len(p.names) > groupSlotsMax
		if tooMany || full[p.Resource] {
			full[p.Resource], later = true, append(later, p)
			continue
		}
		g.requests = append(g.requests, p)
		for _, name := range p.names {
			if at, has := slices.BinarySearch(g.names, name); !has {
				g.names = slices.Insert(g.names, at, name)
			}
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
