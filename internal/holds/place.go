package holds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/failpoint"
	"holdfast/internal/locking"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// QuantityMax is the maximum quantity of one request.
const QuantityMax = 1_000_000

// PlaceRequest requests a hold. The decoder has checked its form; Place validates its content.
type PlaceRequest struct {
	EventID    string    // the same at every delivery of the event
	StoredAt   time.Time // when JetStream stored the event
	Resource   string
	RequestKey string
	User       string
	Selection  SlotSelection
	Quantity   int64
	TTLSeconds *int64         // nil for the TTL of the policy
	Metadata   jsontext.Value // compact JSON; nil when the request has none
}

// placingKind is the kind of a placing. place.lua gets it as an argument.
type placingKind string

const (
	kindRequest placingKind = "request" // a request for a hold
	kindLate    placingKind = "late"    // a late payment that takes the slots of its hold again
)

// placing is a request or a late payment that is being decided. For a late payment, EventID is the
// payment, and place.lua ignores the fingerprint and the tail.
type placing struct {
	*PlaceRequest
	kind          placingKind
	index         int    // among the requests of the call
	late          string // UUID of the hold that was paid late; "" for a request
	names         []string
	ttl           time.Duration
	fingerprint   string
	selectionJSON string
}

// answerFunc receives the answer of place.lua to a request and the tail of the hold's record, or
// the error for which there is no answer.
type answerFunc func(p *placing, answer, tail string, err error)

// group contains requests of one resource that are decided together, under one lock on the sorted
// union of their slots.
type group struct {
	resource string
	requests []*placing
	names    []string
	lock     *locking.Lock
}

// Place decides requests. It yields the index and the result of each request once, as soon as the
// result is known, in no particular order. The work starts when the caller reads the sequence, and
// goes on to its end when the caller stops reading.
//
// Place decides the requests for one resource in the given order, with one lock, one read of
// Postgres and one call of place.lua for all of them. The resources of one call share the round
// trips. A group whose lock another owner holds waits for it up to the policy's LockWait, while the
// others continue. After that its results are ErrBusy.
func (s *Service) Place(ctx context.Context, requests []PlaceRequest) iter.Seq2[int, Result] {
	return func(yield func(int, Result) bool) {
		reading := true
		s.placeAll(ctx, requests, func(i int, r Result) { reading = reading && yield(i, r) })
	}
}

// placeAll decides requests and calls answer once for each, with its index and result.
func (s *Service) placeAll(ctx context.Context, requests []PlaceRequest, answer func(int, Result)) {
	w, err := s.beginWork()
	if err != nil {
		for i := range requests {
			answer(i, Result{Err: err})
		}
		return
	}
	waiting := make([]*placing, 0, len(requests))
	for i := range requests {
		if err := w.pausedErr(requests[i].Resource); err != nil {
			answer(i, Result{Err: fmt.Errorf("place hold on %s: %w", requests[i].Resource, err)})
			continue
		}
		p, err := w.validate(&requests[i], i)
		if err != nil {
			answer(i, rejectInvalid(&requests[i], err))
			continue
		}
		waiting = append(waiting, p)
	}
	w.place(ctx, waiting, func(p *placing, reply, tail string, err error) {
		var outcome Outcome
		if err == nil {
			outcome, err = p.outcome(reply, tail)
		}
		answer(p.index, Result{outcome, err})
	})
}

// place decides requests and calls done once for each.
func (w *work) place(ctx context.Context, waiting []*placing, done answerFunc) {
	waiting = w.placeInOneStep(ctx, waiting, done)
	if len(waiting) == 0 {
		return
	}
	acquisition, err := w.service.locker.NewAcquisition("", w.policy.LockWait)
	if err != nil {
		fail(waiting, err, done)
		return
	}
	defer acquisition.Close(ctx)
	for len(waiting) > 0 {
		groups, later := groupByResource(waiting)
		before := len(waiting)
		locked, blocked, err := w.service.lockGroups(ctx, acquisition, groups, done)
		if err != nil {
			fail(waiting, err, done)
			return
		}
		failpoint.Hit("place.locked")
		retry := w.decideGroups(ctx, locked, done)

		waiting = append(retry, later...)
		for _, g := range blocked {
			waiting = append(waiting, g.requests...)
		}
		slices.SortFunc(waiting, func(a, b *placing) int { return a.index - b.index })
		if len(waiting) < before {
			continue // at least one request was decided
		}
		// Other owners hold the locks, or have taken them over.
		if err := acquisition.Wait(ctx); errors.Is(err, locking.ErrTimeout) {
			fail(waiting, fmt.Errorf("%w: %w", ErrBusy, err), done)
			return
		} else if err != nil {
			fail(waiting, err, done)
			return
		}
	}
}

func fail(requests []*placing, err error, done answerFunc) {
	for _, p := range requests {
		done(p, "", "", fmt.Errorf("place hold on %s: %w", p.Resource, err))
	}
}

// validate checks the content of a request. It returns an *InvalidError when it is not valid.
func (w *work) validate(r *PlaceRequest, index int) (*placing, error) {
	policy := w.policyAt(r.StoredAt)
	today := r.StoredAt.UTC().Truncate(24 * time.Hour)
	names, err := r.Selection.names(nightsWindow{
		max:      policy.NightsMax,
		earliest: today.AddDate(0, 0, -1), // one day of grace accepts today's date of every time zone
		latest:   today.AddDate(0, 0, policy.HorizonDays),
	})
	if err != nil {
		return nil, err
	}
	if r.Quantity < 1 || r.Quantity > QuantityMax {
		return nil, invalid("quantity", "must be 1 to %d", QuantityMax)
	}
	ttl, written := policy.HoldTTL, "-"
	if r.TTLSeconds != nil {
		if ttl, err = policy.ttl(*r.TTLSeconds); err != nil {
			return nil, err
		}
		written = strconv.FormatInt(*r.TTLSeconds, 10)
	}
	selection, err := r.Selection.Compact()
	if err != nil {
		return nil, err
	}
	content := strings.Join([]string{r.User, joinSlots(names), strconv.FormatInt(r.Quantity, 10), written}, " ")
	sum := sha256.Sum256([]byte(content))
	return &placing{
		PlaceRequest: r, kind: kindRequest, index: index, names: names, ttl: ttl, selectionJSON: selection,
		fingerprint: hex.EncodeToString(sum[:16]),
	}, nil
}

// groupByResource makes one group for each resource. A request that would give its group too many
// slots or requests for one script is returned in later, with all requests that follow it on the
// same resource.
func groupByResource(requests []*placing) (groups []*group, later []*placing) {
	type draft struct {
		*group
		union map[string]struct{}
		full  bool
	}
	drafts := make(map[string]*draft)
	for _, p := range requests {
		d := drafts[p.Resource]
		if d == nil {
			d = &draft{group: &group{resource: p.Resource}, union: make(map[string]struct{})}
			drafts[p.Resource] = d
			groups = append(groups, d.group)
		}
		tooMany := len(d.requests) == groupRequestsMax ||
			len(d.union)+len(p.names) > groupSlotsMax && len(d.requests) > 0
		if d.full || tooMany {
			d.full = true
			later = append(later, p)
			continue
		}
		d.requests = append(d.requests, p)
		for _, name := range p.names {
			d.union[name] = struct{}{}
		}
	}
	for _, d := range drafts {
		d.names = slices.Sorted(maps.Keys(d.union))
	}
	return groups, later
}

// lockGroups tries to lock every group once, all in one round trip. It calls done for the requests of a group
// whose attempt alone has failed.
func (s *Service) lockGroups(
	ctx context.Context, a *locking.Acquisition, groups []*group, done answerFunc,
) (locked, blocked []*group, err error) {
	sets := make([]locking.KeySet, len(groups))
	for i, g := range groups {
		sets[i] = lockKeys(s.keys, g.resource, g.names)
	}
	locks, err := a.TryLock(ctx, sets)
	if err != nil {
		return nil, nil, err
	}
	for i, g := range groups {
		switch g.lock = locks[i]; {
		case g.lock.Err != nil:
			fail(g.requests, g.lock.Err, done)
		case g.lock.Held:
			locked = append(locked, g)
		default:
			blocked = append(blocked, g)
		}
	}
	return locked, blocked, nil
}

func locksOf(groups []*group) []*locking.Lock {
	locks := make([]*locking.Lock, len(groups))
	for i, g := range groups {
		locks[i] = g.lock
	}
	return locks
}

// unlockGroups releases the locks of groups that were not decided, even after ctx is done.
func (s *Service) unlockGroups(ctx context.Context, groups []*group) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	// An error is ignored: a lock that is not released ends with its lease.
	_ = s.locker.Unlock(ctx, locksOf(groups)...)
}

// decideGroups decides locked groups. It returns the requests of the groups that were not decided
// because they lost their lock or an optimistic conflict.
func (w *work) decideGroups(ctx context.Context, groups []*group, done answerFunc) (retry []*placing) {
	if len(groups) == 0 {
		return nil
	}
	defer func() { w.service.unlockGroups(ctx, groups) }() // the undecided groups, also after a panic
	lockedCtx, stop := w.service.locker.WithContext(ctx, locksOf(groups)...)
	defer stop()
	for round := 0; len(groups) > 0; round++ {
		calls, err := w.prepare(lockedCtx, groups)
		if err != nil {
			lost := errors.Is(context.Cause(lockedCtx), locking.ErrLost)
			for _, g := range groups {
				if lost {
					retry = append(retry, g.requests...)
				} else {
					fail(g.requests, err, done)
				}
			}
			return retry
		}
		failpoint.Hit("place.read")
		w.service.locker.Exec(ctx, locksOf(groups), calls)
		failpoint.Hit("place.decided")

		var rereadGroups, undecided []*group
		for i, g := range groups {
			c := calls[i]
			w.classifyReply(c)
			if c.Err != nil || c.Status != "ok" {
				w.service.rows.drop(g.resource)
			}
			switch {
			case c.Err == nil && (c.Status == locking.StatusLockLost || c.Status == locking.StatusConflict):
				undecided = append(undecided, g)
				retry = append(retry, g.requests...)
			case c.Err == nil && (c.Status == "more" || c.Status == "stale" && round < staleRoundsMax):
				rereadGroups = append(rereadGroups, g)
			case c.Err == nil && c.Status == "stale":
				undecided = append(undecided, g)
				fail(g.requests, fmt.Errorf("inventory keeps changing: %w", ErrBusy), done)
			case !g.deliverReply(c, done):
				undecided = append(undecided, g)
			}
		}
		w.service.unlockGroups(ctx, undecided)
		groups = rereadGroups
	}
	return retry
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

// prepare reads rev and Postgres and returns a call of place.lua for each locked group. ctx ends when
// one of the groups loses its lock.
func (w *work) prepare(ctx context.Context, groups []*group) ([]*lua.Call, error) {
	for _, g := range groups {
		if !w.service.dry {
			break
		}
		// A dry script cannot expire due holds before it decides.
		if _, err := w.heldCounts(ctx, g.resource, g.names); err != nil {
			return nil, err
		}
	}
	readings, inventoryRows, err := w.readRows(ctx, groups)
	if err != nil {
		return nil, err
	}
	calls := make([]*lua.Call, len(groups))
	for i, g := range groups {
		// The validity counts from now, and the age from the read of the clock, which was before.
		age := min(readAge, g.lock.Validity())
		if calls[i], err = w.placeCall(g, g.lock.Token, readings[i], age, inventoryRows[i]); err != nil {
			return nil, err
		}
	}
	return calls, nil
}

// readRows reads rev and then Postgres, in this order, for the names of each group, and caches the rows.
func (w *work) readRows(ctx context.Context, groups []*group) ([]revReading, [][]InventoryRow, error) {
	resources, slots := make([]string, len(groups)), make([][]string, len(groups))
	for i, g := range groups {
		resources[i], slots[i] = g.resource, g.names
	}
	period := w.service.rows.period()
	readings, err := w.service.readRevs(ctx, resources)
	if err != nil {
		return nil, nil, err
	}
	rows, err := w.service.inventory.InventoryRows(ctx, resources, w.service.withNeighbours(slots))
	if err != nil {
		return nil, nil, err
	}
	for i, g := range groups {
		if !w.service.dry && readings[i] != unreadRev {
			w.service.rows.put(period, w.epochName(g.resource), g.resource, readings[i].rev, slots[i], rows[i])
		}
		rows[i] = selectRows(g.names, slots[i], rows[i])
	}
	return readings, rows, nil
}

// revReading is a value of rev and the time by Redis' clock at which it was read.
type revReading struct {
	rev string
	at  time.Time
}

// unreadRev makes place.lua refuse to decide on rows that were read with it.
var unreadRev = revReading{rev: "0", at: time.UnixMilli(0)}

// readRevs reads the clock and then the rev of each resource, in one round trip.
func (s *Service) readRevs(ctx context.Context, resources []string) ([]revReading, error) {
	if _, cluster := s.redis.(*redis.ClusterClient); cluster {
		return s.readRevsInCluster(ctx, resources), nil
	}
	keys := make([]string, len(resources))
	for i, resource := range resources {
		keys[i] = s.keys.Rev(resource)
	}
	pipe := s.redis.Pipeline()
	clock, revs := pipe.Time(ctx), pipe.MGet(ctx, keys...)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read rev: %w", err)
	}
	readings := make([]revReading, len(resources))
	for i := range resources {
		rev, known := revs.Val()[i].(string)
		if !known {
			rev = "0"
		}
		readings[i] = revReading{rev, clock.Val()}
	}
	return readings, nil
}

// readRevsInCluster is readRevs for a cluster. It reads the clock once for each partition, because the
// partitions may be on different servers. A partition that cannot be read has unreadRev: then place.lua
// fails for the same reason, and the resources of other partitions are decided.
func (s *Service) readRevsInCluster(ctx context.Context, resources []string) []revReading {
	byPartition := make(map[int][]int)
	for i, resource := range resources {
		p := record.Partition(resource)
		byPartition[p] = append(byPartition[p], i)
	}
	calls, indices := make([]*lua.Call, 0, len(byPartition)), make([][]int, 0, len(byPartition))
	for _, its := range byPartition {
		keys := make([]string, len(its))
		for j, i := range its {
			keys[j] = s.keys.Rev(resources[i])
		}
		calls, indices = append(calls, &lua.Call{Script: scriptRevs, Keys: keys}), append(indices, its)
	}
	lua.Run(ctx, s.redis, calls)
	readings := slices.Repeat([]revReading{unreadRev}, len(resources))
	for k, its := range indices {
		if calls[k].Expect(1+len(its)) != nil {
			continue
		}
		ms, err := strconv.ParseInt(calls[k].Reply[0], 10, 64)
		for j, i := range its {
			if err == nil {
				readings[i] = revReading{calls[k].Reply[1+j], time.UnixMilli(ms)}
			}
		}
	}
	return readings
}

// placeCall returns a call of place.lua for a group. The header of the script lists the arguments.
func (w *work) placeCall(
	g *group, token string, read revReading, age time.Duration, inventoryRows []InventoryRow,
) (*lua.Call, error) {
	n := len(g.names)
	var inventory []byte
	for i, row := range inventoryRows {
		if i > 0 {
			inventory = append(inventory, ',')
		}
		inventory = strconv.AppendInt(append(strconv.AppendInt(inventory, row.Capacity, 10), ':'), row.Reserved, 10)
	}
	k := len(g.requests)
	args := make([]any, 0, 10+3*n+11*k)
	args = append(args, read.rev, w.requestKeyTTLMS(), w.policy.HoldsPerUser, sweepMax,
		read.at.UnixMilli(), age.Milliseconds(), token, inventory, n, k)
	slots, request := make([]string, k), w.service.keys.Prefix(g.resource)+"request:"
	for i, p := range g.requests {
		slots[i] = joinSlots(p.names)
		args = append(args, request+p.RequestKey)
	}
	for _, name := range g.names {
		args = append(args, name)
	}
	for i, p := range g.requests {
		args = append(args, p.User, record.IndexField(p.User, slots[i]))
	}
	for _, row := range inventoryRows {
		if row.Known {
			args = append(args, row.Capacity-row.Reserved)
		} else {
			args = append(args, "-")
		}
	}
	for i, p := range g.requests {
		args = append(args, string(p.kind))
		id := p.late
		if p.kind == kindRequest {
			fresh, err := NewHoldID(p.Resource)
			if err != nil {
				return nil, err
			}
			id = fresh.UUID
		}
		args = append(args, id, p.EventID, p.fingerprint, p.Quantity, p.ttl.Milliseconds(), slotRuns(g.names, p.names),
			record.Tail{User: p.User, RequestKey: p.RequestKey, Slots: slots[i], Selection: p.selectionJSON, Metadata: string(p.Metadata)}.String())
	}
	return w.newCall(scriptPlace, g.resource, args...), nil
}

// slotRuns returns the positions of sorted names in the sorted union, counted from 1, as runs:
// 1:3,7:7.
func slotRuns(union, names []string) []byte {
	var runs []byte
	for i := 0; i < len(names); {
		from, _ := slices.BinarySearch(union, names[i])
		to := from
		for i++; i < len(names) && to+1 < len(union) && union[to+1] == names[i]; i++ {
			to++
		}
		if len(runs) > 0 {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(append(strconv.AppendInt(runs, int64(from+1), 10), ':'), int64(to+1), 10)
	}
	return runs
}
