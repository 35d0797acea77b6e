package holds

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// readAge is the maximum age of a read of Postgres when place.lua decides on it.
const readAge = 2 * time.Second

// The neighbours that are read with the nights of a request.
const (
	neighbourNights  = 15   // additional nights to read before and after those of a request
	neighbourDaysMax = 400  // first to last night of a group for which neighbours are read
	neighboursMax    = 2000 // additional slots that one read may have before it adds no more
)

// readRows reads rev and then Postgres, in this order, for each group, and caches the rows.
func (w *work) readRows(ctx context.Context, groups []*group) error {
	s := w.service
	resources, slots := make([]string, len(groups)), make([][]string, len(groups))
	for i, g := range groups {
		resources[i], slots[i] = g.resource, g.names
	}
	period := s.rows.period()
	readings, err := s.readRevs(ctx, resources)
	if err != nil {
		return err
	}
	rows, err := s.inventory.InventoryRows(ctx, resources, s.withNeighbours(slots))
	if err != nil {
		return err
	}
	for i, g := range groups {
		if !s.dry && readings[i] != unreadRev {
			s.rows.put(period, w.epochName(g.resource), g.resource, readings[i], slots[i], rows[i])
		}
		g.read, g.rows = readings[i], selectRows(g.names, slots[i], rows[i])
	}
	return nil
}

// revReading is a value of rev and the time by Redis' clock at which it was read.
type revReading struct {
	rev string
	at  time.Time
}

// unreadRev makes place.lua refuse to decide on rows that were read with it.
var unreadRev = revReading{rev: "0", at: time.UnixMilli(0)}

// readRevs reads the clock and then the rev of each resource, in one round trip. In a cluster it reads the clock once for
// each partition, because the partitions may be on different servers. A partition of a cluster that cannot be read has
// unreadRev: then place.lua fails for the same reason, and the resources of other partitions are decided.
func (s *Service) readRevs(ctx context.Context, resources []string) ([]revReading, error) {
	_, cluster := s.redis.(*redis.ClusterClient)
	together := make(map[int][]int) // indices of resources, by partition in a cluster
	for i, resource := range resources {
		p := 0
		if cluster {
			p = record.Partition(resource)
		}
		together[p] = append(together[p], i)
	}
	calls, indices := make([]*lua.Call, 0, len(together)), make([][]int, 0, len(together))
	for _, its := range together {
		keys := make([]string, len(its))
		for j, i := range its {
			keys[j] = s.keys.Rev(resources[i])
		}
		calls, indices = append(calls, &lua.Call{Script: scriptRevs, Keys: keys}), append(indices, its)
	}
	lua.Run(ctx, s.redis, calls)
	readings := slices.Repeat([]revReading{unreadRev}, len(resources))
	for k, its := range indices {
		var ms int64
		err := calls[k].Expect(1 + len(its))
		if err == nil {
			ms, err = strconv.ParseInt(calls[k].Reply[0], 10, 64)
		}
		switch {
		case err != nil && !cluster:
			return nil, fmt.Errorf("read rev: %w", err)
		case err != nil:
			continue
		}
		for j, i := range its {
			readings[i] = revReading{calls[k].Reply[1+j], time.UnixMilli(ms)}
		}
	}
	return readings, nil
}

// withNeighbours replaces the slots of each resource by the slots to read. When they are nights, it
// adds some nights before and after them, because the next requests probably need these.
func (s *Service) withNeighbours(slots [][]string) [][]string {
	if s.dry {
		return slots
	}
	more := 0
	for i, names := range slots {
		first, err := time.Parse(DateFormat, names[0])
		last, err2 := time.Parse(DateFormat, names[len(names)-1])
		tooFar := last.Sub(first) > neighbourDaysMax*24*time.Hour
		if err != nil || err2 != nil || tooFar || more > neighboursMax {
			continue
		}
		var wide []string
		from, to := first.AddDate(0, 0, -neighbourNights), last.AddDate(0, 0, neighbourNights)
		for night := from; !night.After(to); night = night.AddDate(0, 0, 1) {
			wide = append(wide, night.Format(DateFormat))
		}
		// A slot between the first and the last night may have a name that is not a date.
		wide = slices.Compact(slices.Sorted(slices.Values(append(wide, names...))))
		more += len(wide) - len(names)
		slots[i] = wide
	}
	return slots
}

// selectRows returns the rows of names. slots are the sorted slots of rows and contain names.
func selectRows(names, slots []string, rows []InventoryRow) []InventoryRow {
	if len(names) == len(slots) {
		return rows
	}
	picked := make([]InventoryRow, len(names))
	for i, name := range names {
		at, _ := slices.BinarySearch(slots, name)
		picked[i] = rows[at]
	}
	return picked
}
