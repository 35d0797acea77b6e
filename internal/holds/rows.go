package holds

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast/internal/failpoint"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
)

// The bounds of the cache of inventory rows.
const (
	neighbourNights  = 15               // additional nights to read before and after those of a request
	neighbourDaysMax = 400              // first to last night of a group for which neighbours are read
	neighboursMax    = 2000             // additional slots that one read may have before it adds no more
	cachedSlotsMax   = 1_000_000        // about 64 bytes each
	cachedAgeMax     = 10 * time.Minute // far shorter than the TTL of rev
)

// rowCache keeps inventory rows, so that a request for cached rows is decided without a read of
// Postgres.
//
// A cached row is used only when it cannot have changed unnoticed:
//
//   - place.lua compares rev. Every change of reserved bumps rev. So does every change of capacity,
//     as soon as one worker has received Postgres' notification of it.
//   - Postgres delivers notifications in the order of its commits. The worker sends itself a
//     notification and notes the time by Redis' clock. When the notification arrives, all changes
//     that were committed before that time have bumped rev. place.lua refuses when that time is
//     more than readAge ago.
//   - Rows that were read before the worker began to listen are dropped, also when it begins again.
//
// It is safe for concurrent use.
type rowCache struct {
	mu        sync.Mutex
	listening uint64 // number of times that the worker began to listen

	// syncedAt is a time by Redis' clock. The worker has received all changes that were committed
	// before it. It is zero while the worker does not listen.
	syncedAt time.Time

	resources map[string]*cachedRows
	slots     int // of all resources
}

// cachedRows contains rows of one resource, with the epoch and the rev under which they were read.
type cachedRows struct {
	epoch, rev string
	readAt     time.Time
	slots      []string // sorted
	rows       []InventoryRow
}

func newRowCache() *rowCache { return &rowCache{resources: make(map[string]*cachedRows)} }

// synced records that every change committed before a time by Redis' clock has bumped rev.
func (c *rowCache) synced(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncedAt = at
}

// syncLost drops all rows, because changes may have been missed until now.
func (c *rowCache) syncLost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listening++
	c.syncedAt = time.Time{}
	clear(c.resources)
	c.slots = 0
}

// drop drops the rows of a resource.
func (c *rowCache) drop(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(resource)
}

func (c *rowCache) remove(resource string) {
	if cached := c.resources[resource]; cached != nil {
		c.slots -= len(cached.slots)
		delete(c.resources, resource)
	}
}

// period identifies the time since the worker began to listen. Rows that were read in one period
// are not kept in another.
func (c *rowCache) period() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening
}

// get returns the rows of sorted slots, the rev under which they were read, and the time by Redis'
// clock up to which all changes are known. found is false unless all rows are cached.
func (c *rowCache) get(epoch, resource string, slots []string) (read revReading, rows []InventoryRow, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := c.resources[resource]
	if cached == nil || c.syncedAt.IsZero() {
		return revReading{}, nil, false
	}
	if cached.epoch != epoch || time.Since(cached.readAt) > cachedAgeMax {
		c.remove(resource)
		return revReading{}, nil, false
	}
	rows = make([]InventoryRow, len(slots))
	from := 0
	for i, slot := range slots {
		at, has := slices.BinarySearch(cached.slots[from:], slot)
		if !has {
			return revReading{}, nil, false
		}
		from += at
		rows[i] = cached.rows[from]
	}
	return revReading{cached.rev, c.syncedAt}, rows, true
}

// put caches rows that were read from Postgres in a period, after rev was read.
func (c *rowCache) put(period uint64, epoch, resource, rev string, slots []string, rows []InventoryRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if period != c.listening || c.syncedAt.IsZero() || len(slots) > cachedSlotsMax {
		return
	}
	old := c.resources[resource]
	if old == nil || old.epoch != epoch || old.rev != rev {
		c.remove(resource)
		c.resources[resource] = &cachedRows{epoch, rev, time.Now(), slices.Clone(slots), slices.Clone(rows)}
		c.slots += len(slots)
	} else {
		c.slots -= len(old.slots)
		old.merge(slots, rows)
		c.slots += len(old.slots)
	}
	for other := range c.resources { // in no particular order
		if c.slots <= cachedSlotsMax {
			break
		}
		c.remove(other)
	}
}

// merge adds rows of the same rev. It keeps the age of the older ones.
func (c *cachedRows) merge(slots []string, rows []InventoryRow) {
	for i, slot := range slots {
		at, has := slices.BinarySearch(c.slots, slot)
		if has {
			continue
		}
		c.slots, c.rows = slices.Insert(c.slots, at, slot), slices.Insert(c.rows, at, rows[i])
	}
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

// InventorySynced records that BumpRevisions was called for every change of inventory committed
// before a time by Redis' clock.
func (s *Service) InventorySynced(at Time) { s.rows.synced(at.Time) }

// InventorySyncLost records that changes of inventory may have been missed until now.
func (s *Service) InventorySyncLost() { s.rows.syncLost() }

// placeInOneStep decides each group in one step: place.lua takes the locks, decides, and releases the
// locks. Groups whose inventory rows are cached come first. The rows of the others are read without a
// lock: rev shows the script whether they have changed since. It returns the requests that it has not
// decided, because rows have changed, another owner holds the lock of a slot, or too many holds are
// due.
func (w *work) placeInOneStep(ctx context.Context, waiting []*placing, done answerFunc) []*placing {
	token, can := w.service.locker.OneStepToken()
	if w.service.dry || !can {
		return waiting
	}
	groups, left := groupByResource(waiting)
	var cached, unread []*group
	var readings []revReading
	var rows [][]InventoryRow
	for _, g := range groups {
		if read, its, found := w.service.rows.get(w.epochName(g.resource), g.resource, g.names); found {
			cached, readings, rows = append(cached, g), append(readings, read), append(rows, its)
		} else {
			unread = append(unread, g)
		}
	}
	left = append(left, w.decideInOneStep(ctx, token, cached, readings, rows, done)...)
	if len(unread) > 0 {
		readings, rows, err := w.readRows(ctx, unread)
		failpoint.Hit("place.read")
		if err != nil {
			for _, g := range unread {
				fail(g.requests, err, done)
			}
		} else {
			left = append(left, w.decideInOneStep(ctx, token, unread, readings, rows, done)...)
		}
	}
	slices.SortFunc(left, func(a, b *placing) int { return a.index - b.index })
	return left
}

// decideInOneStep runs place.lua for groups whose rows were read, in one round trip. It returns the
// requests that were not decided.
func (w *work) decideInOneStep(
	ctx context.Context, token string, groups []*group, readings []revReading, rows [][]InventoryRow, done answerFunc,
) (left []*placing) {
	var ready []*group
	var calls []*lua.Call
	var sets []locking.KeySet
	for i, g := range groups {
		call, err := w.placeCall(g, token, readings[i], readAge, rows[i])
		if err != nil {
			fail(g.requests, err, done)
			continue
		}
		ready, calls, sets = append(ready, g), append(calls, call), append(sets, lockKeys(w.service.keys, g.resource, g.names))
	}
	if len(ready) == 0 {
		return nil
	}
	w.service.locker.ExecInOneStep(ctx, sets, calls)
	failpoint.Hit("place.decided")
	for i, g := range ready {
		c := calls[i]
		w.classifyReply(c)
		undecided := c.Err == nil && (c.Status == "stale" || c.Status == "more" || c.Status == locking.StatusBlocked)
		if c.Err != nil || c.Status == "stale" {
			w.service.rows.drop(g.resource)
		}
		if undecided {
			left = append(left, g.requests...)
			continue
		}
		g.deliverReply(c, done)
	}
	return left
}
