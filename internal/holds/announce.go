package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/failpoint"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

const (
	// announceQueue is the number of batches that wait for their announcement. It bounds the memory of a worker
	// while announcements fail: 16 times 512 holds with 4 KiB of metadata each take 80 MiB.
	announceQueue = 16
	announceMax   = 512             // hold.expired events published at a time: those of one batch
	announceLease = 5 * time.Second // time after which expire.lua hands out an unannounced hold again
)

// expiredBatch contains the hold.expired outcomes of holds that a round of a sweep has expired, at most announceMax.
type expiredBatch struct {
	work     *work
	outcomes []Outcome
	trigger  string // of the sweep
	// takenAt is when the reply of expire.lua had arrived. A time from before the call would let Announce drop every
	// reply that takes longer than the lease. The lease has begun earlier, by the time of the reply: so much before its
	// end here, another worker may announce the same holds. Their events have the same ids, and each is counted once.
	takenAt time.Time
}

// announceLimit returns how many holds each of some calls of expire.lua may hand out, so that all of them find room
// in the queue. It is 0 when there is not enough room. Only Sweep adds to the queue.
func (e *Expirer) announceLimit(calls int) int {
	return min(sweepMax, (cap(e.toAnnounce)-len(e.toAnnounce))*announceMax/calls)
}

// Announce announces the holds that Sweep has expired and then forgets them, until ctx is done.
// expire.lua hands out a hold again, after announceLease, if it was not announced. So Announce drops what has
// waited for longer, else the same holds would wait many times in an outage. It logs an outage when it begins
// and when it ends: an announcement succeeds, and for a while none has failed. That others succeed says nothing of a
// hold that was refused, which is tried again later, perhaps by another worker. While one is refused again and again, an
// outage is logged when no other hold was announced for a while.
func (e *Expirer) Announce(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-e.toAnnounce:
			e.announceBatch(ctx, d)
		}
	}
}

func (e *Expirer) announceBatch(ctx context.Context, d expiredBatch) {
	if time.Since(d.takenAt) > announceLease {
		return
	}
	forgotten, err := e.announce(ctx, d.work, d.outcomes)
	e.service.metrics.announced(d.outcomes, forgotten, d.trigger, err)
	if err == nil || len(forgotten) > 0 {
		e.succeededAt = time.Now()
	}
	switch {
	case err == nil && !e.failedAt.IsZero() && time.Since(e.failedAt) > e.recoveredAfter:
		e.failedAt = time.Time{}
		e.log.Info().Msg("announcing expired holds recovered")
	case err == nil, ctx.Err() != nil, errors.Is(err, ErrDataLost):
	default:
		if e.failedAt.IsZero() || e.succeededAt.After(e.loggedAt) && time.Since(e.succeededAt) > e.recoveredAfter {
			e.loggedAt = time.Now()
			e.log.Error().Err(err).Int("holds", len(d.outcomes)).Msg("announcing expired holds failed, will retry")
		}
		e.failedAt = time.Now()
	}
}

// announce announces holds, and returns those that it has made forgotten: others were announced before, by this
// worker or another one. A hold whose hold.expired is not stored keeps no other one from being forgotten.
func (e *Expirer) announce(ctx context.Context, w *work, batch []Outcome) (forgotten []Outcome, err error) {
	done := w.service.Publishing()
	valid, lost, err := w.verified(ctx, batch)
	var stored []Outcome
	sent := err == nil && len(valid) > 0
	if sent {
		stored, err = e.announcer.Announce(ctx, valid)
	}
	done(!sent || err == nil)
	if len(stored) == 0 {
		return nil, cmp.Or(err, lost)
	}
	failpoint.Hit("expire.announced")
	byResource := make(map[string][]any)
	byID := make(map[string]Outcome, len(stored))
	for _, o := range stored {
		byResource[o.Resource] = append(byResource[o.Resource], o.Hold.UUID)
		byID[o.Hold.UUID] = o
	}
	calls := make([]*lua.Call, 0, len(byResource))
	for resource, ids := range byResource {
		calls = append(calls, w.newCall(scriptForget, resource, append([]any{w.requestKeyTTLMS()}, ids...)...))
	}
	w.run(ctx, calls...)
	failpoint.Hit("expire.forgotten")
	for _, c := range calls {
		if failed := c.Expect(0); failed != nil {
			err = cmp.Or(err, fmt.Errorf("forget expired holds: %w", failed))
			continue
		}
		for _, id := range c.Reply {
			forgotten = append(forgotten, byID[id])
		}
	}
	return forgotten, cmp.Or(err, lost)
}

// verified returns those of the outcomes that may be published now, and as lost why the others may
// not: the epochs of their partitions have ended.
func (w *work) verified(ctx context.Context, batch []Outcome) (valid []Outcome, lost, err error) {
	var checked, ended record.PartitionSet
	valid = make([]Outcome, 0, len(batch))
	for _, o := range batch {
		p := record.Partition(o.Resource)
		if !checked.Has(p) {
			checked.Add(p)
			switch err := w.service.Verify(ctx, EpochID(p, w.epochs.Partition(p).Name)); {
			case errors.Is(err, ErrDataLost):
				ended.Add(p)
				lost = err
			case err != nil:
				return nil, nil, err
			}
		}
		if !ended.Has(p) {
			valid = append(valid, o)
		}
	}
	return valid, lost, nil
}
