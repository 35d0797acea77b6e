package holds

import (
	"sync"
	"time"
)

const (
	cachedRowsMax  = 1_000_000        // about 80 bytes each
	cachedOverhead = 6                // of a resource besides its rows, counted in rows
	cachedAgeMax   = 10 * time.Minute // far shorter than the TTL of rev
)

// rowCache keeps inventory rows, so that a request for cached rows is decided without a read of
// Postgres.
//
// A cached row is used only when it cannot have changed unnoticed:
//
//   - place.lua compares rev. Every change of reserved by an event bumps rev. So does every change of
//     capacity, and every repair of reserved, as soon as one worker has received Postgres' notification
//     of it.
//   - Postgres delivers notifications in the order of its commits. The worker sends itself a
//     notification and notes the time by Redis' clock. When the notification arrives, all changes
//     that were committed before that time have bumped rev. place.lua refuses when that time is
//     more than readAge ago. There is no such time while the triggers that notify are not ENABLE
//     ALWAYS.
//   - Rows that were read before the worker began to listen are dropped, also when it begins again.
//   - rev ends an hour after the last change, by Redis' clock, and then has the value again that it
//     had before the first one. Rows are used for far less than that by the same clock: the worker's
//     own stands still while its machine sleeps. When Redis' clock is set back, all rows are dropped:
//     rev may have ended while the clock was ahead.
//
// It is safe for concurrent use.
type rowCache struct {
	mu    sync.Mutex
	drops uint64 // number of times that all rows were dropped

	// syncedAt is a time by Redis' clock. The worker has received all changes that were committed
	// before it. It is zero while the worker does not listen.
	syncedAt time.Time

	resources map[string]*cachedRows
	size      int // of all resources, as size counts it
}

// cachedRows contains rows of one resource, with the epoch and the rev under which they were read.
type cachedRows struct {
	epoch  string
	rev    revReading
	readAt time.Time               // by the worker's clock; of the first of the rows
	rows   map[string]InventoryRow // by slot
}

// size is the memory of a resource, counted in rows.
func (c *cachedRows) size() int { return len(c.rows) + cachedOverhead }

func newRowCache() *rowCache { return &rowCache{resources: make(map[string]*cachedRows)} }

// synced records that every change committed before a time by Redis' clock has bumped rev.
func (c *rowCache) synced(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A step of less than this, as between the clocks of a cluster's servers, cannot have ended a rev that
	// rows in the cache were read before.
	if c.syncedAt.Sub(at) > cachedAgeMax {
		c.clear()
	}
	c.syncedAt = at
}

// syncLost drops all rows, because changes may have been missed until now.
func (c *rowCache) syncLost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncedAt = time.Time{}
	c.clear()
}

// clear drops all rows, also those that are being read.
func (c *rowCache) clear() {
	c.drops++
	clear(c.resources)
	c.size = 0
}

func (c *rowCache) drop(resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(resource)
}

func (c *rowCache) remove(resource string) {
	if cached := c.resources[resource]; cached != nil {
		c.size -= cached.size()
		delete(c.resources, resource)
	}
}

// period identifies the time since all rows were dropped. Rows that were read in one period are not
// kept in another.
func (c *rowCache) period() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drops
}

// get returns the rows of slots, the rev under which they were read, and the time by Redis'
// clock up to which all changes are known. found is false unless all rows are cached.
func (c *rowCache) get(epoch, resource string, slots []string) (read revReading, rows []InventoryRow, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := c.resources[resource]
	if cached == nil || c.syncedAt.IsZero() {
		return revReading{}, nil, false
	}
	age := max(time.Since(cached.readAt), c.syncedAt.Sub(cached.rev.at))
	if cached.epoch != epoch || age > cachedAgeMax {
		c.remove(resource)
		return revReading{}, nil, false
	}
	rows = make([]InventoryRow, len(slots))
	for i, slot := range slots {
		if rows[i], found = cached.rows[slot]; !found {
			return revReading{}, nil, false
		}
	}
	return revReading{cached.rev.rev, c.syncedAt}, rows, true
}

// put caches rows that were read from Postgres in a period, after rev was read.
func (c *rowCache) put(
	period uint64, epoch, resource string, rev revReading, slots []string, rows []InventoryRow,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if period != c.drops || c.syncedAt.IsZero() || len(slots) > cachedRowsMax {
		return
	}
	cached := c.resources[resource]
	if cached == nil || cached.epoch != epoch || cached.rev.rev != rev.rev {
		c.remove(resource)
		cached = &cachedRows{epoch, rev, time.Now(), make(map[string]InventoryRow, len(slots))}
		c.resources[resource] = cached
		c.size += cachedOverhead
	}
	before := len(cached.rows)
	for i, slot := range slots {
		cached.rows[slot] = rows[i]
	}
	c.size += len(cached.rows) - before
	for other := range c.resources { // in no particular order
		if c.size <= cachedRowsMax {
			break
		}
		c.remove(other)
	}
}

// InventorySynced records that BumpRevisions was called for every change of inventory committed
// before a time by Redis' clock.
func (s *Service) InventorySynced(at Time) { s.rows.synced(at.Time) }

// InventorySyncLost records that changes of inventory may have been missed until now.
func (s *Service) InventorySyncLost() { s.rows.syncLost() }
