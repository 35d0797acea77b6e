package recovery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/failpoint"
	"holdfast/internal/record"
)

// The bounds of what a rebuild has in memory. It has about ten cuts and as many pages.
const (
	cutBytes         = 1 << 20 // see Supervisor.CutBytes
	foldPageMax      = 1000    // folds that are read together
	rebuildGCPercent = 300     // of what is in use, the garbage that may lie beside it
)

// limitGarbage lowers the process' GC percent to rebuildGCPercent; it keeps a lower one that the operator has set. The
// function that it returns restores it.
func limitGarbage() (end func()) {
	before := debug.SetGCPercent(rebuildGCPercent)
	if before < rebuildGCPercent { // also -1: only at a limit of the operator's
		debug.SetGCPercent(before)
	}
	return func() { debug.SetGCPercent(before) }
}

// foldOutcomes removes the old keys. Then it reads the outcomes until no worker publishes under the epoch before, and
// adds them to the folds and the answers in Redis, cut by cut. It returns the sequence of the last outcome.
func (a *rebuild) foldOutcomes(ctx context.Context) (last uint64, err error) {
	a.reportProgress("removing old keys")
	if err := a.wipe(ctx); err != nil {
		return 0, err
	}
	a.folders = newSenders(ctx, 1, func(ctx context.Context, cuts []map[string]*projectedResource) error {
		for _, cut := range cuts {
			if err := a.writeBatch(ctx, a.projection.foldPlans(cut)); err != nil {
				return err
			}
		}
		failpoint.Hit("rebuild.folding")
		return nil
	})
	if last, err = a.readUntilDrained(a.folders.ctx, 0); err == nil {
		a.fold(0)
	}
	if failed := a.folders.wait(); failed != nil { // a cut that is not written has ended the reading
		err = failed
	}
	a.folders = nil
	failpoint.Hit("rebuild.folded")
	return last, err
}

// fold adds to the folds what was applied since the last cut, if it has at least min bytes. A cut that was not written ends
// the context of folders.
func (a *rebuild) fold(min int) {
	if cut := a.projection.cut(min); cut != nil {
		_ = a.folders.add(cut, 1) // wait returns its error, too
	}
}

// foldDecisions reads from Postgres which of the payments that are stored after a sequence were decided, and adds those that
// have become reservations to the folds. It adds the other pending events to those of their resources.
func (a *rebuild) foldDecisions(ctx context.Context, after uint64, pending map[string]pendingEvents) (last uint64, err error) {
	a.reportProgress("reading pending payments")
	return a.eachUnacknowledged(ctx, a.partitions, after, func(some pendingEvents) error {
		var waiting pendingEvents
		decisions, err := a.Inventory.FindDecisions(ctx, some.payments)
		if err != nil {
			return err
		}
		var decided []Reservation
		for i, payment := range some.payments {
			switch d := decisions[i]; {
			case d.DecidedAt.IsZero():
				waiting.payments = append(waiting.payments, payment)
			case d.Confirmed: // its hold may have a published end, when the payment came late
				decided = append(decided, Reservation{payment.Hold, payment.PaymentID, d.DecidedAt, d.Late})
			}
		}
		if waiting.cancellations, err = a.dropRefused(ctx, some.cancellations); err != nil {
			return err
		}
		waiting.addTo(pending)
		return a.foldReservations(ctx, decided)
	})
}

// foldReservations adds reservations to the folds of their holds.
func (a *rebuild) foldReservations(ctx context.Context, found []Reservation) error {
	plans := make([]*plan, len(found))
	for i, r := range found {
		var f fold
		f.reserve(r)
		plans[i] = &plan{resource: r.Hold.Resource, folds: []string{r.Hold.UUID, f.String()}}
	}
	return a.writeBatch(ctx, plans)
}

// dropRefused returns the cancellations for which no rejection is stored.
func (a *rebuild) dropRefused(ctx context.Context, some []pendingCancellation) (left []pendingCancellation, err error) {
	pipe := a.client.Pipeline()
	found := make([]*redis.SliceCmd, len(some))
	for i, c := range some {
		found[i] = pipe.HMGet(ctx, a.keys.Fold(c.request.Resource), refusedPrefix+c.request.EventID)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, readError(err)
	}
	for i, c := range some {
		if found[i].Val()[0] == nil {
			left = append(left, c)
		}
	}
	return left, nil
}

// foldedResource is a resource that has folds.
type foldedResource struct {
	id     string
	folds  int
	grants grants // on all its holds; nil before they are read
}

// eachFolded calls each, from several goroutines, for some resources of partitions at a time that have few folds
// together, or for one that has many.
func (a *rebuild) eachFolded(
	ctx context.Context, partitions record.PartitionSet, each func(context.Context, []foldedResource) error,
) error {
	readers := newSenders(ctx, foldPageMax, each)
	for p := range partitions.Each() {
		if err := a.scanFolds(ctx, p, readers); err != nil {
			return errors.Join(err, readers.wait())
		}
	}
	return readers.wait()
}

// scanFolds passes on the resources of a partition that have folds.
func (a *rebuild) scanFolds(ctx context.Context, p int, to *senders[foldedResource]) error {
	return eachPage(func(cursor uint64) *redis.ScanCmd {
		return a.client.ZScan(ctx, a.keys.Folds(p), cursor, "", scanMax)
	}, func(pairs []string) error {
		pipe := a.client.Pipeline()
		sizes := make([]*redis.IntCmd, 0, len(pairs)/2)
		for pair := range slices.Chunk(pairs, 2) { // a resource and 0
			sizes = append(sizes, pipe.HLen(ctx, a.keys.Fold(pair[0])))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return readError(err)
		}
		for i, size := range sizes {
			one := foldedResource{id: pairs[2*i], folds: int(size.Val())}
			if err := to.add(one, one.folds); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachPage calls each for the pages of a SCAN, HSCAN or ZSCAN. Concurrent changes may be missing.
func eachPage(scan func(cursor uint64) *redis.ScanCmd, each func(page []string) error) error {
	for cursor := uint64(0); ; {
		page, next, err := scan(cursor).Result()
		if err != nil {
			return readError(err)
		}
		if err := each(page); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// readFolds calls each for the folded holds of resources, page by page, with what Postgres has of those without a
// published end. No fold is added or removed meanwhile.
func (a *rebuild) readFolds(ctx context.Context, resources []foldedResource, each func(*Projection) error) error {
	small, pipe := NewProjection(a.projection.policies), a.client.Pipeline()
	var large []foldedResource
	found := make(map[string]*redis.MapStringStringCmd)
	for _, r := range resources {
		if r.folds > foldPageMax {
			large = append(large, r)
		} else {
			found[r.id] = pipe.HGetAll(ctx, a.keys.Fold(r.id))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return readError(err)
	}
	for id, folds := range found {
		for uuid, lines := range folds.Val() {
			if err := small.addFolds(id, uuid, lines); err != nil {
				return err
			}
		}
	}
	if err := a.EpochStore.Reservations(ctx, small.OpenHolds(), small.ApplyReservation); err != nil {
		return err
	}
	small.addGrants()
	if err := each(small); err != nil {
		return err
	}
	for _, r := range large {
		var err error
		if r.grants, err = a.foldReservationsOf(ctx, r); err != nil {
			return err
		}
		if err := a.scanFold(ctx, r, each); err != nil {
			return err
		}
	}
	return nil
}

// foldReservationsOf adds to the folds of a large resource what Postgres has of its holds without a published end. It
// returns the grants on the resource, which concern all its pages: also a late payment has taken slots.
func (a *rebuild) foldReservationsOf(ctx context.Context, r foldedResource) (all grants, err error) {
	err = a.scanFold(ctx, r, func(page *Projection) error {
		var found []Reservation
		if err := a.EpochStore.Reservations(ctx, page.OpenHolds(), func(one Reservation) {
			found = append(found, one)
			page.ApplyReservation(one)
		}); err != nil {
			return err
		}
		page.addGrants()
		for _, one := range page.resource(r.id).grants {
			all.add(one)
		}
		return a.foldReservations(ctx, found)
	})
	return all, err
}

// scanFold calls each for the folded holds of a large resource, page by page.
func (a *rebuild) scanFold(ctx context.Context, r foldedResource, each func(*Projection) error) error {
	return eachPage(func(cursor uint64) *redis.ScanCmd {
		return a.client.HScan(ctx, a.keys.Fold(r.id), cursor, "", foldPageMax)
	}, func(pairs []string) error {
		page := NewProjection(a.projection.policies)
		page.resource(r.id).grants = slices.Clone(r.grants)
		for pair := range slices.Chunk(pairs, 2) {
			if err := page.addFolds(r.id, pair[0], pair[1]); err != nil {
				return err
			}
		}
		return each(page)
	})
}

// writePartitions writes the planned data of all folded resources of partitions, verifies it and removes the folds.
func (a *rebuild) writePartitions(
	ctx context.Context, partitions record.PartitionSet, now int64, pending map[string]pendingEvents,
) (r RebuildResult, err error) {
	var mu sync.Mutex
	err = a.eachFolded(ctx, partitions, func(ctx context.Context, resources []foldedResource) error {
		written, err := a.writeResources(ctx, now, resources, pending)
		if err != nil {
			return err
		}
		mu.Lock()
		for _, one := range written {
			r.count(one)
		}
		progress := fmt.Sprintf("writing holds, %d live in %v, %d left", r.Live, partitions, a.partitions.Len())
		mu.Unlock()
		a.reportProgress(progress)
		failpoint.Hit("rebuild.writing")
		if err := a.verifyBatch(ctx, written); err != nil {
			return err
		}
		return a.removeFolds(ctx, resources)
	})
	if err != nil {
		return r, err
	}
	var listed []string
	for p := range partitions.Each() {
		listed = append(listed, a.keys.Folds(p))
		r.Answers += int(a.answers[p].Load())
	}
	err = a.send(ctx, a.wipeCalls(listed))
	failpoint.Hit("rebuild.verified")
	return r, err
}

// writeResources writes the planned data of some resources, page by page. It returns what it has written.
func (a *rebuild) writeResources(
	ctx context.Context, now int64, resources []foldedResource, pending map[string]pendingEvents,
) (written []writtenResource, err error) {
	at := make(map[string]int, len(resources)) // in written
	err = a.readFolds(ctx, resources, func(page *Projection) error {
		for _, r := range resources {
			page.addPending(pending[r.id])
		}
		page.endForgotten(a.since.UnixMilli())
		plans := page.plans(now)
		for _, one := range plans {
			i, known := at[one.resource]
			if !known {
				i = len(written)
				at[one.resource], written = i, append(written, writtenResource{id: one.resource})
			}
			written[i].add(one)
		}
		return a.writeBatch(ctx, plans)
	})
	return written, err
}

// writtenResource counts what was planned and written of a resource.
type writtenResource struct {
	id            string
	records, live int
	answers       int // those to requests are counted when they are written
}

func (w *writtenResource) add(one *plan) {
	w.records += len(one.records) / recordValues
	w.live += one.live
	w.answers += one.answers - len(one.requests)/3
}

// removeFolds removes the folds of resources that are written.
func (a *rebuild) removeFolds(ctx context.Context, resources []foldedResource) error {
	keys := make([]string, len(resources))
	for i, r := range resources {
		keys[i] = a.keys.Fold(r.id)
	}
	return a.send(ctx, a.wipeCalls(keys))
}
